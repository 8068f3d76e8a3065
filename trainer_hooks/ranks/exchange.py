"""Numbers that every rank gives and every rank gets the largest of."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from trainer_hooks.ranks.frame import EXCHANGE, TOPS, contents, filled, frame_of, refused
from trainer_hooks.ranks.groups import Levels


class Exchange:
    """One exchange under way; see `Ranks.exchange`."""

    def __init__(self, flags: Sequence[int], number: int) -> None:
        if len(flags) > TOPS:
            raise ValueError(f"{len(flags)} numbers, and an exchange carries at most {TOPS}")
        self._flags = list(flags)
        self._number = number
        self._largest: list[int] | None = None
        self._ended = threading.Event()

    def done(self) -> bool:
        """Whether it has ended: `wait` answers at once. Never waits."""
        return self._ended.is_set()

    def wait(self, timeout_s: float = 0.0) -> list[int] | None:
        """The largest of each number over all ranks; None where it has not come within timeout_s, or never will."""
        self._ended.wait(timeout_s)
        return self._largest

    def run(self, levels: Levels) -> None:
        """On the ranks' thread. RuntimeError where the ranks' exchanges are not the same one."""
        top = levels.top_of(filled(frame_of(EXCHANGE, 0, self._number, len(self._flags)), [], self._flags))
        got = levels.spread(top)
        if refused(got) or got[:4].tolist() != [EXCHANGE, 0, self._number, len(self._flags)]:
            raise RuntimeError("the ranks do not exchange the same numbers in the same order")
        self._largest = [int(x) for x in contents(got, 0, len(self._flags))[1]]
        self._ended.set()

    def give_up(self) -> None:
        self._ended.set()
