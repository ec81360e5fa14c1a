#!/usr/bin/env python3
"""Trains a small GPT-2 with random weights with Hugging Face's Trainer. Nothing is downloaded.

python hf_trainer.py --steps 50
"""

import argparse
import csv

import torch
from torch.utils.data import Dataset
from train_gpt import standard_library_text
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments


class Windows(Dataset):
    """Consecutive windows of text as causal language modelling examples."""

    def __init__(self, text: torch.Tensor, context: int):
        self.text, self.context = text, context

    def __len__(self):
        return len(self.text) // self.context

    def __getitem__(self, index):
        window = self.text[index * self.context : (index + 1) * self.context].long()
        return {"input_ids": window, "labels": window}


class Losses(TrainerCallback):
    def __init__(self):
        self.values = []

    def on_log(self, args, state, control, logs=None, **kwargs):
        if logs and "loss" in logs:
            self.values.append((state.global_step, logs["loss"], logs.get("grad_norm"), logs.get("learning_rate")))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--width", type=int, default=32)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--context", type=int, default=64)
    parser.add_argument("--accumulate", type=int, default=1, help="micro-batches a step")
    parser.add_argument("--workers", type=int, default=0, help="data loader processes")
    parser.add_argument("--gradient-checkpointing", action="store_true")
    parser.add_argument("--output", default="hf_trainer_output")
    parser.add_argument("--log", metavar="FILE", help="step,loss,grad_norm,learning_rate as CSV")
    args = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(args.seed)
    config = GPT2Config(
        vocab_size=256,
        n_positions=args.context,
        n_embd=args.width,
        n_layer=args.layers,
        n_head=args.heads,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        bos_token_id=0,
        eos_token_id=0,
        attn_implementation="sdpa",
    )
    losses, model = Losses(), GPT2LMHeadModel(config)
    if args.gradient_checkpointing:
        model.gradient_checkpointing_enable()
    trainer = Trainer(
        model=model,
        args=TrainingArguments(
            output_dir=args.output,
            max_steps=args.steps,
            per_device_train_batch_size=8,
            learning_rate=1e-3,
            gradient_accumulation_steps=args.accumulate,
            logging_steps=1,
            save_strategy="no",
            report_to=[],
            seed=args.seed,
            use_cpu=True,
            disable_tqdm=True,
            dataloader_num_workers=args.workers,
        ),
        train_dataset=Windows(standard_library_text(400_000), args.context),
        callbacks=[losses],
    )
    trainer.train()
    if args.log:
        with open(args.log, "w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(["step", "loss", "grad_norm", "learning_rate"])
            writer.writerows(losses.values)


if __name__ == "__main__":
    main()
