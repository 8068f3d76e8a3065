"""`sentinel export`: what is written is what was read, to the last digit, and says the same when it is replayed."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from sentinel.judge.readings import CARRIED, COLUMNS
from sentinel.judge.replay import Replay
from sentinel.judge.thresholds import Thresholds
from sentinel.sources.opening import one_source
from sentinel.vocabulary.loss_ratio import LossMinimum
from sentinel.vocabulary.sample import CheckpointSaved, RunStarted, Sample, encode
from tests.sources.reading import SAMPLES, megatron
from tests.sources.readings import told
from tests.support.called import Sentinel


def samples(attempt: int, first: int, last: int, diverges_at: int) -> list[Sample]:
    rng, minimum, found = np.random.default_rng(attempt), LossMinimum(), []
    for step in range(first, last + 1):
        loss = 2 + 8 * step**-0.3 + 0.02 * float(rng.standard_normal()) + (3.0 if step >= diverges_at else 0.0)
        loss = math.nan if step == 77 else loss
        found.append(
            Sample(
                attempt=attempt,
                global_step=step,
                time_unix_s=1.7e9 + step / 3,
                loss=loss,
                loss_ratio=minimum.push(loss, 64),
                adam_variance_l1=None if step % 5 else 1 / 3 + step,
                grad_norm=math.inf if step == 99 else float(rng.random()),
                seqlen=64,
                skipped=step == 77,
                consumed_samples=16 * step,
                consumed_tokens=2**40 + 1024 * step,
            )
        )
    return found


@pytest.fixture
def state(tmp_path: Path) -> Path:
    """Two attempts: the first diverges at step 700, the second goes on from step 600."""
    folder = tmp_path / "state" / "attempts"
    folder.mkdir(parents=True)
    saved = CheckpointSaved(attempt=1, global_step=600, time_unix_s=0.0, tag="global_step600")
    began = RunStarted(attempt=2, time_unix_s=0.0, parent_attempt=1, resumed_from=600)
    for number, records in ((1, [*samples(1, 1, 900, 700), saved]), (2, [began, *samples(2, 601, 1200, 10**9)])):
        (folder / f"{number:04}.jsonl").write_text("".join(encode(r) + "\n" for r in records))
    return tmp_path / "state"


@pytest.fixture
def export(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Sentinel:
    monkeypatch.chdir(tmp_path)
    return Sentinel(monkeypatch, capsys, ("export",))


def events(path: Path) -> object:
    replay = Replay(Thresholds())
    for readings in one_source(path, {}):
        replay.push(readings)
    replay.end()
    return replay.samples, replay.events


def everything(path: Path) -> object:
    source = one_source(path, {})
    source.fields = (*COLUMNS, *CARRIED)
    return told(source)


@pytest.mark.parametrize("suffix", ["csv", "parquet", "jsonl"])
def test_what_is_exported_is_what_was_read_and_is_judged_the_same(export: Sentinel, state: Path, suffix: str) -> None:
    table = state.parent / f"a.{suffix}"
    assert export(state, "-o", table).code == 0
    assert everything(table) == everything(state)
    assert events(table) == events(state)
    assert [e.recommend_rollback for e in events(state)[1]].count(True) == 1  # type: ignore[index]


@pytest.mark.parametrize("suffix", ["csv", "parquet", "jsonl"])
def test_the_line_of_descent_has_each_step_once(export: Sentinel, state: Path, suffix: str) -> None:
    table = state.parent / f"a.{suffix}"
    export(state, "-o", table, "--descent")
    rows = told(one_source(table, {}))
    assert [row["step"] for row in rows] == list(range(1, 1201))
    assert [row["attempt"] for row in rows] == [1] * 600 + [2] * 600


def test_nan_and_null_stay_apart_and_what_counts_is_whole(export: Sentinel, state: Path) -> None:
    export(state, "-o", "a.jsonl")
    rows = [json.loads(line) for line in (state.parent / "a.jsonl").read_text().splitlines()]
    assert list(rows[0])[:5] == ["attempt", "global_step", "time_unix_s", "loss", "loss_ratio"]
    assert (rows[76]["loss"], rows[76]["skipped"], rows[76]["adam_variance_l1"]) == ("nan", True, None)
    assert rows[98]["grad_norm"] == "inf"
    assert rows[0]["consumed_tokens"] == 2**40 + 1024
    assert "lr" not in rows[0]
    export(state, "-o", "a.csv")
    head, *lines = (state.parent / "a.csv").read_text().splitlines()
    cells = dict(zip(head.replace('"', "").split(","), lines[76].split(","), strict=True))
    assert (cells["loss"], cells["adam_variance_l1"], cells["seqlen"]) == ("nan", "", "64")
    export(state, "-o", "a.parquet")
    assert str(pq.read_schema("a.parquet").field("consumed_tokens").type) == "int64"
    assert not list(state.parent.glob("*.part"))


@pytest.mark.parametrize("log", sorted(SAMPLES.glob("*.log")), ids=lambda path: path.stem)
def test_every_recorded_log_makes_the_round_trip(export: Sentinel, tmp_path: Path, log: Path) -> None:
    if export(log, "-o", "a.csv").code == 0:
        assert events(tmp_path / "a.csv") == events(log)
        assert told(one_source(tmp_path / "a.csv", {})) == told(one_source(log, {}))


def test_a_run_is_exported_by_its_name(export: Sentinel, tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "a.toml").write_text(
        '[run]\nname = "a"\ncheckpoints = "c"\n[source]\nkind = "log"\npath = "rank-*.txt"\n'
    )
    assert export("--run", "a", "-o", "a.csv").code == 2  # nothing there yet
    for rank in range(2):
        lines = [megatron(step, 3.0 + rank, rank=f"[Rank {rank}]") for step in range(1, 20)]
        (tmp_path / "runs" / f"rank-{rank}.txt").write_text("\n".join(lines) + "\n")
    assert export("--run", "a", "-o", "a.csv").code == 0
    assert export("a", "-o", "b.csv").code == 0
    assert (tmp_path / "a.csv").read_text() == (tmp_path / "b.csv").read_text()
    assert len(told(one_source(tmp_path / "a.csv", {}))) == 19


def test_what_can_not_be_exported_is_said(export: Sentinel, state: Path) -> None:
    table, nowhere = export(state, "-o", "a.xlsx"), export("nowhere", "-o", "a.csv")
    assert (table.code, nowhere.code, export(state, "--run", "a", "-o", "a.csv").code) == (2, 2, 2)
    assert "'a.xlsx': a table is" in table.err
    assert "nowhere: no such file or folder, and no such run under runs" in nowhere.err
