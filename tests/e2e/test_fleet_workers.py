"""Worker processes and several daemons on one folder: real processes, killed as the kernel kills them."""

from __future__ import annotations

import re
import signal
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import psutil
import pytest

from sentinel.adapters.lock import RunLock
from sentinel.vocabulary.errors import LockHeld
from tests.adapters.pagers import until
from tests.support.fleets import Folder, Watch, verdict

pytestmark = pytest.mark.full

MANY = 53  # more than one worker is given before another is started


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder(tmp_path)


def configured(folder: Folder, count: int, pace_s: float = 0.2) -> list[str]:
    names = [f"r{number:02}" for number in range(count)]
    for name in names:
        folder.run(name, pace_s=pace_s)
        folder.trained(name, 120)
    return names


def workers(watch: Watch) -> list[psutil.Process]:
    return psutil.Process(watch.process.pid).children()


def killed(watch: Watch) -> None:
    """The daemon and its workers, all at once, as when a node's kernel ends a control group."""
    processes = [psutil.Process(watch.process.pid), *workers(watch)]
    for process in processes:
        process.kill()
    watch.process.wait()


def turns(watch: Watch) -> dict[str, float]:
    """Of each run that it watches."""
    found = re.findall(r'^sentinel_turns_total\{run="([^"]+)"\} (\S+)$', watch.page(), re.MULTILINE)
    return {run: float(number) for run, number in found}


def watched_between(before: dict[str, float], after: dict[str, float]) -> set[str]:
    return {run for run, number in after.items() if number > before.get(run, 0.0)}


def watched_twice(first: Watch, second: Watch, for_s: float) -> set[str]:
    """Runs of which both daemons made a turn in one interval, in any of those of half a second."""
    twice, until_s, known = set[str](), time.monotonic() + for_s, (turns(first), turns(second))
    while time.monotonic() < until_s:
        time.sleep(0.5)
        now = turns(first), turns(second)
        twice |= watched_between(known[0], now[0]) & watched_between(known[1], now[1])
        known = now
    return twice


@contextmanager
def taken_away(state: Path) -> Iterator[None]:
    """The lock of a run, whose holder lives and takes it again when it is quicker."""
    with ExitStack() as stack:
        until(lambda: _took(stack, state))
        yield


def _took(stack: ExitStack, state: Path) -> bool:
    (state / "lock").unlink(missing_ok=True)
    with suppress(LockHeld):
        stack.enter_context(RunLock(state))
        return True
    return False


def all_are_watched(watch: Watch, names: list[str]) -> None:
    before = turns(watch)
    until(lambda: watched_between(before, turns(watch)) == set(names))


def test_a_worker_that_is_killed_is_replaced_and_its_runs_go_on(folder: Folder) -> None:
    names = configured(folder, 3)
    with folder.watch("--all", "--workers", "2") as watch:
        watch.shows(*(verdict(name, "healthy") for name in names))
        (worker,) = workers(watch)  # a second one would only take memory
        worker.kill()
        watch.says("ended by signal 9; its 3 runs go on in another one")
        all_are_watched(watch, names)
        assert [one.pid for one in workers(watch)] != [worker.pid]
        (again,) = workers(watch)
        again.terminate()  # a worker alone: its locks are released, and another takes over
        watch.says("ended with exit code 0; its 3 runs go on in another one")
        all_are_watched(watch, names)
        watch.hear(signal.SIGTERM)
        assert watch.ends() == 0
    assert not list(folder.path.glob("s-*/lock"))


def test_many_runs_are_spread_over_the_workers_and_one_scrape_has_them_all(folder: Folder) -> None:
    names = configured(folder, MANY, pace_s=1.0)
    with folder.watch("--all", "--workers", "2") as watch:
        watch.shows(*(verdict(name, "healthy") for name in names))
        first, second = workers(watch)
        held = [int(re.findall(r'"pid": (\d+)', (folder.state(name) / "lock").read_text())[0]) for name in names]
        assert (held.count(first.pid), held.count(second.pid)) == (50, 3)
        first.kill()
        all_are_watched(watch, names)
        folder.run("new")
        folder.trained("new")
        watch.hear(signal.SIGHUP)
        watch.shows(verdict("new", "healthy"))
        watch.hear(signal.SIGTERM)
        assert watch.ends() == 0
    assert not list(folder.path.glob("s-*/lock"))


def test_workers_release_their_locks_when_the_daemon_is_killed(folder: Folder) -> None:
    names = configured(folder, 2)
    with folder.watch("--all", "--workers", "2") as watch:
        watch.shows(*(verdict(name, "healthy") for name in names))
        (worker,) = workers(watch)
        watch.process.kill()
        watch.process.wait()
        until(lambda: not list(folder.path.glob("s-*/lock")))
        until(lambda: not worker.is_running() or worker.status() == psutil.STATUS_ZOMBIE)


def test_two_daemons_share_a_folder_and_the_second_takes_over_from_one_that_is_killed(folder: Folder) -> None:
    names = configured(folder, 6)
    with ExitStack() as stack:
        first = stack.enter_context(folder.watch("--all", "--workers", "2", "--most", "2", name="first"))
        until(lambda: "itself is at port" in first.said() and len(turns(first)) == 2)
        own = ["--all", "--workers", "2", "--most", "6", "--fleet-dir", str(folder.path / "second")]
        second = stack.enter_context(folder.watch(*own, name="second"))
        until(lambda: "itself is at port" in second.said() and len(turns(second)) == 4)
        assert set(turns(first)) | set(turns(second)) == set(names)
        assert watched_twice(first, second, for_s=3.0) == set()
        killed(first)
        all_are_watched(second, names)
        assert "another sentinel" not in second.said()  # among several daemons that is usual
        third = stack.enter_context(folder.watch("--all", "--most", "6", name="third"))
        second.hear(signal.SIGTERM)  # hands all back
        assert second.ends() == 0
        until(lambda: "itself is at port" in third.said() and len(turns(third)) == 6)
        third.hear(signal.SIGTERM)
        assert third.ends() == 0
    assert not list(folder.path.glob("s-*/lock"))


def test_a_run_whose_lock_another_takes_goes_back_to_those_that_are_waited_for(folder: Folder) -> None:
    names = configured(folder, 2)
    with folder.watch("--all", "--workers", "2") as watch:
        watch.shows(*(verdict(name, "healthy") for name in names))
        with taken_away(folder.state("r00")):
            watch.says("r00: another sentinel watches this run: process")
            until(lambda: 'run="r00"' not in watch.page())
        watch.shows(verdict("r00", "healthy"), verdict("r01", "healthy"))


def test_workers_and_most_are_for_all_runs_of_a_folder(folder: Folder) -> None:
    configured(folder, 1)
    with folder.watch("--run", "r00", "--most", "3") as watch:
        assert watch.ends() == 2
        assert "--workers and --most: pass them with --all" in watch.said()
