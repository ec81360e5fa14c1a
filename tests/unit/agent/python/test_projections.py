"""Finding q, k, v and o weights in the attention modules that models use."""

import pytest
import torch
import torch.nn as nn
from trimtab._hooks.projections import Shape, find_projections

HEADS, SIZE, WIDTH = 4, 8, 32
FULL = Shape(HEADS, HEADS, SIZE)
GROUPED = Shape(HEADS, 2, SIZE)


def linear(out, columns=WIDTH):
    return nn.Linear(columns, out, bias=False)


def build(**children):
    module = nn.Module()
    for name, child in children.items():
        module.add_module(name, child)
    return module


def by_kind(modules, shape):
    projections, notes = find_projections(modules, shape)
    return {p.which: p for p in projections}, notes


def check_rows(found, expected):
    assert {which: (p.row_begin, p.rows, p.heads) for which, p in found.items()} == expected


@pytest.mark.parametrize(
    "names",
    [
        ("q_proj", "k_proj", "v_proj", "o_proj"),
        ("query", "key", "value", "out_proj"),
        ("wq", "wk", "wv", "wo"),
        ("to_q", "to_k", "to_v", "to_out"),
        ("q_lin", "k_lin", "v_lin", "out_lin"),
    ],
)
def test_separate_linears(names):
    module = build(**{name: linear(WIDTH) for name in names})
    found, notes = by_kind([module], FULL)
    check_rows(found, {which: (0, WIDTH, HEADS) for which in "qkvo"})
    for which, name in zip("qkvo", names):
        assert found[which].weight.data_ptr() == getattr(module, name).weight.data_ptr()
    assert notes == []


def test_grouped_queries():
    module = build(q_proj=linear(WIDTH), k_proj=linear(16), v_proj=linear(16), o_proj=linear(WIDTH))
    found, _ = by_kind([module], GROUPED)
    check_rows(found, {"q": (0, 32, 4), "k": (0, 16, 2), "v": (0, 16, 2), "o": (0, 32, 4)})


@pytest.mark.parametrize("name", ["c_attn", "qkv", "Wqkv", "in_proj", "qkv_proj", "to_qkv"])
def test_fused(name):
    module = build(**{name: linear(3 * WIDTH), "c_proj": linear(WIDTH)})
    found, notes = by_kind([module], FULL)
    check_rows(found, {"q": (0, 32, 4), "k": (32, 32, 4), "v": (64, 32, 4), "o": (0, 32, 4)})
    assert notes == []


def test_fused_with_grouped_queries():
    found, _ = by_kind([build(qkv_proj=linear(32 + 2 * 16), o_proj=linear(WIDTH))], GROUPED)
    check_rows(found, {"q": (0, 32, 4), "k": (32, 16, 2), "v": (48, 16, 2), "o": (0, 32, 4)})


def test_gpt2_keeps_its_weights_transposed():
    from transformers.pytorch_utils import Conv1D

    module = build(c_attn=Conv1D(3 * WIDTH, WIDTH), c_proj=Conv1D(WIDTH, WIDTH))
    found, _ = by_kind([module], FULL)
    assert tuple(found["q"].weight.shape) == (3 * WIDTH, WIDTH)
    assert torch.equal(found["q"].weight, module.c_attn.weight.t())
    assert found["q"].weight.data_ptr() == module.c_attn.weight.data_ptr()
    check_rows(found, {"q": (0, 32, 4), "k": (32, 32, 4), "v": (64, 32, 4), "o": (0, 32, 4)})


def test_multihead_attention_of_pytorch():
    found, _ = by_kind([nn.MultiheadAttention(WIDTH, HEADS)], FULL)
    check_rows(found, {"q": (0, 32, 4), "k": (32, 32, 4), "v": (64, 32, 4), "o": (0, 32, 4)})


def test_output_may_lie_one_module_further_out():
    inner = build(query=linear(WIDTH), key=linear(WIDTH), value=linear(WIDTH))
    outer = build(self=inner, output=build(dense=linear(WIDTH)))
    found, _ = by_kind([inner, outer], FULL)
    assert found["o"].weight.data_ptr() == outer.output.dense.weight.data_ptr()


def test_the_block_beyond_a_bare_attention_core_is_searched():
    core = nn.Module()
    found, _ = by_kind(
        [
            core,
            build(core=core, q_proj=linear(WIDTH), k_proj=linear(WIDTH), v_proj=linear(WIDTH), o_proj=linear(WIDTH)),
        ],
        FULL,
    )
    assert sorted(found) == ["k", "o", "q", "v"]


@pytest.mark.parametrize("name", ["query_key_value", "linear_qkv"])
def test_interleaved_rows_are_left_out_and_named(name):
    found, notes = by_kind([build(**{name: linear(3 * WIDTH)})], FULL)
    assert found == {}
    assert name in notes[0] and "order of rows" in notes[0]


def test_a_shape_that_contradicts_the_call_is_left_out_and_named():
    found, notes = by_kind([build(c_attn=linear(3 * WIDTH + 8))], FULL)
    assert found == {}
    assert "104 rows" in notes[0]
    found, notes = by_kind([build(q_proj=linear(WIDTH), k_proj=linear(8), v_proj=linear(WIDTH))], FULL)
    assert sorted(found) == ["q", "v"]
    assert "k_proj" in notes[0]


def test_norms_and_other_weights_are_not_taken():
    module = build(
        q_proj=linear(WIDTH), k_proj=linear(WIDTH), v_proj=linear(WIDTH), q_norm=nn.LayerNorm(SIZE), gate=linear(WIDTH)
    )
    found, notes = by_kind([module], FULL)
    assert sorted(found) == ["k", "q", "v"] and notes == []


def test_integer_and_parametrized_weights_are_named():
    quantized = linear(WIDTH)
    quantized.weight = nn.Parameter(torch.zeros(WIDTH, WIDTH, dtype=torch.int8), requires_grad=False)
    parametrized = nn.utils.parametrizations.weight_norm(linear(WIDTH))
    found, notes = by_kind([build(q_proj=quantized, k_proj=parametrized, v_proj=linear(WIDTH))], FULL)
    assert "q" not in found and "k" not in found
    assert any("int8" in note for note in notes) and any("parametrized" in note for note in notes)


def test_sharded_weights_are_named():
    empty = linear(WIDTH)
    empty.weight = nn.Parameter(torch.empty(0))
    found, notes = by_kind([build(q_proj=empty, k_proj=linear(WIDTH), v_proj=linear(WIDTH))], FULL)
    assert "q" not in found
    assert any("q_proj: sharded" in note for note in notes)


def test_nothing_in_the_mlp_is_mistaken_for_the_output():
    inner = build(qkv=linear(3 * WIDTH))
    outer = build(attn=inner, mlp=build(c_proj=linear(WIDTH)), c_fc=linear(4 * WIDTH), c_proj=linear(WIDTH, 4 * WIDTH))
    found, _ = by_kind([inner, outer], FULL)
    assert "o" not in found
