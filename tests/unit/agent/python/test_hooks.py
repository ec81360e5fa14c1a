"""The Python hooks with the real hook library in this process: what reaches the ring, and that all can be undone."""

import copy
import io
import pickle

import pytest
import torch
import trimtab
from hook_models import CONTEXT, HEADS, WIDTH, Model, tokens, train


@pytest.fixture
def rings(tmp_path):
    return tmp_path / "rings"


@pytest.fixture
def attached(shim, rings):
    """attached(**options): attaches this process, every step sampled; detaches at the end."""

    def attach(**options):
        defaults = {"run": "unit", "ring_dir": str(rings), "sample_every": 1, "overhead_budget": 1.0}
        assert trimtab.attach(**{**defaults, **options})

    yield attach
    trimtab.detach()


@pytest.fixture
def finish(read_rings, rings):
    """Detaches and returns the only ring."""

    def read():
        trimtab.detach()
        (ring,) = read_rings(rings)
        return ring

    return read


def test_loss_norm_and_rate_are_the_jobs_own(attached, finish):
    attached()
    torch.manual_seed(1)
    rates = []

    def schedule(step, optimizer):
        optimizer.param_groups[0]["lr"] = 1e-3 / (step + 1)
        rates.append(1e-3 / (step + 1))

    losses, norms = train(Model(), 6, before_step=schedule)
    ring = finish()
    assert ring.values("loss") == pytest.approx(losses, rel=1e-6)
    assert ring.values("grad_norm") == pytest.approx(norms, rel=1e-6)
    assert ring.values("learning_rate") == pytest.approx(rates, rel=1e-6)
    assert [step for step, _ in ring.series("loss")] == list(range(ring.steps[0]["step"], ring.steps[0]["step"] + 6))
    assert ring.coverage.get("errors", []) == []


def hand_made_step(model, rate=1e-2):
    """A step that no hook sees the end of: two backwards, parameters changed by hand."""
    losses = []
    for micro in range(2):
        loss = model(tokens(micro)) / 2
        loss.backward()
        losses.append(loss.item() * 2)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter -= rate * parameter.grad
            parameter.grad = None
    return sum(losses) / 2


def test_steps_by_the_loops_own_word(attached, finish):
    attached()
    model = Model()
    losses = []
    for step in range(5):
        losses.append(hand_made_step(model))
        trimtab.step(loss=torch.tensor(losses[-1]), grad_norm=1.0 + step, learning_rate=None if step == 3 else 1e-2)
    ring = finish()
    first = ring.steps[0]["step"]
    assert [step for step, _ in ring.series("loss")] == list(range(first, first + 5))
    assert ring.values("loss") == pytest.approx(losses, rel=1e-6)
    assert ring.values("grad_norm") == pytest.approx([1, 2, 3, 4, 5])
    assert len(ring.values("learning_rate")) == 4
    rows = [sum(map(sum, cells)) for cells in ring.values("attention_rows")]
    assert rows == [rows[0]] * 5 and rows[0] > 0
    assert ring.coverage.get("errors", []) == []


def test_the_loops_word_silences_the_hooks_from_its_first_call_on(attached, finish):
    attached()
    model, other = Model(), Model()
    optimizers = [torch.optim.AdamW(m.parameters(), lr=1e-3) for m in (model, other)]
    for step in range(4):
        for m, optimizer in zip((model, other), optimizers, strict=True):
            m(tokens(step)).backward()
            optimizer.step()
            optimizer.zero_grad()
        trimtab.step(loss=10.0 + step)
    ring = finish()
    # Two by the hooks, in the first of which nobody knew yet; then one a call.
    assert len(ring.steps) == 2 + 3
    assert ring.values("loss")[2:] == pytest.approx([11, 12, 13])


def test_step_never_reaches_the_loop(attached, finish):
    trimtab.step(loss=1.0)  # not attached
    attached()
    trimtab.step(loss=object())
    trimtab.step(loss=torch.ones(3))
    trimtab.step(loss=float("nan"))
    hand_made_step(Model())
    trimtab.step(loss=float("inf"))
    ring = finish()
    assert float(ring.values("loss")[-1]) == float("inf")
    assert any("step: TypeError" in error for error in ring.coverage["errors"])


def test_attached_again_nothing_is_left_of_the_first_time(attached, read_rings, tmp_path):
    attached(ring_dir=str(tmp_path / "first"))
    train(Model(blocks=4), 3)
    trimtab.detach()
    attached(ring_dir=str(tmp_path / "second"))
    train(Model(), 3)
    trimtab.detach()
    (ring,) = read_rings(tmp_path / "second")
    assert [step["step"] for step in ring.steps] == [1, 2, 3]
    for metric in ("max_attention_logit", "activation_rms", "spectral_norm_q"):
        assert {len(value) for value in ring.values(metric)} == {2}, metric


def test_layers_have_their_module_paths(attached, finish):
    attached()
    train(Model(), 3)
    ring = finish()
    assert ring.layer_names == ["blocks.0.attention", "blocks.1.attention"]
    assert all(len(value) == 2 and len(value[0]) == HEADS for value in ring.values("max_attention_logit"))


def test_spectral_norms_are_those_of_the_weights(attached, finish):
    attached()
    torch.manual_seed(2)
    model = Model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    train(model, 60, optimizer)
    ring = finish()
    for kind, name in (("q", "q_proj"), ("k", "k_proj"), ("v", "v_proj"), ("o", "o_proj")):
        last = ring.values(f"spectral_norm_{kind}")[-1]
        for layer, block in enumerate(model.blocks):
            weight = getattr(block.attention, name).weight.detach()
            exact = torch.linalg.matrix_norm(weight, 2).item()
            assert last[layer] <= exact * (1 + 1e-5)
            assert last[layer] == pytest.approx(exact, rel=0.02)
    heads = ring.values("spectral_norm_q_head")[-1]
    slice_ = model.blocks[1].attention.q_proj.weight.detach()[:8]
    assert heads[1][0] == pytest.approx(torch.linalg.matrix_norm(slice_, 2).item(), rel=0.02)


def test_gpt2_with_transposed_fused_weights(attached, finish):
    from transformers import GPT2Config, GPT2LMHeadModel

    attached()
    torch.manual_seed(3)
    model = GPT2LMHeadModel(
        GPT2Config(
            vocab_size=64,
            n_positions=16,
            n_embd=WIDTH,
            n_layer=2,
            n_head=HEADS,
            resid_pdrop=0.0,
            embd_pdrop=0.0,
            attn_pdrop=0.0,
            attn_implementation="sdpa",
            bos_token_id=0,
            eos_token_id=0,
        )
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    train(model, 60, optimizer, forward=lambda batch: model(input_ids=batch, labels=batch).loss)
    ring = finish()
    assert ring.layer_names == ["transformer.h.0.attn", "transformer.h.1.attn"]
    weight = model.transformer.h[0].attn.c_attn.weight.detach().t()
    last = {kind: ring.values(f"spectral_norm_{kind}")[-1][0] for kind in "qkvo"}
    for kind, begin in (("q", 0), ("k", WIDTH), ("v", 2 * WIDTH)):
        assert last[kind] == pytest.approx(torch.linalg.matrix_norm(weight[begin : begin + WIDTH], 2).item(), rel=0.02)
    output = model.transformer.h[0].attn.c_proj.weight.detach()
    assert last["o"] == pytest.approx(torch.linalg.matrix_norm(output, 2).item(), rel=0.02)


def test_grouped_queries(attached, finish):
    attached()
    train(Model(kv_heads=2), 5)
    ring = finish()
    assert [(layer["heads"], layer["kv_heads"]) for layer in ring.info["layers"]] == [(HEADS, 2)] * 2
    assert len(ring.values("spectral_norm_k_head")[-1][0]) >= 2
    assert all(value > 0 for value in ring.values("spectral_norm_k")[-1])


def test_activations_are_those_of_block_outputs(attached, finish):
    attached()
    model = Model()
    seen = []
    model.blocks[1].register_forward_hook(lambda module, args, output: seen.append(output.detach().abs().max().item()))
    train(model, 5)
    ring = finish()
    series = dict(ring.series("activation_abs_max"))
    first = ring.steps[0]["step"]
    for step, value in series.items():
        if step > first + 1:  # hooks came in during the first forward
            assert value[1] == pytest.approx(seen[step - first], rel=1e-6)
    assert len(series) >= 3


def test_a_job_that_never_clips_gets_its_norm_from_the_gradients(attached, finish):
    attached()
    model = Model()
    exact = []

    def record(step, optimizer):
        exact.append(torch.nn.utils.get_total_norm([p.grad for p in model.parameters()]).item())

    train(model, 8, clip=None, before_step=record)
    ring = finish()
    first = ring.steps[0]["step"]
    norms = ring.series("grad_norm")
    assert len(norms) >= 3
    for step, norm in norms:
        assert norm == pytest.approx(exact[step - first], rel=1e-5)
    assert any("does not clip" in note for note in ring.coverage["notes"])


def test_norms_of_other_tensors_are_not_taken_for_gradients(attached, finish):
    attached()
    model = Model()
    losses, norms = train(
        model, 4, before_step=lambda step, optimizer: torch.nn.utils.get_total_norm(list(model.parameters()))
    )
    assert finish().values("grad_norm") == pytest.approx(norms, rel=1e-6)


def test_a_clip_function_imported_before_is_seen(attached, finish):
    from torch.nn.utils import clip_grad_norm_ as imported_before

    attached()
    model, optimizer, norms = Model(), None, []
    optimizer = torch.optim.AdamW(model.parameters())
    for step in range(3):
        model(tokens(step)).backward()
        norms.append(imported_before(model.parameters(), 1.0).item())
        optimizer.step()
        optimizer.zero_grad()
    assert finish().values("grad_norm") == pytest.approx(norms, rel=1e-6)


def test_accumulated_micro_batches_are_one_step_with_their_mean(attached, finish):
    attached()
    model = Model()
    optimizer = torch.optim.AdamW(model.parameters())
    means = []
    for step in range(4):
        losses = []
        for micro in range(3):
            loss = model(tokens(10 * step + micro))
            loss.backward()
            losses.append(loss.item())
        optimizer.step()
        optimizer.zero_grad()
        means.append(sum(losses) / 3)
    ring = finish()
    assert ring.values("loss") == pytest.approx(means, rel=1e-6)
    assert len(ring.layer_names) == 2


def test_grad_scaler_is_taken_out(attached, finish):
    attached()
    model = Model()
    optimizer = torch.optim.AdamW(model.parameters())
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    losses, norms = [], []
    for step in range(4):
        loss = model(tokens(step))
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        norms.append(torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0).item())
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        losses.append(loss.item())
    ring = finish()
    assert ring.values("loss") == pytest.approx(losses, rel=1e-6)
    assert ring.values("grad_norm") == pytest.approx(norms, rel=1e-6)
    assert ring.values("loss_scale") == [1024.0] * 4


def test_backward_that_is_no_loss(attached, finish):
    """A vector root with its gradient, several roots, and a scalar: only the last is a loss; nothing is disturbed."""
    attached()
    model = Model()
    optimizer = torch.optim.AdamW(model.parameters())
    x = torch.ones(3, requires_grad=True)
    torch.autograd.backward([x.sum(), (2 * x).sum()])
    (3 * x).backward(torch.ones(3))
    assert x.grad.tolist() == [6.0] * 3
    losses, _ = train(model, 2, optimizer)
    assert finish().values("loss") == pytest.approx(losses, rel=1e-6)


def test_evaluation_does_not_count(attached, finish):
    attached()
    model = Model()
    optimizer = torch.optim.AdamW(model.parameters())

    def evaluate(step, optimizer):
        with torch.no_grad():
            model(tokens(99, batch=7))

    train(model, 4, optimizer, before_step=evaluate)
    ring = finish()
    assert len(ring.layer_names) == 2
    assert len(ring.values("loss")) == 4


def test_an_evaluation_before_training_does_not_confuse_the_layers(attached, finish):
    attached()
    model = Model()
    with torch.no_grad():
        model(tokens(5))
    train(model, 3)
    assert finish().layer_names == ["blocks.0.attention", "blocks.1.attention"]


def test_one_module_used_twice_is_one_layer(attached, finish):
    attached()
    train(Model(blocks=1, twice=True), 4)
    ring = finish()
    assert ring.layer_names == ["blocks.0.attention"]
    assert ring.values("attention_calls") == [2] * 4
    assert [rows[0][0] for rows in ring.values("attention_rows")] == [2 * 4 * (CONTEXT - 1)] * 4


def test_checkpointed_blocks_are_counted_once(attached, finish):
    from torch.utils.checkpoint import checkpoint

    attached()
    model = Model()
    forwards = [block.forward for block in model.blocks]
    for block, forward in zip(model.blocks, forwards):
        block.forward = lambda x, forward=forward: checkpoint(forward, x, use_reentrant=False)
    train(model, 4)
    ring = finish()
    assert len(ring.layer_names) == 2
    rows = ring.values("attention_rows")[-1]
    assert rows[0] == rows[1]
    assert int(ring.coverage["calls_recomputed"]) >= 6


def test_processes_that_never_train_have_no_ring(attached, rings):
    attached()
    with torch.no_grad():
        Model()(tokens(0))
    trimtab.detach()
    assert list(rings.glob("*.ring")) == []


def test_two_models_in_one_process_have_their_own_layers(attached, finish):
    attached()
    student, teacher = Model(), Model()
    train(student, 3, forward=lambda batch: student(batch) + teacher(batch))
    assert len(finish().layer_names) == 4


def _world():
    """Everything that hooks touch."""
    import torch.optim.optimizer as optimizer_module

    clip = __import__("sys").modules["torch.nn.utils.clip_grad"]
    return (
        torch.autograd.backward,
        torch.amp.GradScaler.scale,
        clip._clip_grads_with_norm_,
        torch.nn.utils.clip_grads_with_norm_,
        dict(optimizer_module._global_optimizer_post_hooks),
        torch._C._dispatch_dump_table("aten::_scaled_dot_product_flash_attention_for_cpu").count("trimtab"),
    )


def test_detach_restores_everything(attached, rings):
    before = _world()
    attached()
    assert _world() != before
    model = Model()
    train(model, 3)
    assert any(module._forward_pre_hooks or module._forward_hooks for module in model.modules())
    trimtab.detach()
    assert _world() == before
    assert not any(module._forward_pre_hooks or module._forward_hooks for module in model.modules())
    size = sum(path.stat().st_size for path in rings.glob("*.ring"))
    train(model, 3)
    assert sum(path.stat().st_size for path in rings.glob("*.ring")) == size
    trimtab.detach()


def test_attach_is_idempotent_and_can_follow_a_detach(attached, finish, rings, read_rings):
    attached()
    attached()
    train(Model(), 2)
    trimtab.detach()
    attached()
    train(Model(), 3)
    trimtab.detach()
    assert sorted(len(ring.values("loss")) for ring in read_rings(rings)) == [2, 3]


def test_somebody_elses_later_wrapper_survives_detach(attached):
    attached()
    ours = torch.autograd.backward

    def theirs(*args, **kwargs):
        return ours(*args, **kwargs)

    torch.autograd.backward = theirs
    try:
        trimtab.detach()
        assert torch.autograd.backward is theirs
        x = torch.ones(2, requires_grad=True)
        x.sum().backward()
        assert x.grad.tolist() == [1.0, 1.0]
    finally:
        torch.autograd.backward = ours.__wrapped__


@pytest.mark.parametrize(
    ("hook", "operator"),
    [
        ("loss", "observe_loss"),
        ("grad_norm", "observe_grad_norm"),
        ("optimizer", "observe_learning_rate"),
        ("activations", "observe_activation"),
        ("projections", "set_projection"),
    ],
)
def test_an_error_switches_off_one_hook_and_the_job_goes_on(attached, finish, monkeypatch, hook, operator):
    from trimtab import _session

    torch.manual_seed(4)
    expected, _ = train(Model(), 5)
    attached()

    class Broken:
        """The real operators except one, which raises."""

        def __getattr__(self, name):
            if name == operator:
                raise ZeroDivisionError("broken on purpose")
            return getattr(torch.ops.trimtab, name)

    monkeypatch.setattr(_session._session, "ops", Broken())
    torch.manual_seed(4)
    assert train(Model(), 5)[0] == expected
    assert trimtab.status()["hooks"][hook] is False
    ring = finish()
    assert any(hook in error and "broken on purpose" in error for error in ring.coverage["errors"])


def test_copies_and_pickles_of_a_watched_model_carry_no_hooks_of_ours(attached):
    attached()
    model = Model()
    train(model, 3)
    twin = copy.deepcopy(model)
    assert torch.equal(twin(tokens(1)), model(tokens(1)))
    file = io.BytesIO()
    torch.save(model, file)
    assert b"trimtab" not in file.getvalue()
    file.seek(0)
    loaded = torch.load(file, weights_only=False)
    assert torch.equal(loaded(tokens(1)), model(tokens(1)))
    assert b"trimtab" not in pickle.dumps(model)


def test_bad_arguments_raise_and_nothing_is_attached(shim):
    with pytest.raises(trimtab.SettingsError, match="mode"):
        trimtab.attach(mode="best")
    assert trimtab.status() == {}


def test_disabled_by_the_environment(monkeypatch):
    monkeypatch.setenv("TRIMTAB_DISABLE", "1")
    before = _world()
    assert trimtab.attach() is False
    assert _world() == before


def test_losses_are_bitwise_the_same(attached):
    torch.manual_seed(5)
    expected, _ = train(Model(), 40)
    attached()
    torch.manual_seed(5)
    assert train(Model(), 40)[0] == expected
