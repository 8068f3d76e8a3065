"""The samples of a step: drawn from its pool without replacement, and the same ones after any restart.

A *pass* draws each sample of the pool once. Samples that enter the pool during the pass join it as a *segment*, and a
step draws from the segments in proportion to what is left of each. They join when they are 1/128 of the pool, when the
pool has stopped growing or is complete, or when the pass has nothing left; then the next pass begins. A pool that
shrinks (a lower difficulty) ends the pass.

A segment is a computed permutation and a count of the samples drawn, so a checkpoint holds a few numbers. (DeepSpeed's
sampler shuffles a file per cluster and saves a random state that it does not draw from: its issue 8405.)
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sentinel.vocabulary.errors import DataError
from trainer_hooks.data.permutation import Permutation, key, noise
from trainer_hooks.data.pool import Counts, Pace, Pool, Progress, Segment

_GRAIN = 128
_AHEAD = 8192
"""Places that are computed at once, for this step and the next ones: each costs a fifth of what it costs alone."""

_NOTHING: Any = np.zeros(0, dtype=np.int64)


class CurriculumSampler:
    """Draws the samples of one step after the other. `copy.copy` makes another one that goes its own way."""

    # The segments of the present pass, side by side; all are replaced, never changed.
    _up_to: list[Counts]
    _seeds: list[tuple[tuple[int, int], ...]]
    _size: NDArray[np.int64]
    _drawn: NDArray[np.int64]
    _first: NDArray[np.int64]  # the place of each segment's first sample, as the metrics let them in
    _members: NDArray[Any]  # sample numbers by place, where no index has them side by side
    _ahead: NDArray[np.int64]  # places of the next positions, segment after segment
    _ahead_ends: NDArray[np.int64]  # by segment: the position past them
    _ahead_shift: NDArray[np.int64]  # by segment: from a position to where its place is in _ahead
    _layers: list[tuple[NDArray[np.int64], NDArray[np.bool_], Permutation]]
    _seed: int
    _next_reseed: int
    _reseeds_seen: tuple[tuple[int, int], ...]

    def __init__(
        self, paces: Sequence[Pace], reseeds: Sequence[tuple[int, int]], progress: Progress | None = None
    ) -> None:
        self.pool = Pool(paces)
        self.reseeds = tuple(reseeds)
        """(position, seed): from that position on, ascending. One seed permutes until the next takes over."""
        self.left_out: dict[int, NDArray[np.int64]] = {}
        """By pass: the sample numbers, ascending, that are not drawn in it. Copies share it."""
        self.breaks: set[int] = set()
        """Positions that no draw goes across: where what is left out begins and ends. Copies share it."""
        self._go_to(progress or Progress())

    @property
    def progress(self) -> Progress:
        segments = tuple(
            Segment(up_to=up_to, size=int(size), drawn=int(drawn), seeds=seeds)
            for up_to, size, drawn, seeds in zip(self._up_to, self._size, self._drawn, self._seeds, strict=True)
        )
        return Progress(
            position=self.position, step=self.step, passes=self._pass, let_in=self._let_in, segments=segments
        )

    def draw(self, step: int, count: int) -> NDArray[np.int64]:
        """(count,) sample numbers for that step, those that are left out passed over. `position` moves on by what was
        drawn and what was passed over. DataError when the pool is empty."""
        parts, wanted = [], count
        while wanted:
            number, drawn = self.draw_raw(step, wanted)
            if number in self.left_out:
                drawn = drawn[~is_in(drawn, self.left_out[number])]
            parts.append(drawn)
            wanted -= len(drawn)
        return parts[0] if len(parts) == 1 else np.concatenate([_NOTHING, *parts])

    def draw_raw(self, step: int, count: int) -> tuple[int, NDArray[np.int64]]:
        """The pass, and up to `count` samples of it, at least one: those that are left out are drawn as well."""
        let_in = self.pool.let_in(step)
        self._reseed()
        self._admit(let_in, step)
        self.step, self._let_in = step, let_in
        count = min(count, self._left, self._next_reseed - self.position)
        count = min([count, *(at - self.position for at in self.breaks if at > self.position)])
        samples = self._from_one(count) if len(self._size) == 1 else self._from_many(count)
        self.position += count
        self._left -= count
        return self._pass, samples

    def _reseed(self) -> None:
        """Where a seed takes over here, permutes anew what is left of the pass. Doing so twice changes nothing."""
        if self.position < self._next_reseed and self._reseeds_seen is self.reseeds:
            return
        self._reseeds_seen = self.reseeds
        after = [at for at, _ in self.reseeds if at > self.position]
        self._next_reseed = after[0] if after else sys.maxsize
        in_force = [pair for pair in self.reseeds if pair[0] <= self.position] or list(self.reseeds[:1])
        at, self._seed = in_force[-1]
        if at == self.position:
            self._seeds = [
                (*(pair for pair in seeds if pair[0] != drawn), (int(drawn), self._seed))
                for seeds, drawn in zip(self._seeds, self._drawn, strict=True)
            ]
            self._changed()

    def _admit(self, let_in: Counts, step: int) -> None:
        """Lets in what the pool of now holds, or begins the next pass, where it is time to."""
        admitted = self._up_to[-1] if self._up_to else ()
        if not admitted or any(now < then for now, then in zip(let_in, admitted, strict=True)):
            self._begin(let_in, step)
        elif let_in != admitted and (not self._left or self._due(admitted, let_in)):
            self._join(admitted, let_in)
        if not self._left:
            self._begin(let_in, step)

    def _due(self, admitted: Counts, let_in: Counts) -> bool:
        """Whether what the pool has gained is worth a segment, or will not become more."""
        grown = any((now - then) * _GRAIN >= then for now, then in zip(let_in, admitted, strict=True) if now > then)
        return grown or let_in == self._let_in or all(now == self.pool.samples for now in let_in)

    def _begin(self, let_in: Counts, step: int) -> None:
        self._pass += 1
        self._clear()
        self._join((0,) * len(let_in), let_in)
        if not self._left:
            each = (f"{p.index.name} lets in {p.let_in(step)} of {len(p.index)}" for p in self.pool.paces)
            raise DataError(f"no sample is easy enough for step {step}: {', '.join(each)}")

    def _clear(self) -> None:
        self._left, self._up_to, self._seeds = 0, [], []
        self._size = self._drawn = self._first = self._members = _NOTHING

    def _join(self, before: Counts, now: Counts) -> None:
        size = now[0] - before[0]
        if len(now) > 1:  # no index has what joins side by side
            joined = self.pool.joined(before, now)
            self._members, size = np.concatenate([self._members.astype(joined.dtype), joined]), len(joined)
        self._up_to = [*self._up_to, now]
        self._first = np.append(self._first, self._size.sum())
        self._size = np.append(self._size, size)
        self._drawn = np.append(self._drawn, 0)
        self._seeds = [*self._seeds, ((0, self._seed),)]
        self._left += size
        self._changed()

    def _go_to(self, progress: Progress) -> None:
        self.position, self.step, self._pass = progress.position, progress.step, progress.passes
        self._let_in = progress.let_in
        self._seed, self._next_reseed, self._reseeds_seen = self.reseeds[0][1], -1, self.reseeds
        segments = progress.segments
        if segments and len(segments[0].up_to) != len(self.pool.paces):
            raise DataError("the checkpoint's curriculum has another number of metrics")
        self._clear()
        before: Counts = (0,) * len(self.pool.paces)
        for segment in segments:
            if any(count > self.pool.samples for count in segment.up_to):
                raise DataError("the checkpoint's curriculum is of an index with more samples")
            self._join(before, segment.up_to)
            if self._size[-1] != segment.size:
                raise DataError("the checkpoint's curriculum is of other indexes")
            before = segment.up_to
        self._seeds = [s.seeds for s in segments]
        self._drawn = np.array([s.drawn for s in segments], dtype=np.int64)
        self._left -= int(self._drawn.sum())
        self._changed()

    def _changed(self) -> None:
        """Makes the permutations of the segments as they are now."""
        deepest = max(map(len, self._seeds), default=0)
        self._layers = []
        for depth in range(deepest):
            at = np.zeros(len(self._size), dtype=np.int64)
            keys = np.zeros(len(self._size), dtype=np.uint64)
            there = np.zeros(len(self._size), dtype=bool)
            for number, seeds in enumerate(self._seeds):
                if depth < len(seeds):
                    at[number], there[number] = seeds[depth][0], True
                    keys[number] = key(seeds[depth][1], self._pass, number, seeds[depth][0])
            self._layers.append((at, there, Permutation(self._size - at, keys)))
        self._ahead, self._ahead_ends, self._ahead_shift = _NOTHING, self._drawn, self._drawn

    def _from_one(self, count: int) -> NDArray[np.int64]:
        drawn = self._drawn + count
        if drawn[0] > self._ahead_ends[0]:
            self._look_ahead(drawn)
        begin = int(self._drawn[0] + self._ahead_shift[0])
        self._drawn = drawn
        return self._numbers(self._ahead[begin : begin + count])

    def _from_many(self, count: int) -> NDArray[np.int64]:
        """In proportion to what is left of each: at points evenly spaced over it all, from a random one on."""
        word = key(self._seed, self._pass, self.position)
        points = (np.arange(count, dtype=np.int64) * self._left + word % self._left) // count
        of = np.searchsorted(np.cumsum(self._size - self._drawn), points, side="right")
        taken = np.bincount(of, minlength=len(self._size))
        drawn = self._drawn + taken
        if (drawn > self._ahead_ends).any():
            self._look_ahead(drawn)
        begins = self._drawn - (np.cumsum(taken) - taken) + self._ahead_shift
        self._drawn = drawn
        places = self._ahead[begins[of] + np.arange(count)]
        return self._numbers(places[np.argsort(noise(word, count))])

    def _look_ahead(self, least: NDArray[np.int64]) -> None:
        """Computes the next places of each segment: up to `least` drawn ones, and as many more as steps will want."""
        left = self._size - self._drawn
        share = (left * (_AHEAD / self._left)).astype(np.int64)
        ends = np.minimum(np.maximum(self._drawn + share, least) + 1, self._size)
        lengths = ends - self._drawn
        begins = np.cumsum(lengths) - lengths
        of = np.repeat(np.arange(len(lengths)), lengths)
        positions = np.arange(len(of)) + (self._drawn - begins)[of]
        self._ahead = self._placed(of, positions) + self._first[of]
        self._ahead_ends, self._ahead_shift = ends, begins - self._drawn

    def _placed(self, of: NDArray[np.intp], positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """Where the permutations of the segments `of` put their positions."""
        for at, there, permutation in reversed(self._layers):
            if there.all():
                positions = at[of] + permutation(positions - at[of], of)
            else:
                which = np.flatnonzero(there[of])
                part, begin = of[which], at[of[which]]
                positions = positions.copy()
                positions[which] = begin + permutation(positions[which] - begin, part)
        return positions

    def _numbers(self, places: NDArray[np.int64]) -> NDArray[np.int64]:
        members = self.pool.paces[0].index.order if len(self.pool.paces) == 1 else self._members
        numbers: NDArray[np.int64] = members[places].astype(np.int64)
        return numbers


def is_in(samples: NDArray[np.int64], ascending: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Whether each sample is one of those, of which there is at least one."""
    at = np.minimum(np.searchsorted(ascending, samples), len(ascending) - 1)
    found: NDArray[np.bool_] = ascending[at] == samples
    return found
