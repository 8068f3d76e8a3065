"""The recipe for Grid Engine on a real one: Debian's, one node on loopback, jobs of the user that the tests have."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from sentinel.vocabulary.sample import Sample
from tests.adapters.servers import running
from tests.hooks.trainer import records, starts
from tests.launchers.grid_engine import GridEngine, grid_engine
from tests.launchers.loopback import missing
from tests.launchers.recipes import CONFIG, RECIPES, by_recipe, checkpoints, diverged, kinds, newest, training, watch
from tests.slurm.cluster import until
from tests.support.slurm_runs import handed_in, incidents

pytestmark = [pytest.mark.soak, pytest.mark.timeout(1200)]
JOBS = RECIPES / "gridengine" / "jobs.py"
WAITING = ["sleep", "600"]


@pytest.fixture(scope="module")
def grid() -> Iterator[GridEngine]:
    if (why := missing()) is not None:
        pytest.skip(why)
    with (
        tempfile.TemporaryDirectory(prefix="grid-engine-", ignore_cleanup_errors=True) as folder,
        grid_engine(Path(folder)) as cluster,
    ):
        yield cluster


@pytest.fixture
def cluster(grid: GridEngine) -> Iterator[GridEngine]:
    yield grid
    grid.run("qdel", "-u", "root", expect=None)
    until(lambda: not living(grid))


def listed(cluster: GridEngine) -> list[tuple[str, str]]:
    """(name, state), as the recipe's own list shows them."""
    rows = [json.loads(line) for line in cluster.run(sys.executable, str(JOBS)).splitlines()]
    return [(row["name"], row["state"]) for row in rows]


def living(cluster: GridEngine) -> dict[str, str]:
    return {name: state for name, state in listed(cluster) if state != "ended"}


def submitted(cluster: GridEngine, name: str, script: Path) -> None:
    """As a person does it."""
    cluster.run("qsub", "-terse", "-V", "-cwd", "-j", "y", "-N", name, str(script), cwd=script.parent)


@pytest.fixture(scope="module")
def nan(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that has diverged; to be copied."""
    folder = tmp_path_factory.mktemp("nan")
    diverged(folder)
    return folder


@pytest.fixture
def ill(cluster: GridEngine, nan: Path, tmp_path: Path) -> Path:
    """A run that has diverged, and whose job still runs. What is started for it only waits."""
    folder = tmp_path / "run"
    shutil.copytree(nan, folder, symlinks=True)
    submitted(cluster, "small", by_recipe(folder, "gridengine", WAITING) / "train.sh")
    until(lambda: living(cluster).get("small") == "running")
    return folder


@contextmanager
def watched(cluster: GridEngine, folder: Path, after: str | None = None) -> Iterator[subprocess.Popen[bytes]]:
    line = [*cluster.inside.prefix, *watch(folder, after)]
    with running(*line, folder=folder, name="watch", **cluster.environment) as process:
        yield process


def log_of(folder: Path) -> str:
    return (folder / "watch.log").read_text()[-4000:]


def carried_out(cluster: GridEngine, folder: Path) -> None:
    """What must be so in the end, whatever happened on the way: one job of the rollback alone."""
    (rollback,) = incidents(folder)[-1].rollbacks
    (name,) = living(cluster)
    assert name.endswith(f"-{rollback.id}-1")
    until(lambda: living(cluster) == {name: "running"})
    assert (folder / "checkpoints" / "latest").read_text() == rollback.target_tag


def test_a_training_that_diverges_is_stopped_rolled_back_started_again_and_the_change_is_proved(
    cluster: GridEngine, tmp_path: Path
) -> None:
    for name in ("checkpoints", "state"):
        (tmp_path / name).mkdir()
    script = by_recipe(tmp_path, "gridengine", training(tmp_path, "6000")) / "train.sh"
    submitted(cluster, "small", script)
    with watched(cluster, tmp_path) as process:
        until(lambda: newest(tmp_path) and {"proved", "not_proved"} & set(kinds(tmp_path)), within_s=600)
        assert process.poll() is None, log_of(tmp_path)
    first, second = starts(tmp_path)[:2]
    steps = [r for r in records(tmp_path) if isinstance(r, Sample)]
    assert max(r.time_unix_s for r in steps if r.attempt == 1) < second.time_unix_s  # never two at once
    rollback = incidents(tmp_path)[0].rollbacks[0]
    assert (second.rollback, second.resumed_from) == (rollback.id, rollback.target_step)
    assert first.job_id != second.job_id
    assert list(living(cluster)) == [second.job_id]


def test_a_daemon_killed_between_stop_and_start_is_taken_up_by_the_next(cluster: GridEngine, ill: Path) -> None:
    with watched(cluster, ill, "done stop_job") as process:
        assert process.wait(300) == -signal.SIGKILL, log_of(ill)
    assert living(cluster) == {}
    with watched(cluster, ill):
        until(lambda: handed_in(ill))
    carried_out(cluster, ill)


@pytest.mark.parametrize("then", ["exit 1", "kill -9 $PPID"])
def test_a_start_whose_answer_is_lost_is_found_by_its_name_and_not_made_twice(
    cluster: GridEngine, ill: Path, then: str
) -> None:
    lossy = ill / "launcher" / "lossy"
    lossy.write_text(f'#!/bin/bash\n[ -e lost ] && exec "$@"\ntouch lost\n"$@"\n{then}\n')
    lossy.chmod(0o755)
    text = (ill / CONFIG).read_text()
    (ill / CONFIG).write_text(text.replace('start = ["qsub"', 'start = ["./lossy", "qsub"'))
    for _ in range(2):
        with watched(cluster, ill) as process:
            until(lambda one=process: handed_in(ill) or one.poll() is not None)  # type: ignore[misc]
    assert (ill / "launcher" / "lost").exists()
    carried_out(cluster, ill)


def test_a_master_that_does_not_answer_is_waited_for_and_nothing_is_done(cluster: GridEngine, ill: Path) -> None:
    text = (ill / CONFIG).read_text()
    (ill / CONFIG).write_text(text.replace('list = ["', 'list = ["env", "SGE_QMASTER_PORT=9", "'))
    before = checkpoints(ill)
    with watched(cluster, ill) as process:
        until(lambda: "unknown" in log_of(ill) or process.poll() is not None)
        lock = ill / "state" / "lock"
        for _ in range(3):  # turns
            seen_ns = lock.stat().st_mtime_ns
            until(lambda since=seen_ns: lock.stat().st_mtime_ns > since)  # type: ignore[misc]
        assert process.poll() is None, log_of(ill)
    assert living(cluster) == {"small": "running"}
    assert checkpoints(ill) == before


def test_a_job_that_waits_is_pending_and_one_that_has_ended_is_listed_as_ended(
    cluster: GridEngine, tmp_path: Path
) -> None:
    script = tmp_path / "train.sh"
    script.write_text("#!/bin/bash\nexit 0\n")
    cluster.run("qsub", "-terse", "-h", "-N", "held-with-a-long-name", str(script))
    assert living(cluster) == {"held-with-a-long-name": "pending"}
    submitted(cluster, "short", script)
    until(lambda: ("short", "ended") in listed(cluster))
