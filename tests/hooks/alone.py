"""A training on one rank without DeepSpeed, measured by a Meter: what stands for an engine, and steps of it."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

from trainer_hooks.errors import Guard
from trainer_hooks.sample.meter import READINGS, Meter
from trainer_hooks.sample.reading import RankReading, reading_of, rows_of


class Engine:
    """ZeRO 0 in fp32: the optimizer is Adam itself. `device`: what the training is said to run on."""

    def __init__(self, net: nn.Module, optimizer: Any, device: str = "cpu") -> None:
        self.module, self.optimizer, self.device = net, optimizer, device
        self.global_steps = self.skipped_steps = 0
        self._config = SimpleNamespace(zero_config=SimpleNamespace())

    def zero_optimization_stage(self) -> int:
        return 0

    def gradient_accumulation_steps(self) -> int:
        return 1

    def train_batch_size(self) -> int:
        return 4

    def get_global_grad_norm(self) -> None:
        return None

    def gradient_clipping(self) -> float:
        return 0.0

    def fp16_enabled(self) -> bool:
        return False

    bfloat16_enabled = fp16_enabled


class Training:
    """Of `net`, with AdamW by default."""

    def __init__(
        self,
        net: nn.Module | None = None,
        make: Callable[..., Any] = torch.optim.AdamW,
        *,
        device: str = "cpu",
        interval_steps: int = 2,
        measure: tuple[str, ...] = READINGS,
    ) -> None:
        torch.manual_seed(0)
        self.net = net or nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 64))
        self.optimizer = make(self.net.parameters())
        self.engine, self.guard = Engine(self.net, self.optimizer, device), Guard()
        self.meter = Meter(self.engine, None, self.guard, interval_steps, measure)
        self.meter.look()

    def forward(self) -> Tensor:
        return self.net(torch.randn(4, 64)).square().mean()  # type: ignore[no-any-return]

    def step(self, *, spoil: Callable[[], None] = lambda: None, moments: bool = True) -> RankReading:
        """One step's reading; `spoil` is called between the update and the reading."""
        loss = self.forward()
        self.meter.loss_seen(loss, of_many=True)
        loss.backward()
        self.meter.gradients_whole()
        self.meter.update_coming()
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.engine.global_steps += 1
        spoil()
        return self.meter.measure(with_moments=moments).rank_reading()

    def of_all_ranks(self, read: RankReading) -> dict[str, Any]:
        """What rank 0 makes of it, alone."""
        step = self.engine.global_steps
        return dict(reading_of(*rows_of(read, world=1), global_step=step, world=1))
