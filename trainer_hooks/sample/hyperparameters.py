"""What Adam's last update was made with. The host waits for a device at most once after each look at the state."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch

from trainer_hooks.sample.one_pass import AdamConstants
from trainer_hooks.sample.owners import inner_optimizers
from trainer_hooks.sample.to_host import NewestNumber, on_device

Group = tuple[int, int]
"""(number of an inner optimizer, number of its group): the group's own mapping is replaced at a load."""


class Hyperparameters:
    """Of one engine's optimizers. What lies on a device is read once, with one wait, and counted on from there."""

    def __init__(self, engine: Any) -> None:
        self._engine = engine
        self._lrs: dict[Group, NewestNumber] = {}
        self._read: dict[Group, tuple[float, float, float, int]] = {}
        """Of groups with numbers on a device: (steps, beta1, beta2, updates of the engine when they were read)."""

    def state_changed(self) -> None:
        """The state is new, or other: nothing that was read of it counts."""
        self._read = {}

    def update_coming(self) -> None:
        """Before each update: remembers the learning rates that it will be made with, which schedules change after."""
        for at, optimizer in enumerate(inner_optimizers(self._engine.optimizer)):
            for number, group in enumerate(optimizer.param_groups):
                self._lrs.setdefault((at, number), NewestNumber()).seen(group["lr"])

    def updates(self) -> int:
        """That were applied, since the run began."""
        return int(self._engine.global_steps) - int(self._engine.skipped_steps)

    def of(self, states: Mapping[Group, Sequence[Mapping[str, Any]]]) -> list[AdamConstants]:
        """Of each group that has states, in the mapping's order: what its last update was made with.

        A learning rate on a device is the newest that has reached the host, of a step earlier as a rule: it only tells
        the parameter before the update from the one after, lr * weight_decay apart.
        """
        optimizers = list(inner_optimizers(self._engine.optimizer))
        groups = {key: optimizers[key[0]].param_groups[key[1]] for key in states}
        self._read_from_the_device({key: (groups[key], some) for key, some in states.items()})
        return [self._of_one(optimizers[key[0]], groups[key], key, some) for key, some in states.items()]

    def _read_from_the_device(self, new: Mapping[Group, tuple[Mapping[str, Any], Sequence[Mapping[str, Any]]]]) -> None:
        numbers: dict[Group, list[Any]] = {}
        for key, (group, states) in new.items():
            steps = _steps(states, group)
            if key not in self._read and any(on_device(number) for number in (*steps, *group["betas"])):
                numbers[key] = [largest(steps), *group["betas"]]
        there = [n.detach().double().reshape(()) for some in numbers.values() for n in some if on_device(n)]
        told = iter(torch.stack(there).tolist() if there else ())  # the host waits here
        for key, some in numbers.items():
            steps_made, beta1, beta2 = (next(told) if on_device(n) else float(n) for n in some)
            self._read[key] = steps_made, beta1, beta2, self.updates()

    def _of_one(
        self, optimizer: Any, group: Mapping[str, Any], key: Group, states: Sequence[Mapping[str, Any]]
    ) -> AdamConstants:
        if key in self._read:
            steps, beta1, beta2, then = self._read[key]
            step = int(steps) + self.updates() - then
        else:
            step = int(largest(_steps(states, group)))
            beta1, beta2 = (float(beta) for beta in group["betas"])
        if type(optimizer).__module__.startswith("deepspeed."):
            # its kernels take them in float32: 1 - 0.999f is 0.00100005
            beta1, beta2 = struct.unpack("2f", struct.pack("2f", beta1, beta2))
        lr = self._lrs[key].arrived() if key in self._lrs else None
        return AdamConstants(
            beta1=beta1,
            beta2=beta2,
            eps=float(group["eps"]),
            weight_decay=float(group.get("weight_decay", 0.0)),
            lr=lr or 0.0,
            step=max(1, step),
            bias_correction=bool(group.get("bias_correction", True)),
            decoupled=is_decoupled(optimizer, group),
            amsgrad=bool(group.get("amsgrad", False)),
        )


def is_decoupled(optimizer: Any, group: Mapping[str, Any]) -> bool:
    """Whether weight decay is apart from the gradient, as AdamW's is."""
    told = group.get("decoupled_weight_decay", getattr(optimizer, "adam_w_mode", None))
    return type(optimizer).__name__ != "Adam" if told is None else bool(told)


def _steps(states: Iterable[Mapping[str, Any]], group: Mapping[str, Any]) -> list[Any]:
    return [state.get("step", group.get("step", 1)) for state in states]


def largest(steps: Sequence[Any]) -> Any:
    """FusedAdam counts in the last tensor alone; an expert that few tokens reach has had fewer updates."""
    there = [step for step in steps if on_device(step)]
    here = max((float(step) for step in steps if not on_device(step)), default=0.0)
    return here if not there else torch.stack([step.detach().double() for step in there]).max().clamp(min=here)
