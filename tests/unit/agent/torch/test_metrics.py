"""Numbers in the ring against plain torch."""

import json
import math

import pytest
import torch

import models
import reference


def test_scalars_of_a_step(shim):
    shim.start(start_step=100)
    shim.ops.observe_loss(torch.tensor(6.0), 2.0)
    shim.ops.observe_loss(torch.tensor(10.0, dtype=torch.bfloat16), 2.0)
    shim.ops.observe_grad_norm(torch.tensor(1.5, dtype=torch.float64))
    shim.ops.observe_learning_rate(3e-4)
    shim.ops.add_overhead(0.25)
    shim.ops.step_boundary("test")
    shim.ops.observe_loss(torch.tensor(1.0), 1.0)
    assert shim.ops.step_boundary("test") is False
    assert shim.ops.step_boundary("again") is False
    first, second = shim.steps()
    assert first["step"] == 100 and second["step"] == 101
    assert first["loss"] == 4.0 and first["loss_scale"] == 2.0 and first["grad_norm"] == 1.5
    assert first["learning_rate"] == pytest.approx(3e-4) and first["agent_overhead_seconds"] >= 0.25
    assert "step_time_seconds" not in first and second["step_time_seconds"] > 0
    assert "grad_norm" not in second and second["time"] > first["time"]


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_non_finite_values_are_data(shim, value):
    shim.start()
    shim.ops.observe_loss(torch.tensor(value), 1.0)
    shim.ops.observe_grad_norm(torch.tensor(value))
    q = torch.full((1, 4, 4, 8), value, requires_grad=True)
    torch.nn.functional.scaled_dot_product_attention(q, q, q).sum().backward()
    shim.ops.step_boundary("test")
    (step,) = shim.steps()
    assert repr(step["loss"]) == repr(value) and repr(step["grad_norm"]) == repr(value)
    assert (step["attention_nonfinite"] > 0).all()
    assert shim.coverage()["errors"] == []


def test_losses_that_are_no_scalars_are_noted(shim):
    shim.start()
    shim.ops.observe_loss(torch.ones(3), 1.0)
    assert any("loss" in note for note in shim.coverage()["notes"])


def test_activations(shim):
    shim.start()
    x = torch.randn(3, 5, 7)
    x[0, 0, 0], x[1, 1, 1] = math.nan, -9.0
    shim.ops.observe_activation(x, 1)
    shim.ops.observe_activation(x.transpose(0, 2), 1)
    shim.ops.observe_activation(x[:, :, :3], 0)  # not dense: said so, not read
    shim.ops.observe_loss(torch.ones(()), 1.0)
    shim.ops.step_boundary("test")
    (step,) = shim.steps()
    finite = x[x.isfinite()].double()
    assert step["activation_abs_max"].tolist() == [0, 9]
    assert step["activation_rms"][1].item() == pytest.approx(finite.square().mean().sqrt().item(), rel=1e-5)
    assert step["activation_mean"][1].item() == pytest.approx(finite.mean().item(), rel=1e-4)
    assert step["activation_nonfinite"].tolist() == [0, 2]
    assert any("activations" in note for note in shim.coverage()["notes"])


def test_activations_are_read_on_sampled_steps_only(shim):
    shim.start(sample_every_steps=3)
    for _ in range(7):
        shim.ops.observe_activation(torch.ones(4), 0)
        shim.ops.observe_loss(torch.ones(()), 1.0)
        shim.ops.step_boundary("test")
    assert ["activation_rms" in step for step in shim.steps()] == [True, False, False] * 2 + [True]


def test_spectral_norms(shim):
    torch.manual_seed(3)
    fused, square = torch.randn(96, 32), torch.randn(32, 32)
    shim.start(overhead_budget=1.0)
    for layer in range(2):
        shim.ops.set_projection(layer, "q", fused, 0, 32, 4)
        shim.ops.set_projection(layer, "k", fused.bfloat16(), 32, 32, 2)
        shim.ops.set_projection(layer, "v", fused, 64, 32, 4)
        shim.ops.set_projection(layer, "o", square.t(), 0, 32, 4)  # any strides
    for _ in range(60):
        shim.ops.observe_loss(torch.ones(()), 1.0)
        shim.ops.step_boundary("test")
    step = shim.steps()[-1]
    norm = lambda w: torch.linalg.matrix_norm(w.double(), 2).item()
    for which, weight in (("q", fused[:32]), ("k", fused[32:64]), ("v", fused[64:]), ("o", square)):
        assert step[f"spectral_norm_{which}"].tolist() == pytest.approx([norm(weight)] * 2, rel=1e-2)
        assert (step[f"spectral_norm_residual_{which}"] < 0.5 * norm(weight)).all()
    heads = [norm(fused[8 * h : 8 * h + 8]) for h in range(4)]
    assert step["spectral_norm_q_head"].tolist() == [pytest.approx(heads, rel=2e-2)] * 2
    assert (step["spectral_norm_k_head"][:, 2:] == 0).all() and (step["spectral_norm_k_head"][:, :2] > 0).all()
    with torch.no_grad():
        fused.mul_(3)  # the tracker reads the weight itself, as the optimizer left it
    for _ in range(20):
        shim.ops.observe_loss(torch.ones(()), 1.0)
        shim.ops.step_boundary("test")
    assert shim.steps()[-1]["spectral_norm_q"].tolist() == pytest.approx([3 * norm(fused[:32] / 3)] * 2, rel=1e-2)


def test_bad_projections_are_noted(shim):
    shim.start()
    weight = torch.ones(8, 4)
    shim.ops.set_projection(0, "x", weight, 0, 8, 2)
    shim.ops.set_projection(0, "q", weight, 4, 8, 2)
    shim.ops.set_projection(0, "q", weight, 0, 8, 3)
    shim.ops.set_projection(-1, "q", weight, 0, 8, 2)
    shim.ops.set_projection(0, "q", torch.ones(8), 0, 8, 2)
    assert len(shim.coverage()["notes"]) == 5 and shim.status()["projections"] == 0


@pytest.mark.parametrize("mode", ["observe", "stabilized"])
def test_probed_statistics(shim, mode):
    # All rows probed: the numbers are exact.
    shim.start(mode=mode, probe_rows=4096)
    generator = torch.Generator().manual_seed(5)
    q, k, v = (torch.randn(3, 4, 20, 8, generator=generator, requires_grad=True) for _ in range(3))
    torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True).sum().backward()
    shim.ops.step_boundary("test")
    (step,) = shim.steps()
    s = reference.scores(q, k)
    assert torch.allclose(step["max_attention_logit"][0], s.flatten(2).amax(-1).amax(0), rtol=1e-5)
    assert step["attention_rows"].tolist() == [[3 * 19] * 4]
    assert step["delta_residual_rows"].tolist() == [[3 * 19] * 4]  # a row of one key has no residual
    sink = (s - s.logsumexp(-1, keepdim=True)).exp()[:, :, 1:, 0].mean((0, 2))
    assert torch.allclose(step["sink_share"][0], sink, rtol=1e-4)
    assert (step["attention_output_error"] < 1e-5).all()


def test_fewer_probe_rows_read_fewer_rows(shim):
    shim.start(probe_rows=16)
    q = torch.randn(4, 2, 64, 8, requires_grad=True)
    torch.nn.functional.scaled_dot_product_attention(q, q, q).sum().backward()
    shim.ops.step_boundary("test")
    (step,) = shim.steps()
    assert 8 <= step["attention_rows"].min() and step["attention_rows"].max() <= 32


def test_sampling_stride(shim):
    shim.start(sample_every_steps=4)
    models.train(models.Model(), 9, shim=shim)
    sampled = [step["step"] for step in shim.steps() if "max_attention_logit" in step]
    assert sampled == [1, 5, 9]
    assert all("attention_mode" in step for step in shim.steps())
    assert shim.coverage()["last_sample_step"] == 9


def test_the_budget_thins_the_samples(shim):
    shim.start(overhead_budget=1e-6)
    models.train(models.Model(), 120, shim=shim)
    status = shim.status()
    assert status["probe_rows"] < 64 and status["overhead_share"] > 1e-6
    assert any(note.startswith("sampling: every") for note in status["coverage"]["notes"])


def test_the_injector_is_measured_at_every_step_whatever_it_costs(shim):
    shim.start(overhead_budget=1e-6, emulate_storage="fp32")
    models.train(models.Model(), 60, shim=shim)
    assert all("max_attention_logit" in step for step in shim.steps())


def test_info(shim):
    shim.start(info={"versions": {"torch": "x"}, "metadata": {"batch": "2"}}, act=True)
    shim.ops.set_info(json.dumps({
        "layers": [{"index": 0, "name": "model.first"}, {"index": 1, "name": "model.second"}],
        "versions": {"python": "y"},
        "coverage": {"notes": ["from python"], "errors": ["sorry"],
                     "passed_by": [{"op": "loss", "reason": "none", "calls": 3}]},
    }))
    shim.ops.set_info("[broken")
    models.train(models.Model(), 2, shim=shim)
    shim.stop()
    info = shim.info()
    assert info["versions"] == {"torch": "x", "python": "y"} and info["metadata"] == {"batch": "2"}
    assert [layer["name"] for layer in info["layers"]] == ["model.first", "model.second"]
    assert info["layers"][1]["heads"] == 4 and info["layers"][1]["dtype"] == "float32"
    assert info["modes"] == ["KERNEL_MODE_OBSERVE"] * 2 and info["act"] is True
    coverage = info["coverage"]
    assert coverage["calls_hooked"] == 4 and "from python" in coverage["notes"]
    assert {"op": "loss", "reason": "none", "calls": 3} in coverage["passed_by"]
    assert any(error.startswith("set_info") for error in coverage["errors"]) and "sorry" in coverage["errors"]
    assert "passed_by_python" not in info
    assert shim.lines()[-1] == {"closed": True}


def test_lazy_start_opens_no_ring_until_told(shim):
    shim.start(lazy=True)
    model = models.Model()
    loss = models.loss_of(model, models.batch(0))
    assert list(shim.ring_dir.iterdir()) == []
    answer = json.loads(shim.ops.open_ring(json.dumps({"rank": 3, "world_size": 8, "info": {"metadata": {"a": "b"}}})))
    assert answer == {"ok": True, "error": ""}
    assert json.loads(shim.ops.open_ring("{}"))["ok"]
    loss.backward()
    shim.ops.step_boundary("test")
    (step,) = shim.steps()
    assert step["attention_calls"] == 2  # the forward before the ring counts
    assert shim.ring().name.endswith("-3.ring") and shim.info()["metadata"] == {"a": "b"}


def test_discovery_names_layers(shim):
    library = torch.library.Library("trimtab", "FRAGMENT")
    calls = []
    answers = iter([4, -1, -2])
    library.define("discover_layer(int call) -> int")
    library.impl("discover_layer", lambda call: (calls.append(call), next(answers))[1], "CompositeExplicitAutograd")
    try:
        shim.start()
        models.loss_of(models.Model(layers=5), models.batch(0)).backward()
        shim.ops.step_boundary("test")
        assert calls == [0, 1, 2]  # -2 ends the questions
        assert shim.status()["layers"][4]["heads"] == 4
        assert shim.steps()[0]["attention_calls"] == 5
    finally:
        library._destroy()
