"""Part of `ladders.py`: the reference trainer, with what two of the instabilities need.

    python benchmarks/ladders_trainer.py TASK -- ARGUMENTS OF trainer_hooks.gpt

The model's shape is the task's (benchmarks/batched/cases.py); a LayerNorm of queries and keys, and gradients that are
scaled up to a step, where the task says so.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(Path(__file__).resolve().parent))

import torch
from torch import Tensor, nn

from benchmarks.batched.cases import TASKS, Task
from trainer_hooks.gpt import __main__ as main_of_trainer
from trainer_hooks.gpt import model, process, train


class QkNorm(nn.Linear):
    """Queries, keys and values, of which each head's queries and keys pass a LayerNorm without a bias."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__(width, 3 * width)
        self.heads = heads
        self.q_norm, self.k_norm = (nn.LayerNorm(width // heads, bias=False) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = super().forward(x).unflatten(-1, (3, self.heads, -1)).unbind(-3)
        return torch.stack((self.q_norm(q), self.k_norm(k), v), -3).flatten(-3)


class Model(model.GPT):
    task: Task
    gradient_scale = 1.0

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        if self.task.setting.qk_norm:
            for block in self.blocks:
                block.qkv = QkNorm(self.shape.width, self.shape.heads)
                block.qkv.apply(model._initialise)

    def forward(self, tokens: Tensor) -> Tensor:
        loss = super().forward(tokens)
        return loss if self.gradient_scale == 1.0 else loss.detach() + self.gradient_scale * (loss - loss.detach())


class Scaled(train.Trainer):
    task: Task

    def step(self) -> None:
        setting, made = self.task.setting, self.progress.step + 1
        self.model.gradient_scale = setting.padded_scale if made <= setting.padded_steps else 1.0
        super().step()


def main() -> int:
    task, given = TASKS[sys.argv[1]], sys.argv[sys.argv.index("--") + 1 :]
    Model.task = Scaled.task = task
    model.PRESETS[task.name] = task.shape
    process.GPT = Model  # type: ignore[misc]
    train.Trainer = Scaled  # type: ignore[misc]
    norms = [] if task.shape.block_layernorm else ["--no-block-layernorm"]
    sys.argv[1:] = ["--preset", task.name, *norms, *given]
    return main_of_trainer.main()


if __name__ == "__main__":
    main_of_trainer.leave(main())
