"""Small models for the hook tests."""

import torch
import torch.nn as nn
import torch.nn.functional as F

WIDTH, HEADS, CONTEXT, VOCABULARY = 32, 4, 16, 64


class SeparateAttention(nn.Module):
    """q, k, v and o as linears of their own; fewer key heads when kv_heads < HEADS."""

    def __init__(self, kv_heads=HEADS):
        super().__init__()
        size = WIDTH // HEADS
        self.kv_heads = kv_heads
        self.q_proj = nn.Linear(WIDTH, WIDTH, bias=False)
        self.k_proj = nn.Linear(WIDTH, kv_heads * size, bias=False)
        self.v_proj = nn.Linear(WIDTH, kv_heads * size, bias=False)
        self.o_proj = nn.Linear(WIDTH, WIDTH, bias=False)

    def forward(self, x):
        batch, length, width = x.shape
        q = self.q_proj(x).view(batch, length, HEADS, -1).transpose(1, 2)
        k, v = (p(x).view(batch, length, self.kv_heads, -1).transpose(1, 2) for p in (self.k_proj, self.v_proj))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=self.kv_heads != HEADS)
        return self.o_proj(y.transpose(1, 2).reshape(batch, length, width))


class Block(nn.Module):
    def __init__(self, kv_heads=HEADS):
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.attention = SeparateAttention(kv_heads)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 2 * WIDTH), nn.GELU(), nn.Linear(2 * WIDTH, WIDTH))

    def forward(self, x):
        x = x + self.attention(self.norm(x))
        return x + self.mlp(x)


class Model(nn.Module):
    """Two blocks. `twice`: the same block runs twice a forward (shared weights)."""

    def __init__(self, kv_heads=HEADS, blocks=2, twice=False):
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, WIDTH)
        self.blocks = nn.ModuleList(Block(kv_heads) for _ in range(blocks))
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)
        self.twice = twice

    def forward(self, tokens):
        x = self.embed(tokens)
        for _ in range(2 if self.twice else 1):
            for block in self.blocks:
                x = block(x)
        return F.cross_entropy(self.head(x)[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())


def tokens(seed=0, batch=4):
    return torch.randint(VOCABULARY, (batch, CONTEXT), generator=torch.Generator().manual_seed(seed))


def train(model, steps, optimizer=None, clip=1.0, forward=None, before_step=None):
    """Plain loop. Returns the losses and, when clipping, the norms that clipping returned."""
    optimizer = optimizer or torch.optim.AdamW(model.parameters(), lr=1e-3)
    losses, norms = [], []
    for step in range(steps):
        loss = (model if forward is None else forward)(tokens(step))
        loss.backward()
        if clip:
            norms.append(torch.nn.utils.clip_grad_norm_(model.parameters(), clip).item())
        if before_step:
            before_step(step, optimizer)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses, norms
