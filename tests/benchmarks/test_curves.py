"""INDEX.csv and the files that it names: what is taken, and what is refused with its place."""

from __future__ import annotations

import gzip
import lzma
import math
from pathlib import Path

import pytest

from benchmarks.backtest.curves import CurveError, held_out, read_curve, read_folder

ROWS = "step,loss,grad_norm,extra\n1,2.5,,a=1\n2,nan,0.5,\n3,,0.4,\n"
PUBLIC = Path(__file__).parents[2] / "benchmarks" / "public"


def write(folder: Path, index: str, name: str = "a.csv", content: bytes = ROWS.encode()) -> Path:
    (folder / "INDEX.csv").write_text(index)
    (folder / name).parent.mkdir(exist_ok=True)
    (folder / name).write_bytes(content)
    return folder


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.csv", ROWS.encode()),
        ("a.csv.gz", gzip.compress(ROWS.encode(), mtime=0)),
        ("a.csv.xz", lzma.compress(ROWS.encode())),
        ("curves/a.csv.xz", lzma.compress(ROWS.encode())),
    ],
    ids=["plain", "gzip", "xz", "xz below a folder"],
)
def test_a_curve_is_found_plain_or_compressed(tmp_path: Path, name: str, content: bytes) -> None:
    (curve,) = read_folder(write(tmp_path, "name,label\na,stable\n", name, content))
    assert curve.steps == (1, 2, 3)
    assert curve.losses[0] == 2.5
    assert math.isnan(curve.losses[1] or 0)
    assert curve.losses[2] is None
    assert curve.columns["grad_norm"] == (None, 0.5, 0.4)
    assert curve.log_interval == 1
    assert curve.short
    assert curve.held_out == held_out("a")


def test_the_index_may_name_the_file_and_what_is_held_out(tmp_path: Path) -> None:
    index = "name,label,file,held_out,log_interval,events,short\na,diverged,b.csv,yes,5,diverge:2-3-3,no\n"
    (curve,) = read_folder(write(tmp_path, index, "b.csv"))
    assert (curve.held_out, curve.log_interval, curve.short) == (True, 5, False)
    assert [(e.kind, e.onset, e.peak, e.end) for e in curve.events] == [("diverge", 2, 3, 3)]


@pytest.mark.parametrize(
    ("index", "rows", "words"),
    [
        ("name,events\na,\n", ROWS, ["INDEX.csv, line 1", "label"]),
        ("name,label\na,fine\n", ROWS, ["INDEX.csv, line 2", "'fine'", "stable"]),
        ("name,label\nb,stable\n", ROWS, ["INDEX.csv, line 2", "b.csv.xz"]),
        ("name,label,events\na,stable,spike:1-2\n", ROWS, ["INDEX.csv, line 2", "events", "'spike:1-2'"]),
        ("name,label,events\na,stable,spoke:1-2-3\n", ROWS, ["events", "'spoke'", "spike"]),
        ("name,label,log_interval\na,stable,often\n", ROWS, ["log_interval", "'often'"]),
        ("name,label\na,stable\n", "step,lr\n1,2\n", ["a.csv, line 1", "loss"]),
        ("name,label\na,stable\n", "step,loss\n1,2\n2,high\n", ["a.csv, line 3", "loss", "'high'"]),
        ("name,label\na,stable\n", "step,loss\n1.5,2\n", ["a.csv, line 2", "step", "'1.5'"]),
        ("name,label\na,stable\n", "step,loss\n,2\n", ["a.csv, line 2", "step"]),
    ],
)
def test_what_is_wrong_is_told_with_its_place(tmp_path: Path, index: str, rows: str, words: list[str]) -> None:
    with pytest.raises(CurveError) as caught:
        read_folder(write(tmp_path, index, content=rows.encode()))
    for word in words:
        assert word in str(caught.value)


def test_a_folder_without_an_index_and_a_broken_archive_are_told(tmp_path: Path) -> None:
    with pytest.raises(CurveError, match="INDEX"):
        read_folder(tmp_path)
    (tmp_path / "a.csv.xz").write_bytes(b"not xz")
    with pytest.raises(CurveError, match=r"a\.csv\.xz"):
        read_curve(tmp_path / "a.csv.xz")


def test_steps_that_go_back_begin_a_new_attempt(tmp_path: Path) -> None:
    rows = "step,loss\n1,2\n2,2\n3,2\n2,2\n3,2\n"
    (curve,) = read_folder(write(tmp_path, "name,label\na,stable\n", content=rows.encode()))
    assert curve.attempts() == (1, 1, 1, 2, 2)
    rows = "step,loss,attempt\n1,2,1\n2,2,1\n3,2,4\n"
    (curve,) = read_folder(write(tmp_path, "name,label\na,stable\n", content=rows.encode()))
    assert curve.attempts() == (1, 1, 4)


def test_the_public_curves_are_as_many_and_as_long_as_their_index_says() -> None:
    curves = read_folder(PUBLIC)
    assert len(curves) == 44
    index = (PUBLIC / "INDEX.csv").read_text()
    for curve in curves:
        assert f"{len(curve.steps)},{curve.steps[0]},{curve.steps[-1]},{curve.log_interval}," in index, curve.name
    assert 0.2 < sum(c.held_out for c in curves) / len(curves) < 0.45


def test_no_family_is_parted_and_the_split_is_the_one_written_down() -> None:
    curves = [c for folder in (PUBLIC, PUBLIC.parent / "recorded") for c in read_folder(folder)]
    written = (PUBLIC.parent / "SPLIT.md").read_text()
    for family in {c.family for c in curves}:
        (held,) = {c.held_out for c in curves if c.family == family}
        assert f"| {family} | {'held out' if held else 'tuning'} |" in written
