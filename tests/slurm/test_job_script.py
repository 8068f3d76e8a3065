"""A rung's changes in a copy of a job script, under a real Slurm: what the trainer really gets, task after task."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from sentinel.adapters.slurm import SlurmClient, SlurmLauncher, SlurmSettings
from sentinel.jobscript.script_changes import baseline_of_script
from sentinel.vocabulary.errors import ScriptRefused
from sentinel.vocabulary.overrides import Anchor, Free, Once, Overrides, TrainingSettings
from sentinel.vocabulary.sample import RunStarted
from tests.adapters.servers import running
from tests.slurm.cluster import Cluster, until
from tests.support.log_lines import lines_of
from tests.support.slurm_runs import for_slurm, handed_in, incidents
from tests.triage.runs import document_in

SENTINEL = [sys.executable, "-m", "sentinel"]

SCRIPT = Path(__file__).parents[1] / "data" / "job_scripts" / "lists_in_variables.sh"
RECORD = """#!/usr/bin/env python3
import json, os, sys, time
env = os.environ
name = env.get("SLURM_ARRAY_JOB_ID", "") + "_" + env.get("SLURM_ARRAY_TASK_ID", env["SLURM_JOB_ID"])
seen = os.path.join(os.environ["RECORDED"], name + ".json")
with open(seen + ".part", "w") as file:
    json.dump(sys.argv[1:], file)
os.rename(seen + ".part", seen)
time.sleep(600)
"""
SRUN = """#!/bin/bash
until [ "$1" = bash ]; do shift; done
SLURM_PROCID=0 exec "$@"
"""
ANCHOR = Anchor(global_step=300, consumed_samples=108_032, consumed_tokens=108_032 * 2048)


def overrides(number: int, *, peak: float = 3e-5, seed: int | None = 7) -> Overrides:
    name = f"incident-1-r{number}"
    own = baseline_of_script(SCRIPT.read_text()).lr
    assert own is not None
    lr = replace(own, peak=peak)
    once = Once(id=name, seed=seed) if seed is not None else None
    standing = TrainingSettings(lr=lr, free=Free(environment={"SAVE_INTERVAL": "100"}))
    return Overrides(incident="incident-1", rollback=name, anchor=ANCHOR, standing=standing, once=once)


UNCARRIED = """[[policy.ladder]]
name = "SLW from 60"
hypothesis = "long sequences are too much"
seqlen_start = 60
seqlen_total_steps = 100

"""
"""A rung that the script can't carry: the JSON's lengths are multiples of 8."""


class Run:
    def __init__(self, cluster: Cluster, folder: Path) -> None:
        self.cluster, self.folder = cluster, folder
        (folder / "bin").mkdir()
        for name, text in (("python", RECORD), ("srun", SRUN)):
            program = folder / "bin" / name
            program.write_text(text)
            program.chmod(0o755)
        (folder / "seen").mkdir()
        (folder / "state").mkdir()
        text = SCRIPT.read_text().replace("#SBATCH --nodes=4", "#SBATCH --nodes=1")
        head, rest = text.split("set -e", 1)
        exports = f"export PATH={folder}/bin:$PATH RECORDED={folder}/seen\n"
        (folder / "pretrain_gpt.py").touch()
        (folder / "megatron").mkdir()
        (folder / "megatron" / "arguments.py").write_text("group.add_argument('--override-lr-scheduler')\n")
        self.script = folder / "train.sh"
        self.script.write_text(f"{head}{exports}set -e{rest}")
        settings = SlurmSettings(run="wide", state_dir=folder / "state", changes_in_script=True, query_interval_s=0.0)
        self.launcher = SlurmLauncher(SlurmClient(), settings)

    def submit(self, *options: str) -> str:
        return self.cluster.slurm("sbatch", "--parsable", *options, str(self.script), cwd=self.folder)

    def got(self, task: str) -> list[str]:
        path = self.folder / "seen" / f"{task}.json"
        until(path.exists)
        return list(json.loads(path.read_text()))

    def rolled_back(self, number: int, known: list[RunStarted]) -> None:
        name = f"incident-1-r{number}"
        peak = 3e-5 if number == 1 else 1.5e-5
        self.launcher.prepare(name, known, overrides(number, peak=peak))
        self.launcher.stop(known, name)
        self.launcher.start("incident-1", name, known, follow_up=False)


@pytest.fixture
def run(cluster: Cluster, tmp_path: Path) -> Run:
    return Run(cluster, tmp_path)


def value(words: list[str], flag: str) -> str:
    return words[words.index(flag) + 1]


def started(job: str) -> list[RunStarted]:
    return [RunStarted(attempt=1, time_unix_s=0.0, job_id=job)]


def test_the_task_at_the_anchor_gets_what_is_done_once_and_those_behind_it_do_not(run: Run) -> None:
    array = run.submit("--array=1-3%1")
    before = run.got(f"{array}_1")
    assert (value(before, "--lr"), value(before, "--seed")) == ("6e-5", "43")
    original = run.script.read_bytes()
    run.rolled_back(1, started(f"{array}_1"))
    head, behind = sorted(set(run.cluster.jobs("%F")), key=int)
    first = run.got(f"{head}_1")
    assert (value(first, "--lr"), value(first, "--seed")) == ("3e-05", "7")
    assert value(first, "--save-interval") == "100"
    assert "--override-lr-scheduler" in first
    run.cluster.slurm("scancel", head)
    second = run.got(f"{behind}_2")
    assert "--override-lr-scheduler" not in second
    assert (value(second, "--lr"), value(second, "--seed")) == ("3e-05", "7")
    assert float(value(second, "--min-lr")) == float(value(before, "--min-lr")) / 2
    assert {word for word in set(first) - set(second) if "ds_config" not in word} == {"--override-lr-scheduler"}
    changed = {"--lr", "--min-lr", "--seed", "--save-interval", "--override-lr-scheduler", "--deepspeed_config"}
    unchanged = [(a, b) for a, b in pairwise(before) if a.startswith("--") and a not in changed]
    assert all(b in second for _, b in unchanged)
    assert run.script.read_bytes() == original


def test_after_a_crash_past_the_first_save_the_follow_up_is_submitted_and_the_next_rung_changes_the_runs_own_script(
    run: Run,
) -> None:
    job = run.submit("--requeue")
    run.got(f"_{job}")
    run.rolled_back(1, started(job))
    (again,) = run.cluster.jobs("%A")
    run.got(f"_{again}")
    assert "Requeue=0" in run.cluster.slurm("scontrol", "show", "job", again)  # it would do once more what is done once
    run.cluster.slurm("scancel", again)
    until(lambda: not run.cluster.jobs())
    run.launcher.start("incident-1", "incident-1-r1", started(again), follow_up=True)
    (third,) = run.cluster.jobs("%A")
    assert "--override-lr-scheduler" not in run.got(f"_{third}")
    known = [*started(job), *started(again), *started(third)]
    run.rolled_back(2, known)
    (fourth,) = run.cluster.jobs("%A")
    words = run.got(f"_{fourth}")
    assert value(words, "--lr") == "1.5e-05"
    assert words.count("--override-lr-scheduler") == 1
    folder = run.folder / "state" / "submissions" / "incident-1-r2"
    assert (folder / "0.original.sh").read_bytes() == run.script.read_bytes()
    assert "+    --lr 1.5e-05" in (folder / "0.diff").read_text()
    assert run.launcher.preview(known, overrides(3, peak=1e-5)) is not None


def test_what_can_not_be_changed_safely_is_refused_by_its_line_and_the_run_stays_as_it_is(run: Run) -> None:
    text = run.script.read_text()
    run.script.write_text(text.replace("    --seed 43 \\\n", "    --seed 43 \\ \n"))
    line = 1 + run.script.read_text()[: run.script.read_text().index("--seed 43")].count("\n")
    job = run.submit()
    until(lambda: run.cluster.jobs("%T") == ["RUNNING"])
    with pytest.raises(ScriptRefused, match=rf"line {line}"):
        run.launcher.prepare("incident-1-r1", started(job), overrides(1))
    assert run.cluster.jobs("%A") == [job]
    assert not run.launcher.look(started(job)).start.prepared


@pytest.mark.full
def test_watch_carries_a_rung_out_through_the_script(cluster: Cluster, diverged: Path, tmp_path: Path) -> None:
    """From the verdict to what the trainer gets: a run that has diverged, whose job takes options.

    Slurm does not answer at the alarm, and the script is read before anything is decided.
    """
    folder = tmp_path / "run"
    shutil.copytree(diverged, folder, symlinks=True)
    shutil.rmtree(folder / "seen", ignore_errors=True)
    (folder / "state").rename(folder / "state-of-before")
    run = Run(cluster, folder)
    (folder / "state").rmdir()
    (folder / "state-of-before").rename(folder / "state")
    _says_nothing_of_its_schedules(folder / "state" / "attempts" / "0001.jsonl")
    for_slurm(folder, changes_in_script=True)
    text = (folder / "demo.toml").read_text()
    (folder / "demo.toml").write_text(text.replace("[[policy.ladder]]", f"{UNCARRIED}[[policy.ladder]]", 1))
    array = run.submit("--array=1-3%1", "--job-name=demo")
    assert value(run.got(f"{array}_1"), "--seed") == "43"
    words = ("--to", "global_step20", "--rung", "reseed", "--dry-run", "--run", str(folder / "demo.toml"))
    dry = subprocess.run([*SENTINEL, "rollback", *words], capture_output=True, text=True, timeout=120, check=False)
    assert dry.returncode == 0, dry.stdout + dry.stderr
    assert "-    --seed 43 \\\n+    --seed 44 \\" in dry.stdout
    cluster.stop_controller()
    with running(*SENTINEL, "watch", "--run", folder / "demo.toml", folder=folder, name="watch") as watch:
        until(lambda: incidents(folder))
        cluster.start_controller()
        until(lambda: handed_in(folder) or watch.poll() is not None)
        watch.terminate()
        assert watch.wait(60) == 0, (folder / "watch.log").read_text()[-2000:]
    head = min(set(cluster.jobs("%F")), key=int)
    assert head != array
    assert value(run.got(f"{head}_1"), "--seed") == "44"
    (incident,) = incidents(folder)
    (skip,) = incident.skips
    assert (skip.rung, "sequence lengths should be multiples of 8" in skip.reason) == ("SLW from 60", True)
    assert incident.rollbacks[0].rung != skip.rung
    kinds = [e["event"] for e in lines_of(folder / "state" / "incidents.jsonl")]
    assert kinds.index("opened") < kinds.index("baseline_completed") < kinds.index("decided")
    assert incident.baseline.seed == 43
    assert "one-shot changes of incident-1-r1" in incident.rollbacks[0].unconfirmed
    page = folder / "report.html"
    words = ("-o", str(page), "--run", str(folder / "demo.toml"))
    subprocess.run([*SENTINEL, "triage", *words], capture_output=True, timeout=120, check=True)
    (plan,) = document_in(page.read_text())["incidents"][0]["plans"]
    assert [line for line in plan["script"] if "--seed" in line] == ["-    --seed 43 \\", "+    --seed 44 \\"]


def _says_nothing_of_its_schedules(journal: Path) -> None:
    """As a trainer of which the job script is the only source: the journal is another run's."""
    lines = [json.loads(line) for line in journal.read_text().splitlines()]
    for line in lines:
        for key in ("seed", "lr_schedule", "seqlen_schedule", "full_seqlen"):
            line.pop(key, None)
    journal.write_text("".join(json.dumps(line) + "\n" for line in lines))


def test_a_yaml_that_the_script_names_reaches_the_trainer_changed_and_stays_as_it_was(
    cluster: Cluster, tmp_path: Path
) -> None:
    for folder in ("bin", "seen", "state", "conf"):
        (tmp_path / folder).mkdir()
    program = tmp_path / "bin" / "llamafactory-cli"
    program.write_text(RECORD)
    program.chmod(0o755)
    content = "output_dir: out  # kept\nlearning_rate: 1.0e-4\nlr_scheduler_type: cosine\nmax_steps: 900\nseed: 7\n"
    (tmp_path / "conf" / "run.yaml").write_text(content)
    exports = f"export PATH={tmp_path}/bin:$PATH RECORDED={tmp_path}/seen\n"
    script = tmp_path / "train.sh"
    script.write_text(f"#!/bin/bash\n{exports}llamafactory-cli train conf/run.yaml\n")
    settings = SlurmSettings(run="tuned", state_dir=tmp_path / "state", changes_in_script=True, query_interval_s=0.0)
    launcher = SlurmLauncher(SlurmClient(), settings)

    def given(job: str) -> str:
        seen = tmp_path / "seen" / f"_{job}.json"
        until(seen.exists)
        return (tmp_path / json.loads(seen.read_text())[1]).read_text()

    job = cluster.slurm("sbatch", "--parsable", str(script), cwd=tmp_path)
    assert given(job) == content
    known = started(job)
    for number, clip in ((1, 0.25), (2, 0.125)):  # the second changes the run's own file, too
        name = f"incident-1-r{number}"
        once, standing = Once(id=name, seed=40 + number), TrainingSettings(clip_grad=clip)
        made = Overrides(incident="incident-1", rollback=name, anchor=ANCHOR, standing=standing, once=once)
        launcher.prepare(name, known, made)
        launcher.stop(known, name)
        launcher.start("incident-1", name, known, follow_up=False)
        (job,) = cluster.jobs("%A")
        known += started(job)
        assert given(job) == content.replace("seed: 7", f"seed: {40 + number}") + f"max_grad_norm: {clip}\n"
    assert (tmp_path / "conf" / "run.yaml").read_text() == content
