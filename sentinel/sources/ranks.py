"""One sample from the files of many ranks: what each says of a step is put together once all have gone past it."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace

from sentinel.vocabulary.sample import Record, Sample

__all__ = ["Ranks"]

_MOST_AHEAD = 64
"""Logged steps that the fastest file may be ahead before the others are no longer waited for."""

Place = tuple[int, int]
"""attempt, global_step"""


class Ranks:
    """Joins the records of several files. Those that are no samples are given once, when the first file has them."""

    def __init__(self) -> None:
        self._held: dict[Place, list[Sample]] = {}
        self._reached: dict[str, Place] = {}
        self._given: Place = (0, 0)
        self._told: set[tuple[str, int, int]] = set()

    def take(self, file: str, records: Iterable[Record]) -> list[Record]:
        """What of it is given at once."""
        given: list[Record] = []
        for record in records:
            if isinstance(record, Sample):
                place = (record.attempt, record.global_step)
                self._reached[file] = place
                if place > self._given:
                    self._held.setdefault(place, []).append(record)
                continue
            key = (type(record).__name__, record.attempt, getattr(record, "global_step", 0))
            if key not in self._told:
                self._told.add(key)
                given.append(record)
        return given

    def complete(self, *, quiet: bool = False) -> list[Record]:
        """The steps that nobody is waited for any more, in order; all of them where the files are quiet."""
        places = sorted(self._held)
        slowest = min(self._reached.values(), default=(0, 0))
        ready = [p for i, p in enumerate(places) if quiet or p <= slowest or i < len(places) - _MOST_AHEAD]
        if ready:
            self._given = ready[-1]
        return [_joined(self._held.pop(place)) for place in ready]


def _joined(samples: list[Sample]) -> Sample:
    if len(samples) == 1:
        return samples[0]
    losses = [sample.loss for sample in samples]
    mean = sum(losses) / len(losses)
    return replace(samples[0], loss=mean, loss_spread=max(losses) - min(losses) if math.isfinite(mean) else math.nan)
