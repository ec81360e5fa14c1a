#!/usr/bin/env python3
"""Trains the small GPT of train_gpt.py with Lightning's Trainer.

python lightning_gpt.py --steps 50
"""

import argparse

import lightning
import torch
from torch.utils.data import DataLoader, TensorDataset
from train_gpt import GPT, standard_library_text


class LitGPT(lightning.LightningModule):
    def __init__(self, layers: int, width: int, heads: int, context: int, lr: float):
        super().__init__()
        self.model = GPT(layers, width, heads, context)
        self.lr = lr
        self.losses = []

    def training_step(self, batch, index):
        (window,) = batch
        loss = self.model(window[:, :-1], window[:, 1:])
        self.losses.append(loss.item())
        return loss

    def validation_step(self, batch, index):
        (window,) = batch
        self.log("val_loss", self.model(window[:, :-1], window[:, 1:]))

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=self.lr)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--width", type=int, default=32)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--context", type=int, default=64)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--clip", type=float, default=1.0, help="0: no clipping")
    parser.add_argument("--log", metavar="FILE", help="step,loss as CSV")
    args = parser.parse_args()
    torch.set_num_threads(1)
    lightning.seed_everything(args.seed, verbose=False)
    text = standard_library_text(400_000)
    windows = text[: len(text) // (args.context + 1) * (args.context + 1)].view(-1, args.context + 1).long()
    train, validation = windows[:-64], windows[-64:]
    model = LitGPT(args.layers, args.width, args.heads, args.context, args.lr)
    trainer = lightning.Trainer(
        max_steps=args.steps,
        accelerator="cpu",
        devices=1,
        gradient_clip_val=args.clip or None,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        val_check_interval=20,
        limit_val_batches=2,
    )
    trainer.fit(
        model,
        DataLoader(TensorDataset(train), batch_size=args.batch, shuffle=True),
        DataLoader(TensorDataset(validation), batch_size=args.batch),
    )
    if args.log:
        with open(args.log, "w") as file:
            file.write("step,loss\n")
            file.writelines(f"{step},{loss!r}\n" for step, loss in enumerate(model.losses, 1))


if __name__ == "__main__":
    main()
