"""A scheduler of commands: what it lists is the run's or not, and what is not understood is unknown, never gone."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from sentinel.adapters.commands import STATES, CommandSettings, CommandsLauncher
from sentinel.config import Config, LauncherSettings, Run
from sentinel.daemon.probes import started_from
from sentinel.plan.observation import Life
from sentinel.vocabulary.errors import CommandFailed, ConfigError, JobStillAlive, PermanentError
from sentinel.vocabulary.sample import RunStarted

# A scheduler of real processes, in one file: `start NAME`, `stop ID`, `list`, `log ID`; MODE says how it misbehaves.
SCHEDULER = """
import json, os, pathlib, signal, subprocess, sys, time
here = pathlib.Path(sys.argv[1]); verb, *words = sys.argv[2:]
mode = (here / "MODE").read_text().split() if (here / "MODE").exists() else []
if f"{verb}-hangs" in mode: time.sleep(60)
if f"{verb}-fails" in mode: sys.exit("the scheduler is away")
if verb == "start":
    out = None if "stdout-held" in mode else subprocess.DEVNULL
    job = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True,
                           stdout=out, stderr=out)
    (here / f"{job.pid}.json").write_text(json.dumps({"job": str(job.pid), "name": words[0],
        "rollback": os.environ.get("SENTINEL_ROLLBACK")}))
    if "reply-lost" in mode: sys.exit("the reply was lost")
elif verb == "stop":
    if "stop-is-ignored" not in mode: os.kill(int(words[0]), signal.SIGKILL)
elif verb == "log":
    print(f"the last words of {words[0]}")
elif verb == "list":
    if "garbage" in mode: print("<html>")
    if "heading" in mode: print("ID NAME STATE")
    for path in sorted(here.glob("*.json")) if "list-late" not in mode else ():
        row = json.loads(path.read_text())
        try: alive = pathlib.Path(f"/proc/{row['job']}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
        except OSError: alive = False
        word = "Odd" if "odd-state" in mode else "Running" if alive else "Failed"
        if "table" in mode: print(row["job"], row["name"], word)
        else: print(json.dumps({**row, "state": word}))
"""


@pytest.fixture
def scheduler(tmp_path: Path) -> Iterator[Path]:
    """Its folder. All its processes end with the test."""
    folder = tmp_path / "scheduler"
    folder.mkdir()
    (folder / "scheduler.py").write_text(SCHEDULER)
    yield folder
    for path in folder.glob("*.json"):
        with contextlib.suppress(ProcessLookupError):
            os.kill(int(path.stem), signal.SIGKILL)


def settings_of(scheduler: Path, state: str = "state", **more: object) -> CommandSettings:
    words = (sys.executable, str(scheduler / "scheduler.py"), str(scheduler))
    (scheduler.parent / state).mkdir(exist_ok=True)
    made = CommandSettings(
        prefix=f"sentinel-{state}",
        state_dir=scheduler.parent / state,
        start=(*words, "start", "{name}"),
        stop=(*words, "stop", "{job}"),
        list=(*words, "list"),
        log=(*words, "log", "{job}"),
        states=STATES,
        working_directory=scheduler,
        timeout_s=20.0,
        stop_grace_s=5.0,
        query_interval_s=0.0,
    )
    return replace(made, **more)  # type: ignore[arg-type]


def misbehave(scheduler: Path, *modes: str) -> None:
    (scheduler / "MODE").write_text(" ".join(modes))


def start(launcher: CommandsLauncher, rollback: str | None = None) -> None:
    launcher.start(None, rollback, [], follow_up=False)


def by_hand(scheduler: Path, name: str) -> None:
    subprocess.run([sys.executable, str(scheduler / "scheduler.py"), str(scheduler), "start", name], check=True)


def test_a_job_is_started_seen_stopped_and_its_last_words_kept(scheduler: Path) -> None:
    launcher = CommandsLauncher(settings_of(scheduler))
    start(launcher, "incident-1-r1")
    (writer,) = launcher.look([]).writers
    assert (writer.rollback, writer.pending) == ("incident-1-r1", False)
    (told,) = scheduler.glob("*.json")
    assert json.loads(told.read_text())["rollback"] == "incident-1-r1"
    launcher.fenced([], except_for="incident-1-r1")
    with pytest.raises(JobStillAlive):
        launcher.fenced([], except_for=None)
    launcher.stop([], except_for=None)
    seen = launcher.look([])
    assert seen.writers == ()
    assert (process_state := seen.process_states[None]) is not None
    assert (process_state.life, "as Failed" in process_state.sentence) == (Life.GONE, True)
    assert seen.last_log is not None
    assert Path(seen.last_log).read_text() == f"the last words of {told.stem}\n"


@pytest.mark.full
@pytest.mark.parametrize("mode", ["list-fails", "list-hangs", "garbage", "odd-state"])
def test_what_is_not_answered_or_not_understood_is_unknown_and_nothing_is_done(scheduler: Path, mode: str) -> None:
    launcher = CommandsLauncher(settings_of(scheduler, timeout_s=3.0 if mode == "list-hangs" else 20.0))
    start(launcher)
    misbehave(scheduler, mode)
    seen = launcher.look([])
    assert (seen.known, seen.writers) == (False, ())
    for act in (lambda: launcher.stop([], None), lambda: start(launcher), lambda: launcher.fenced([], None)):
        with pytest.raises(CommandFailed):
            act()
    assert len(list(scheduler.glob("*.json"))) == 1


def test_a_start_whose_reply_was_lost_is_found_by_its_name_and_not_made_again(scheduler: Path) -> None:
    launcher = CommandsLauncher(settings_of(scheduler))
    misbehave(scheduler, "reply-lost")
    with pytest.raises(CommandFailed, match="the reply was lost"):
        start(launcher, "incident-1-r1")
    misbehave(scheduler)
    start(CommandsLauncher(settings_of(scheduler)), "incident-1-r1")  # another daemon, after a kill
    assert len(list(scheduler.glob("*.json"))) == 1
    assert [w.rollback for w in launcher.look([]).writers] == ["incident-1-r1"]


def test_a_job_that_ended_before_its_lost_answer_was_looked_for_is_found_by_its_name(scheduler: Path) -> None:
    """The start is done then; the next one of the same rollback, after that end, is another."""
    launcher = CommandsLauncher(settings_of(scheduler))
    misbehave(scheduler, "reply-lost")
    with pytest.raises(CommandFailed):
        start(launcher, "incident-1-r1")
    misbehave(scheduler)
    (job,) = scheduler.glob("*.json")
    os.kill(int(job.stem), signal.SIGKILL)
    again = CommandsLauncher(settings_of(scheduler))
    start(again, "incident-1-r1")
    assert list(scheduler.glob("*.json")) == [job]
    assert again.look([]).process_states[None].life is Life.GONE
    start(again, "incident-1-r1")
    names = sorted(json.loads(path.read_text())["name"] for path in scheduler.glob("*.json"))
    assert names == ["sentinel-state-incident-1-r1-1", "sentinel-state-incident-1-r1-2"]


def test_a_start_whose_answer_was_lost_counts_as_made_once_its_job_was_listed(scheduler: Path) -> None:
    """So a job that was seen to live, and ends, is started again by the first that asks for it."""
    launcher = CommandsLauncher(settings_of(scheduler))
    misbehave(scheduler, "reply-lost")
    with pytest.raises(CommandFailed):
        start(launcher, "incident-1-r1")
    misbehave(scheduler)
    launcher.look([])
    launcher.keep([])
    launcher.stop([], None)
    start(launcher, "incident-1-r1")
    assert len(list(scheduler.glob("*.json"))) == 2


def test_what_the_trainer_needs_is_handed_on_by_one_placeholder(scheduler: Path) -> None:
    """Also in what a person types after an undo, from whatever folder."""
    words = (sys.executable, "-c", "import pathlib, sys; pathlib.Path('told').write_text(sys.argv[1])")
    settings = settings_of(scheduler, start=(*words, '{"env_vars": {environment}, "of": "{name}"}'))
    launcher = CommandsLauncher(replace(settings, environment=lambda: {"WANDB_RUN_ID": 'a"b'}))
    start(launcher, "incident-1-r1")
    told = json.loads((scheduler / "told").read_text())
    assert told["env_vars"] == {
        "SENTINEL_ROLLBACK": "incident-1-r1",
        "SENTINEL_JOB": told["of"],
        "SENTINEL_STATE_DIR": str(scheduler.parent / "state"),
        "WANDB_RUN_ID": 'a"b',
    }
    (scheduler / "told").unlink()
    (typed,) = launcher.start_commands([])
    subprocess.run(["/bin/sh", "-c", typed], cwd="/", check=True)
    by_hand = json.loads((scheduler / "told").read_text())
    assert by_hand["env_vars"]["SENTINEL_JOB"] == by_hand["of"] == "sentinel-state-restart-2"


def test_a_start_that_failed_is_unknown_for_a_while_and_then_made_under_another_name(scheduler: Path) -> None:
    now = [1000.0]
    launcher = CommandsLauncher(settings_of(scheduler), clock=lambda: now[0])
    misbehave(scheduler, "start-fails")
    with pytest.raises(CommandFailed, match="the scheduler is away"):
        start(launcher)
    misbehave(scheduler)
    seen = launcher.look([])
    assert (seen.known, "unclear whether sentinel-state-restart-1 was started" in seen.why_unknown) == (
        False,
        True,
    )
    with pytest.raises(CommandFailed):
        start(launcher)
    now[0] += 61
    start(launcher)
    (job,) = scheduler.glob("*.json")
    assert json.loads(job.read_text())["name"] == "sentinel-state-restart-2"


@pytest.mark.parametrize("rollback", [None, "incident-1-r1"])
def test_a_start_that_is_not_listed_is_unknown_then_lost_and_never_made_again(
    scheduler: Path, rollback: str | None
) -> None:
    now = [1000.0]
    launcher = CommandsLauncher(settings_of(scheduler), clock=lambda: now[0])
    misbehave(scheduler, "list-late")
    start(launcher, rollback)
    seen = launcher.look([])
    assert (seen.known, "and is not listed" in seen.why_unknown) == (False, True)
    for _ in range(3):
        with pytest.raises((CommandFailed, JobStillAlive)):
            start(launcher, rollback)
        now[0] += 61
        assert launcher.look([]).lost.keys() == {rollback, None}
    assert len(list(scheduler.glob("*.json"))) == 1
    reported = [RunStarted(attempt=1, time_unix_s=time.time(), job_id=f"sentinel-state-{rollback or 'restart'}-1")]
    assert launcher.look(reported).lost == {}
    misbehave(scheduler)
    assert len(launcher.look([]).writers) == 1


def test_what_a_start_leaves_running_holds_up_nothing(scheduler: Path) -> None:
    launcher = CommandsLauncher(settings_of(scheduler, timeout_s=30.0))
    misbehave(scheduler, "stdout-held")
    began = time.monotonic()
    start(launcher)
    assert time.monotonic() - began < 30
    assert len(launcher.look([]).writers) == 1


def test_the_end_of_an_older_job_says_nothing_of_one_that_lives(scheduler: Path) -> None:
    """An attempt that names no job, as a log's, has the state of the newest one alone."""
    launcher = CommandsLauncher(settings_of(scheduler))
    start(launcher)
    launcher.stop([], None)
    assert launcher.look([]).process_states[None].life is Life.GONE
    start(launcher)
    assert None not in launcher.look([]).process_states


def test_another_runs_jobs_are_neither_seen_nor_stopped(scheduler: Path) -> None:
    ours, theirs = CommandsLauncher(settings_of(scheduler)), CommandsLauncher(settings_of(scheduler, "other"))
    start(ours)
    start(theirs)
    by_hand(scheduler, "somebody")
    ours.stop([], None)
    assert ours.look([]).writers == ()
    assert len(theirs.look([]).writers) == 1


def test_a_job_that_a_person_started_is_found_by_its_name_or_by_what_its_trainer_reports(scheduler: Path) -> None:
    by_hand(scheduler, "tr8")
    (job,) = (path.stem for path in scheduler.glob("*.json"))
    assert [w.id for w in CommandsLauncher(settings_of(scheduler, job_name="tr8")).look([]).writers] == [f"job {job}"]
    reported = [RunStarted(attempt=1, time_unix_s=time.time(), job_id="tr8")]
    assert [w.id for w in CommandsLauncher(settings_of(scheduler)).look(reported).writers] == [f"job {job}"]
    by_hand(scheduler, "tr8")
    seen = CommandsLauncher(settings_of(scheduler, job_name="tr8")).look([])
    assert (seen.known, "are all named 'tr8'" in seen.why_unknown) == (False, True)


def test_a_job_that_does_not_end_is_still_alive(scheduler: Path) -> None:
    launcher = CommandsLauncher(settings_of(scheduler, stop_grace_s=0.5))
    start(launcher)
    misbehave(scheduler, "stop-is-ignored")
    with pytest.raises(JobStillAlive, match=r"job \d+ \(Running\)"):
        launcher.stop([], None)


def test_a_table_is_read_by_a_pattern(scheduler: Path) -> None:
    pattern = r"^(?P<job>\d+) (?P<name>\S+) (?P<state>\w+)$"
    strict = CommandsLauncher(settings_of(scheduler, list_pattern=pattern))
    launcher = CommandsLauncher(settings_of(scheduler, list_pattern=pattern, list_ignore="^ID NAME"))
    misbehave(scheduler, "table", "heading")
    start(launcher, "incident-2-r1")
    assert [w.rollback for w in launcher.look([]).writers] == ["incident-2-r1"]
    assert not strict.look([]).known
    misbehave(scheduler, "table", "heading", "garbage")
    assert not launcher.look([]).known


def test_names_are_given_once_although_the_record_is_lost_and_a_damaged_one_is_told(scheduler: Path) -> None:
    launcher = CommandsLauncher(settings_of(scheduler))
    start(launcher)
    launcher.stop([], None)
    record = scheduler.parent / "state" / "commands.json"
    record.unlink()
    start(launcher)
    names = sorted(json.loads(path.read_text())["name"] for path in scheduler.glob("*.json"))
    assert names == ["sentinel-state-restart-1", "sentinel-state-restart-2"]
    record.write_text("{")
    with pytest.raises(PermanentError, match=r"commands.json can't be read"):
        launcher.look([])


def test_no_probe_is_started_by_commands() -> None:
    config = Config(run=Run(name="a", checkpoints=Path("c")), launcher=LauncherSettings(kind="commands"))
    with pytest.raises(ConfigError, match="kind is 'commands': sentinel does not know how to start a probe"):
        started_from(config)
