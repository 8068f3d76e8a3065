"""The last states of a training, in the memory of its ranks: kept every so many steps, and put back at a resume in
place. A state counts once every rank has it whole. That is learned through the store that the process group was made
with, at the steps that follow: no rank waits for another."""

from __future__ import annotations

import logging
import time
import weakref
from collections.abc import Callable, Mapping
from itertools import count
from typing import Any

from torch._C._distributed_c10d import HashStore, PrefixStore
from torch.distributed import distributed_c10d

from sentinel.vocabulary.errors import CheckpointError, ConfigError
from sentinel.vocabulary.parking import memory_tag
from trainer_hooks.control.step_requests import rank_and_world
from trainer_hooks.errors import Guard
from trainer_hooks.in_memory.engine_state import why_not
from trainer_hooks.in_memory.store import Kept, StateStore, available_bytes, ranks_of_host
from trainer_hooks.ranks.agreement import Ballot
from trainer_hooks.sample.engine_calls import before

log = logging.getLogger(__name__)

RANKS_S = 1800.0  # within which all ranks have come to an agreement: torch's own default for a rank that is late
_PART = 48  # bits of a rank's digest that are added up: the sums of 32,768 ranks have 63

ReportKept = Callable[..., None]
"""Puts the record into the journal; called on rank 0 with its fields but for the attempt and the time."""

_made = count(1)  # of this process: the keys of each are its own in the store


class MemoryTargets:
    """Of one process, on one rank; whatever attempts and engines come in it."""

    def __init__(self, engine: Any, *, most: int, every: int) -> None:
        """`most` states are kept, one every `every` steps. ConfigError, the same on every rank, where the engine's
        state can't be kept, or there is no room for it on the host of one of them. Called on every rank, and waits for
        all of them."""
        if most < 1 or every < 1:
            raise ConfigError(f"memory_targets and memory_every should be 1 or more, not {most} and {every}")
        self._every, (self._rank, self._world) = every, rank_and_world()
        base = HashStore() if self._world == 1 else distributed_c10d._get_default_store()
        self._base, self._number = PrefixStore(f"sentinel/memory/{next(_made)}", base), count(1)
        self._pending: list[tuple[Kept, Any, bool]] = []  # state, its part of the store, whether this rank has told it
        self._watched: Callable[[], Any] = lambda: None  # the engine; not kept alive by this
        why, self._store = why_not(engine), None
        if why is None:
            self._store = StateStore(engine, most)
            why = _no_room(self._store.size_bytes, most, self._world)
        self._agree(ConfigError, None if why is None else f"memory_targets: {why}")
        self._taken.take()

    @property
    def _taken(self) -> StateStore:
        if self._store is None:
            raise ConfigError("no state is kept")
        return self._store

    @property
    def size_bytes(self) -> int:
        """Of one state, on this rank."""
        return self._taken.size_bytes

    def at_boundary(
        self,
        engine: Any,
        step: int,
        client_state: Callable[[], Mapping[str, Any]],
        report: ReportKept,
        guard: Guard,
    ) -> None:
        """Called on every rank after each step: keeps the state where it is due, with what `client_state` gives."""
        with guard("tell of a state in memory"):
            self._tell(report)
        if step % self._every:
            return
        with guard("keep the state in memory"):
            if self._watched() is not engine:  # its update may not begin before the copy is made
                before(engine, "_take_model_step", lambda *_, **__: self._taken.wait_for_copy())
                self._watched = weakref.ref(engine)
            part = PrefixStore(str(next(self._number)), self._base)
            self._pending.append((self._taken.keep(engine, step, client_state()), part, False))

    def settle(self, report: ReportKept, deadline_s: float = 60.0) -> None:
        """Called on every rank before the training is parked: what is under way is whole, and reported."""
        if not self._pending:
            return
        self._taken.settle()
        self._tell(report)
        deadline = time.monotonic() + deadline_s
        while self._rank == 0 and self._pending and time.monotonic() < deadline:
            time.sleep(0.01)
            self._tell(report)

    def restore(self, engine: Any, step: int) -> Mapping[str, Any]:
        """Puts the state of that step back into the engine and returns its client state; later states are forgotten.
        CheckpointError, the same on every rank and before anything is changed, where one of them has not the state that
        it kept. Called on every rank."""
        why = self._taken.why_not(step)
        self._agree(CheckpointError, None if why is None else f"{memory_tag(step)} can't be loaded: {why}")
        try:
            kept = self._taken.restore(engine, step)
        except ValueError as error:
            raise CheckpointError(f"{memory_tag(step)} can't be loaded: {error}") from error
        self._pending = []
        return kept

    def forget(self) -> None:
        """Where the training goes on from elsewhere: no state is kept any more."""
        self._pending = []
        self._taken.forget()

    def held(self, report: ReportKept) -> None:
        """Reports, at the start of an attempt, what it has from the one before it."""
        if steps := self._taken.steps:
            report(global_step=steps[-1], digest=None, size_bytes=None, held=steps)

    def _tell(self, report: ReportKept) -> None:
        """This rank's word on each state that is whole by now; on rank 0 the record of those that all ranks have."""
        left = []
        for kept, part, told in self._pending:
            now_told = told or self._say(kept, part)
            if self._rank == 0 and now_told and part.add("came", 0) == self._world:
                digest, size = f"{part.add('digest', 0):016x}", part.add("size", 0)
                for key in ("came", "digest", "size"):  # no rank asks for them any more; the store would keep them
                    part.delete_key(key)
                report(global_step=kept.step, digest=digest, size_bytes=size, held=self._taken.steps)
            elif self._rank == 0 or not now_told:
                left.append((kept, part, now_told))
        self._pending = left

    def _say(self, kept: Kept, part: Any) -> bool:
        if kept.digest is None:
            return False
        part.add("digest", int(kept.digest[: _PART // 4], 16))
        part.add("size", self._taken.size_bytes)
        part.add("came", 1)
        return True

    def _agree(self, error: type[CheckpointError | ConfigError], why: str | None) -> None:
        """Raises, the same on every rank, where one of them has a reason to."""
        ballot = Ballot(
            PrefixStore(f"agreed/{next(self._number)}", self._base),
            self._rank,
            self._world,
            time.monotonic() + RANKS_S,
        )
        if why is None:
            ballot.ready()
        else:
            ballot.failed(f"{why}{f' (rank {self._rank})' if self._world > 1 else ''}")
        if why := ballot.why_not():
            raise error(why)


def _no_room(size_bytes: int, most: int, world: int) -> str | None:
    """That so many states do not fit into the host's memory, as a phrase; None where they do."""
    ranks = ranks_of_host(world)
    needed, there = size_bytes * most, available_bytes(ranks)
    if needed <= there:
        return None
    states = "1 state" if most == 1 else f"{most} states"
    return (
        f"{states} of {size_bytes} bytes need {needed} bytes of the host's memory on each rank, and {there} bytes are "
        f"available to each of its {ranks} rank{'s' * (ranks > 1)}"
    )
