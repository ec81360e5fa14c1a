"""Observe and native modes leave every bit of the job as it is."""

import warnings

import pytest
import torch
import torch.nn.functional as F

import models


def gradients(q, k, v, **arguments):
    q, k, v = (t.detach().requires_grad_() for t in (q, k, v))
    out = F.scaled_dot_product_attention(q, k, v, **arguments)
    upstream = torch.linspace(-1, 1, out.numel()).view(out.shape).to(out.dtype)
    return (out, *torch.autograd.grad(out, (q, k, v), upstream))


def case(dtype, heads=4, kv_heads=4, queries=16, keys=16, seed=1):
    generator = torch.Generator().manual_seed(seed)
    shape = lambda h, n: torch.randn(2, h, n, 8, generator=generator).to(dtype)
    return shape(heads, queries), shape(kv_heads, keys), shape(kv_heads, keys)


CASES = {
    "causal": (dict(), dict(is_causal=True)),
    "full": (dict(), dict()),
    "scale": (dict(), dict(scale=0.3)),
    "gqa": (dict(kv_heads=2), dict(enable_gqa=True)),
    "cross": (dict(queries=5, keys=19), dict()),
    "bool mask": (dict(), dict(attn_mask=torch.ones(16, 16, dtype=torch.bool).tril(-1))),
    "float mask": (dict(), dict(attn_mask=torch.linspace(-3, 0, 256).view(16, 16))),
    "head mask": (dict(), dict(attn_mask=torch.linspace(-3, 0, 4 * 256).view(1, 4, 16, 16))),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("name", CASES)
def test_calls_are_bitwise_equal_and_measured(shim, name, dtype):
    shapes, arguments = CASES[name]
    if "attn_mask" in arguments and arguments["attn_mask"].is_floating_point():
        arguments = {**arguments, "attn_mask": arguments["attn_mask"].to(dtype)}
    inputs = case(dtype, **shapes)
    plain = gradients(*inputs, **arguments)
    shim.start()
    hooked = gradients(*inputs, **arguments)
    for expected, got in zip(plain, hooked):
        assert torch.equal(expected, got)
        assert expected.stride() == got.stride() and expected.dtype == got.dtype
    shim.ops.step_boundary("test")
    (step,) = shim.steps()
    assert step["attention_calls"] == 1 and step["attention_calls_passed"] == 0
    assert step["max_attention_logit"].shape == (1, 4)
    assert (step["attention_rows"] + step["attention_trivial_rows"] + step["attention_empty_rows"] > 0).all()
    assert shim.coverage()["errors"] == []


def test_strided_inputs_are_bitwise_equal(shim):
    packed = torch.randn(2, 16, 3, 4, 8, generator=torch.Generator().manual_seed(3))
    for views in (
        [t.transpose(1, 2) for t in packed.unbind(2)],
        [t.transpose(1, 2).contiguous().transpose(2, 3).contiguous().transpose(2, 3) for t in packed.unbind(2)],
        [t.transpose(1, 2)[:, :1].expand(-1, 4, -1, -1) for t in packed.unbind(2)],
    ):
        plain = gradients(*views)
        shim.start()
        for expected, got in zip(plain, gradients(*views)):
            assert torch.equal(expected, got) and expected.stride() == got.stride()
        assert shim.coverage()["errors"] == [] and shim.coverage()["calls_recomputed"] == 0
        shim.stop()


@pytest.mark.parametrize("mode", ["observe", "native"])
def test_training_is_bitwise_equal(shim, mode):
    plain = models.train(models.Model(), 20)
    shim.start(mode=mode)
    assert models.train(models.Model(), 20, shim=shim) == plain
    assert len(shim.steps()) == 20
    shim.stop()
    assert models.train(models.Model(), 20) == plain


def test_native_mode_is_not_measured(shim):
    shim.start(mode="native")
    models.train(models.Model(), 2, shim=shim)
    assert shim.status()["engaged"] is False
    assert shim.coverage()["calls_hooked"] == 0
    assert all("max_attention_logit" not in step and step["attention_calls"] == 0 for step in shim.steps())


def test_stop_brings_the_original_kernel_back(library, shim):
    op = "aten::_scaled_dot_product_flash_attention_for_cpu"
    before = torch._C._dispatch_dump(op)
    shim.start()
    assert torch._C._dispatch_dump(op) != before
    shim.stop()
    assert torch._C._dispatch_dump(op) == before
    assert shim.status() == {"running": False}


def test_registration_does_not_warn(shim, capfd):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        shim.start()
    captured = capfd.readouterr()
    assert "Overriding" not in captured.err + captured.out


def test_results_do_not_depend_on_threads(shim):
    records = []
    for threads in (1, 4):
        before = torch.get_num_threads()
        torch.set_num_threads(threads)
        try:
            shim.start(emulate_storage="e5m2", mode="stabilized")
            losses = models.train(models.Model(), 5, shim=shim)
            steps = shim.steps()
            shim.stop()
            shim.ring().unlink()
        finally:
            torch.set_num_threads(before)
        records.append((losses, steps))
    assert records[0][0] == records[1][0]
    for one, many in zip(records[0][1], records[1][1], strict=True):
        for metric in ("max_attention_logit", "attention_entropy", "delta_residual_sum", "p_one_count"):
            assert torch.equal(one[metric], many[metric])
