"""The hook's own groups of ranks: gloo on the CPU, in levels, each with at most `fan` ranks.

They are made without torch's registry of groups: `new_group` counts every group, splits NCCL's communicator on ranks
that are not in it, and has to be called on all ranks in one order, which is the training's to choose.
"""

from __future__ import annotations

import ctypes
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import PrefixStore

from trainer_hooks.ranks.agreement import ConnectingStore
from trainer_hooks.ranks.frame import FRAME, combined

FAN = 64  # ranks of one group: each has at most 63 connections

_OPERATION = timedelta(days=1)
"""How long one collective may take. A rank that is stopped for hours costs samples; when it goes on, they come again.
A rank that ends closes its connections, which ends the collective at once."""

_LATER_S = 0.4  # How much longer a level waits than the one below it, whose rank is late: that one's reason is the root

_KEPT = 64
"""How many of a group's last collectives are kept. A thread of gloo's releases a collective's tensors a moment after it
has ended. Where it is the last to do so it takes the interpreter's lock, which aborts the process once the interpreter
ends. While the collective is kept here, that thread is never the last."""

_POLL_S, _LONGEST_POLL_S = 50e-6, 20e-3
_POLL_SHARE = 0.1  # of the time waited so far, until the next poll


class LeavingError(Exception):
    """The process ends, or leaves its ranks: what is under way is given up."""


@dataclass(frozen=True, slots=True)
class Level:
    """One group of this rank's. Its first rank gathers, and takes part in the next level."""

    group: Any
    index: int  # of this rank in the group; 0 is the first
    size: int
    leaving: threading.Event
    kept: deque[Any] = field(default_factory=deque)

    def gather(self, frame: Tensor, deadline: float = math.inf) -> Tensor | None:
        """(size, FRAME) on the first rank: every rank's frame, in the order of the ranks. None on the others."""
        options = dist.GatherOptions()
        options.rootRank, options.timeout = 0, _OPERATION
        if self.index:
            self._done(self.group.gather([], [frame], options), deadline)
            return None
        rows = torch.empty(self.size, FRAME, dtype=torch.float64)
        self._done(self.group.gather([list(rows.unbind())], [frame], options), deadline)
        return rows

    def broadcast(self, frame: Tensor, deadline: float = math.inf) -> None:
        """The frame of the first rank, in place, on every rank."""
        options = dist.BroadcastOptions()
        options.rootRank, options.timeout = 0, _OPERATION
        self._done(self.group.broadcast([frame], options), deadline)

    def _done(self, work: Any, deadline: float) -> None:
        """Waits in Python, not in torch: a thread that came back from there while the interpreter ends would end the
        process with an abort. Raises what the collective raises: a rank is gone, or the network is."""
        _keep_past_the_end(work)
        self.kept.append(work)
        if len(self.kept) > _KEPT:
            _let_go(self.kept.popleft())
        _wait(work.is_completed, self.leaving, deadline)
        work.wait()  # completed: this only raises its error


def _keep_past_the_end(thing: Any) -> None:
    """Until `_let_go`, the object outlives every reference to it, and the interpreter."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(thing))


def _let_go(thing: Any) -> None:
    ctypes.pythonapi.Py_DecRef(ctypes.py_object(thing))


def _wait(ended: Callable[[], bool], leaving: threading.Event, deadline: float) -> None:
    started = time.monotonic()
    while not ended():
        if leaving.is_set():
            raise LeavingError
        now = time.monotonic()
        if now >= deadline:
            raise TimeoutError("a rank did not take part in time")
        time.sleep(min(_LONGEST_POLL_S, max(_POLL_S, _POLL_SHARE * (now - started))))


class Levels:
    """This rank's groups, the lowest first; none where it is alone."""

    def __init__(self, levels: list[Level], leaving: threading.Event | None = None) -> None:
        self._levels = levels
        self._leaving = threading.Event() if leaving is None else leaving

    @classmethod
    def connected(
        cls,
        store: Any,
        *,
        rank: int,
        world: int,
        fan: int,
        deadline: float,
        given_up: Callable[[], bool],
        leaving: threading.Event,
    ) -> Levels:
        """Connects all groups of this rank and sends once through each. RuntimeError or TimeoutError past `deadline`
        (monotonic), once `given_up` is true, or where this rank has no network that gloo can use."""

        def ended() -> bool:
            return leaving.is_set() or given_up()

        levels = []
        for number, (members, index) in enumerate(_memberships(rank, world, fan)):
            until = deadline + number * _LATER_S
            left_s = max(1.0, until - time.monotonic())
            of_group = PrefixStore(f"{members[0]}/{members[1]}", store)
            connecting = ConnectingStore(of_group, members, until, ended, world=world)
            group = dist.ProcessGroupGloo(connecting, index, len(members), timedelta(seconds=left_s))
            # Its destructor would wait for a collective that a stopped rank never joins, at the process's end as well.
            _keep_past_the_end(group)
            level = Level(group, index, len(members), leaving)
            level.gather(torch.zeros(FRAME, dtype=torch.float64), until)
            level.broadcast(torch.zeros(FRAME, dtype=torch.float64), until)
            connecting.let_go()  # not before: gloo may be set to connect at the first collective
            levels.append(level)
        return cls(levels, leaving)

    def top_of(self, frame: Tensor) -> Tensor | None:
        """What all ranks' frames combine to, on rank 0; None on the others. `frame` is used up."""
        for level in self._levels:
            rows = level.gather(frame)
            if rows is None:
                return None
            frame = combined(rows)
        return frame

    def spread(self, frame: Tensor | None) -> Tensor:
        """Rank 0's frame on every rank; the others give None."""
        frame = torch.zeros(FRAME, dtype=torch.float64) if frame is None else frame
        for level in reversed(self._levels):
            level.broadcast(frame)
        return frame

    def wait_for(self, ready: Callable[[], bool]) -> None:
        """Returns once it is True; LeavingError where the process ends before."""
        _wait(ready, self._leaving, math.inf)

    def __iter__(self) -> Iterator[Level]:
        return iter(self._levels)

    def free(self) -> None:
        """Frees the groups, where nothing is under way in them, and their connections."""
        kept = [work for level in self._levels for work in level.kept]
        while self._levels:
            _let_go(self._levels.pop().group)  # waits for its threads: none of them holds a collective after that
        while kept:
            _let_go(kept.pop())


def _memberships(rank: int, world: int, fan: int) -> list[tuple[list[int], int]]:
    """(its ranks, the position of this one) of each of this rank's groups, the lowest first."""
    found, members = [], list(range(world))
    while len(members) > 1 and rank in members:
        at = members.index(rank)
        part = members[at - at % fan : at - at % fan + fan]
        if len(part) > 1:
            found.append((part, at % fan))
        members = members[::fan]
    return found
