"""The steps' ends of a loop that can be resumed in place: what all ranks are asked for, and the next attempt."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn, Protocol

from sentinel.vocabulary.loss_ratio import LossMinimum
from sentinel.vocabulary.parking import EXIT_PARKED_TOO_LONG, PARKED_TOO_LONG, ResumeRequest, step_in_memory
from sentinel.vocabulary.sample import Parked, Released
from trainer_hooks.control.parking import Parking, ParkLostError
from trainer_hooks.control.step_requests import StepRequests
from trainer_hooks.errors import Guard
from trainer_hooks.in_memory.targets import MemoryTargets
from trainer_hooks.sample.engine_calls import await_saves

__all__ = ["Boundaries", "Boundary", "Reload"]

Reload = Callable[[ResumeRequest], Mapping[str, Any] | None]
"""Loads `target` (None: from scratch) into the engine, and what else the loop goes on from, as at a start; returns
fields of RunStarted that the loop would report there. What it raises ends the training."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Boundary:
    """What the loop does next, the same on all ranks."""

    stop: str | None = None  # Why to stop, for `hook.close`
    save: bool = False
    released: bool = False  # It was parked, and trains on: what `close_files` has closed is opened again
    resumed: ResumeRequest | None = None  # `reload` was called: the next step is `resumed.global_step` + 1
    while_parked: bool = False  # Whether `stop` came while it was parked: then nothing is saved any more


class Attempt(Protocol):
    """What begins and ends one: the hook."""

    guard: Guard
    loss_minimum: LossMinimum

    @property
    def attempt(self) -> int: ...

    def begin(self) -> None: ...

    def close(self, reason: str) -> None: ...

    def run_started(self, **facts: Any) -> None: ...

    def await_readings(self) -> None: ...

    def report_park(self, kind: type[Parked | Released], rollback: str, *, not_parked: str | None = None) -> None: ...

    def report_memory(self, *, global_step: int, **facts: Any) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class InMemory:
    """The states that a loop's ranks keep, and what the loop gives to each."""

    targets: MemoryTargets
    client_state: Callable[[], Mapping[str, Any]] = dict


class Boundaries:
    """Of one loop, on one rank; they begin at its first boundary."""

    def __init__(
        self,
        folder: Path,
        hook: Attempt,
        engine: Any,
        reload: Reload,
        close_files: Callable[[], None] | None,
        memory: InMemory | None = None,
    ) -> None:
        self._folder, self._hook, self._engine = folder, hook, engine
        self._reload, self._close_files, self._memory = reload, close_files, memory
        self._parking: Parking | None = None
        self._requests: StepRequests | None = None
        self._unsaved = False  # Whether what was resumed from memory is to be saved: `latest` names an earlier one

    def pass_on(self) -> Boundary:
        """Called on every rank, at the end of every step."""
        if self._parking is None or self._requests is None:
            self._parking = Parking(self._folder, self._hook.guard, lambda: self._hook.attempt)
            accepts = self._parking.file.accepts
            self._requests = StepRequests.of_training(self._folder, self._hook.guard, {}, accepts)
        if (memory := self._memory) is not None:
            step, report = int(self._engine.global_steps), self._hook.report_memory
            memory.targets.at_boundary(
                self._engine, step, lambda: deepcopy(memory.client_state()), report, self._hook.guard
            )
        due = self._requests.at_boundary()
        save, self._unsaved = due.save or self._unsaved, False
        if due.park and due.stop is None:
            return self._parked(self._parking, save=save)
        return Boundary(stop=due.stop, save=save)

    def from_memory(self, resume: ResumeRequest) -> Mapping[str, Any] | None:
        """See `Hook.from_memory`."""
        step = step_in_memory(resume.target)
        if step is None or self._memory is None:
            return None
        return deepcopy(dict(self._memory.targets.restore(self._engine, step)))  # the kept one stays as it is

    def close(self) -> None:
        """No file is watched any more."""
        if self._requests is not None:
            self._requests.close()
        self._parking = self._requests = None

    def _parked(self, parking: Parking, *, save: bool) -> Boundary:
        hook = self._hook
        try:
            after = parking.park(close=self._close, report=hook.report_park, stop=lambda: 0)
        except ParkLostError as error:
            self._leave(f"error: {error}")
        if after.ends == PARKED_TOO_LONG:
            self._leave(PARKED_TOO_LONG)
        if after.resume is not None:
            return self._resumed(after.resume, str(after.ends))
        killed = after.ends is not None
        return Boundary(stop=after.ends, while_parked=killed, save=save and not killed, released=not killed)

    def _resumed(self, resume: ResumeRequest, reason: str) -> Boundary:
        hook, before = self._hook, self._hook.attempt
        self.close()
        hook.close(reason)
        hook.loss_minimum = LossMinimum()  # unless `reload` has what the checkpoint says
        told = self._reload(resume)
        made = int(self._engine.global_steps)
        if made != resume.global_step:
            raise RuntimeError(f"RESUME is to step {resume.global_step}, and `reload` has loaded step {made}")
        if self._memory is not None and step_in_memory(resume.target) is None:
            self._memory.targets.forget()
        hook.begin()
        step = resume.global_step
        parent = {"resumed_from": step, "parent_attempt": before} if step else {}
        hook.run_started(**{"in_place": True, **parent, **self._facts(told)})
        if self._memory is not None:
            self._memory.targets.held(hook.report_memory)
        self._unsaved = step_in_memory(resume.target) is not None
        return Boundary(resumed=resume)

    def _facts(self, told: Mapping[str, Any] | None) -> Mapping[str, Any]:
        """What `reload` has returned; nothing where it is no mapping: the training goes on."""
        facts: dict[str, Any] = {}
        with self._hook.guard("report what `reload` returned"):
            facts.update(told or {})
        return facts

    def _close(self) -> None:
        await_saves(self._engine)
        self._hook.await_readings()
        if self._memory is not None:
            self._memory.targets.settle(self._hook.report_memory)
        if self._close_files is not None:
            self._close_files()

    def _leave(self, reason: str) -> NoReturn:
        self._hook.close(reason)
        print(f"sentinel: {reason}; the process ends with exit code {EXIT_PARKED_TOO_LONG}", file=sys.stderr)  # noqa: T201
        raise SystemExit(EXIT_PARKED_TOO_LONG)
