"""What the campaign of kills under a recovery in place calls wrong."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.killed_in_place import Record, overlaps

JOURNAL, TAG, BOARD = "state/attempts/0001.jsonl", "checkpoints/global_step20", "tensorboard/events.out.tfevents.1"


@pytest.fixture
def record(tmp_path: Path) -> Record:
    """Of a run of one attempt, which has saved once."""
    for name, text in {
        JOURNAL: '{"kind": "checkpoint_saved", "tag": "global_step20", "time_unix_s": 5.0}\n',
        f"{TAG}/shard": "weights",
        "checkpoints/latest": "global_step20",
        BOARD: "events",
    }.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    found = Record(folder=tmp_path)
    found.look()
    assert found.lost() == found.not_back() == []
    return found


@pytest.mark.parametrize(
    ("does", "lost"),
    [
        (lambda f: (f / TAG / "shard").write_text("other"), "lost: global_step20 of attempt 1"),
        (lambda f: (f / TAG / "shard").unlink(), "lost: global_step20 of attempt 1"),
        (lambda f: (f / BOARD).write_text("event"), "lost: events.out.tfevents.1"),
        (
            lambda f: (f / JOURNAL).write_text('{"kind": "sample"}\n'),
            f"lost: {JOURNAL} no longer begins with what it held",
        ),
    ],
)
def test_a_byte_that_is_missing_is_lost(record: Record, does: Callable[[Path], object], lost: str) -> None:
    does(record.folder)
    record.look()
    assert lost in record.lost()


def test_what_lies_in_the_quarantine_is_not_lost_and_not_back(record: Record) -> None:
    aside = record.folder / "checkpoints" / ".sentinel-quarantine" / "incident-1"
    aside.mkdir(parents=True)
    (record.folder / TAG).rename(aside / "global_step20")
    original = record.folder / ".sentinel-quarantine" / "events.out.tf-events.1"  # as a cut moves it
    original.parent.mkdir()
    (record.folder / BOARD).rename(original)
    assert record.lost() == []
    assert {"not back: global_step20 of attempt 1", "not back: events.out.tfevents.1"} <= {*record.not_back()}


def test_an_attempt_that_begins_before_an_earlier_one_has_ended_is_an_overlap(record: Record) -> None:
    later = record.folder / "state" / "attempts" / "0002.jsonl"
    later.write_text(json.dumps({"kind": "run_started", "time_unix_s": 6.0}) + "\n")
    assert overlaps(record.folder) == []
    later.write_text(json.dumps({"kind": "run_started", "time_unix_s": 4.0, "rank": 0}) + "\n")
    assert overlaps(record.folder) == ["two write at once: attempt 1 until 5.00, attempt 2 from 4.00"]
