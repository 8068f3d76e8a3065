"""Which ranks stand still, where a step does not end: signs of life through the store of the training's process group.

While a rank makes steps it leaves no sign. One that has made none for a while leaves one again and again, from a thread
that runs also where the training thread waits for others. Rank 0, once it has waited longer, looks at all of them: a
process that is stopped, or whose machine is gone, leaves none; one that is behind the others says how far it came.
"""

from __future__ import annotations

import json
import logging
import os
import socket
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from torch._C._distributed_c10d import PrefixStore
from torch.distributed import distributed_c10d

from sentinel.vocabulary.sample import RanksStandStill
from trainer_hooks.ranks.ranks import Ranks

log = logging.getLogger(__name__)

QUIET_S = 20.0  # Without a step for so long, a rank leaves signs
PERIOD_S = 15.0  # Between two signs, and between two looks of rank 0
_LOOK_AFTER_PERIODS = 2  # of quiet: every rank that lives has left signs by then

_MOST_NAMED = 8

STOPPED, BEHIND = "stopped", "behind"


@dataclass(frozen=True, slots=True)
class Sign:
    """What one rank left last."""

    count: int  # of its signs
    host: str
    pid: int
    at: tuple[int, int]  # steps completed, and micro-batches of the step under way
    waits_s: float  # since its training thread came by last


@dataclass(frozen=True, slots=True, kw_only=True)
class Still:
    """A rank that stands still."""

    rank: int
    host: str
    pid: int
    since_unix_s: float  # on rank 0's clock
    how: str  # STOPPED: its process gives no sign. BEHIND: it lives, and has not come as far as the others


def standing_still(
    signs: Mapping[int, Sign], before: Mapping[int, Sign], *, now_unix_s: float, quiet_since_unix_s: float
) -> tuple[Still, ...]:
    """Of two looks at all ranks, some periods apart. None are behind where half of the ranks are, or more: it is not
    known then which of them is waited for."""
    stopped = {r for r, sign in signs.items() if r != 0 and r in before and sign.count == before[r].count}
    alive = {r: sign for r, sign in signs.items() if r not in stopped}
    furthest = max((sign.at for sign in alive.values()), default=(0, 0))
    behind = {r for r, sign in alive.items() if sign.at < furthest and sign.waits_s > 0}
    if 2 * len(behind) >= len(signs) or stopped:
        behind = set()
    return tuple(
        Still(
            rank=r,
            host=signs[r].host,
            pid=signs[r].pid,
            since_unix_s=quiet_since_unix_s if r in stopped else now_unix_s - signs[r].waits_s,
            how=STOPPED if r in stopped else BEHIND,
        )
        for r in sorted(stopped | behind)
    )


def record_of(still: tuple[Still, ...], now: Mapping[str, Any]) -> RanksStandStill:
    """For the journal; the first MOST_NAMED of them. `now` has the fields of AtStep."""
    named = still[:_MOST_NAMED]
    return RanksStandStill(
        **now,
        ranks=tuple(one.rank for one in named),
        hosts=tuple(one.host for one in named),
        pids=tuple(one.pid for one in named),
        since_unix_s=tuple(one.since_unix_s for one in named),
        how=tuple(one.how for one in named),
        in_all=len(still),
    )


class Signs:
    """One rank's. `told` is called on rank 0, on this thread, whenever other ranks stand still than before; with none
    once the training goes on."""

    def __init__(
        self,
        ranks: Ranks,
        told: Callable[[tuple[Still, ...]], None],
        *,
        quiet_s: float = QUIET_S,
        period_s: float = PERIOD_S,
    ) -> None:
        self._ranks = ranks
        self._told = told
        self._quiet_s = quiet_s
        self._period_s = period_s
        self._prefix = f"{ranks.name}/signs/{ranks.new_channel()}"
        self._at = (0, 0)
        self._came_at = time.monotonic()
        self._count = 0
        self._looks: list[dict[int, Sign]] = []  # of the quiet that goes on
        self._named: tuple[int, ...] = ()
        self._closed = False
        if ranks.world > 1:
            ranks.begin_thread("sentinel-signs", self._run)

    def came(self, step: int | None = None) -> None:
        """The training thread has completed that step, or a micro-batch of the next. Costs two assignments."""
        self._at = (self._at[0], self._at[1] + 1) if step is None else (step, 0)
        self._came_at = time.monotonic()

    def close(self) -> None:
        self._closed = True

    def _run(self) -> None:
        try:
            self._leave()
            while not self._ranks.wait_to_leave(self._period_s) and not self._closed:
                waits_s = time.monotonic() - self._came_at
                if waits_s >= self._quiet_s:
                    self._leave()
                if self._ranks.rank == 0:
                    self._look(waits_s)
        except Exception as error:  # noqa: BLE001 - the edge of the thread: the store is gone, or has no answer
            log.info("sentinel: signs of the ranks end (%s: %s); training goes on", type(error).__name__, error)

    def _store(self) -> Any:
        """Asked for each time: it is not kept beyond the process group that it is of."""
        return PrefixStore(self._prefix, distributed_c10d._get_default_store())

    def _leave(self) -> None:
        self._count += 1
        waits_s = round(time.monotonic() - self._came_at, 3)
        sign = [self._count, socket.gethostname(), os.getpid(), self._at, waits_s]
        self._store().set(str(self._ranks.rank), json.dumps(sign))

    def _look(self, waits_s: float) -> None:
        if waits_s < self._quiet_s + _LOOK_AFTER_PERIODS * self._period_s:
            self._looks = []
            self._name(())
            return
        now, quiet_since = time.time(), time.time() - waits_s
        self._looks.append(self._read())
        if len(self._looks) > _LOOK_AFTER_PERIODS:
            before = self._looks.pop(0)
            self._name(standing_still(self._looks[-1], before, now_unix_s=now, quiet_since_unix_s=quiet_since))

    def _read(self) -> dict[int, Sign]:
        store = self._store()
        keys = [str(rank) for rank in range(self._ranks.world)]
        if not store.check(keys):  # a rank that never came this far has left none
            keys = [key for key in keys if store.check([key])]
        read = {}
        for key in keys:
            count, host, pid, at, waits_s = json.loads(store.get(key))
            read[int(key)] = Sign(count, host, pid, (at[0], at[1]), waits_s)
        return read

    def _name(self, still: tuple[Still, ...]) -> None:
        ranks = tuple(one.rank for one in still)
        if ranks != self._named:
            self._named = ranks
            self._told(still)
