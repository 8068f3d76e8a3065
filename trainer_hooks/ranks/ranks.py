"""All ranks of a training, joined once: the thread that alone talks to the others, and what may be asked of it."""

from __future__ import annotations

import atexit
import logging
import queue
import re
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from functools import partial
from itertools import count
from typing import Any, Protocol

import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore
from torch.distributed import distributed_c10d

from trainer_hooks.ranks.agreement import Ballot, agreed
from trainer_hooks.ranks.exchange import Exchange
from trainer_hooks.ranks.groups import FAN, LeavingError, Levels
from trainer_hooks.ranks.names import Union

log = logging.getLogger(__name__)

JOIN_S = 60.0  # Within this time all ranks have joined, or none has
_GRACE_S = 2.0  # of these who are ready, so that those who wait for a rank can say for which
_AT_EXIT_S = 2.0
"""How long the end of the process waits for the threads, which wait for no other rank and end at once as a rule. A
thread that returns from a call of torch while the interpreter ends aborts the process."""


class Task(Protocol):
    """What the thread does for a caller, in the order of the calls, which is the same on every rank."""

    def run(self, levels: Levels) -> None: ...

    def give_up(self) -> None:
        """Called in place of `run`, or after it failed."""


_joins = count(1)  # of this process: the keys of each are its own in the store


class Ranks:
    """One rank's part. Nothing here waits for another rank but what says for how long. All calls are made on every rank
    in the same order, as collectives are; a rank that is missing delays answers and holds nobody up."""

    def __init__(self, *, fan: int = FAN, join_s: float = JOIN_S) -> None:
        self.rank = dist.get_rank() if dist.is_initialized() else 0
        self.world = dist.get_world_size() if dist.is_initialized() else 1
        self.why_over: str | None = "" if self.world == 1 else None
        """Why nothing comes from other ranks, now or later; None while something may; empty where there are none."""
        self._levels = Levels([])
        self._tasks: queue.SimpleQueue[Task | None] = queue.SimpleQueue()
        self._leaving = threading.Event()
        self._joined = threading.Event()
        self._exchanges, self._agreements, self._channels = count(1), count(1), count(1)
        self.name = f"sentinel/{next(_joins)}"
        self._threads: list[threading.Thread] = []
        if self.world == 1:
            self._joined.set()
            return
        try:
            store = PrefixStore(self.name, distributed_c10d._get_default_store())
            doing = partial(self._serve, store, fan, time.monotonic() + join_s)
            atexit.register(self._at_exit)
            self.begin_thread("sentinel-ranks", doing)
        except Exception as error:  # noqa: BLE001 - the training goes on; the other ranks miss this one at joining
            self._over(f"this rank cannot join the others ({brief(error)})")
            self._joined.set()

    def begin_thread(self, name: str, doing: Callable[[], None]) -> None:
        """Begins a thread that may call torch: the end of the process waits for it, briefly. It ends by itself once
        `wait_to_leave` is True."""
        thread = threading.Thread(target=doing, name=name, daemon=True)
        thread.start()
        self._threads = [*(one for one in self._threads if one.is_alive()), thread]

    def wait_to_leave(self, timeout_s: float) -> bool:
        """Whether the process ends, or begins to within timeout_s."""
        return self._leaving.wait(timeout_s)

    def joined(self, timeout_s: float = JOIN_S) -> bool:
        """Whether all ranks have joined, within timeout_s; otherwise none has, or it is not decided yet."""
        self._joined.wait(timeout_s)
        return self._joined.is_set() and not self.why_over

    def exchange(self, flags: Sequence[int]) -> Exchange:
        """Begins to bring every rank the largest of each number over all ranks: at most 40 whole numbers below 2^53, as
        many on every rank. The smallest of one is the largest of its negative, with the sign turned again."""
        exchange = Exchange(flags, next(self._exchanges))
        self.submit(exchange)
        return exchange

    def agree(self, value: Any, timeout_s: float = JOIN_S) -> Any:
        """The value of rank 0 on every rank: small, and such that JSON can carry it; the other ranks' is not looked at.
        Waits for all ranks. NotAgreedError on every rank, where one is missing after timeout_s."""
        if self.world == 1:
            return value
        store = PrefixStore(f"{self.name}/agree/{next(self._agreements)}", distributed_c10d._get_default_store())
        return agreed(store, self.rank, self.world, value, timeout_s)

    def union(self, names: Sequence[str] | None) -> Union:
        """Begins to bring every rank the names of all of them."""
        union = Union(names, self.new_channel())
        self.submit(union)
        return union

    def new_channel(self) -> int:
        """The number of one more user of the ranks: the same on every rank."""
        return next(self._channels)

    def submit(self, task: Task) -> None:
        """Hands a task to the thread. Never waits."""
        if self.world == 1:
            task.run(self._levels)
        elif not self._threads:
            task.give_up()
        else:
            self._tasks.put(task)

    def leave(self) -> None:
        """Ends the thread after what it was given, and frees the groups: for a process that goes on without them."""
        if self.world > 1:
            self._tasks.put(None)

    def _at_exit(self) -> None:
        self._leaving.set()
        self._tasks.put(None)
        deadline = time.monotonic() + _AT_EXIT_S
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))

    def _serve(self, store: Any, fan: int, deadline: float) -> None:
        try:
            self._levels, why = self._join(store, fan, deadline)
            if why:
                self._over(f"the ranks have not joined: {why}")
            self._joined.set()
            while (task := self._tasks.get()) is not None:
                self._do(task)
            if not self._leaving.is_set() and self.why_over is None:
                self._levels.free()
        except LeavingError:
            pass

    def _join(self, store: Any, fan: int, deadline: float) -> tuple[Levels, str]:
        """This rank's groups, and why there are none, which is the same on every rank."""
        levels = Levels([])
        try:
            ballot = Ballot(store, self.rank, self.world, deadline + _GRACE_S, ended=self._leaving.is_set)
            try:
                if not ballot.decided():
                    levels = Levels.connected(
                        store,
                        rank=self.rank,
                        world=self.world,
                        fan=fan,
                        deadline=deadline,
                        given_up=ballot.decided,
                        leaving=self._leaving,
                    )
                    ballot.ready()
            except Exception as error:  # noqa: BLE001 - whatever it is: the other ranks are to know
                ballot.failed(f"rank {self.rank} could not connect ({brief(error)})")
            return levels, ballot.why_not()
        except Exception as error:  # noqa: BLE001 - the edge of the thread: the store is gone
            return levels, f"rank {self.rank} has lost the store of the process group ({error})"

    def _do(self, task: Task) -> None:
        if self.why_over is None:
            try:
                task.run(self._levels)
                return
            except LeavingError:
                raise
            except Exception as error:  # noqa: BLE001 - the edge of the thread: the training goes on
                self._over(f"a rank or the network is gone ({brief(error)})")
        task.give_up()

    def _over(self, why: str) -> None:
        """Closes the groups, so that the ranks that wait for this one hear of it at once."""
        self.why_over = why
        self._levels.free()
        if not self._leaving.is_set():
            log.info("sentinel: nothing comes from the other ranks: %s; training goes on", why)


def brief(error: Exception) -> str:
    """The first sentence of it; gloo's is followed by advice and a place in its source."""
    sentence = re.sub(r"^\[[^]]*:\d+\] ", "", str(error).partition(". ")[0])
    return f"{type(error).__name__}: {sentence}"[:200]


class _OfWorld:
    """The ranks that were joined last, and the process group that they are of."""

    group: weakref.ref[Any] | None = None
    ranks: Ranks | None = None
    making = threading.Lock()


def ranks_of_world() -> Ranks:
    """The ranks of the process group that is in force, joined at the first call; the same at each later one. The first
    call is made on every rank. Never waits."""
    if not dist.is_initialized():
        return Ranks()
    world = dist.group.WORLD
    with _OfWorld.making:
        if _OfWorld.ranks is not None and _OfWorld.group is not None:
            if _OfWorld.group() is world:
                return _OfWorld.ranks
            _OfWorld.ranks.leave()
        _OfWorld.ranks, _OfWorld.group = Ranks(), weakref.ref(world)
        return _OfWorld.ranks
