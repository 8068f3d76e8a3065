"""Where the run's readings come from, and a cache for a source that tells its samples only once."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator
from typing import NamedTuple, Protocol, runtime_checkable

import msgspec

from sentinel.vocabulary.sample import Record, Sample


class Source(Protocol):
    """The run's metrics journals, its trainer's log, or what Prometheus scraped of it."""

    @property
    def unreadable(self) -> int:
        """Lines or scrapes that could not be taken, so far."""

    def new(self) -> Iterable[Record]:
        """What is new since the last call. OSError when it can't be read, ScrapeError when nobody answers."""


@runtime_checkable
class RereadSource(Source, Protocol):
    """A source whose samples need not be kept, since it tells them again."""

    def again(self, attempt: int, after: int = -1) -> Iterator[Sample]:
        """The attempt's samples of steps above `after` that it has given, in order. TemporaryError if it can't now."""


def read_all(source: Source) -> Iterator[Record]:
    """All that is there now: a source may hold its newest step until it has nothing new."""
    yield from source.new()
    yield from source.new()


_BLOCK_SAMPLES = 256


class _Block(NamedTuple):
    """Samples of one attempt, compressed."""

    attempt: int
    kind: type[Sample]
    data: bytes | list[Sample]  # packed; as they are where a number of them is beyond 64 bits, which no real one is


class SampleCache:
    """A trainer's log is rotated and cut, a Prometheus forgets: neither can be relied on to tell the same again. So
    their samples are kept: compressed, 25 to 100 bytes each where the object takes some 900."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._blocks: list[_Block] = []
        self._open: list[Sample] = []

    @property
    def unreadable(self) -> int:
        """Of the source."""
        return self._source.unreadable

    def new(self) -> Iterator[Record]:
        """What is new. What the source raises."""
        for record in self._source.new():
            if isinstance(record, Sample):
                self._keep(record)
            yield record

    def again(self, attempt: int, after: int = -1) -> Iterator[Sample]:
        """The attempt's samples of steps above `after` that were given, in order."""
        for block in self._blocks:
            if block.attempt == attempt:
                yield from (sample for sample in _unpacked(block) if sample.global_step > after)
        yield from (sample for sample in self._open if sample.attempt == attempt and sample.global_step > after)

    def _keep(self, sample: Sample) -> None:
        first = self._open[0] if self._open else sample
        same = (first.attempt, type(first)) == (sample.attempt, type(sample))
        if not same or len(self._open) == _BLOCK_SAMPLES:
            self._blocks.append(_Block(first.attempt, type(first), _packed(self._open)))
            self._open = []
        self._open.append(sample)


def _packed(samples: list[Sample]) -> bytes | list[Sample]:
    try:
        return zlib.compress(msgspec.msgpack.encode(samples))
    except OverflowError:
        return samples


def _unpacked(block: _Block) -> Iterator[Sample]:
    if isinstance(block.data, list):
        yield from block.data
    else:
        yield from (block.kind(**fields) for fields in msgspec.msgpack.decode(zlib.decompress(block.data)))
