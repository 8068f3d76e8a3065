"""Rungs that race under a real Slurm: their probes are jobs beside each other, and a watch that is killed goes on."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.adapters.checkpoint_files import deepspeed
from tests.adapters.servers import running
from tests.e2e.kill_points import live
from tests.e2e.test_bisect import configured
from tests.slurm.cluster import Cluster, until
from tests.slurm.test_recovery import incidents, job_script
from tests.tune.runs import SENTINEL

pytestmark = pytest.mark.full

# A trainer of a few lines. Its line of weights is ill from step 45 on, unless it begins anew before step 30; each
# checkpoint keeps the line that it is of. A restart takes its seed from overrides.json, and waits after 5 steps for GO.
TRAINER = """
import json, os, pathlib, shutil, sys, time
from sentinel.vocabulary.sample import RunFinished, RunStarted, Sample, encode
flags = dict(word[2:].split("=", 1) for word in sys.argv[1:])
state, saves, last = pathlib.Path(flags["state"]), pathlib.Path(flags["saves"]), int(flags["until"])
tag = (saves / "latest").read_text() if (saves / "latest").exists() else None
at = int(tag.removeprefix("global_step")) if tag else 0
told = json.loads((state / "overrides.json").read_text()) if (state / "overrides.json").exists() else None
level = float((saves / tag / "level").read_text()) if tag else 3.0
if told is not None and level == 3.0:
    level = {20: 2.2, 0: 2.5}.get(at, 3.0)
once = told["once"] if told else None
before = sorted((state / "attempts").glob("*.jsonl"))
number = len(before) + 1
journal = (state / "attempts" / f"{number:04d}.jsonl").open("x")
def tell(record):
    journal.write(encode(record) + "\\n")
    journal.flush()
here = {"attempt": number, "time_unix_s": time.time()}
started = {"job_id": os.environ["SLURM_JOB_ID"], "world_size": 1, "full_seqlen": 32, "host": "elsewhere"}
changed = {"rollback": told["rollback"], "seed": once["seed"], "applied_once": (once["id"],)} if told else {"seed": 0}
line = {"resumed_from": at or None, "parent_attempt": number - 1 or None, "first_sample_index": 16 * at}
tell(RunStarted(**here, **started, **changed, **line))
for step in range(at + 1, last + 1):
    ill = level == 3.0 and step >= 45
    loss = float("nan") if ill else level + 2 * 0.993**step + 0.01 * (step * 37 % 11)
    tell(Sample(attempt=number, time_unix_s=time.time(), global_step=step, loss=loss, seqlen=32, lr=0.001,
                global_batch_samples=16, consumed_samples=16 * step, consumed_tokens=512 * step))
    if step % 10 == 0:
        made = saves / f"global_step{step}"
        shutil.copytree(flags["template"], saves / "part")
        (saves / "part" / "level").write_text(str(level))
        (saves / "part").rename(made)
        (saves / "latest").write_text(made.name)
    time.sleep(0.04)
    while told and step == at + 5 and not (pathlib.Path(flags["template"]).with_name("GO")).exists():
        time.sleep(0.1)
tell(RunFinished(attempt=number, time_unix_s=time.time(), global_step=last, reason="finished"))
"""

_RUNG = '[[policy.ladder]]\nname = "{0}"\nhypothesis = "{0}"\nreseed = true\ntarget = "{1}"\n'
LADDER = "".join(map(_RUNG.format, ("reseed", "earlier", "anew"), ("near", "earlier", "scratch")))


@pytest.fixture
def ill(cluster: Cluster, tmp_path: Path) -> Path:
    """The configuration of a run whose job trains on, with nan."""
    run = tmp_path / "run"
    (run / "state" / "attempts").mkdir(parents=True)
    (run / "checkpoints").mkdir()
    template = deepspeed(tmp_path, 0)
    (run / "trainer.py").write_text(TRAINER)
    folders = [f"--state={run / 'state'}", f"--saves={run / 'checkpoints'}", f"--template={template}"]
    script = job_script(run, [sys.executable, str(run / "trainer.py"), *folders, "--until=100000"])
    launcher = {"kind": "slurm", "script": str(script), "job_name": "ill", "query_interval_s": 0.3}
    path = configured(
        run,
        [],
        launcher=launcher,
        bisect={"parallel": 3, "options": ["--until={until_step}"]},
        policy={"mode": "act", "race": 3, "race_steps": 60, "margin_steps": 10, "hold_steps": 200},
    )
    path.write_text(path.read_text() + LADDER)
    cluster.slurm("sbatch", "--parsable", "--job-name=ill", f"--output={run / 'log-%j.txt'}", str(script), cwd=run)
    return path


def over(run: Path) -> bool:
    """Whether the race has ended."""
    return incidents(run)[-1].races[-1].over is not None


def sentinel(*words: str) -> subprocess.CompletedProcess[str]:
    line = [*SENTINEL, *words]
    return subprocess.run(line, capture_output=True, text=True, timeout=120, check=False, stdin=subprocess.DEVNULL)


def test_three_probes_race_as_jobs_the_watch_is_killed_and_the_healthiest_becomes_the_run(
    cluster: Cluster, ill: Path
) -> None:
    run = ill.parent
    probes = [f"probe-ill-incident-1-p{number}" for number in (1, 2, 3)]
    line = [*SENTINEL, "watch", "--run", str(ill)]
    with running(*line, folder=run, name="first") as watch:
        until(lambda: watch.poll() is not None or {*probes} <= {*cluster.jobs("%j", "--states=RUNNING")})
        assert watch.poll() is None, (run / "first.log").read_text()[-3000:]
        watch.kill()
        watch.wait()
    assert not over(run)
    before = live(run)
    purged = sentinel("purge", "incident-1", "--run", str(ill), "--yes")
    assert (purged.returncode, "only a closed incident's" in purged.stderr) == (2, True), purged.stderr
    with running(*line, folder=run, name="second") as watch:
        until(lambda: watch.poll() is not None or "INFO attempt 1 is diverged" in (run / "second.log").read_text())
        assert {*probes} <= {*cluster.jobs("%j", "--states=RUNNING")}
        (run.parent / "GO").touch()
        until(lambda: watch.poll() is not None or incidents(run)[-1].status == "closed")
        watch.terminate()
        assert watch.wait(60) == 0, (run / "second.log").read_text()[-3000:]
    (incident,) = incidents(run)
    (rollback,) = incident.rollbacks
    assert (incident.outcome, rollback.rung, rollback.proved, rollback.starts) == ("recovered", "earlier", True, 1)
    names = Counter(cluster.jobs("%j", "--states=all"))
    assert {name: names[name] for name in probes} == dict.fromkeys(probes, 1), "a probe that runs is followed on"
    undone = sentinel("undo", "--run", str(ill), "--yes")
    assert undone.returncode == 0, undone.stderr
    assert live(run) == before
