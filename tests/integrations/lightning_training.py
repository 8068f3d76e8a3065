"""A training by Lightning of the tiny Llama that tiny_model.py writes.

    python tests/integrations/lightning_training.py FOLDER [--steps 480] [--lr 0.05] [--own] [--devices 2]

With --own it has the callback and resumes by itself; without, it knows nothing of the hooks.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import lightning
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from torch.optim.lr_scheduler import LambdaLR
from torchdata.stateful_dataloader import StatefulDataLoader
from transformers import LlamaForCausalLM

WARMUP = 60


class Module(lightning.LightningModule):
    def __init__(self, folder: Path, lr: float, steps: int) -> None:
        super().__init__()
        self.model = LlamaForCausalLM.from_pretrained(folder / "model").train()
        self.lr, self.steps = lr, steps

    def training_step(self, batch: torch.Tensor, _: int) -> torch.Tensor:  # (B, T)
        return self.model(input_ids=batch, labels=batch).loss

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.AdamW(self.parameters(), lr=self.lr, weight_decay=0.0)
        left = self.steps - WARMUP
        scheduler = LambdaLR(optimizer, lambda n: n / WARMUP if n < WARMUP else max(0.0, (self.steps - n) / left))
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--lr", type=float, default=0.05)
    parser.add_argument("--steps", type=int, default=480)
    parser.add_argument("--own", action="store_true")
    parser.add_argument("--devices", type=int, default=1)
    parser.add_argument("--accumulate", type=int, default=1)
    options = parser.parse_args()
    lightning.seed_everything(7)
    lines = (options.folder / "data" / "train.jsonl").read_text().splitlines()
    samples = [torch.tensor(list(json.loads(line)["text"].encode())) for line in lines]
    callbacks: list[Any] = [
        ModelCheckpoint(options.folder / "checkpoints", every_n_train_steps=10, save_top_k=-1, save_last="link")
    ]
    if options.own:
        from trainer_hooks.lightning import StabilityCallback

        callbacks.append(StabilityCallback(run="llama", state_dir=options.folder / "state", warmup_steps=WARMUP))
    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=options.devices,
        max_steps=options.steps,
        gradient_clip_val=1.0,
        accumulate_grad_batches=options.accumulate,
        callbacks=callbacks,
        logger=False,
        enable_progress_bar=False,
        default_root_dir=options.folder,
    )
    module = Module(options.folder, options.lr, options.steps)
    loader = StatefulDataLoader(samples, batch_size=8, shuffle=True)  # its position goes into the checkpoint
    trainer.fit(module, loader, ckpt_path="last" if options.own else None)


if __name__ == "__main__":
    main()
