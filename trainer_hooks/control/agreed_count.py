"""A count that every rank keeps of its own part (tokens of batches of different lengths), as one number that all ranks
use at the same step: it sets a learning rate, which must be the same everywhere."""

from __future__ import annotations

import logging
from collections import deque

from sentinel.vocabulary.errors import OverridesError
from trainer_hooks.control.step_requests import WAIT_S, Exchange, Handle, rank_and_world
from trainer_hooks.ranks import ranks_of_world

log = logging.getLogger(__name__)


class AgreedCount:
    """After step m: what the ranks have exchanged after step m-1, the largest of theirs, and what step m adds to it by
    the rate of step m-1. The exchange of step m has the whole next step to come back, and is not waited for as a rule.

    Where an exchange is lost the count goes on at the last known rate, which is said once. Ranks that have lost
    different exchanges then differ by what one step's batches differ by."""

    def __init__(self, ranks: Exchange | None, start: int) -> None:
        """`ranks`: None where this is the only rank. `start`: the count before the first step, the same everywhere."""
        self._ranks = ranks
        self._made, self._own, self._weight = 0, start, 0.0  # of the steps so far
        self._pending: deque[tuple[int, float, Handle]] = deque()  # (steps, their weight, the exchange)
        self._agreed, self._agreed_weight = start, 0.0
        self._per_weight = 0.0
        self._lost = False

    @classmethod
    def of_training(cls, start: int) -> AgreedCount:
        """Over the process group that is in force; called on every rank. OverridesError, on all of them, where the
        ranks have not joined."""
        if rank_and_world()[1] == 1:
            return cls(None, start)
        ranks = ranks_of_world()
        if not ranks.joined():
            raise OverridesError(f"overrides.json: lr counts tokens, of all ranks, and {ranks.why_over or 'they hang'}")
        return cls(ranks, start)

    def step_made(self, own: int, weight: float) -> None:
        """After each step, on every rank: what this rank has counted so far. `weight`: what the step counts as compared
        with others, the same on all ranks: the length of its samples."""
        self._made += 1
        self._own, self._weight = own, self._weight + weight
        if self._ranks is not None:
            handle = self._ranks.exchange([self._made, -self._made, own])
            if not self._lost:
                self._pending.append((self._made, self._weight, handle))

    def now(self) -> int:
        """Before the next step: the same on all ranks. Waits for the first step's exchange; as a rule for no other."""
        if self._ranks is None:
            return self._own
        needed = self._made if self._made == 1 else self._made - 1
        while self._pending and self._pending[0][0] <= needed:
            self._take(*self._pending.popleft())
        return self._agreed + round(self._per_weight * (self._weight - self._agreed_weight))

    def _take(self, steps: int, weight: float, handle: Handle) -> None:
        result = handle.wait(WAIT_S)
        if result is None or not result[0] == -result[1] == steps:
            self._lost = True
            self._pending.clear()
            if not self._agreed_weight:  # the first of all: there is no agreed rate
                self._per_weight = (self._own - self._agreed) / weight
            log.warning(
                "sentinel: the ranks' counts were not exchanged; the count goes on at the rate of the last step"
            )
            return
        self._per_weight = (result[2] - self._agreed) / (weight - self._agreed_weight)
        self._agreed, self._agreed_weight = result[2], weight
