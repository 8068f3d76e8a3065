"""`watch`, `rollback` and `undo` as a person uses them, on a run that really diverged and that nobody watched."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from sentinel.adapters.incident_log import IncidentLog
from sentinel.adapters.journal import Journals
from sentinel.adapters.local import LocalJobs
from sentinel.adapters.lock import RunLock
from sentinel.config import load_config
from sentinel.daemon.doctor import check_before_acting
from sentinel.plan.incident.events import fold
from sentinel.vocabulary.errors import ConfigError, LockHeld
from sentinel.vocabulary.sample import RunStarted, Sample, encode
from tests.hooks.trainer import command as small_trainer
from tests.hooks.trainer import losses, train
from tests.support.log_lines import lines_of
from tests.support.watch_command import SENTINEL

pytestmark = pytest.mark.full


@pytest.fixture
def run(diverged: Path, tmp_path: Path) -> Path:
    """A copy of it, to do with as one likes; nothing in its configuration can start a job."""
    folder = tmp_path / "run"
    shutil.copytree(diverged, folder, symlinks=True)
    text = (folder / "demo.toml").read_text()
    begin, end = text.index("command = ["), text.index("]\nstop_grace_s") + 2
    (folder / "demo.toml").write_text(text[:begin] + 'command = ["false"]\n' + text[end:])
    return folder


def sentinel(folder: Path, *words: str, expect: int = 0) -> subprocess.CompletedProcess[str]:
    verb, *rest = words
    line = [*SENTINEL, verb, "--run", str(folder / "demo.toml"), *rest]
    ran = subprocess.run(line, capture_output=True, text=True, timeout=120, check=False, stdin=subprocess.DEVNULL)
    assert ran.returncode == expect, f"{words}: exit {ran.returncode}\n{ran.stdout}\n{ran.stderr}"
    return ran


def targeted(folder: Path) -> str:
    """The checkpoint that the run's first rollback goes to: 10 steps before the onset, and one is saved every 10."""
    onset = json.loads(sentinel(folder, "status", "--json", expect=1).stdout)["onset_range"][0]
    return f"global_step{(onset - 10) // 10 * 10}"


def edit(folder: Path, old: str, new: str) -> None:
    text = (folder / "demo.toml").read_text()
    assert old in text
    (folder / "demo.toml").write_text(text.replace(old, new))


def inventory(folder: Path, *parts: str) -> dict[str, str]:
    """Digest of every file below the parts of the run that a rollback touches.

    Without the record of the state folder that acts on the checkpoints, which every watch but an observing one leaves.
    """
    files = [p for part in parts or ("checkpoints", "tensorboard") for p in (folder / part).rglob("*") if p.is_file()]
    files = [p for p in files if p.name != "state-folder.json"]
    return {str(p.relative_to(folder)): hashlib.sha256(p.read_bytes()).hexdigest() for p in files}


def live(files: dict[str, str]) -> dict[str, str]:
    return {name: digest for name, digest in files.items() if ".sentinel-quarantine" not in name}


def test_in_mode_observe_all_is_said_and_nothing_is_done(run: Path) -> None:
    before = inventory(run)
    watched = sentinel(run, "watch", "--observe", expect=1)
    assert not (run / "checkpoints" / ".sentinel-quarantine").exists()
    assert "would have applied 'reseed' from global_step" in watched.stderr
    assert inventory(run) == before
    assert not (run / "state" / "overrides.json").exists()
    (incident,) = fold(IncidentLog(run / "state" / "incidents.jsonl").read())
    assert (incident.status, incident.shadows, incident.rollbacks) == ("open", 1, [])
    sentinel(run, "watch", "--observe", expect=1)  # a second watch tells the same story and adds nothing
    assert fold(IncidentLog(run / "state" / "incidents.jsonl").read())[0].shadows == 1


def test_status_tells_a_person_and_a_script_that_it_diverged(run: Path) -> None:
    assert "demo: diverged at step 240" in sentinel(run, "status", expect=1).stdout
    answer = json.loads(sentinel(run, "status", "--json", expect=1).stdout)
    assert (answer["run"], answer["mode"], answer["verdict"], answer["attempt"]) == ("demo", "act", "diverged", 1)
    assert answer["global_step"] == 240
    assert answer["budget"] == {"rollbacks_left": 5, "lost_steps_left": 100_000}
    assert answer["onset_range"][0] < answer["global_step"]
    assert not (run / "state" / "incidents.jsonl").exists()  # asking is no deed


@pytest.mark.parametrize(
    ("name", "says"), [("PAUSED", "the run is paused"), ("KILL", "the KILL file is in the state folder")]
)
def test_a_run_that_is_paused_is_watched_and_not_touched(run: Path, name: str, says: str) -> None:
    before = inventory(run)
    (run / "state" / name).touch()
    sentinel(run, "watch", "--once", expect=1)  # opens the incident
    assert says in sentinel(run, "watch", "--once", expect=1).stderr
    assert inventory(run) == before


@pytest.mark.parametrize("leads_to", ["nowhere", "PAUSED"])
def test_paused_as_a_link_holds_wherever_it_leads_until_resume_removes_it(run: Path, leads_to: str) -> None:
    (run / "state" / "PAUSED").symlink_to(leads_to)
    before = inventory(run)
    sentinel(run, "watch", "--once", expect=1)  # opens the incident
    assert "the run is paused" in sentinel(run, "watch", "--once", expect=1).stderr
    assert inventory(run) == before
    assert "is resumed" in sentinel(run, "resume").stdout
    assert not (run / "state" / "PAUSED").is_symlink()


def test_a_spent_budget_asks_for_a_person_and_goes_on_asking(run: Path) -> None:
    before = inventory(run)
    edit(run, "rollback_budget = 5", "rollback_budget = 0")
    assert "stopped, a person is needed: rollback budget of 0 is spent" in sentinel(run, "watch", expect=4).stderr
    assert "waits for a person" in sentinel(run, "watch", expect=4).stderr
    assert inventory(run) == before


def test_a_job_that_never_reports_its_start_is_not_started_for_ever(run: Path) -> None:
    edit(run, "poll_interval_s = 0.4", "poll_interval_s = 0.01")
    watched = sentinel(run, "watch", expect=4)
    assert "the job was started 3 times for incident-1-r1 and never reported a start" in watched.stderr
    intents = [e for e in lines_of(run / "state" / "incidents.jsonl") if e["event"] == "intent"]
    assert [e["action"]["kind"] for e in intents].count("start_job") == 3


def test_a_target_that_is_torn_is_passed_over_for_an_earlier_one(run: Path) -> None:
    sentinel(run, "watch", "--observe", expect=1)
    told = _shadow(run)
    shard = next((run / "checkpoints" / told["target"]["tag"]).glob("*.pt"))
    shard.write_bytes(shard.read_bytes()[:-4096])
    (run / "state" / "incidents.jsonl").rename(run / "state" / "incidents.before")
    sentinel(run, "watch", "--observe", expect=1)
    again = _shadow(run)
    assert again["target"]["global_step"] == told["target"]["global_step"] - 10


def _shadow(run: Path) -> dict[str, Any]:
    (shadow,) = [e for e in lines_of(run / "state" / "incidents.jsonl") if e["event"] == "shadow"]
    return dict(shadow)


def test_a_dry_run_tells_the_plan_and_touches_nothing(run: Path) -> None:
    before = inventory(run)
    plan = json.loads(sentinel(run, "rollback", "--to", "global_step20", "--dry-run", "--json").stdout)
    target = plan["target"]
    assert (plan["incident"], target["tag"], target["global_step"]) == ("incident-1", "global_step20", 20)
    assert plan["refusal"] is None
    kinds = [action["kind"] for action in plan["actions"]]
    assert kinds == ["quarantine_checkpoints", "point_latest", "cut_tensorboard", "write_overrides", "start_job"]
    assert len(plan["actions"][0]["tags"]) == 22
    shown = sentinel(run, "rollback", "--to", "global_step20", "--dry-run").stdout
    assert "220 steps are lost (" in shown
    assert "nothing is deleted" in shown
    assert inventory(run) == before
    assert not (run / "state" / "incidents.jsonl").exists()


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--to", "global_step200"), "is after the onset (step"),
        (("--to", "global_step7"), "there is no checkpoint 'global_step7'; the last ones are global_step200,"),
        (("--to", "global_step20", "--rung", "prayer"), "the ladder has no rung 'prayer'; it has reseed,"),
    ],
)
def test_what_is_refused_is_refused_with_the_reason(run: Path, words: tuple[str, ...], says: str) -> None:
    before = inventory(run)
    assert says in sentinel(run, "rollback", *words, "--yes", expect=1).stdout
    assert says in json.loads(sentinel(run, "rollback", *words, "--dry-run", "--json", expect=1).stdout)["refusal"]
    assert inventory(run) == before


def test_nobody_there_to_be_asked_is_a_no(run: Path) -> None:
    before = inventory(run)
    assert "pass --yes" in sentinel(run, "rollback", "--to", "global_step20", expect=1).stderr
    assert inventory(run) == before


@pytest.mark.parametrize("to", ["global_step20", "scratch", "past the onset"])
def test_a_rollback_by_hand_and_its_undo_give_everything_back(run: Path, to: str) -> None:
    if to == "past the onset":  # and before its weights are nan, which depends on the processor
        onset = json.loads(sentinel(run, "status", "--json", expect=1).stdout)["onset_range"][0]
        to = f"global_step{(onset + 19) // 10 * 10}"
    before = inventory(run)
    words = ("--to", to, "--no-start", "--yes", "--force", "--seed", "7")
    sentinel(run, "rollback", *words)
    latest = run / "checkpoints" / "latest"
    assert (latest.read_text() if latest.exists() else "scratch") == to
    overrides = json.loads((run / "state" / "overrides.json").read_text())
    assert overrides["once"]["seed"] == 7
    kept = inventory(run)
    assert sorted(d for n, d in before.items() if n.endswith(".pt")) == sorted(
        d for n, d in kept.items() if n.endswith(".pt")
    )
    sentinel(run, "undo", "--yes")
    assert live(inventory(run)) == before
    assert not (run / "state" / "overrides.json").exists()
    assert "no rollback to undo" in sentinel(run, "undo", "--yes", expect=2).stderr


def test_two_sentinels_do_not_work_on_one_run(run: Path) -> None:
    before = inventory(run)
    with RunLock(run / "state"):
        assert "another sentinel watches this run" in sentinel(run, "watch", expect=3).stderr
        sentinel(run, "rollback", "--to", "global_step20", "--yes", expect=3)
        with pytest.raises(LockHeld), RunLock(run / "state"):
            pass
    assert inventory(run) == before


def test_an_incident_log_that_makes_no_sense_is_not_guessed_at(run: Path) -> None:
    (run / "state" / "incidents.jsonl").write_text('{"event": "decided", "incident": "incident-3", "time_unix_s": 1}\n')
    ran = sentinel(run, "watch", expect=4)
    assert "event 1 of the incident log makes no sense" in ran.stderr
    assert "Traceback" not in ran.stderr


def _until(true: Callable[[], Any], *, within_s: float = 120) -> None:
    end = time.monotonic() + within_s
    while not true():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.05)


HELD = """
import runpy, time
from trainer_hooks.gpt.train import Trainer

step = Trainer.step

def held(self):
    if self.progress.step == 25:
        time.sleep(600)
    step(self)

Trainer.step = held
runpy.run_module("trainer_hooks.gpt", run_name="__main__")
"""
"""A trainer that goes no further than the middle between two saves: however slow who kills it is, it has not ended."""


def test_a_crash_costs_the_steps_since_the_last_checkpoint_and_nothing_else(tmp_path: Path) -> None:
    """Killed in the middle, started again by watch: the same losses as a run that nobody touched, bit for bit."""
    words = ("--steps", "60", "--save-interval", "10", "--run", "small")
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    train(whole, *words)
    broken.mkdir()
    (broken / "demo.toml").write_text(
        '[run]\nname = "small"\ncheckpoints = "checkpoints"\nstate_dir = "state"\n'
        f"[launcher]\ncommand = {json.dumps(small_trainer(broken, *words))}\nworking_directory = '.'\n"
        "[watch]\npoll_interval_s = 0.2\n[policy]\nmode = 'act'\nrestart_on_crash = true\n"
    )
    state = broken / "state"
    state.mkdir()
    jobs = LocalJobs(state)
    one_thread = {"OMP_NUM_THREADS": "1"}
    (broken / "held.py").write_text(HELD)
    python, _, _, *rest = small_trainer(broken, *words)
    held = [python, str(broken / "held.py"), *rest]
    jobs.start(held, cwd=broken, extra_env=one_thread, log_path=state / "job.log")
    _until(lambda: 25 in losses(broken))
    for writer in jobs.writers():
        psutil.Process(writer.pid).send_signal(signal.SIGKILL)
    jobs.stop(grace_s=1)
    env = dict(os.environ, **one_thread)
    line = [*SENTINEL, "watch", "--run", str(broken / "demo.toml")]
    watched = subprocess.run(line, env=env, capture_output=True, text=True, timeout=120, check=False)
    assert watched.returncode == 0, watched.stderr
    records = Journals(state).poll()
    second = [r for r in records if isinstance(r, RunStarted)][1]
    assert second.resumed_from == 20
    assert losses(broken) == losses(whole)
    assert len({r.attempt for r in records if isinstance(r, Sample)}) == 2
    assert not fold(IncidentLog(state / "incidents.jsonl").read())  # a crash is not a divergence


def test_what_would_have_been_done_is_listed_for_those_who_consider_to_allow_it(run: Path) -> None:
    assert "sentinel would have acted 0 times" in sentinel(run, "incidents", "--shadow").stdout
    sentinel(run, "watch", "--observe", expect=1)
    told = sentinel(run, "incidents", "--shadow").stdout
    assert "demo: sentinel would have acted 1 time\n" in told
    target = targeted(run)
    assert f"would have applied 'reseed' from {target}" in told
    (row,) = json.loads(sentinel(run, "incidents", "--shadow", "--json").stdout)
    assert (row["incident"], row["rung"], row["target"]["tag"]) == ("incident-1", "reseed", target)


def test_an_incident_tells_its_story_and_the_chronicle_keeps_it(run: Path, tmp_path: Path) -> None:
    sentinel(run, "rollback", "--to", "global_step20", "--no-start", "--yes", "--seed", "7")
    sentinel(run, "undo", "--yes")
    told = sentinel(run, "incident", "incident-1").stdout
    for sentence in (
        "opened: a person asked for global_step20",
        "decided incident-1-r1: 'by hand' from global_step20 (seed 0 -> 7 for the data not yet consumed)",
        "moved global_step30 … global_step240 into the quarantine (22)",
        "pointed `latest` at global_step20",
        "took the rollback back",
        "closed, undone: a person took it back",
    ):
        assert sentence in told
    assert len(json.loads(sentinel(run, "incident", "incident-1", "--json").stdout)["story"]) == told.count("\n") - 1
    wrong = sentinel(run, "incident", "incident-9", expect=2).stderr
    assert "no incident 'incident-9'; incidents.jsonl has incident-1" in wrong
    sentinel(run, "chronicle", "-o", str(tmp_path / "told"))
    page = (tmp_path / "told" / "chronicle.md").read_text()
    assert "| incident-1-r1 | by hand | a person's | global_step20 | seed 0 -> 7" in page
    assert "220 steps thrown away" in page
    assert (tmp_path / "told" / "incident-1.png").read_bytes().startswith(b"\x89PNG")


def test_pause_is_seen_by_a_watch_and_resume_lets_it_go_on(run: Path) -> None:
    before = inventory(run)
    sentinel(run, "pause", "--reason", "the file server is being moved")
    sentinel(run, "watch", "--once", expect=1)
    assert "the run is paused" in sentinel(run, "watch", "--once", expect=1).stderr
    assert inventory(run) == before
    assert "the file server is being moved" in sentinel(run, "resume").stdout
    assert "was not paused" in sentinel(run, "resume", expect=1).stdout
    sentinel(run, "watch", expect=4)  # its job can't be started here
    assert inventory(run) != before


def test_a_dry_run_has_a_price(run: Path) -> None:
    plan = json.loads(sentinel(run, "rollback", "--to", "global_step20", "--dry-run", "--json").stdout)
    assert plan["price"]["lost_steps"] == 220
    assert plan["price"]["steps_to_next_save"] == 10
    assert 0 < plan["price"]["waiting_gpu_hours"] < plan["price"]["lost_gpu_hours"]
    first, *saves = plan["coming_saves"]
    assert (first["global_step"], [s["global_step"] for s in saves]) == (21, [30, 40, 50, 60])
    assert first["lr"] == pytest.approx(3e-2 * 21 / 60)
    assert first["seqlen"] == 128
    assert plan["unconfirmed"] == []


def test_a_pinned_checkpoint_outlives_a_retention_and_is_rolled_back_to(run: Path) -> None:
    target = targeted(run)
    before = inventory(run, f"checkpoints/{target}")
    (run / "checkpoints" / "global_step5").mkdir()
    assert "global_step5 is not complete" in sentinel(run, "pin", "global_step5", expect=2).stderr
    (run / "checkpoints" / "global_step5").rmdir()
    sentinel(run, "pin", target)
    assert sentinel(run, "pin").stdout == f"{target}\n"
    for step in range(20, int(target.removeprefix("global_step")) + 10, 10):
        shutil.rmtree(run / "checkpoints" / f"global_step{step}")  # as keep-last-k does
    watched = sentinel(run, "watch", expect=4)  # its job can't be started here
    assert f"bring {target} back from its pin" in watched.stderr
    assert inventory(run, f"checkpoints/{target}") == before
    assert (run / "checkpoints" / "latest").read_text() == target
    assert "global_step7 is not pinned" in sentinel(run, "pin", "global_step7", "--release", expect=2).stderr
    sentinel(run, "pin", target, "--release")
    assert inventory(run, f"checkpoints/{target}") == before


def test_a_manifest_finds_the_flipped_bit_that_loading_would_not(run: Path) -> None:
    sentinel(run, "manifest", "global_step40")
    shard = next((run / "checkpoints" / "global_step40").glob("*.pt"))
    data = bytearray(shard.read_bytes())
    data[len(data) // 2] ^= 1
    shard.write_bytes(data)
    told = sentinel(run, "rollback", "--to", "global_step40", "--dry-run", "--force", expect=1).stdout
    assert "can't be trusted" in told
    assert shard.name in told


def _in_mode_approve(run: Path, **policy: object) -> None:
    keys = "\n".join(f"{key} = {value}" for key, value in policy.items())
    edit(run, 'mode = "act"', f'mode = "approve"\n{keys}')


def _kinds(run: Path) -> list[str]:
    return [e["event"] for e in lines_of(run / "state" / "incidents.jsonl")]


def _watched_until(run: Path, kind: str) -> None:
    line = [*SENTINEL, "watch", "--run", str(run / "demo.toml")]
    with subprocess.Popen(line, stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            _until(lambda: kind in _kinds(run))
        finally:
            process.terminate()


def test_in_mode_approve_a_person_is_asked_and_nothing_is_done_without_them(run: Path) -> None:
    before = inventory(run)
    _in_mode_approve(run)
    assert "no incident 'incident-1'" in sentinel(run, "approve", "incident-1", expect=2).stderr
    _watched_until(run, "proposed")
    sentinel(run, "watch", "--once", expect=1)  # a second daemon asks nothing twice
    assert _kinds(run).count("proposed") == 1
    assert inventory(run) == before
    assert "pass --yes" in sentinel(run, "approve", "incident-1", expect=1).stderr
    told = sentinel(run, "approve", "incident-1", "--yes").stdout
    assert "hypothesis: the order of the data did it" in told
    assert re.search(r"lost as of now: \d+ steps( \(.* GPU-hours\))?; when it was proposed: \d+", told)
    sentinel(run, "watch", expect=4)  # carries it out; its job can't be started here
    kinds = _kinds(run)
    assert kinds.index("proposed") < kinds.index("approved") < kinds.index("decided")
    verified = [e for e in lines_of(run / "state" / "incidents.jsonl") if e["event"] == "approved"]
    assert verified[0]["by"]
    assert "waits for no approval" in sentinel(run, "approve", "incident-1", "--yes", expect=1).stdout


def test_a_yes_is_no_yes_to_another_plan(run: Path) -> None:
    """The target was torn between the proposal and the approval's arrival: it is found out, and asked for anew."""
    _in_mode_approve(run)
    _watched_until(run, "proposed")
    sentinel(run, "approve", "incident-1", "--yes")
    target = targeted(run)
    shard = next((run / "checkpoints" / target).glob("*.pt"))
    shard.write_bytes(shard.read_bytes()[:-4096])
    before = inventory(run)
    line = [*SENTINEL, "watch", "--run", str(run / "demo.toml")]
    with subprocess.Popen(line, stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            _until(lambda: _kinds(run).count("proposed") == 2)
        finally:
            process.terminate()
    assert inventory(run) == before
    events = [e for e in lines_of(run / "state" / "incidents.jsonl") if e["event"] == "proposed"]
    before_it = f"global_step{int(target.removeprefix('global_step')) - 10}"
    assert [e["target"]["tag"] for e in events] == [target, before_it]
    assert "approved" not in _kinds(run)


def test_a_proposal_that_nobody_answers_expires_to_doing_nothing(run: Path) -> None:
    before = inventory(run)
    _in_mode_approve(run, approve_within_s=0.5)
    _watched_until(run, "expired")
    assert "has expired" in sentinel(run, "approve", "incident-1", "--yes", expect=1).stdout
    sentinel(run, "watch", "--once", expect=1)
    assert inventory(run) == before
    assert _kinds(run).count("expired") == 1


def test_only_a_person_deletes_and_only_what_is_closed(run: Path) -> None:
    sentinel(run, "rollback", "--to", "global_step20", "--no-start", "--yes")
    room = run / "checkpoints" / ".sentinel-quarantine" / "incident-1"
    assert room.is_dir()
    kept = live(inventory(run))
    assert "pass --yes" in sentinel(run, "purge", "incident-1", expect=1).stderr
    assert room.is_dir()
    sentinel(run, "purge", "incident-1", "--yes")
    assert not room.exists()
    assert live(inventory(run)) == kept
    assert "no rollback to undo" in sentinel(run, "undo", "--yes", expect=2).stderr
    assert "is empty" in sentinel(run, "purge", "incident-1", "--yes").stdout
    assert "deleted: this can't be undone any more" in sentinel(run, "incident", "incident-1").stdout


def test_watch_pins_the_last_healthy_checkpoint_by_itself(tmp_path: Path) -> None:
    words = ("--steps", "120", "--save-interval", "10", "--run", "small")
    (tmp_path / "demo.toml").write_text(
        '[run]\nname = "small"\ncheckpoints = "checkpoints"\nstate_dir = "state"\n'
        "[launcher]\ncommand = ['false']\n[watch]\npoll_interval_s = 0.2\n[policy]\nmode = 'act'\n"
    )
    train(tmp_path, *words)
    sentinel(tmp_path, "watch")
    assert sentinel(tmp_path, "pin").stdout == "global_step110\n"
    edit(tmp_path, "mode = 'act'", "mode = 'act'\nmargin_steps = 60")
    sentinel(tmp_path, "watch")
    assert sentinel(tmp_path, "pin").stdout == "global_step60\n"
    shutil.rmtree(tmp_path / "checkpoints" / "global_step60")
    edit(tmp_path, "margin_steps = 60", "margin_steps = 20")
    sentinel(tmp_path, "watch")
    assert sentinel(tmp_path, "pin").stdout == "global_step60\nglobal_step100\n"  # what only a pin holds is not let go


def test_the_doctor_tries_what_a_recovery_will_need_and_leaves_no_trace(run: Path) -> None:
    before = inventory(run, ".")
    told = sentinel(run, "doctor").stdout
    assert "ok    latest: a restart resumes from global_step240" in told
    assert "ok    ladder: 4 rungs" in told
    assert inventory(run, ".") == before


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ('checkpoints = "checkpoints"', 'checkpoints = "nowhere"', "nowhere does not exist"),
        ('command = ["false"]', 'command = ["no-such-program"]', "program 'no-such-program' not found"),
        ("seqlen_start = 8", "seqlen_start = 8\nseqlen_total_steps = 0", "seqlen_total_steps should be above 0"),
        ('state_dir = "state"', 'state_dir = "elsewhere"', "elsewhere does not exist"),
    ],
)
def test_the_doctor_says_what_would_go_wrong_before_the_night_in_which_it_does(
    run: Path, old: str, new: str, says: str
) -> None:
    edit(run, old, new)
    line = [*SENTINEL, "doctor", "--run", str(run / "demo.toml"), "--json"]
    ran = subprocess.run(line, capture_output=True, text=True, timeout=120, check=False)
    if ran.returncode == 2:  # not even a configuration
        assert says in ran.stderr
        return
    assert ran.returncode == 1, ran.stderr
    bad = [finding["sentence"] for finding in json.loads(ran.stdout) if finding["answer"] == "bad"]
    assert any(says in sentence for sentence in bad), bad


@pytest.mark.parametrize(
    ("steps", "resumed_from", "refused"), [(0, None, False), (10, None, False), (11, None, True), (0, 40, True)]
)
def test_mode_act_begins_before_the_first_save_and_refuses_a_folder_that_is_missing_after_it(
    tmp_path: Path, steps: int, resumed_from: int | None, refused: bool
) -> None:
    """An attempt that had made its first steps, and had saved nothing yet, was refused."""
    (tmp_path / "state" / "attempts").mkdir(parents=True)
    started = RunStarted(attempt=1, time_unix_s=1.0, resumed_from=resumed_from, checkpoint_interval_steps=10)
    made = [Sample(attempt=1, global_step=step, time_unix_s=1.0 + step, loss=3.0) for step in range(1, steps + 1)]
    journal = tmp_path / "state" / "attempts" / "0001.jsonl"
    journal.write_text("".join(f"{encode(record)}\n" for record in (started, *made)))
    (tmp_path / "demo.toml").write_text(
        '[run]\nname = "small"\ncheckpoints = "checkpoints"\nstate_dir = "state"\ntensorboard = "tensorboard"\n'
        "[launcher]\ncommand = ['false']\n[policy]\nmode = 'act'\n"
    )
    config = load_config(tmp_path / "demo.toml")
    with pytest.raises(ConfigError, match="checkpoints does not exist") if refused else contextlib.nullcontext():
        check_before_acting(config)


def test_a_job_that_dies_before_its_first_attempt_is_started_again(tmp_path: Path) -> None:
    """Its journal would have told; the log is all that it left."""
    words = ("--steps", "20", "--save-interval", "10", "--run", "small")
    (tmp_path / "demo.toml").write_text(
        '[run]\nname = "small"\ncheckpoints = "checkpoints"\nstate_dir = "state"\n'
        f"[launcher]\ncommand = {json.dumps(small_trainer(tmp_path, *words))}\nworking_directory = '.'\n"
        "[watch]\npoll_interval_s = 0.2\n[policy]\nmode = 'act'\nrestart_on_crash = true\n"
    )
    assert "no job is there" in sentinel(tmp_path, "status").stdout  # nobody has started it yet: nothing is done
    (tmp_path / "state").mkdir()
    log = tmp_path / "state" / "job.log"
    log.write_text("loading …\n")
    os.utime(log, (0, 0))  # a young one could be a live job's
    assert "its first attempt had not begun" in sentinel(tmp_path, "watch").stderr
    assert max(losses(tmp_path)) == 20


SILENT = """
import sys, time
from pathlib import Path
from sentinel.vocabulary.sample import Sample, encode
journal = Path(sys.argv[1]) / "attempts" / "0002.jsonl"
with journal.open("x") as file:
    for step in range(41, 101):
        at = {"consumed_samples": 16 * step, "consumed_tokens": 2048 * step}
        sample = Sample(attempt=2, global_step=step, time_unix_s=time.time() - 600, loss=3.0, **at)
        file.write(encode(sample) + "\\n")
time.sleep(600)
"""


def test_a_mitigation_that_is_not_confirmed_within_so_many_steps_stops_the_line(run: Path) -> None:
    """A trainer that trains on and never says what it runs with; its clock is ten minutes behind the daemon's."""
    (run / "silent.py").write_text(SILENT)
    command = json.dumps([sys.executable, str(run / "silent.py"), str(run / "state")])
    edit(run, 'command = ["false"]', f"command = {command}")
    edit(run, 'mode = "act"', 'mode = "act"\nconfirm_within_steps = 60')
    try:
        watched = sentinel(run, "watch", expect=4)
    finally:
        LocalJobs(run / "state").stop(grace_s=1)
    assert (
        "incident-1-r1 was started, 60 steps were made since, and no start report tells the settings" in watched.stderr
    )
