"""The order of the data under a curriculum, with the interface of the plain order (trainer_hooks/gpt/order.py).
Positions count samples that were drawn or passed over. The plain order is a permutation of the whole data; this one
depends on the steps: `take` gets the step that draws, or goes on from the last one."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sentinel.vocabulary.errors import DataError
from sentinel.vocabulary.training_settings import SkippedRange
from trainer_hooks.data.pool import Pace, Progress
from trainer_hooks.data.sampler import CurriculumSampler, is_in
from trainer_hooks.gpt.order import Order, Reseed


class CurriculumOrder(Order):
    """Which samples stand where in a run whose samples come easiest first; with all that an `Order` has."""

    def __init__(
        self,
        paces: Sequence[Pace],
        seed: int,
        *,
        batch: int,
        reseeds: Sequence[Reseed] = (),
        skipped: Sequence[SkippedRange] = (),
        state: Mapping[str, Any] | None = None,
        position: int = 0,
        step: int = 0,
    ) -> None:
        """`state` is what `state()` gave for the checkpoint that the run resumes from. Without one the curriculum
        begins after `step` steps, at `position`: 0 in a new run, else the checkpoint's global_step and
        consumed_samples. `batch` is the samples of a step, for looking up positions that no step has drawn."""
        super().__init__(seed, reseeds)
        self._batch = batch
        self._skipped: list[tuple[SkippedRange, Progress | None]] = []
        begin = Progress(position=position, step=step) if state is None else Progress.from_json(_of(state, "at"))
        self._now = CurriculumSampler(paces, self.reseeds, begin)
        self._origin = self._before = copy.copy(self._now)
        for found in () if state is None else _of(state, "skipped"):
            at = _of(found, "from")
            part = SkippedRange.from_json(_of(found, "range"))
            self._leave_out(part, None if at is None else Progress.from_json(at))
        for part in (part for part in skipped if part not in self.skipped):
            walk = self._walk(part.reseeds, self._origin.progress)  # to where it begins in the order that it names
            before = part.end <= self._origin.position  # all of it is before this order begins
            self._leave_out(part, None if before else _walked(walk, max(part.begin, walk.position), batch).progress)

    @property
    def skipped(self) -> tuple[SkippedRange, ...]:
        return tuple(part for part, _ in self._skipped)

    @property
    def skipped_samples(self) -> int:
        return sum(map(len, self._now.left_out.values()))

    @property
    def step(self) -> int:
        """The last step that took samples."""
        return self._now.step

    def state(self) -> dict[str, Any]:
        """All that a restart needs beside `reseeds`; as a checkpoint's client state holds it."""
        skipped = [{"range": part.to_json(), "from": at.to_json() if at else None} for part, at in self._skipped]
        return {"at": self._now.progress.to_json(), "skipped": skipped}

    def take(self, position: int, count: int, step: int | None = None) -> tuple[NDArray[np.int64], int]:
        """The `count` samples of that step (default: the one after the last), and the position after them. The position
        is where the last take ended, or where it began; any other is looked up from where this order began, by steps of
        `batch` samples. DataError when it is before that."""
        self._before = self._at(position)
        self._now = copy.copy(self._before)
        return self._now.draw(self._now.step + 1 if step is None else step, count), self._now.position

    def share(self, step: int) -> float | None:
        """Share of the samples that the step draws from, by the metric that lets the fewest in; None is all of them."""
        share = min(self._now.pool.let_in(step)) / self._now.pool.samples
        return share if share < 1 else None

    def runs(self, begin: int, end: int) -> list[tuple[int, int]]:
        """DataError: which sample stood where can't be looked up backwards, so that nothing can be kept for later."""
        raise DataError(
            f"tokens of the samples {begin} to {end} can't be kept for later under a curriculum metric: shorten by "
            "truncate, or by reshape, which loses none"
        )

    def at(self, positions: Sequence[int]) -> NDArray[np.int64]:
        """DataError, as `runs`."""
        raise DataError(f"the samples at {list(positions)[:3]} can't be looked up under a curriculum metric")

    def first(self, position: int) -> int:
        trial = copy.copy(self._at(position))
        step = trial.step + 1
        while True:
            at = trial.position
            number, drawn = trial.draw_raw(step, self._batch)
            left_out = trial.left_out.get(number)
            kept = np.flatnonzero(~is_in(drawn, left_out)) if left_out is not None else (0,)
            if len(kept):
                return at + int(kept[0])

    def reseed(self, position: int, seed: int) -> None:
        super().reseed(position, seed)
        self._now = self._at(min(position, self._now.position))
        for sampler in (self._origin, self._before, self._now):
            sampler.reseeds = self.reseeds

    def skip(self, position: int, count: int) -> None:
        """Leaves out what the step at this position would take if it took `count` samples. They are what the steps from
        here on would take, as long as the pool gains nothing meanwhile; so a run goes on at position + count, and a
        rollback to before, or another order, passes over the same samples."""
        part = SkippedRange(begin=position, end=position + count, reseeds=self.reseeds)
        self._leave_out(part, self._at(position).progress)

    def _leave_out(self, part: SkippedRange, begin: Progress | None) -> None:
        """The samples that are drawn from `begin` to the end of the part; they are passed over in their pass."""
        self._skipped.append((part, begin))
        if begin is None:
            return
        self._now.breaks |= {part.begin, part.end}
        walk, step = self._walk(part.reseeds, begin), begin.step + 1
        while walk.position < part.end:
            number, drawn = walk.draw_raw(step, self._batch)
            self._now.left_out[number] = np.union1d(self._now.left_out.get(number, drawn[:0]), drawn)

    def _walk(self, reseeds: Sequence[Reseed], begin: Progress) -> CurriculumSampler:
        walk = CurriculumSampler(self._now.pool.paces, reseeds or self.reseeds, begin)
        walk.left_out, walk.breaks = self._now.left_out, self._now.breaks
        return walk

    def _at(self, position: int) -> CurriculumSampler:
        for known in (self._now, self._before, self._origin):
            if known.position == position:
                return known
        begin = self._now if position > self._now.position else self._origin
        if position < begin.position:
            raise DataError(f"sample {position} is before this order begins, at {begin.position}")
        return _walked(copy.copy(begin), position, self._batch)


def _walked(walk: CurriculumSampler, position: int, batch: int) -> CurriculumSampler:
    """The sampler at that position, by whole steps as far as they go."""
    while walk.position < position:
        before = copy.copy(walk)
        walk.draw(walk.step + 1, batch)
        if walk.position > position:
            walk = before
            step = walk.step + 1
            while walk.position < position:
                walk.draw_raw(step, position - walk.position)
    return walk


def _of(state: Mapping[str, Any], name: str) -> Any:
    try:
        return state[name]
    except (KeyError, TypeError) as error:
        raise DataError(f"the checkpoint's curriculum state has no {name!r}") from error
