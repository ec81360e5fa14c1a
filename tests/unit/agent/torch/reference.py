"""Attention with emulated storage in plain float64 torch: the definitions, not the kernels."""

import math

import torch

MANTISSA_BITS = {"fp32": 23, "bf16": 7, "fp16": 10, "e4m3": 3, "e5m2": 2}
SHIFT = 25 / 32


def rounded(x, storage):
    """Nearest even to the format's mantissa, through float32, with float32's exponent range."""
    drop = 23 - MANTISSA_BITS[storage]
    x = x.float()
    if drop == 0:
        return x.double()
    bits = x.view(torch.int32)
    bits = bits + ((1 << (drop - 1)) - 1) + ((bits >> drop) & 1)
    return (bits & -(1 << drop)).view(torch.float32).double()


def scores(q, k, causal=True):
    q, k = q.double(), k.double().repeat_interleave(q.shape[1] // k.shape[1], 1)
    s = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
    if causal:
        s = s.masked_fill(torch.ones(s.shape[-2:], dtype=torch.bool).triu(1), -math.inf)
    return s


def forward(q, k, v, storage, stabilized=False, causal=True):
    """O before its own rounding, and the log-sum-exp."""
    s = scores(q, k, causal)
    m = s.amax(-1, keepdim=True)
    p = (s - m).exp() * (SHIFT if stabilized else 1.0)
    low = rounded(p, storage)
    total = (low if stabilized else p).sum(-1, keepdim=True)
    values = rounded(v.repeat_interleave(q.shape[1] // v.shape[1], 1), storage)
    lse = m.squeeze(-1) + (p.sum(-1) / (SHIFT if stabilized else 1.0)).log()
    return low @ values / total, lse


def backward(q, k, v, out, lse, grad_out, storage, causal=True):
    """As flash attention: P from the log-sum-exp, delta from the given output."""
    groups = q.shape[1] // k.shape[1]
    s = scores(q, k, causal)
    p = (s - lse.double().unsqueeze(-1)).exp()
    values = rounded(v.repeat_interleave(groups, 1), storage)
    keys = k.double().repeat_interleave(groups, 1)
    grad = grad_out.double()
    delta = (grad * out.double()).sum(-1, keepdim=True)
    ds = p * (grad @ values.transpose(-1, -2) - delta) / math.sqrt(q.shape[-1])
    fold = lambda t: t.unflatten(1, (k.shape[1], groups)).sum(2)
    return ds @ keys, fold(ds.transpose(-1, -2) @ q.double()), fold(p.transpose(-1, -2) @ grad)
