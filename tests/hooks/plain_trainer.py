"""A program that knows nothing of the hooks: six steps of Hugging Face's Trainer, a save each second one.

python tests/hooks/plain_trainer.py FOLDER
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

LENGTH = 8


def main(folder: Path) -> None:
    arguments = TrainingArguments(
        output_dir=str(folder / "checkpoints"),
        use_cpu=True,
        max_steps=6,
        per_device_train_batch_size=2,
        save_steps=2,
        report_to="none",
        disable_tqdm=True,
    )
    torch.manual_seed(7)
    shape = {"vocab_size": 16, "n_positions": LENGTH, "n_embd": 8, "n_layer": 1, "n_head": 1}
    model = GPT2LMHeadModel(GPT2Config(**shape, bos_token_id=0, eos_token_id=0))
    tokens = torch.arange(64 * LENGTH).view(64, LENGTH) % 16
    trainer = Trainer(model=model, args=arguments, train_dataset=[{"input_ids": row, "labels": row} for row in tokens])
    trainer.train()
    if trainer.is_world_process_zero():
        print("ends with", {name: float(value.sum()) for name, value in model.named_parameters()})
    sys.exit(3)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
