"""Lines that are read many at once give what they give one by one."""

from __future__ import annotations

import itertools
import random
import re
from collections.abc import Iterable, Sequence
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from sentinel.judge.readings import CARRIED, COLUMNS
from sentinel.sources.alike_lines import AlikeSamples
from sentinel.sources.column_source import Tally
from sentinel.sources.line_reader import LineReader
from sentinel.sources.log_file import one_by_one
from sentinel.sources.opening import in_columns
from sentinel.vocabulary.sample import Sample
from tests.sources.reading import SAMPLES, megatron, reader, recorded, samples
from tests.sources.readings import told

LOGS = {
    path.stem: [line for line in re.split(r"[\r\n]+", path.read_text(errors="replace")) if line]
    for path in sorted(SAMPLES.glob("*.log"))
    if "overflow" not in path.name and "16gb" not in path.name
}
FORMAT = {name: recorded(name).format for name in LOGS}
TOGETHER = (
    *("megatron_lm_new", "bigscience_tr1-13B_chronicles", "gpt_neox", "torchtitan", "hf_trainer_dict", "mlx_lora"),
)
NUMBER = re.compile(r"(?<![\w.])\d+(?:\.\d+)?(?:[eE][-+]?\d+)?")
ODD = ["nan", "inf", "-inf", "-1.5", "0", "0.0", "0.000", "1e999", "1,234", "12,345.6", "7.", ".5", "5e-324", "9" * 16]
ODD += [
    "9" * 30,
    "1e-05",
    "-0.0",
    "+3",
    "007",
    "85.8G",
    "1_0",
    "5.2.1",
    "12 16:04:46",
    "20260518 16:04:46",
    "٣",
    "1.2%",
]
OTHERS = [
    *("", "{", "}", "| warning: 12 |", "saving checkpoint at iteration 7", "{'loss': 1.0, 'epoch'", "\x1b[0m"),
    "a.......b",
]
OTHERS += [
    *("  successfully saved checkpoint at iteration 7", "[rank1]: loss is not visible on rank 3", " step 12", "eval"),
]


def alone(of: LineReader, lines: Iterable[tuple[int, str]]) -> dict[str, Any]:
    """What the lines give one by one."""
    return _told(of, [record for number, line in lines for record in of.feed(line, number)])


def together(of: LineReader, lines: Sequence[tuple[int, str]], cut: int) -> dict[str, Any]:
    """The same in two chunks."""
    pieces = [piece for chunk in (lines[:cut], lines[cut:]) for piece in of.feed_all(chunk)]
    return _told(of, list(one_by_one(pieces)))


def _told(of: LineReader, records: list[Any]) -> dict[str, Any]:
    records += of.end()
    said = {"records": list(map(repr, records)), "counts": of.counts, "lines": of.lines, "note": of.note}
    return said | {"refusal": of.refusal, "unreadable": of.tally.first_unreadable}


def counting_up(line: str, format_name: str, many: int, rng: random.Random) -> list[str]:
    """A line of a step, then the same with steps that go on and digits that differ."""
    read = samples([*(of := reader(format_name)).feed(line), *of.end()])
    if not read:
        return [line] * many
    step, made = read[0].global_step, [line]
    for ahead in range(1, many):
        changed = re.sub(r"(?<=\d\.\d)\d+", lambda of: "".join(rng.choices("123456789", k=len(of[0]))), line)
        made.append(re.sub(rf"(?<![\w.]){step}(?![\w.,])", str(step + ahead), changed, count=1))
    return made


def disturbed(line: str, rng: random.Random) -> str:
    """The line with an odd number in the place of one, or with a character more, less or changed."""
    numbers = list(NUMBER.finditer(line))
    if numbers and rng.random() < 0.7:
        found = rng.choice(numbers)
        return line[: found.start()] + rng.choice([*ODD, str(rng.randrange(1000))]) + line[found.end() :]
    at = rng.randrange(len(line) + 1)
    return (
        line[:at] + rng.choice(["", "", "1", " ", "|", ".", "\x1b[31m", ",", "e", "-"]) + line[at + rng.randrange(2) :]
    )


@pytest.mark.full
@pytest.mark.parametrize("name", LOGS)
@given(seed=st.integers(0, 2**32))
@settings(max_examples=8, deadline=None)
@example(seed=13696)  # a date with two blanks before its clock
@example(seed=14985350)  # a step with two blanks before it, which is none
@example(seed=3687291312)  # a loss of 0 beside a norm of nan
def test_lines_give_together_what_they_give_one_by_one(name: str, seed: int) -> None:
    rng = random.Random(seed)
    lines: list[str] = []
    while len(lines) < 60:
        lines += counting_up(rng.choice(LOGS[name]), FORMAT[name], rng.choice([1, 3, 12, 40]), rng)
    for _ in range(rng.choice([0, 0, 1, 3, 10])):
        at = rng.randrange(len(lines))
        lines[at] = disturbed(lines[at], rng)
    for _ in range(rng.choice([0, 1, 4])):
        lines.insert(rng.randrange(len(lines)), rng.choice([*OTHERS, rng.choice(lines)]))
    numbered = list(enumerate(lines, start=1))
    cut = rng.randrange(len(lines))
    assert together(reader(FORMAT[name]), numbered, cut) == alone(reader(FORMAT[name]), numbered)


@pytest.mark.parametrize("name", LOGS)
def test_a_recorded_log_gives_together_what_it_gives_one_by_one(name: str) -> None:
    numbered = list(enumerate(LOGS[name] * 3, start=1))
    assert together(reader(FORMAT[name]), numbered, 7) == alone(reader(FORMAT[name]), numbered)


@pytest.mark.parametrize("name", TOGETHER)
def test_lines_that_go_on_are_read_together(name: str) -> None:
    of, rng = reader(FORMAT[name]), random.Random(1)
    line = next(line for line in LOGS[name] if samples([*(one := reader(FORMAT[name])).feed(line), *one.end()]))
    lines = counting_up(line, FORMAT[name], 100, rng)
    pieces = list(of.feed_all(list(enumerate(lines))))
    (alike,) = (piece for piece in pieces if isinstance(piece, AlikeSamples))
    assert len(alike.steps) >= 90
    assert sum(isinstance(piece, Sample) for piece in [*pieces, *of.end()]) + len(alike.steps) == 100


def test_columns_of_alike_lines_are_those_of_their_samples() -> None:
    lines = list(enumerate(counting_up(LOGS["torchtitan"][1], "torchtitan", 50, random.Random(2))))
    pieces = list(reader("torchtitan").feed_all(lines))
    fields = (*COLUMNS, *CARRIED)
    assert told(in_columns(pieces, Tally(fields=fields))) == told(in_columns(one_by_one(pieces), Tally(fields=fields)))


@pytest.mark.parametrize(
    "lines",
    [
        [megatron(step) for step in (*range(1, 30), *range(20, 50))],  # goes back
        [megatron(step, norm=150.0) for step in range(1, 30)],  # the norm of the step before, to its last digit
        [megatron(step, scale=2.0 ** (20 - step // 10), norm=0.5) for step in range(1, 40)],
        [megatron(step, norm=0.0) for step in range(1, 30)],
        ["OVERFLOW! Skipping step", *(megatron(step) for step in range(1, 30))],
        [*map(megatron, range(1, 20)), "OVERFLOW! Skipping step", *map(megatron, range(20, 40))],
        [megatron(step, rank=f"{rank}: ") for step in range(1, 30) for rank in range(3)],
        [megatron(step // 2) for step in range(2, 60)],  # each twice
        [megatron(at * 7 % 60 + 1) for at in range(60)],
        list(itertools.chain(*zip(map(megatron, range(1, 40)), map(megatron, range(101, 140)), strict=True))),
    ],
)
def test_what_lines_say_of_one_another_is_not_lost(lines: list[str]) -> None:
    numbered = list(enumerate(lines, start=1))
    assert together(reader("megatron"), numbered, 3) == alone(reader("megatron"), numbered)
