"""Small models and a training loop for the tests of the hook library."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

HEADS, SIZE, LENGTH, BATCH = 4, 8, 16, 2
WIDTH = HEADS * SIZE


class Block(nn.Module):
    def __init__(self, heads=HEADS, kv_heads=None, causal=True):
        super().__init__()
        self.heads, self.kv_heads, self.causal = heads, kv_heads or heads, causal
        self.qkv = nn.Linear(WIDTH, (heads + 2 * self.kv_heads) * SIZE)
        self.out = nn.Linear(heads * SIZE, WIDTH)

    def forward(self, x):
        batch, length, _ = x.shape
        sizes = [self.heads * SIZE, self.kv_heads * SIZE, self.kv_heads * SIZE]
        q, k, v = (t.view(batch, length, -1, SIZE).transpose(1, 2) for t in self.qkv(x).split(sizes, -1))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal, enable_gqa=self.kv_heads != self.heads)
        return x + self.out(y.transpose(1, 2).reshape(batch, length, -1))


class Model(nn.Module):
    def __init__(self, layers=2, reentrant=None, seed=0, **block):
        super().__init__()
        torch.manual_seed(seed)
        self.blocks = nn.ModuleList(Block(**block) for _ in range(layers))
        self.reentrant = reentrant  # None: no checkpointing

    def forward(self, x):
        for block in self.blocks:
            x = block(x) if self.reentrant is None else checkpoint(block, x, use_reentrant=self.reentrant)
        return x


def batch(seed):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(BATCH, LENGTH, WIDTH, generator=generator)


def loss_of(model, x):
    return (model(x.requires_grad_()) - x.detach().roll(1, 1)).square().mean()


def train(model, steps, optimizer=None, micro_batches=1, shim=None, before_step=None, seed=0):
    """Trains and returns the losses, in full precision."""
    optimizer = optimizer or torch.optim.AdamW(model.parameters(), 1e-2)
    losses = []
    for step in range(steps):
        optimizer.zero_grad()
        for micro in range(micro_batches):
            loss = loss_of(model, batch(seed + step * micro_batches + micro))
            if shim is not None:
                shim.ops.observe_loss(loss, 1.0)
            loss.backward()
            losses.append(loss.item())
        if before_step is not None:
            before_step(step)
        optimizer.step()
    return losses
