"""Whatever the text is, a reader reads on; and how the bytes were cut up changes nothing."""

from __future__ import annotations

import contextlib
import dataclasses
import time
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from sentinel.sources.file_bytes import LineSplitter
from sentinel.sources.followed_log import FollowedLog
from sentinel.sources.line_formats import FORMATS
from sentinel.sources.log_file import read_log
from sentinel.vocabulary.errors import ConfigError
from sentinel.vocabulary.sample import Record
from tests.sources.reading import SAMPLES, reader, samples

LINES = {each.name: each.sample for each in FORMATS}
ENDLESS = [
    *("a" * 65_000, "loss " * 13_000, "iteration 1 " * 5_400 + "|", "step: 1 loss: " * 4_600, "{'loss': " * 7_000),
    *("1," * 32_000, "loaded checkpoint step " * 80, "iter 1 step 1 | loss" * 3_000, "Train " * 10_000 + ": 1"),
    *(" " * 65_000 + "loss step 1", "[step=1/2,epoch=0" * 3_800, "DLL loss " + "a:" * 30_000, " .." * 20_000),
    *('DLL loss "step": [' + "1," * 30_000, "- (" * 20_000 + "loss DLL", "valid loss at iteration 1" * 2_600),
    *("a" * 1_900 + " ...... " + "." * 1_900, "train_loss|val_loss" * 3_000, "num_updates=" * 5_000, "x=1 " * 16_000),
]
"""Lines on which a pattern that looks back and forth would take for ever."""

LOGS = [path for path in sorted(SAMPLES.glob("*.log")) if "overflow" not in path.name and "16gb" not in path.name]
SOUP = st.lists(
    st.one_of(
        st.text(max_size=60),
        st.sampled_from([part for line in LINES.values() for part in line.replace("\n", " ").split(" ") if part]),
        st.sampled_from(["nan", "-1", "1e999", "9" * 30, "|", ":", "{", "}", "\x1b[31m", "\0", "arguments", "...."]),
    ),
    max_size=30,
)


@pytest.mark.parametrize("name", LINES)
@given(soups=st.lists(SOUP, max_size=8))
@settings(max_examples=60, deadline=None)
@example(
    soups=[["------------------------ arguments ------------------------"], ["a ....... [{[]:1}]"], ["b ....... \\d"]]
)
def test_no_text_stops_a_reader(name: str, soups: list[list[str]]) -> None:
    of = reader(name)
    for soup in soups:
        of.feed(" ".join(soup))
    of.end()
    assert of.unreadable + of.foreign <= of.lines


@pytest.mark.parametrize("name", LINES)
@given(noise=st.lists(st.text(alphabet=st.characters(exclude_characters="[]{}|:='\"_"), max_size=60), max_size=6))
@settings(max_examples=25, deadline=None)
def test_a_step_among_noise_is_read(name: str, noise: list[str]) -> None:
    of = reader(name)
    records: list[Record] = []
    for line in [*noise, *LINES[name].split("\n"), *noise]:
        records += of.feed(line)
    (sample,) = samples(records + of.end())
    assert (sample.global_step, sample.loss) == (7, pytest.approx(2.5))


@pytest.mark.parametrize("name", LINES)
def test_the_sample_line_of_a_format_is_recognised_as_that_format(tmp_path: Path, name: str) -> None:
    (tmp_path / "a.log").write_text(LINES[name] + "\n")
    assert read_log(tmp_path / "a.log").format == name


@pytest.mark.parametrize("name", LINES)
def test_no_line_takes_long(name: str) -> None:
    for text in ENDLESS:
        of = reader(name)
        begun = time.process_time()
        for line in ("----- arguments -----", "[step=1/2]", "[batch=1/2]:", text, LINES["megatron"]):
            of.feed(line)
        assert time.process_time() - begun < 1.0, text[:20]


@given(data=st.one_of(st.binary(max_size=300), st.binary(max_size=99).map(lambda b: b"\x1f\x8b\x08\0" + b)))
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_file_of_any_bytes_is_read_or_refused_in_a_sentence(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "a.log").write_bytes(data)
    with contextlib.suppress(ConfigError):
        list(read_log(tmp_path / "a.log"))


@given(data=st.binary(max_size=300), cuts=st.lists(st.integers(0, 300), max_size=5))
def test_lines_are_the_same_however_their_bytes_are_cut_up(data: bytes, cuts: list[int]) -> None:
    def lines(pieces: list[bytes]) -> list[str]:
        splitter = LineSplitter()
        return [line for piece in pieces for _, line in splitter.feed(piece)] + [line for _, line in splitter.end()]

    edges = sorted({0, len(data), *(c for c in cuts if c < len(data))})
    assert lines([data[a:b] for a, b in pairwise(edges)]) == lines([data])


@pytest.mark.parametrize("path", LOGS, ids=lambda p: p.stem)
@given(data=st.data())
@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_followed_in_pieces_a_log_gives_what_it_gives_whole(tmp_path: Path, path: Path, data: st.DataObject) -> None:
    content = path.read_bytes().rstrip(b"\n") + b"\n"
    cuts = data.draw(st.lists(st.integers(1, len(content) - 1), max_size=6))
    grown = tmp_path / "grown.log"
    grown.write_bytes(b"")
    followed = FollowedLog(grown, now=lambda: float("nan"))
    records: list[Record] = []
    edges = sorted({0, len(content), *cuts})
    for begin, end in pairwise(edges):
        with grown.open("ab") as file:
            file.write(content[begin:end])
        records += followed.poll()
    records += followed.poll() + followed.poll()
    whole = [as_text(record) for record in read_log(path)]
    assert [as_text(record) for record in records] == whole


def as_text(record: Record) -> str:
    return repr(dataclasses.asdict(record))
