"""The fault injector and the acting modes against the definitions."""

import pytest
import torch
import torch.nn.functional as F

import models
import reference
from reference import MANTISSA_BITS

FORWARD = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
BACKWARD = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward


def inputs(kv_heads=4, dtype=torch.float32, length=24, bias=0.0):
    generator = torch.Generator().manual_seed(7)
    shape = lambda h: (torch.randn(2, length, h, 8, generator=generator) + bias).to(dtype).transpose(1, 2)
    return shape(4).requires_grad_(), shape(kv_heads).requires_grad_(), shape(kv_heads).requires_grad_()


def within_ulps(got, want, storage, ulps=2.01):
    """Most elements equal; none further off than one place (two just below a power of two)."""
    ulp = want.double().abs().clamp_min(1e-2).log2().floor().exp2() * 2.0 ** -MANTISSA_BITS[storage]
    distance = (got.double() - want).abs() / ulp
    assert distance.max() <= ulps, distance.max()
    assert (distance < 0.01).double().mean() > 0.98


@pytest.mark.parametrize("kv_heads", [4, 2])
@pytest.mark.parametrize("storage", ["e5m2", "e4m3", "bf16", "fp16"])
@pytest.mark.parametrize("mode", ["native", "observe", "stabilized"])
def test_forward_is_in_the_storage(shim, mode, storage, kv_heads):
    q, k, v = inputs(kv_heads)
    shim.start(mode=mode, emulate_storage=storage)
    out, lse = FORWARD(q, k, v, is_causal=True)
    want, want_lse = reference.forward(q, k, v, storage, stabilized=mode == "stabilized")
    assert torch.equal(reference.rounded(out, storage), out.double())
    within_ulps(out, reference.rounded(want, storage), storage)
    assert torch.allclose(lse.double(), want_lse, atol=1e-5)


def test_storage_comes_from_the_environment(shim, monkeypatch):
    monkeypatch.setenv("TRIMTAB_EMULATE_STORAGE", "e5m2")
    q, k, v = inputs()
    shim.start()
    out, _ = FORWARD(q, k, v)
    assert torch.equal(reference.rounded(out, "e5m2"), out.double())
    assert shim.status()["emulated_storage"] == "e5m2" and shim.info()["emulated_storage"] == "e5m2"


@pytest.mark.parametrize("kv_heads", [4, 2])
def test_backward_is_in_the_storage(shim, kv_heads):
    q, k, v = inputs(kv_heads)
    shim.start(emulate_storage="e5m2")
    out, lse = FORWARD(q, k, v, is_causal=True)
    grad = torch.randn(out.shape, generator=torch.Generator().manual_seed(1))
    got = torch.autograd.grad(out, (q, k, v), grad)
    want = reference.backward(q, k, v, out, lse, grad, "e5m2")
    for g, w in zip(got, want):
        assert torch.allclose(g.double(), w, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("storage, dtype", [("e5m2", torch.float32), ("", torch.bfloat16), ("", torch.float16)])
def test_stabilized_backward_preserves_delta(shim, storage, dtype):
    # Biased values and gradients, as when training fails: delta of the stored output is off, of the given one it is not.
    q, k, v = (t.detach() for t in inputs(dtype=dtype, length=64))
    v = (v.float() * 0.2 - 2).to(dtype)
    q, k, v = (t.requires_grad_() for t in (q, k, v))
    grad = (torch.randn(q.shape, generator=torch.Generator().manual_seed(2)) * 0.3 - 1).to(dtype)
    name = storage or {torch.bfloat16: "bf16", torch.float16: "fp16"}[dtype]
    errors = {}
    for mode in ("observe", "stabilized"):
        shim.start(mode=mode, emulate_storage=storage)
        out, _ = FORWARD(q, k, v, is_causal=True)
        got = torch.autograd.grad(out, (q, k, v), grad)
        exact, lse = reference.forward(q, k, v, name if mode == "stabilized" else "fp32", mode == "stabilized")
        want = reference.backward(q, k, v, exact, lse, grad, storage or "fp32")
        errors[mode] = [((g.double() - w).norm() / w.norm()).item() for g, w in zip(got, want)]
        shim.ops.step_boundary("test")
        shim.stop()
        (step,) = shim.steps()
        errors[mode].append(step["delta_residual_sum_squares"].sum().sqrt().item())
        shim.ring().unlink()
    assert errors["stabilized"][0] < errors["observe"][0] / 2, errors  # dQ
    assert errors["stabilized"][3] < errors["observe"][3] / 3, errors  # rms of the delta residual


@pytest.mark.parametrize("mode", ["stabilized", "paper"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_acting_modes_agree_with_the_original(shim, mode, dtype):
    q, k, v = inputs(dtype=dtype)
    plain = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    plain_grads = torch.autograd.grad(plain, (q, k, v), torch.ones_like(plain))
    shim.start(mode=mode)
    out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    grads = torch.autograd.grad(out, (q, k, v), torch.ones_like(out))
    tolerance = {torch.float32: 1e-5, torch.bfloat16: 3e-2, torch.float16: 4e-3}[dtype]
    assert out.stride() == plain.stride() and out.dtype == dtype
    assert torch.allclose(out, plain, rtol=tolerance, atol=tolerance)
    for got, want in zip(grads, plain_grads):
        assert got.stride() == want.stride() and got.dtype == dtype
        assert (got - want).float().norm() < 3 * tolerance * want.float().norm() + 1e-3
    assert shim.coverage()["errors"] == []


def test_fully_masked_rows(shim):
    q, k, v = inputs(length=16)
    mask = torch.ones(16, 16, dtype=torch.bool).tril(-1)  # row 0 sees nothing
    plain = torch.autograd.grad(F.scaled_dot_product_attention(q, k, v, attn_mask=mask).sum(), (q, k, v))
    shim.start(mode="stabilized")
    out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
    assert (out[:, :, 0] == 0).all()
    for got, want in zip(torch.autograd.grad(out.sum(), (q, k, v)), plain):
        assert got.isfinite().all() and torch.allclose(got, want, atol=1e-5)


@pytest.mark.parametrize("mode, kind", [("observe", "standard"), ("stabilized", "stabilized")])
def test_statistics_of_the_injector_are_exact(shim, mode, kind):
    shim.start(mode=mode, emulate_storage="e5m2")
    q, k, v = inputs()
    F.scaled_dot_product_attention(q, k, v, is_causal=True).sum().backward()
    shim.ops.step_boundary("test")
    (step,) = shim.steps()
    s = reference.scores(q, k)
    p = (s - s.amax(-1, keepdim=True)).exp()
    ones = (reference.rounded(p, "e5m2") == 1)[:, :, 1:].sum(-1)  # row 0 sees one key and is trivial
    assert torch.allclose(step["max_attention_logit"][0], s.flatten(2).amax(-1).amax(0), rtol=1e-5)
    assert torch.allclose(step["repeated_max_rows"][0], (ones >= 2).double().sum((0, 2)), atol=1)
    assert step["attention_rows"].tolist() == [[2 * 23] * 4]
    assert step["attention_trivial_rows"].tolist() == [[2] * 4]
    entropy = torch.special.entr(p / p.sum(-1, keepdim=True))[:, :, 1:].sum(-1).mean((0, 2))
    assert torch.allclose(step["attention_entropy"][0], entropy, rtol=1e-4)


def test_the_low_half_survives_only_where_its_storage_does(shim):
    # A copy of the output loses it: then the original backward gets the stored output, and the report says so.
    q, k, v = inputs()
    shim.start(mode="stabilized")
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t.clone(), lambda t: t):
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    out.sum().backward()
    assert shim.passed() == {"its forward was not seen, or its output was copied": 1}
    assert shim.coverage()["errors"] == []


def test_explosion_is_delayed_nowhere_by_observing(shim):
    # Observing the injector does not change what it computes.
    losses = {}
    for mode in ("native", "observe"):
        shim.start(mode=mode, emulate_storage="e5m2")
        losses[mode] = models.train(models.Model(), 10, shim=shim)
        shim.stop()
        shim.ring().unlink()
    assert losses["native"] == losses["observe"]
