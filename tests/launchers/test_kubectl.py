"""The recipe for kubectl, against its documentation: no cluster was there to try it on. Manifests by Kubernetes' own
schemas, and kubectl's answers as its pages and those of JobSet and of Kubeflow's training operator show them."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from sentinel.act.neighbours import Launcher
from sentinel.config import load_config
from sentinel.daemon.launchers import launcher_of
from sentinel.vocabulary.errors import CommandFailed
from tests.deploy.chart import program
from tests.launchers.recipes import RECIPES

RECIPE = RECIPES / "kubectl"
VARIABLES = {"SENTINEL_STATE_DIR": "/data/tr8/.sentinel", "SENTINEL_JOB": "sentinel-0a1b2c3d-incident-1-r1-1"}
LABELS = {"jobset": "jobset.sigs.k8s.io/jobset-name", "pytorchjob": "training.kubeflow.org/job-name"}

# kubectl of these tests: it answers with the files beside it, or as MODE says.
KUBECTL = """#!{python}
import pathlib, sys
here = pathlib.Path(__file__).parent
with (here / "asked").open("a") as asked: print(*sys.argv[1:], file=asked)
mode = (here / "MODE").read_text() if (here / "MODE").exists() else ""
if mode == "refused": sys.exit("The connection to the server 10.0.0.1:6443 was refused")
if mode == "forbidden": sys.exit('Error from server (Forbidden): jobsets.jobset.x-k8s.io is forbidden: User "x"')
if sys.argv[1] == "get":
    text = (here / ("pods" if sys.argv[2] == "pods" else "jobs")).read_text()
    print(text[:len(text) // 2] if mode == "cut" else text)
elif sys.argv[1] == "create": (here / "created").write_text(sys.stdin.read())
elif sys.argv[1] == "logs": print("[pod/tr8-0/trainer] loss is nan")
"""


@pytest.fixture(params=["jobset", "pytorchjob"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def initialised(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What `sentinel init --launcher kubectl` has written; to be copied."""
    folder = tmp_path_factory.mktemp("init")
    init = [sys.executable, "-m", "sentinel", "init", "tr8", "--launcher", "kubectl"]
    subprocess.run(init, cwd=folder, check=True, capture_output=True, timeout=200)
    return folder / "runs"


@pytest.fixture
def launcher(kind: str, initialised: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Launcher:
    """Of such a run, changed to the kind as its page says."""
    shutil.copytree(initialised, tmp_path / "runs")
    path = tmp_path / "runs" / "tr8.toml"
    path.write_text(path.read_text().replace('"jobset"', f'"{kind}"'))
    programs = tmp_path / "programs"
    programs.mkdir()
    (programs / "kubectl").write_text(KUBECTL.format(python=sys.executable))
    (programs / "kubectl").chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:{Path(sys.executable).parent}:{os.environ['PATH']}")
    (tmp_path / "state").mkdir()
    answers(tmp_path, [], [])
    return launcher_of(load_config(path), tmp_path / "state", tmp_path / "log")


def answers(folder: Path, jobs: list[dict[str, Any]], pods: list[dict[str, Any]]) -> None:
    for name, items in (("jobs", jobs), ("pods", pods)):
        (folder / "programs" / name).write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": items}))


def job(name: str, *true: str, **metadata: str) -> dict[str, Any]:
    conditions = [{"type": "Created", "status": "True"}, {"type": "Failed", "status": "False"}]
    conditions += [{"type": one, "status": "True"} for one in true]
    return {"metadata": {"name": name, **metadata}, "spec": {}, "status": {"conditions": conditions}}


def pod(kind: str, of: str, phase: str) -> dict[str, Any]:
    return {"metadata": {"name": f"{of}-0", "labels": {LABELS[kind]: of}}, "status": {"phase": phase}}


def filled(kind: str) -> dict[str, Any]:
    """The manifest as jobs.py fills it in."""
    script = "import sys; sys.path.insert(0, sys.argv[1]); import jobs; print(jobs.filled(open(sys.argv[2]).read()))"
    line = [sys.executable, "-B", "-c", script, str(RECIPE), str(RECIPE / f"{kind}.yaml")]
    ran = subprocess.run(line, env={**os.environ, **VARIABLES}, capture_output=True, text=True, check=True, timeout=60)
    made: dict[str, Any] = yaml.safe_load(ran.stdout)
    return made


def test_kubernetes_takes_the_pods_of_its_manifests_and_they_have_what_the_trainer_needs(
    kind: str, tmp_path: Path
) -> None:
    """The kinds themselves are of CRDs, whose schemas are not in Kubernetes: a JobSet's job is, and each pod."""
    made = filled(kind)
    if kind == "jobset":
        objects = [
            {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": each["name"]}, **each["template"]}
            for each in made["spec"]["replicatedJobs"]
        ]
        templates = [each["spec"]["template"] for each in objects]
    else:
        templates = [each["template"] for each in made["spec"]["pytorchReplicaSpecs"].values()]
        objects = []
    objects += [{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a"}, **each} for each in templates]
    (tmp_path / "all.yaml").write_text(yaml.safe_dump_all(objects))
    command = [program("kubernetes-validate"), "--strict", "-k", "1.31.0", str(tmp_path / "all.yaml")]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert (ran.stdout + ran.stderr).count("passed for resource") == len(objects) >= 2
    assert made["metadata"]["name"] == VARIABLES["SENTINEL_JOB"]
    for template in templates:
        (container,) = template["spec"]["containers"]
        told = {one["name"]: one["value"] for one in container["env"]}
        assert told == VARIABLES | {"SENTINEL_INCIDENT": "", "SENTINEL_ROLLBACK": ""}


def test_a_start_creates_the_manifest_under_its_name_with_the_rollbacks_id(
    launcher: Launcher, kind: str, tmp_path: Path
) -> None:
    launcher.start("incident-1", "incident-1-r1", [], follow_up=False)
    created = yaml.safe_load((tmp_path / "programs" / "created").read_text())
    name = created["metadata"]["name"]
    assert name.endswith("-incident-1-r1-1")
    assert '"incident-1-r1"' in (tmp_path / "programs" / "created").read_text()
    answers(tmp_path, [job(name)], [pod(kind, name, "Running")])
    (writer,) = launcher.look([]).writers
    assert (writer.rollback, writer.pending) == ("incident-1-r1", False)


def test_a_manifest_that_has_lost_its_name_is_not_created(launcher: Launcher, kind: str, tmp_path: Path) -> None:
    manifest = tmp_path / "runs" / "tr8-launcher" / f"{kind}.yaml"
    manifest.write_text(manifest.read_text().replace("${SENTINEL_JOB}", "tr8"))
    with pytest.raises(CommandFailed, match="does not hold"):
        launcher.start(None, "incident-1-r1", [], follow_up=False)
    assert not (tmp_path / "programs" / "created").exists()


@pytest.mark.parametrize(
    ("conditions", "phases", "lives"),
    [
        ((), (), "pending"),
        ((), ("Pending",), "pending"),
        ((), ("Running", "Pending"), "running"),
        (("Running",), ("Unknown",), "running"),  # a node that is not heard of: its pod may still write
        (("END",), (), None),
        (("END",), ("Failed", "Succeeded"), None),
        (("END",), ("Running",), "running"),  # a failed job's last pod has yet to end
    ],
)
def test_a_job_has_ended_once_it_says_so_and_none_of_its_pods_may_write(
    launcher: Launcher,
    kind: str,
    tmp_path: Path,
    conditions: tuple[str, ...],
    phases: tuple[str, ...],
    lives: str | None,
) -> None:
    end = {"jobset": "Completed", "pytorchjob": "Succeeded"}[kind]
    shown = job("tr8", *(end if one == "END" else one for one in conditions))
    answers(tmp_path, [shown, job("tr8-of-another")], [pod(kind, "tr8", phase) for phase in phases])
    seen = launcher.look([])
    assert seen.known
    assert [(w.id, w.pending) for w in seen.writers] == ([] if lives is None else [("job tr8", lives == "pending")])


def test_a_job_that_is_deleted_lives_until_its_pods_are_gone(launcher: Launcher, kind: str, tmp_path: Path) -> None:
    """Also where the object goes first, as without --cascade=foreground."""
    deleted = job("tr8", deletionTimestamp="2026-01-01T00:00:00Z")
    for jobs in ([deleted], []):
        answers(tmp_path, jobs, [pod(kind, "tr8", "Running")])
        assert [w.id for w in launcher_again(tmp_path).look([]).writers] == ["job tr8"]


def launcher_again(folder: Path) -> Launcher:
    """Another daemon's, which remembers no answer."""
    return launcher_of(load_config(folder / "runs" / "tr8.toml"), folder / "state", folder / "log")


@pytest.mark.parametrize("mode", ["refused", "forbidden", "cut"])
def test_an_answer_that_does_not_come_or_is_cut_is_unknown(
    launcher: Launcher, kind: str, tmp_path: Path, mode: str
) -> None:
    answers(tmp_path, [job("tr8")], [pod(kind, "tr8", "Running")])
    (tmp_path / "programs" / "MODE").write_text(mode)
    seen = launcher.look([])
    assert (seen.known, seen.writers) == (False, ())
    with pytest.raises(CommandFailed):
        launcher.stop([], None)
    assert "delete" not in (tmp_path / "programs" / "asked").read_text()


def test_the_last_lines_of_a_job_that_failed_are_its_pods(launcher: Launcher, kind: str, tmp_path: Path) -> None:
    answers(tmp_path, [job("tr8", "Failed")], [])
    path = launcher.look([]).last_log
    assert path is not None
    assert "loss is nan" in Path(path).read_text()
    assert shutil.which("kubectl") == str(tmp_path / "programs" / "kubectl")
