"""A run that an older release had rungs race on: it is read, told, stopped for a person and undone byte for byte."""

from __future__ import annotations

import json
import shutil
import subprocess
import tarfile
from pathlib import Path

import pytest

from sentinel.durable import part_of
from tests.e2e.kill_points import copy_run, incidents, inventory, line, live
from tests.e2e.stepping import UNDO, WATCH, as_a_process

RECORDED = Path(__file__).parents[1] / "data" / "removed_records" / "raced_runs.tar.xz"
ROOM = "checkpoints/.sentinel-quarantine/incident-1"


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`before`: an ill run of 60 steps, its race won; `adopted`: the winner has become the run; `halfway`: the daemon
    was killed while it became the run."""
    folder = tmp_path_factory.mktemp("raced").resolve()
    with tarfile.open(RECORDED) as archive:
        archive.extractall(folder, filter="data")
    return folder


def shown(run: Path, *words: str) -> str:
    return subprocess.run(line(run, words), capture_output=True, text=True, check=False, timeout=60).stdout


@pytest.mark.full
def test_a_winner_that_became_the_run_is_told_and_undone(runs: Path, tmp_path: Path) -> None:
    run = copy_run(runs / "adopted", tmp_path.resolve() / "run")
    assert "goes on from incident-1-p2" in shown(run, "incident", "incident-1")
    assert json.loads(shown(run, "incidents", "--json"))[0]["rollbacks"][0]["rung"] == "reseed"
    shown(run, "chronicle", "-o", str(tmp_path / "told"))
    assert "made the checkpoints of incident-1-p2" in (tmp_path / "told" / "chronicle.md").read_text()
    before = inventory(run)
    code, said = as_a_process(run, UNDO)
    assert code == 0, said
    assert live(run) == live(runs / "before")
    assert not before - inventory(run)
    (incident,) = incidents(run)
    assert (incident.status, incident.outcome) == ("closed", "undone")
    assert "incident-1 was undone: attempt 2 belongs to what was taken back" in shown(run, "status")


@pytest.mark.full
def test_what_was_killed_on_its_way_is_left_as_it_is_for_a_person_and_undone(runs: Path, tmp_path: Path) -> None:
    run = copy_run(runs / "halfway", tmp_path.resolve() / "run")
    note = run / ROOM / "incident-1-r1" / "adoption.json"
    cut_short = part_of(run / "state" / "attempts" / "0002.jsonl")
    cut_short.write_bytes(b"li")
    note.write_text(json.dumps({"from": "…", "done": False, "files": [str(cut_short.with_name("0002.jsonl"))]}))
    moved = live(run)
    code, said = as_a_process(run, WATCH)
    assert code == 4
    assert "incident-1-r1 makes the checkpoints of incident-1-p2 the run's, which this release does not go on" in said
    assert live(run) == moved
    code, said = as_a_process(run, UNDO)
    assert code == 0, said
    assert live(run) == live(runs / "before")
    assert not inventory(runs / "before") - inventory(run)
    assert not cut_short.exists()


@pytest.mark.full
def test_a_race_that_is_not_over_is_left_to_a_person_closed_by_undo_and_purged(runs: Path, tmp_path: Path) -> None:
    run = copy_run(runs / "before", tmp_path.resolve() / "run")
    log = run / "state" / "incidents.jsonl"
    log.write_text("".join(log.read_text().splitlines(keepends=True)[:-1]))  # as before it had ended
    code, said = as_a_process(run, WATCH)
    assert code == 4
    assert "incident-1 tries 2 rungs side by side, which this release does not go on with" in said
    assert as_a_process(run, UNDO)[0] == 0
    assert [(i.status, i.outcome) for i in incidents(run)] == [("closed", "undone")]
    assert live(run) == live(runs / "before")
    assert as_a_process(run, ("purge", "incident-1", "--yes"))[0] == 0
    assert not (run / ROOM).exists()


def test_a_key_that_asks_for_a_race_is_a_warning_of_the_watch(runs: Path, tmp_path: Path) -> None:
    run = copy_run(runs / "before", tmp_path.resolve() / "run")
    shutil.rmtree(run / ROOM)
    (run / "state" / "incidents.jsonl").unlink()
    code, said = as_a_process(run, WATCH)
    assert code == 4  # its command is `false`
    assert "[policy] race was removed in 0.1.0 and is ignored: delete the line." in said
    assert [r.rung for i in incidents(run) for r in i.rollbacks][:1] == ["reseed"]
