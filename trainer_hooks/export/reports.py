"""What an attempt reports: its records, on their way to the metrics journal and to /metrics."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Any

from sentinel.vocabulary.sample import (
    CheckpointSaved,
    MemoryTarget,
    Parked,
    Record,
    Released,
    RunFinished,
    RunStarted,
    Validation,
)
from trainer_hooks.errors import Guard
from trainer_hooks.export.outputs import Outputs
from trainer_hooks.sample import adam_settings
from trainer_hooks.sample.process_facts import process_facts

__all__ = ["Reports"]

_STARTED = frozenset(field.name for field in fields(RunStarted))


class Reports:
    """Of one attempt. Only rank 0 opens the outputs; without them nothing is written. A record that can't be made is
    the guard's."""

    def __init__(self, engine: Any, guard: Guard) -> None:
        self._engine, self._guard = engine, guard
        self.outputs: Outputs | None = None
        self.started = False  # Whether the start is reported

    @property
    def attempt(self) -> int:
        """0 without outputs, and where none could be minted, or not yet."""
        return 0 if self.outputs is None else self.outputs.attempt

    def now(self) -> dict[str, Any]:
        """The fields that all records have: the attempt, the completed updates, the time."""
        return {"attempt": self.attempt, "global_step": self._engine.global_steps, "time_unix_s": time.time()}

    def put(self, record: Record) -> None:
        if self.outputs is not None:
            self.outputs.put(record)

    def run_started(
        self, known: Mapping[str, Any], at_start: Callable[[], Mapping[str, Any]], told: Mapping[str, Any]
    ) -> None:
        """Fields of RunStarted: those `known` of the hook, then those that `at_start` gives, then those that the loop
        has `told`; the later ones count. Of what was told, what is no field is left out, and logged."""
        if unknown := sorted(told.keys() - _STARTED):
            told = {name: value for name, value in told.items() if name in _STARTED}
            with self._guard("report all of the start"):
                raise TypeError(f"RunStarted has no field {', '.join(unknown)}")
        with self._guard("report the start"):
            self.started = True
            known = {**process_facts(), **known, "attempt": self.attempt}
            with self._guard("read what the optimizer runs with"):
                known = {**adam_settings.facts(self._engine), **known}
            self.put(RunStarted(**{**known, **at_start(), **told}))

    def validation(self, loss: float, seqlen: int | None) -> None:
        with self._guard("report the validation"):
            self.put(Validation(**self.now(), loss=float(loss), seqlen=seqlen))

    def checkpoint_saved(self, tag: str, facts: Mapping[str, Any]) -> None:
        with self._guard("report the checkpoint"):
            self.put(CheckpointSaved(**{**self.now(), **facts}, tag=tag))

    def park(self, kind: type[Parked | Released], rollback: str, told: Mapping[str, Any]) -> None:
        with self._guard("report the park"):
            self.put(kind(**self.now(), rollback=rollback, **told))

    def memory(self, global_step: int, facts: Mapping[str, Any]) -> None:
        with self._guard("report the state in memory"):
            self.put(MemoryTarget(**{**self.now(), "global_step": global_step}, **facts))

    def close(self, reason: str) -> None:
        """Reports the end, and ends the outputs."""
        with self._guard("report the end"):
            self.put(RunFinished(**self.now(), reason=reason))
        if self.outputs is not None:
            self.outputs.close()
