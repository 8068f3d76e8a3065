"""What each step boundary of a training costs and brings: one exchange between the ranks, posted and not waited for,
and what all ranks then do: stop, save, park. With one rank there is no exchange."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import torch.distributed as dist

from trainer_hooks.control.agreement import Agreement
from trainer_hooks.control.watched_files import Accepts, WatchedFiles
from trainer_hooks.errors import Guard
from trainer_hooks.ranks import ranks_of_world

log = logging.getLogger(__name__)

STOP, SAVE, PARK = "stop", "save", "park"
KILL_FILE, SIGTERM = 1, 2
REASONS = {KILL_FILE: "kill_file", SIGTERM: "sigterm"}
"""{level of STOP: why the training ends}; of two requests the higher counts."""

FIRST_LOOK_S = 5.0  # A start waits so long for the first look: a SAVE that is there before it is an earlier attempt's
WAIT_S = 60.0  # for a result that decides, where something is asked for
_MOST_PENDING = 1000  # exchanges without a result, until requests are no longer obeyed
_NO_LONGER = "sentinel: %s; KILL, SAVE, PARK and signals are no longer obeyed by this training, which goes on"


class Handle(Protocol):
    """One exchange under way."""

    def done(self) -> bool:
        """Whether it has ended, with a result or without; never waits."""

    def wait(self, timeout_s: float) -> Sequence[int] | None:
        """The maximum of each number over all ranks. None where it failed, or has not come within the time."""


class Exchange(Protocol):
    """The hook's own connections between all ranks."""

    def exchange(self, numbers: Sequence[int]) -> Handle:
        """Posts this rank's numbers; never waits. The n-th call of each rank belongs to one exchange."""


def rank_and_world() -> tuple[int, int]:
    """(0, 1) without a process group."""
    return (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Due:
    """What all ranks do at this boundary."""

    stop: str | None = None  # The reason
    save: bool = False
    park: bool = False


@dataclass(slots=True)
class _Pending:
    number: int
    handle: Handle


class StepRequests:
    """Of one training, on one rank. `at_boundary` is called on every rank, at the end of every step."""

    def __init__(
        self,
        ranks: Exchange | None,
        files: WatchedFiles | None,
        guard: Guard,
        at_start: Mapping[str, int] | None = None,
        *,
        alone: bool,
        parks: bool = False,
    ) -> None:
        """`ranks`: None where this rank has none, which obeys nothing unless it is `alone`, the only rank. `files`: on
        rank 0. `at_start`: the levels that all ranks have agreed on. `parks`: whether the trainer can, on all ranks."""
        self._ranks, self._files, self._guard, self._alone = ranks, files, guard, alone
        self._agreement = Agreement((STOP, SAVE, PARK) if parks else (STOP, SAVE), at_start)
        self._pending: deque[_Pending] = deque()

    @classmethod
    def of_training(
        cls, folder: Path, guard: Guard, at_start: Mapping[str, int], park: Accepts | None = None
    ) -> StepRequests:
        """Of the process group that is in force; called on every rank. Never raises. `park`: whether the text of PARK
        asks for something, of a trainer that can park; on every rank or on none."""
        rank, world = rank_and_world()
        ranks: Exchange | None = None
        files: WatchedFiles | None = None
        with guard("join the other ranks"):
            ranks = ranks_of_world()
        with guard("watch the state folder"):
            if rank == 0:
                reads = {} if park is None else {"PARK": park}
                files = WatchedFiles(folder, guard, standing=("KILL",), written=("SAVE",), read=reads)
                files.first_look(FIRST_LOOK_S)
        return cls(ranks, files, guard, at_start, alone=world == 1, parks=park is not None)

    def at_boundary(self, *, stop: int = 0) -> Due:
        """Never raises, and waits only where something is asked for. `stop`: the level that this rank was asked for
        otherwise than by a file, say by a signal."""
        due: dict[str, int] = {}
        seen = {STOP: stop}
        with self._guard("look at what was asked for"):
            if self._files is not None:
                levels = self._files.levels
                seen = {STOP: max(stop, KILL_FILE * levels["KILL"]), SAVE: levels["SAVE"]}
                seen[PARK] = levels.get("PARK", 0)
        with self._guard("agree with the other ranks"):
            due = self._agreement.decide_alone(seen) if self._alone else self._with_others(seen)
        return Due(stop=REASONS.get(due.get(STOP, 0)), save=SAVE in due, park=PARK in due)

    def close(self) -> None:
        """No file is watched any more."""
        if self._files is not None:
            self._files.close()

    def _with_others(self, seen: Mapping[str, int]) -> dict[str, int]:
        agreement, obeyed_before = self._agreement, self._agreement.failure is None
        agreement.begin()
        try:
            return self._decide()
        except Exception:
            agreement.fail("the results of the other ranks could not be read")
            raise
        finally:
            self._post(seen)
            if agreement.failure is not None and obeyed_before:
                log.warning(_NO_LONGER, agreement.failure)

    def _decide(self) -> dict[str, int]:
        agreement = self._agreement
        while self._pending and self._pending[0].handle.done():
            self._take(0.0)
        deadline = time.monotonic() + WAIT_S
        while self._pending and agreement.waits:
            self._take(deadline - time.monotonic())
        return agreement.decide()

    def _take(self, wait_s: float) -> None:
        pending, result = self._pending.popleft(), None
        with self._guard("get the other ranks' requests"):
            result = pending.handle.wait(max(0.0, wait_s))
        self._agreement.take(pending.number, result)

    def _post(self, seen: Mapping[str, int]) -> None:
        """On every rank at every boundary, whatever has failed before: the other ranks count on it."""
        agreement = self._agreement
        if len(self._pending) >= _MOST_PENDING:
            agreement.fail(f"{_MOST_PENDING} exchanges between the ranks have no result")
        handle = self._posted(agreement.row(seen))
        if handle is None:
            agreement.fail("an exchange between the ranks could not be posted")
        elif agreement.failure is None:
            self._pending.append(_Pending(agreement.number, handle))
        if agreement.failure is not None:  # no later result decides anything
            self._pending.clear()

    def _posted(self, row: Sequence[int]) -> Handle | None:
        with self._guard("post requests to the other ranks"):
            if self._ranks is not None:
                return self._ranks.exchange(row)
        return None
