"""One daemon and many runs: real journals that real processes write, and whatever one run does to the others."""

from __future__ import annotations

import json
import os
import signal
import time
from contextlib import ExitStack
from pathlib import Path

import pytest

from sentinel.adapters.incident_log import IncidentLog
from sentinel.adapters.lock import RunLock
from sentinel.plan.incident.events import fold
from tests.adapters.pagers import until
from tests.adapters.servers import prometheus
from tests.support.fleets import Folder, verdict


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder(tmp_path)


def test_two_runs_are_watched_by_one_daemon_and_each_line_names_its_own(folder: Folder) -> None:
    folder.run("a")
    folder.run("b")
    with ExitStack() as stack:
        stack.enter_context(folder.writing("a", 400))
        stack.enter_context(folder.writing("b", 400, ill_at=300))
        watch = stack.enter_context(folder.watch("--run", "a", "--run", "runs/b.toml"))
        watch.says("b: attempt 1 is diverged")
        watch.shows(verdict("a", "healthy"), verdict("b", "diverged"))
        assert "a: attempt 1 is diverged" not in watch.said()
        assert not fold(IncidentLog(folder.state("a") / "incidents.jsonl").read())
        (incident,) = fold(IncidentLog(folder.state("b") / "incidents.jsonl").read())
        assert incident.status == "open"
        watch.says("b: incident-1:")
        watch.hear(signal.SIGTERM)
        assert watch.ends() == 0
    assert not list(folder.path.glob("s-*/lock"))


@pytest.mark.full
def test_a_run_that_hangs_holds_up_no_other(folder: Folder) -> None:
    """The scheduler of some answers nobody: whoever asks it waits for minutes."""
    names = [f"r{number}" for number in range(10)]
    for name in names:
        folder.run(name)
        folder.trained(name)
    silent = folder.path / "bin" / "squeue"
    silent.parent.mkdir()
    silent.write_text("#!/bin/sh\nexec sleep 120\n")
    silent.chmod(0o755)
    for number in range(10):
        folder.run(f"stuck{number}", launcher="slurm")
    with folder.watch("--all", PATH=f"{silent.parent}:{os.environ['PATH']}") as watch:
        watch.shows(*(verdict(name, "healthy") for name in names))
        for _ in range(2):
            before = time.time()
            until(lambda since=before: all(watch.looks(name) > since for name in names))  # type: ignore[misc]
        assert watch.looks("stuck0") == 0.0
        watch.hear(signal.SIGTERM)
        until(lambda: not any((folder.state(name) / "lock").exists() for name in names))
        for number in range(10):
            watch.says(f"stuck{number}: waiting for a turn that has run for")
            assert watch.said().count(f"stuck{number}: waiting for a turn that has run for") == 1
        assert watch.process.poll() is None
        watch.hear(signal.SIGTERM)
        assert watch.ends() == 3
        watch.says("interrupted in the middle of a turn: stuck0, stuck1,")


@pytest.mark.full
def test_a_daemon_that_was_killed_is_made_up_for_by_the_next_one(folder: Folder) -> None:
    for name in "abc":
        folder.run(name)
        folder.trained(name)
    with folder.watch("--all", "--workers", "1") as watch:
        watch.shows(*(verdict(name, "healthy") for name in "abc"))
        watch.process.kill()
        watch.process.wait()
    assert len(list(folder.path.glob("s-*/lock"))) == 3
    with folder.watch("--all", name="again") as watch:
        watch.shows(*(verdict(name, "healthy") for name in "abc"))
        assert "another sentinel" not in watch.said()


@pytest.mark.full
def test_sighup_takes_up_what_is_new_lets_go_what_is_gone_and_leaves_alone_what_is_wrong(folder: Folder) -> None:
    for name in "abc":
        folder.run(name)
        folder.trained(name)
    with folder.watch("--all") as watch:
        watch.shows(*(verdict(name, "healthy") for name in "abc"))
        folder.run("d")
        folder.trained("d")
        (folder.path / "runs" / "a.toml").unlink()
        folder.run("b", "[policy]", "mode = 'pray'")
        folder.run("c", pace_s=0.3)
        watch.hear(signal.SIGHUP)
        watch.shows(verdict("d", "healthy"))
        watch.says("c: watching c in mode observe, every 0.3 s")
        watch.says("the old configuration stays in force: runs/b.toml: policy.mode should be one of")
        until(lambda: not (folder.state("a") / "lock").exists())
        until(lambda: 'run="a"' not in watch.page())
        before = time.time()
        until(lambda: watch.looks("b") > before)
        assert "a: watching a" in watch.said()
        assert watch.said().count("b: watching b") == 1  # it was not read anew
        folder.run("a")
        watch.hear(signal.SIGHUP)
        watch.shows(verdict("a", "healthy"))
        folder.run("e", "[metrics]", "port = 1")
        watch.hear(signal.SIGHUP)
        watch.says("runs/e.toml differ in [metrics] port: one daemon has one /metrics")
        watch.hear(signal.SIGTERM)
        assert watch.ends() == 0


@pytest.mark.full
def test_a_run_that_another_daemon_watches_is_said_and_taken_over_once_that_is_gone(folder: Folder) -> None:
    for name in "ab":
        folder.run(name)
        folder.trained(name)
    with folder.watch("--run", "a", name="other") as other:
        other.says("attempt 1 is healthy")
        with folder.watch("--all") as watch:
            watch.says("a: another sentinel watches this run: process")
            watch.shows(verdict("b", "healthy"))
            assert 'run="a"' not in watch.page()
            other.hear(signal.SIGTERM)
            assert other.ends() == 0
            watch.shows(verdict("a", "healthy"))
            assert watch.said().count("another sentinel watches this run") == 1


@pytest.mark.full
def test_a_lock_that_was_lost_lets_one_run_go_and_it_is_taken_up_again(folder: Folder) -> None:
    for name in "ab":
        folder.run(name)
        folder.trained(name)
    with folder.watch("--all") as watch:
        watch.shows(verdict("a", "healthy"))
        lock = folder.state("a") / "lock"
        lock.unlink()
        with RunLock(folder.state("a")):
            watch.says("a: another sentinel watches this run: process")
        watch.shows(verdict("a", "healthy"), verdict("b", "healthy"))


@pytest.mark.full
def test_what_one_run_ends_with_is_said_and_paged_and_the_others_go_on(folder: Folder) -> None:
    marks = folder.path / "pages"
    paging = ["[[paging.command]]", f"command = ['sh', '-c', 'cat >> {marks}']"]
    for name in "ab":
        folder.run(name, *paging, "[metrics]", "announce = '127.0.0.1'")
        folder.trained(name)
    (folder.state("a") / "incidents.jsonl").write_text("no event\n{}\n")
    with folder.watch("--all") as watch:
        watch.says("a: watch ended:")
        watch.shows(verdict("b", "healthy"))
        until(lambda: marks.exists() and '"run": "a"' in marks.read_text())
        assert not (folder.state("a") / "lock").exists()
        folder.finishes("b", "finished")
        assert watch.ends() == 4
    assert json.loads((folder.path / ".sentinel" / "fleet" / "scrape-watch.json").read_text())  # it is missed


@pytest.mark.full
@pytest.mark.parametrize(
    ("finished", "code"), [({"a": "finished", "b": "finished"}, 0), ({"a": "finished", "b": "error: oom"}, 1)]
)
def test_of_several_exit_codes_the_largest_counts(folder: Folder, finished: dict[str, str], code: int) -> None:
    for name, reason in finished.items():
        folder.run(name, launcher="local")
        folder.trained(name, finished=reason)
    with folder.watch("--all", "--once") as watch:
        assert watch.ends() == code, watch.said()


@pytest.mark.full
def test_all_that_is_wrong_is_said_before_the_first_turn(folder: Folder) -> None:
    folder.run("a", "[policy]", "mode = 'pray'")
    folder.run("b")
    folder.run("c", "[metrics]", "serve = false")
    (folder.path / "runs" / "d.toml").write_text((folder.path / "runs" / "b.toml").read_text())
    with folder.watch("--all") as watch:
        assert watch.ends() == 2
        for words in (
            "runs/a.toml: policy.mode should be one of",
            "runs/b.toml and runs/c.toml differ in [metrics] serve",
            "runs/d.toml and runs/b.toml have the same [run] name, b",
        ):
            assert words in watch.said()
    assert not folder.state("b").exists()
    with folder.watch("--all", "--run", "b", name="both") as watch:
        assert watch.ends() == 2


@pytest.mark.full
def test_one_prometheus_target_has_the_verdict_of_every_run(folder: Folder) -> None:
    names = [f"r{number}" for number in range(20)]
    for name in names:
        folder.run(name, "[metrics]", 'announce = "127.0.0.1"', pace_s=0.5)
        folder.trained(name)
    home = folder.path / "elsewhere"
    with ExitStack() as stack:
        watch = stack.enter_context(folder.watch("--all", "--fleet-dir", str(home)))
        asked = stack.enter_context(prometheus(folder.path, state=home))
        until(lambda: asked.query("count by (verdict) (sentinel_verdict == 1)") == {("healthy",): "20"})
        assert asked.query("count by (component) (up)") == {("watch",): "1"}
        assert asked.query('count(up{run!=""})') == {}
        assert set(asked.query("max by (run) (sentinel_last_turn_late_seconds)")) == {(name,) for name in names}
        watch.process.kill()  # what it announced stays, and names no run
        until(lambda: "SentinelSilent" in asked.alerts("pending"))
        assert asked.alerts("pending")["SentinelSilent"]["labels"]["run"].startswith("the runs of the watch at ")


@pytest.mark.full
def test_a_probe_finds_it_alive_while_turns_are_made(folder: Folder) -> None:
    folder.run("a")
    folder.run("b")
    alive = folder.path / ".sentinel" / "fleet" / "alive"
    with folder.watch("--all"):
        until(alive.exists)
        seen = alive.stat().st_mtime
        until(lambda: alive.stat().st_mtime > seen)
