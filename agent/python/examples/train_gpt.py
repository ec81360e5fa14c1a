#!/usr/bin/env python3
"""Trains a byte-level GPT on the sources of Python's standard library.

An ordinary training script: plain PyTorch, nothing to download, deterministic for a seed, a minute on one CPU core with
the default size. Works alone, under torchrun (gloo, DistributedDataParallel) and with torch.compile.

    python train_gpt.py --steps 5000 --log loss.csv
    torchrun --nproc-per-node 2 train_gpt.py --steps 200
"""

import argparse
import math
import os
import sysconfig
import time
from pathlib import Path

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

TEXT_BYTES = 6_000_000
VOCABULARY = 256
WARMUP_STEPS = 100


def standard_library_text(limit: int = TEXT_BYTES) -> torch.Tensor:
    """The first `limit` bytes of the standard library's sources in sorted order, as uint8."""
    root = Path(sysconfig.get_paths()["stdlib"])
    text = bytearray()
    for path in sorted(root.rglob("*.py")):
        if {"site-packages", "dist-packages"} & set(path.parts):
            continue
        text += path.read_bytes()
        if len(text) >= limit:
            break
    return torch.frombuffer(text[:limit], dtype=torch.uint8)


class Attention(nn.Module):
    def __init__(self, width: int, heads: int):
        super().__init__()
        self.heads = heads
        self.c_attn = nn.Linear(width, 3 * width, bias=False)
        self.c_proj = nn.Linear(width, width, bias=False)

    def forward(self, x):
        batch, length, width = x.shape
        q, k, v = self.c_attn(x).view(batch, length, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.c_proj(y.transpose(1, 2).reshape(batch, length, width))


class Block(nn.Module):
    def __init__(self, width: int, heads: int):
        super().__init__()
        self.ln_1 = nn.LayerNorm(width, bias=False)
        self.attn = Attention(width, heads)
        self.ln_2 = nn.LayerNorm(width, bias=False)
        self.c_fc = nn.Linear(width, 4 * width, bias=False)
        self.c_proj = nn.Linear(4 * width, width, bias=False)

    def forward(self, x):
        x = x + self.attn(self.ln_1(x))
        return x + self.c_proj(F.gelu(self.c_fc(self.ln_2(x))))


class GPT(nn.Module):
    def __init__(self, layers: int, width: int, heads: int, context: int, checkpointed: bool = False):
        super().__init__()
        self.checkpointed = checkpointed
        self.wte = nn.Embedding(VOCABULARY, width)
        self.wpe = nn.Embedding(context, width)
        self.h = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.ln_f = nn.LayerNorm(width, bias=False)
        for name, parameter in self.named_parameters():
            if parameter.dim() == 2:
                residual = name.endswith("c_proj.weight")
                nn.init.normal_(parameter, std=0.02 / math.sqrt(2 * layers) if residual else 0.02)

    def forward(self, tokens, targets):
        x = self.wte(tokens) + self.wpe.weight[: tokens.shape[1]]
        for block in self.h:
            x = checkpoint(block, x, use_reentrant=False) if self.checkpointed else block(x)
        logits = F.linear(self.ln_f(x), self.wte.weight)
        return F.cross_entropy(logits.view(-1, VOCABULARY), targets.reshape(-1))


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=5000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--width", type=int, default=32)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--context", type=int, default=64)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--lr", type=float, default=7e-3)
    parser.add_argument("--log-every", type=int, default=100, help="steps between lines on the screen")
    # torchrun takes --log for an abbreviation of its own flags, hence the second name.
    parser.add_argument("--log", "--csv", metavar="FILE", help="write step,loss of every step as CSV")
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--checkpoint-activations", action="store_true")
    return parser.parse_args()


def main() -> None:
    args = parse_arguments()
    torch.set_num_threads(args.threads)
    world_size = int(os.environ.get("WORLD_SIZE", "1"))
    rank = int(os.environ.get("RANK", "0"))
    if world_size > 1:
        torch.distributed.init_process_group("gloo")
    torch.manual_seed(args.seed)
    model = GPT(args.layers, args.width, args.heads, args.context, args.checkpoint_activations)
    parameters = list(model.parameters())
    optimizer = torch.optim.AdamW(parameters, lr=args.lr, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.0, fused=True)
    step_model = model
    if world_size > 1:
        step_model = nn.parallel.DistributedDataParallel(model)
    if args.compile:
        step_model = torch.compile(step_model)

    text = standard_library_text()
    sampler = torch.Generator().manual_seed(args.seed * 1009 + rank)
    window = torch.arange(args.context + 1)
    log = open(args.log, "w", buffering=1) if args.log and rank == 0 else None
    if log:
        log.write("step,loss\n")
    recent, started = [], time.monotonic()
    for step in range(args.steps):
        for group in optimizer.param_groups:
            group["lr"] = args.lr * min(1.0, (step + 1) / WARMUP_STEPS)
        begin = torch.randint(len(text) - args.context - 1, (args.batch, 1), generator=sampler)
        tokens = text[begin + window].long()
        loss = step_model(tokens[:, :-1], tokens[:, 1:])
        loss.backward()
        nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

        value = loss.item()
        recent = [*recent[-99:], value]
        if log:
            log.write(f"{step + 1},{value!r}\n")
        if rank == 0 and ((step + 1) % args.log_every == 0 or step + 1 == args.steps):
            rate = (step + 1) / (time.monotonic() - started)
            print(f"step {step + 1:6d}  loss {sum(recent) / len(recent):.4f}  {rate:.0f} steps/s", flush=True)
    if log:
        log.close()
    if world_size > 1:
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
