"""The recipe for Ray Jobs on a real Ray cluster of one node, all of whose ports are on loopback."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from sentinel.vocabulary.sample import Sample
from tests.adapters.servers import running
from tests.hooks.trainer import records, starts
from tests.launchers.loopback import missing
from tests.launchers.ray_cluster import RayCluster, ray_cluster
from tests.launchers.recipes import CONFIG, ROOT, by_recipe, checkpoints, diverged, kinds, newest, training, watch
from tests.slurm.cluster import until
from tests.support.slurm_runs import handed_in, incidents

pytestmark = [pytest.mark.soak, pytest.mark.timeout(1200)]
WAITING = ["sleep", "600"]


@pytest.fixture(scope="module")
def ray() -> Iterator[RayCluster]:
    if (why := missing()) is not None:
        pytest.skip(why)
    with (
        tempfile.TemporaryDirectory(prefix="ray-", ignore_cleanup_errors=True) as folder,  # sockets: a short path
        ray_cluster(Path(folder)) as cluster,
    ):
        yield cluster


@pytest.fixture
def cluster(ray: RayCluster) -> Iterator[RayCluster]:
    """Without a job. One that was deleted right after its start is shown again by Ray, which then writes its state."""
    ray.forget_all()
    yield ray
    ray.forget_all()


@pytest.fixture(scope="module")
def nan(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that has diverged; to be copied."""
    folder = tmp_path_factory.mktemp("nan")
    diverged(folder)
    return folder


@pytest.fixture
def ill(cluster: RayCluster, nan: Path, tmp_path: Path) -> Path:
    """A run that has diverged, and whose job still runs. What is started for it only waits."""
    folder = tmp_path / "run"
    shutil.copytree(nan, folder, symlinks=True)
    by_recipe(folder, "ray", WAITING)
    cluster.submit("small", *WAITING)
    until(lambda: cluster.jobs()["small"] == "RUNNING")
    return folder


@contextmanager
def watched(cluster: RayCluster, folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    line = [*cluster.inside.prefix, *watch(folder)]
    with running(*line, folder=folder, name="watch", **cluster.environment) as process:
        yield process


def ours(cluster: RayCluster, folder: Path) -> dict[str, str]:
    """The jobs that were started for the run in this folder, by whomever and however often."""
    digest = hashlib.sha256(os.fsencode(folder / "state")).hexdigest()[:8]
    return {name: state for name, state in cluster.jobs().items() if name.startswith(f"sentinel-{digest}-")}


def log_of(folder: Path) -> str:
    return (folder / "watch.log").read_text()[-4000:]


def carried_out(cluster: RayCluster, folder: Path) -> None:
    """What must be so in the end, whatever happened on the way: one job of the rollback, and the old one stopped."""
    (incident,) = incidents(folder)
    (rollback,) = incident.rollbacks
    (name,) = ours(cluster, folder)
    assert name.endswith(f"-{rollback.id}-1")
    until(lambda: cluster.jobs() == {"small": "STOPPED", name: "RUNNING"})
    assert (folder / "checkpoints" / "latest").read_text() == rollback.target_tag


def test_nothing_of_the_cluster_listens_beyond_loopback(cluster: RayCluster) -> None:
    assert {address.strip("[]").removeprefix("::ffff:") for address in cluster.listening()} == {"127.0.0.1"}


def test_a_training_that_diverges_is_stopped_rolled_back_started_again_and_the_change_is_proved(
    cluster: RayCluster, tmp_path: Path
) -> None:
    for name in ("checkpoints", "state"):
        (tmp_path / name).mkdir()
    copy = by_recipe(tmp_path, "ray", training(tmp_path, "6000"))
    cluster.submit("small", "bash", str(copy / "train.sh"))
    with watched(cluster, tmp_path) as process:
        until(lambda: newest(tmp_path) and {"proved", "not_proved"} & set(kinds(tmp_path)), within_s=600)
        assert process.poll() is None, log_of(tmp_path)
    first, second = starts(tmp_path)[:2]
    steps = [r for r in records(tmp_path) if isinstance(r, Sample)]
    assert max(r.time_unix_s for r in steps if r.attempt == 1) < second.time_unix_s  # never two at once
    rollback = incidents(tmp_path)[0].rollbacks[0]
    assert (first.job_id, second.rollback, second.resumed_from) == ("small", rollback.id, rollback.target_step)
    assert second.job_id in ours(cluster, tmp_path)
    assert cluster.jobs()["small"] == "STOPPED"


def test_a_daemon_killed_between_stop_and_start_is_taken_up_by_the_next(cluster: RayCluster, ill: Path) -> None:
    line = [*cluster.inside.prefix, *watch(ill, "done stop_job")]
    with running(*line, folder=ill, name="killed", **cluster.environment) as process:
        assert process.wait(300) == -signal.SIGKILL, (ill / "killed.log").read_text()[-3000:]
    assert cluster.jobs() == {"small": "STOPPED"}
    with watched(cluster, ill):
        until(lambda: handed_in(ill))
    carried_out(cluster, ill)


@pytest.mark.parametrize("then", ["exit 1", "kill -9 $PPID"])
def test_a_start_whose_answer_is_lost_is_found_by_its_id_and_not_made_twice(
    cluster: RayCluster, ill: Path, then: str
) -> None:
    lossy = ill / "launcher" / "lossy"
    lossy.write_text(f'#!/bin/bash\n[ -e lost ] && exec "$@"\ntouch lost\n"$@"\n{then}\n')
    lossy.chmod(0o755)
    text = (ill / CONFIG).read_text()
    (ill / CONFIG).write_text(text.replace('"ray", "job", "submit"', '"./lossy", "ray", "job", "submit"'))
    with watched(cluster, ill) as process:
        until(lambda: handed_in(ill) or process.poll() is not None)
    with watched(cluster, ill):
        until(lambda: handed_in(ill))
    assert (ill / "launcher" / "lost").exists()
    carried_out(cluster, ill)


def test_two_runs_of_one_name_on_one_cluster_and_jobs_of_similar_names_are_let_be(
    cluster: RayCluster, ill: Path, tmp_path: Path
) -> None:
    """Another project's run has the same configuration; only its state folder differs."""
    other = tmp_path / "other"
    shutil.copytree(ill, other, symlinks=True)
    (other / CONFIG).write_text((other / CONFIG).read_text().replace('job_name = "small"', 'job_name = "small-2"'))
    cluster.submit("small-2", *WAITING)
    with watched(cluster, ill):
        until(lambda: handed_in(ill))
    (name,) = ours(cluster, ill)
    until(lambda: cluster.jobs() == {"small": "STOPPED", "small-2": "RUNNING", name: "RUNNING"})
    with watched(cluster, other):
        until(lambda: handed_in(other))
    jobs = cluster.jobs()
    assert jobs.pop(name) == "RUNNING"
    assert (jobs.pop("small"), jobs.pop("small-2")) == ("STOPPED", "STOPPED")
    assert len(jobs) == 1


@pytest.mark.parametrize(
    "answer", ["sleep 60", "echo '[{\"job'", 'echo \'{"job": "small"\'', "echo 503 Service Unavailable"]
)
def test_a_list_that_does_not_come_or_is_cut_is_unknown_and_nothing_is_done(
    cluster: RayCluster, ill: Path, answer: str
) -> None:
    text = (ill / CONFIG).read_text()
    away = json.dumps(["bash", "-c", answer])
    text = "".join(f"list = {away}\n" if row.startswith("list = ") else row for row in text.splitlines(keepends=True))
    (ill / CONFIG).write_text(text.replace("[commands]\n", "[commands]\ntimeout_s = 3\n"))
    before = checkpoints(ill)
    with watched(cluster, ill) as process:
        lock = ill / "state" / "lock"
        until(lambda: lock.exists() or process.poll() is not None)
        for _ in range(3):  # turns
            seen_ns = lock.stat().st_mtime_ns
            until(lambda since=seen_ns: lock.stat().st_mtime_ns > since or process.poll() is not None)  # type: ignore[misc]
        assert process.poll() is None, log_of(ill)
    assert cluster.jobs() == {"small": "RUNNING"}
    assert checkpoints(ill) == before


def test_the_list_of_an_answer_that_is_cut_or_is_not_rays_is_an_error(cluster: RayCluster, tmp_path: Path) -> None:
    """The recipe's own list, asked of a server that is not Ray's, of nothing, and of one that breaks off."""
    script = str(ROOT / "examples" / "launchers" / "ray" / "jobs.py")
    (tmp_path / "serve.py").write_text(
        "import http.server\n"
        "class H(http.server.BaseHTTPRequestHandler):\n"
        "    def do_GET(self):\n"
        "        self.send_response(200)\n"
        "        body = b'[]' if self.path.startswith('/cut') else b'{\"detail\": \"login\"}'\n"
        "        self.send_header('Content-Length', str(len(body) + (99 if self.path.startswith('/cut') else 0)))\n"
        "        self.end_headers()\n"
        "        self.wfile.write(body)\n"
        "http.server.HTTPServer(('127.0.0.1', 8999), H).serve_forever()\n"
    )
    line = [*cluster.inside.prefix, "python3", str(tmp_path / "serve.py")]
    with running(*line, folder=tmp_path, name="serve", **cluster.environment):
        until(lambda: "8999" in cluster.run("ss", "-Hltn"))
        for address in ("http://127.0.0.1:8999", "http://127.0.0.1:8999/cut", "http://127.0.0.1:9"):
            assert cluster.run("python3", script, address, expect=1) == ""
