"""The launcher against a real Slurm: what it finds, cancels, and submits again."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from sentinel.adapters.slurm import SlurmClient, SlurmLauncher, SlurmSettings
from sentinel.adapters.slurm.client import Answer, run_command
from sentinel.config import load_config
from sentinel.daemon.wiring import neighbours_of
from sentinel.vocabulary.errors import ConfigError, JobStillAlive, NotOurJob, SlurmRefused, SlurmUnavailable
from sentinel.vocabulary.sample import RunStarted
from tests.slurm.cluster import Cluster, until

ROLLBACK = "incident-1-r1"


def started(*jobs: str) -> list[RunStarted]:
    return [RunStarted(attempt=n, time_unix_s=0.0, job_id=job) for n, job in enumerate(jobs, 1)]


class Run:
    """A run's folder, a script in it, and the launcher that the daemon would have."""

    def __init__(self, cluster: Cluster, folder: Path) -> None:
        self.cluster, self.folder = cluster, folder
        self.state = folder / "state"
        self.state.mkdir()
        self.script = folder / "train it.sh"
        self.write("sleep 300")
        self.launcher = self.another()

    def write(self, body: str, *directives: str) -> None:
        env = f"{self.folder}/env.$SLURM_JOB_ID"
        lines = [
            "#!/bin/bash",
            *(f"#SBATCH {d}" for d in directives),
            f"printenv > {env}.part && mv {env}.part {env}",
            body,
        ]
        self.script.write_text("\n".join(lines) + "\n")

    def another(self, run: Any = run_command, **changed: Any) -> SlurmLauncher:
        settings: dict[str, Any] = {"query_interval_s": 0.0, "stop_grace_s": 30.0, "job_name": "tr8"}
        settings |= {"working_directory": self.folder} | changed
        return SlurmLauncher(SlurmClient(run=run), SlurmSettings(run="tr8", state_dir=self.state, **settings))

    def submit(self, *options: str, words: Sequence[str] = ()) -> str:
        return self.cluster.slurm("sbatch", "--parsable", *options, str(self.script), *words, cwd=self.folder)

    def jobs(self, form: str = "%i %T") -> list[str]:
        return self.cluster.jobs(form)

    def cut_short_and_again(self, known: list[RunStarted]) -> None:
        """Prepare, stop, start, as a rollback does."""
        self.launcher.prepare(ROLLBACK, known, None)
        self.launcher.stop(known, ROLLBACK)
        self.launcher.start("incident-1", ROLLBACK, known, follow_up=False)


@pytest.fixture
def run(cluster: Cluster, tmp_path: Path) -> Run:
    return Run(cluster, tmp_path)


def running(run: Run, job: str) -> None:
    until(lambda: f"{job} RUNNING" in run.jobs())


@pytest.fixture
def job(run: Run) -> str:
    """One that runs."""
    job = run.submit()
    running(run, job)
    return job


def test_a_job_comes_back_as_it_was_submitted_in_a_clean_environment_that_names_the_rollback(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Options of the command line beat the script's own lines, and are in no script: they come from Slurm, as does the
    script, whatever became of its file."""
    run.write("sleep 300", "--time=5", "--job-name=nope", "--output=log-%j.txt")
    options = ("--nodes=2", "--ntasks=3", "--time=00:30:00", "--partition=debug", "--mem=100", "--no-requeue")
    job = run.submit(*options, "--job-name=tr8", "--comment=Paris; 3 \"x\" 'y'", words=("--seed", "3"))
    running(run, job)
    run.write("exit 77")
    for name in ("SLURM_ARRAY_TASK_ID", "SBATCH_PARTITION", "SLURM_NTASKS", "SENTINEL_INCIDENT"):
        monkeypatch.setenv(name, "small")  # as if sentinel were itself a job of Slurm's
    run.launcher = run.another(environment=lambda: {"WANDB_RUN_ID": "abc-incident-1-r1"})
    run.cut_short_and_again(started(job))
    (again,) = run.jobs("%A")
    until((run.folder / f"env.{again}").exists)
    shown = run.jobs("%A|%j|%D|%l|%P|%m|%k|%Z|%o")[0].split("|")
    assert shown[1:6] == ["tr8", "2", "30:00", "debug", "100M"]
    assert shown[6] == f"Paris; 3 \"x\" 'y' sentinel:tr8:{ROLLBACK}:0"
    assert shown[7] == str(run.folder)
    assert shown[8].endswith("/0.sh --seed 3")
    details = run.cluster.slurm("scontrol", "show", "job", again)
    assert "NumTasks=3" in details
    assert "Requeue=0" in details
    assert f"StdOut={run.folder}/log-{again}.txt" in details
    assert "sleep 300" in run.cluster.slurm("scontrol", "write", "batch_script", again, "-")
    environment = (run.folder / f"env.{again}").read_text().splitlines()
    assert f"SENTINEL_ROLLBACK={ROLLBACK}" in environment
    assert "SENTINEL_INCIDENT=incident-1" in environment
    assert "WANDB_RUN_ID=abc-incident-1-r1" in environment
    assert f"SENTINEL_STATE_DIR={run.state}" in environment
    assert not [line for line in environment if line.endswith("=small")]


def test_an_array_comes_back_whole_with_its_throttle_and_a_long_list_of_tasks(run: Run) -> None:
    indices = [n * n for n in range(1, 31)]  # no pattern that Slurm could write shortly
    waiting = f"{','.join(map(str, indices[1:]))}%1"
    array = run.submit(f"--array=1,{waiting}", "--job-name=tr8")
    running(run, f"{array}_1")
    known = started(f"{array}_1")
    assert {w.id: w.pending for w in run.launcher.look(known).writers} == {
        f"{array}_1": False,
        f"{array}_[{waiting}]": True,
    }
    run.cut_short_and_again(known)
    (again,) = set(run.jobs("%F"))
    assert again != array
    running(run, f"{again}_1")
    seen = run.launcher.look(known)
    assert {(w.id, w.pending, w.rollback) for w in seen.writers} == {
        (f"{again}_1", False, ROLLBACK),
        (f"{again}_[{waiting}]", True, ROLLBACK),
    }
    assert not seen.incomplete


def test_the_last_task_that_waits_does_not_begin_beside_the_one_before_it(run: Run) -> None:
    """squeue shows a single waiting task as a plain number, without the throttle of its array."""
    array = run.submit("--array=1-3%1", "--job-name=tr8")
    running(run, f"{array}_1")
    run.cluster.slurm("scancel", f"{array}_1")
    running(run, f"{array}_2")
    known = started(f"{array}_1", f"{array}_2")
    until(lambda: {w.id for w in run.launcher.look(known).writers} == {f"{array}_2", f"{array}_3"})
    run.cut_short_and_again(known)
    (again,) = set(run.jobs("%F"))
    running(run, f"{again}_2")
    assert sorted(run.jobs("%i %r")) == [f"{again}_2 None", f"{again}_3 JobArrayTaskLimit"]
    run.launcher.look([])
    run.launcher.keep([])
    record = json.loads((run.state / "jobs" / f"{again}.json").read_text())
    assert record["properties"]["array_throttle"] == 1


def test_a_chain_comes_back_in_its_order(run: Run) -> None:
    first = run.submit()
    second = run.submit(f"--dependency=afterany:{first}")
    third = run.submit(f"--dependency=afterok:{second}")
    bystander = run.submit("--hold", "--job-name=eval")
    running(run, first)
    run.cut_short_and_again(started(first))
    left = [line.split("|") for line in run.jobs("%A|%j|%E|%k") if line.split("|")[0] != bystander]
    ids = [line[0] for line in left]
    assert not {first, second, third} & set(ids)
    assert [line[2] for line in left] == [
        "(null)",
        f"afterany:{ids[0]}(unfulfilled)",
        f"afterok:{ids[1]}(unfulfilled)",
    ]
    assert f"{bystander} PENDING" in run.jobs()


def test_what_waits_is_cancelled_first_so_that_it_never_begins(run: Run) -> None:
    first = run.submit("--nodes=2", "--exclusive")
    second = run.submit("--nodes=2", "--exclusive", "--dependency=singleton", f"--dependency=afterany:{first}")
    running(run, first)
    cancelled: list[str] = []

    def noting(command: Sequence[str], environment: Any, timeout_s: float) -> Answer:
        cancelled.extend(command[1:] if command[0] == "scancel" else ())
        return run_command(command, environment, timeout_s)

    run.another(run=noting).stop(started(first), None)
    assert cancelled == [second, first]
    assert run.jobs() == []
    assert not (run.folder / f"env.{second}").exists()


def test_a_job_that_is_completing_is_waited_for(run: Run) -> None:
    """It catches SIGTERM and takes its time: nothing may be moved before it is gone."""
    saves = f"until [ -e {run.folder}/saved ]; do sleep 0.1; done; exit 0"
    run.write(f"trap '{saves}' TERM; touch {run.folder}/ready; sleep 300 & wait; sleep 300 & wait")
    job = run.submit()
    running(run, job)
    until((run.folder / "ready").exists)
    with pytest.raises(JobStillAlive, match=rf"job {job} \(RUNNING\)"):
        run.launcher.fenced(started(job), None)
    with pytest.raises(JobStillAlive, match=r"COMPLETING|RUNNING"):
        run.another(stop_grace_s=0.0).stop(started(job), None)
    (run.folder / "saved").touch()
    run.launcher.stop(started(job), None)
    run.launcher.fenced(started(job), None)


def test_a_requeued_job_is_stopped_again_and_ours_is_let_be(run: Run) -> None:
    job = run.submit("--requeue")
    running(run, job)
    known = started(job)
    run.cut_short_and_again(known)
    run.cluster.slurm("scontrol", "requeue", job)
    until(lambda: len(run.jobs("%A")) == 2)
    ours = next(w for w in run.launcher.look(known).writers if w.rollback == ROLLBACK)
    with pytest.raises(JobStillAlive):
        run.launcher.fenced(known, ROLLBACK)
    run.launcher.stop(known, ROLLBACK)
    assert run.jobs("%A") == [ours.id]


def test_a_run_of_the_same_name_elsewhere_is_another_run(run: Run, job: str, tmp_path: Path) -> None:
    for name in ("here", "there"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "a.toml").write_text(
            '[run]\nname = "baseline"\ncheckpoints = "c"\nstate_dir = "s"\n[launcher]\nkind = "slurm"\n'
        )
    here, there = (neighbours_of(load_config(tmp_path / name / "a.toml")).launcher for name in ("here", "there"))
    (tmp_path / "here" / "s").mkdir()
    here.prepare(ROLLBACK, started(job), None)
    here.stop(started(job), ROLLBACK)
    here.start("incident-1", ROLLBACK, started(job), follow_up=False)
    (again,) = run.jobs("%A")
    assert [w.id for w in here.look([]).writers] == [again]
    assert there.look([]).writers == ()


def test_nothing_is_submitted_twice_when_the_reply_was_lost(run: Run) -> None:
    first = run.submit()
    run.submit(f"--dependency=afterany:{first}")
    running(run, first)
    known = started(first)
    run.launcher.prepare(ROLLBACK, known, None)
    run.launcher.stop(known, ROLLBACK)

    def loses_replies(command: Sequence[str], environment: Any, timeout_s: float) -> Answer:
        answer = run_command(command, environment, timeout_s)
        if command[:2] == ("sbatch", "--parsable"):
            raise SlurmUnavailable("sbatch", "no answer within 20 s")
        return answer

    deaf = run.another(run=loses_replies)
    with pytest.raises(SlurmUnavailable):
        deaf.start("incident-1", ROLLBACK, known, follow_up=False)
    assert len(run.jobs()) == 1
    assert run.launcher.look(known).incomplete == {ROLLBACK}
    run.launcher.start("incident-1", ROLLBACK, known, follow_up=False)
    run.launcher.start("incident-1", ROLLBACK, known, follow_up=False)
    assert len(run.jobs()) == 2
    assert not run.launcher.look(known).incomplete


def test_a_successor_that_died_at_once_is_submitted_again(run: Run, job: str) -> None:
    known = started(job)
    run.cut_short_and_again(known)
    (again,) = run.jobs("%A")
    run.cluster.slurm("scancel", again)
    until(lambda: not run.jobs())
    assert not run.launcher.look(known).writers
    run.launcher.start("incident-1", ROLLBACK, known, follow_up=False)
    assert run.jobs("%A") not in ([again], [])


REFUSED = {
    "--partition=nosuch": "invalid partition",
    "--partition=small --time=10-0": "time limit",
    "--nodes=9 --ntasks=9": "more processors requested",
}


def test_what_slurm_would_refuse_is_refused_while_the_old_job_still_runs(run: Run, job: str) -> None:
    for option, says in REFUSED.items():
        refusing = run.another(sbatch_arguments=tuple(option.split()))
        with pytest.raises(SlurmRefused, match=f"(?i){says}"):
            refusing.prepare(ROLLBACK, started(job), None)
        assert run.jobs() == [f"{job} RUNNING"]
        assert not run.launcher.look(started(job)).start.prepared


def test_a_job_that_comes_out_otherwise_is_cancelled_and_said(run: Run, job: str) -> None:
    known = started(job)
    run.launcher.prepare(ROLLBACK, known, None)
    plan = run.state / "submissions" / ROLLBACK / "plan.json"
    told = json.loads(plan.read_text())
    told["submissions"][0]["properties"]["qos"] = "gpu-high"
    plan.write_text(json.dumps(told))
    run.launcher.stop(known, ROLLBACK)
    with pytest.raises(SlurmRefused, match="qos is '', not 'gpu-high'"):
        run.launcher.start("incident-1", ROLLBACK, known, follow_up=False)
    until(lambda: not run.jobs())


def test_a_crashed_job_starts_again_from_what_was_recorded(run: Run) -> None:
    array = run.submit("--array=4-6%1")
    running(run, f"{array}_4")
    known = started(f"{array}_4")
    run.launcher.keep(known)
    run.cluster.slurm("scancel", array)
    until(lambda: not run.jobs())
    run.another().start(None, None, known, follow_up=False)
    (again,) = set(run.jobs("%F"))
    running(run, f"{again}_4")
    assert len(run.jobs()) == 1
    assert run.launcher.look(known).writers[0].rollback is None


def test_after_an_undo_the_next_rollback_and_a_person_submit_the_whole_array_again(run: Run) -> None:
    """An undo leaves the queue empty: how many tasks there were is known from what it has stopped."""
    array = run.submit("--array=1-3%1", "--job-name=tr8", "--comment=Paris; 3 'x'", words=("--seed", "3"))
    running(run, f"{array}_1")
    known = started(f"{array}_1")
    run.cut_short_and_again(known)
    (second,) = set(run.jobs("%F"))
    running(run, f"{second}_1")
    known += started(f"{second}_1")
    run.another().stop(known, None)  # as undo does, in a process of its own
    assert run.jobs() == []
    (typed,) = run.another().start_commands(known)
    run.cluster.slurm("/bin/bash", "-c", typed, cwd=run.folder)
    (by_hand,) = set(run.jobs("%F"))
    running(run, f"{by_hand}_1")
    assert run.jobs("%i %k") == [f"{by_hand}_1 Paris; 3 'x'", f"{by_hand}_[2-3%1] Paris; 3 'x'"]
    assert run.jobs("%o")[0].endswith(".sh --seed 3")
    run.cluster.slurm("scancel", by_hand)
    until(lambda: not run.jobs())
    again = run.another()
    again.prepare("incident-2-r1", known, None)
    again.start("incident-2", "incident-2-r1", known, follow_up=False)
    (third,) = set(run.jobs("%F"))
    running(run, f"{third}_1")
    assert run.jobs() == [f"{third}_1 RUNNING", f"{third}_[2-3%1] PENDING"]


def test_a_chain_that_was_stopped_is_told_and_submitted_as_a_chain(run: Run) -> None:
    first = run.submit("--job-name=tr8")
    second = run.submit("--job-name=tr8", f"--dependency=afterany:{first}")
    running(run, first)
    run.launcher.stop(started(first), None)
    typed = run.another().start_commands(started(first))
    assert len(typed) == 2
    run.cluster.slurm("/bin/bash", "-c", "\n".join(typed), cwd=run.folder)
    jobs = run.jobs("%A")
    running(run, jobs[0])
    assert run.jobs("%E")[-1] == f"afterany:{jobs[0]}(unfulfilled)"
    assert not {first, second} & set(jobs)


def test_a_run_that_slurm_never_saw_needs_a_script(run: Run) -> None:
    with pytest.raises(ConfigError, match=r"\[launcher\] script"):
        run.launcher.start(None, None, [], follow_up=False)
    named = run.another(script=run.script, working_directory=run.folder, sbatch_arguments=("--job-name=tr8",))
    named.start(None, None, [], follow_up=False)
    (again,) = run.jobs("%A")
    running(run, again)
    assert run.jobs("%Z") == [str(run.folder)]


def test_another_users_job_is_not_stopped_and_slurms_words_are_passed_on(run: Run, job: str) -> None:

    def as_somebody_else(command: Sequence[str], environment: Any, timeout_s: float) -> Answer:
        return run_command(_as_nobody(command) if command[0] == "scancel" else command, environment, timeout_s)

    with pytest.raises(NotOurJob, match=f"job {job} is another user's"):
        run.another(run=as_somebody_else).stop(started(job), None)
    assert run.jobs() == [f"{job} RUNNING"]


def test_a_job_whose_script_can_not_be_had_is_watched_and_stopped_and_not_prepared_for(
    run: Run, job: str, caplog: pytest.LogCaptureFixture
) -> None:
    known = started(job)

    def secretive(command: Sequence[str], environment: Any, timeout_s: float) -> Answer:
        denied = Answer(1, "", "job script retrieval failed: Access/permission denied")
        return denied if command[0] == "scontrol" else run_command(command, environment, timeout_s)

    stranger = run.another(run=secretive)
    assert [w.id for w in stranger.look(known).writers] == [job]
    for _ in range(3):
        stranger.keep(known)
    assert caplog.text.count("can't be had") == 1
    with pytest.raises(SlurmRefused, match=f"the script of job {job} can't be had"):
        stranger.prepare(ROLLBACK, known, None)
    assert run.jobs() == [f"{job} RUNNING"]
    stranger.stop(known, None)
    assert run.jobs() == []


def _as_nobody(command: Sequence[str]) -> list[str]:
    return ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", *command]


@pytest.mark.full
def test_a_controller_that_is_down_leaves_everything_unknown(run: Run, job: str) -> None:
    known = started(job)
    run.launcher.prepare(ROLLBACK, known, None)
    run.cluster.stop_controller()
    client = SlurmClient(timeout_s=3)
    settings = SlurmSettings(run="tr8", state_dir=run.state, query_interval_s=0.0)
    away = SlurmLauncher(client, settings)
    seen = away.look(known)
    assert not seen.known
    assert "Slurm does not answer" in seen.why_unknown
    for call in (
        lambda: away.fenced(known, None),
        lambda: away.stop(known, None),
        lambda: away.prepare("incident-1-r2", known, None),
        lambda: away.start("incident-1", ROLLBACK, known, follow_up=False),
    ):
        with pytest.raises(SlurmUnavailable):
            call()
    run.cluster.start_controller()
    until(lambda: [w.id for w in away.look(known).writers] == [job])


def test_one_query_answers_for_a_while_and_a_silent_controller_is_asked_less_and_less(run: Run) -> None:
    asked: list[float] = []
    now = [0.0]

    def counting(command: Sequence[str], environment: Any, timeout_s: float) -> Answer:
        asked.append(now[0])
        if now[0] >= 60:
            raise SlurmUnavailable("squeue", "no answer within 20 s")
        return run_command(command, environment, timeout_s)

    settings = SlurmSettings(run="tr8", state_dir=run.state, query_interval_s=15.0)
    launcher = SlurmLauncher(SlurmClient(run=counting), settings, clock=lambda: now[0])
    while now[0] < 2000:
        launcher.look([])
        now[0] += 5
    assert asked == [0, 15, 30, 45, 60, 90, 150, 270, 510, 810, 1110, 1410, 1710]
