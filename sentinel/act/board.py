"""How far TensorBoard's event files reach: read at each look that may act, and now and then in between."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from sentinel.adapters.tensorboard import TensorBoard

_EVERY_S = 60.0  # often enough that little is left to be read when an incident opens
_SHARE = 0.01  # of the time, at most, that reading takes


@dataclass(frozen=True, slots=True)
class Reach:
    """See `FoldersSeen.tensorboard_past`, `tensorboard_samples` and `tensorboard_git`."""

    step: int | None = None
    samples: int | None = None
    git: str | None = None


class BoardReach:
    """Each reading lists the folder and asks for each event file's size and time: nothing that a healthy run needs."""

    def __init__(self, board: TensorBoard | None, clock: Callable[[], float] = time.monotonic) -> None:
        self._board = board
        self._clock = clock
        self._reach = Reach()
        self._next_s: float | None = None

    def look(self, *, now: bool) -> Reach:
        """`now`: of now; else of the last reading, where that is not long ago."""
        if self._board is None:
            return self._reach
        if now or self._next_s is None or self._clock() >= self._next_s:
            began_s, git = self._clock(), self._board.git_work_tree()
            step, samples = self._board.reach()
            self._reach = Reach(step, samples, None if git is None else str(git))
            self._next_s = self._clock() + max(_EVERY_S, (self._clock() - began_s) / _SHARE)
        return self._reach
