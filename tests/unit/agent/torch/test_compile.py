"""Compiled graphs reach the hooks; training and evaluation are told apart inside them."""

import pytest
import torch

import models


@pytest.fixture(autouse=True)
def fresh_compiler():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "inductor"])
def test_observing_is_bitwise_equal(shim, backend):
    def run(active):
        torch._dynamo.reset()
        model = torch.compile(models.Model(), backend=backend)
        return models.train(model, 4, shim=active)

    plain = run(None)
    shim.start()
    assert run(shim) == plain
    assert shim.coverage()["calls_hooked"] == 8 and shim.passed() == {}
    assert shim.coverage()["errors"] == []
    for step in shim.steps():
        assert step["max_attention_logit"].shape == (2, 4) and step["attention_calls"] == 2


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_compiled_layers_are_those_of_eager(shim, backend):
    records = {}
    for name in ("eager", backend):
        model = models.Model()
        shim.start(emulate_storage="fp32")
        models.train(model if name == "eager" else torch.compile(model, backend=backend), 2, shim=shim)
        records[name] = shim.steps()
        shim.stop()
        shim.ring().unlink()
    for eager, compiled in zip(records["eager"], records[backend], strict=True):
        for metric in ("max_attention_logit", "attention_entropy", "delta_residual_rows"):
            assert torch.allclose(eager[metric], compiled[metric], rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_compiled_evaluation_is_ignored(shim, backend):
    model = torch.compile(models.Model(), backend=backend)
    shim.start(emulate_storage="e5m2")

    def evaluate(_step):
        with torch.no_grad():
            model(models.batch(99))
        with torch.inference_mode():
            model(models.batch(98))

    models.train(model, 3, shim=shim, before_step=evaluate)
    assert [step["attention_calls"] for step in shim.steps()] == [2, 2, 2]
    assert shim.passed() == {"grad mode off": 6, "inference mode": 6}


@pytest.mark.parametrize("mode", ["observe", "stabilized"])
@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_compiled_checkpointing_counts_once(shim, backend, mode):
    model = torch.compile(models.Model(reentrant=False), backend=backend)
    shim.start(emulate_storage="e5m2", mode=mode)
    models.train(model, 2, shim=shim)
    assert [step["attention_calls"] for step in shim.steps()] == [2, 2]
    assert shim.coverage()["calls_recomputed"] == 4 and shim.passed() == {}
    assert shim.coverage()["notes"] == ["fault injector: attention is computed with P, V and O stored as e5m2"]


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_the_low_half_reaches_the_compiled_backward(shim, backend):
    losses = {}
    for compiled in (False, True):
        torch._dynamo.reset()
        model = models.Model()
        shim.start(mode="stabilized", emulate_storage="e5m2")
        losses[compiled] = models.train(torch.compile(model, backend=backend) if compiled else model, 3, shim=shim)
        assert not any("low half" in note for note in shim.coverage()["notes"])
        assert shim.coverage()["errors"] == []
        shim.stop()
        shim.ring().unlink()
    assert losses[True] == pytest.approx(losses[False], rel=2e-3)  # the storage is coarse: one flip is visible


def test_a_switch_reaches_compiled_code_without_recompiling(shim):
    counter = torch._dynamo.testing.CompileCounterWithBackend("aot_eager")
    model = torch.compile(models.Model(), backend=counter)
    shim.start(emulate_storage="e5m2")
    models.train(model, 2, shim=shim)
    frames = counter.frame_count
    shim.ops.set_modes([3])
    models.train(model, 2, shim=shim)
    assert counter.frame_count == frames
    assert [step["attention_mode"].tolist() for step in shim.steps()] == [[2, 2]] * 2 + [[3, 3]] * 2
