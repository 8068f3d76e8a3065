"""Reads recorded logs and lines for the tests."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from sentinel.sources.line_formats import format_named
from sentinel.sources.log_file import LineReader, LogFile, read_log
from sentinel.vocabulary.sample import Record, RunStarted, Sample, Validation

SAMPLES = Path(__file__).parents[1] / "data" / "log_samples"


def recorded(name: str) -> LogFile:
    return read_log(SAMPLES / f"{name}.log")


def reader(name: str) -> LineReader:
    return LineReader(format_named(name))


def records_of(name: str, lines: Iterable[str]) -> list[Record]:
    of = reader(name)
    return [record for line in lines for record in of.feed(line)] + of.end()


def samples(records: Iterable[Record]) -> list[Sample]:
    return [record for record in records if isinstance(record, Sample)]


def starts(records: Iterable[Record]) -> list[RunStarted]:
    return [record for record in records if isinstance(record, RunStarted)]


def validations(records: Iterable[Record]) -> list[Validation]:
    return [record for record in records if isinstance(record, Validation)]


def steps(records: Sequence[Record]) -> list[tuple[int, int]]:
    return [(sample.attempt, sample.global_step) for sample in samples(records)]


def megatron(
    step: int, loss: float | None = 3.0, *, rank: str = "", scale: float = 1.0, norm: float = 1.5, skipped: int = 0
) -> str:
    """A line as Megatron-DeepSpeed writes it; loss None leaves it out."""
    said = "" if loss is None else f"lm loss: {loss:.6E} | "
    return (
        f"{rank} iteration {step:8d}/    1000 | consumed samples: {step * 8:12d} |"
        f" elapsed time per iteration (ms): 1000.0 | learning rate: 1.000E-04 | global batch size:     8 |"
        f" {said}loss scale: {scale} | grad norm: {norm:.3f} |"
        f" number of skipped iterations: {skipped:3d} | number of nan iterations:   0 |"
    )
