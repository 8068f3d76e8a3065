"""Sentinel where it must not act on a healthy run: another account, another machine, a run that it can't see."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from sentinel.vocabulary.heartbeat import Heartbeat, encode_heartbeat
from tests.adapters.pagers import until
from tests.e2e.live_trainer import attempts, build, configure, events, files, local, sentinel, training
from tests.tiers import full

AS_NOBODY = ("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups")
OTHER_HOST = ("unshare", "--uts", "sh", "-c", 'hostname other-host && exec "$@"', "sh")
OTHER_PIDS = ("unshare", "--pid", "--fork", "--kill-child", "--mount-proc")


def _nobody_may_run_python() -> bool:
    tried = subprocess.run([*AS_NOBODY, sys.executable, "-c", ""], capture_output=True, check=False)
    return tried.returncode == 0


pytestmark = [
    pytest.mark.full,
    pytest.mark.skipif(os.getuid() != 0, reason="another account and another machine need root"),
]


@pytest.fixture
def run() -> Iterator[Path]:
    """In a folder that every account may enter, which pytest's own is not."""
    with tempfile.TemporaryDirectory(prefix="sentinel-live-", ignore_cleanup_errors=True) as folder:
        Path(folder).chmod(0o777)
        yield build(Path(folder).resolve())


@pytest.mark.parametrize(
    ("before", "says"),
    [
        (AS_NOBODY, "belongs to root, and sentinel runs as nobody: run sentinel as root"),
        (OTHER_HOST, "can't be seen: this is host other-host"),
        (OTHER_PIDS, "it is in another pid namespace"),
    ],
    ids=["another account", "another machine", "another container"],
)
@pytest.mark.parametrize(
    "words", [("watch",), *full([(("rollback", "--to", "global_step20", "--yes"),), (("doctor",),)])]
)
def test_who_can_not_see_the_job_does_nothing_to_it(
    run: Path, before: tuple[str, ...], says: str, words: tuple[str, ...]
) -> None:
    if before is AS_NOBODY and not _nobody_may_run_python():
        pytest.skip("this Python lies where another account may not enter")
    configure(run, local(run))
    with training(run) as trainer:
        there = files(run)
        ran = sentinel(run, *words, before=before)
        assert says in ran.stdout + ran.stderr
        assert ran.returncode == (1 if words == ("doctor",) else 2), ran.stderr
        assert there <= files(run)
        assert trainer.poll() is None
    assert attempts(run) == 1
    assert events(run) == []


def test_a_fresh_journal_without_a_visible_job_is_unknown_and_a_person_is_paged(run: Path) -> None:
    """The trainer names neither a job nor a process, and its environment says nothing: the journal alone grows."""
    configure(run, local(run))
    with training(run, names=()) as trainer:
        there = files(run)
        ran = sentinel(run, "watch", within_s=15)
        assert ran.returncode == 0, ran.stderr
        rolled = sentinel(run, "rollback", "--to", "global_step20", "--yes")
        assert rolled.returncode == 1
        assert "job state unknown: " in rolled.stdout
        assert "0001.jsonl was written 0 s ago, but attempt 1 names neither a job nor a process" in rolled.stdout
        answer = json.loads(sentinel(run, "status", "--json").stdout)
        assert answer["verdict"] in ("warming_up", "healthy")
        assert answer["job"]["state"] == "unknown"
        assert there <= files(run)
        assert trainer.poll() is None
    assert attempts(run) == 1
    assert not [e for e in events(run) if e["event"] in ("intent", "opened")]


def test_nothing_is_taken_for_gone_before_it_was_silent_for_so_long_and_then_it_is(run: Path) -> None:
    configure(run, local(run), judge="gone_after_s = 4.0\nstalled_after_s = 2.0")
    with training(run, names=()):
        pass
    (run / "end").unlink()
    ran = sentinel(run, "watch", over=lambda: attempts(run) > 1)
    told = [e for e in events(run) if e["event"] == "alert_firing" and e["topic"] == "unknown"]
    assert attempts(run) > 1, ran.stderr
    assert not told or "job state unknown" in told[0]["reason"]


def test_status_by_a_colleague_says_unknown_and_not_down(run: Path) -> None:
    configure(run, local(run))
    with training(run):
        for before in (AS_NOBODY, OTHER_HOST) if _nobody_may_run_python() else (OTHER_HOST,):
            told = sentinel(run, "status", "--json", before=before)
            answer = json.loads(told.stdout)
            assert told.returncode == 0, told.stdout
            assert answer["verdict"] != "down"
            assert answer["job"]["state"] == ("alive" if before is AS_NOBODY else "unknown")
        assert "job state unknown" in sentinel(run, "status", before=OTHER_HOST).stdout


def test_a_trainer_that_is_seen_dead_is_started_again_however_young_its_last_sample_is(run: Path) -> None:
    configure(run, local(run))
    with training(run):
        pass
    (run / "end").unlink()
    with_watch = sentinel(run, "watch", over=lambda: attempts(run) >= 2)
    assert attempts(run) >= 2, with_watch.stderr
    (run / "end").touch()
    started = [e for e in events(run) if e["event"] == "intent" and e["action"]["kind"] == "start_job"]
    assert [e["newest_attempt"] for e in started] == list(range(1, len(started) + 1))


def test_no_more_than_so_many_starts_an_hour(run: Path) -> None:
    configure(run, "command = ['false']")
    text = (run / "live.toml").read_text()
    (run / "live.toml").write_text(text + "start_budget = 100\nmax_starts_per_hour = 1\n")

    def starts() -> list[float]:
        intents = [e for e in events(run) if e["event"] == "intent"]
        return [e["time_unix_s"] for e in intents if e["action"]["kind"] == "start_job"]

    with training(run):
        pass
    # no event says that it does not start, and ten seconds pass until a second start would be tried
    ran = sentinel(run, "watch", over=lambda: len(starts()) >= 1 and time.time() > starts()[-1] + 20)
    assert len(starts()) == 1
    assert "sentinel has started the job 1 times in the last hour" in ran.stderr


def test_a_trainer_that_has_no_room_for_its_samples_is_not_taken_for_one_that_hangs(run: Path) -> None:
    """Its journal does not grow and it saves nothing; what the hook still does is to touch the journal."""
    configure(run, local(run), judge="stalled_after_s = 2.0")
    journal = run / "state" / "attempts" / "0001.jsonl"
    with training(run) as trainer:
        trainer.send_signal(signal.SIGSTOP)
        ended = threading.Event()

        def touch() -> None:
            while not ended.wait(0.2):
                os.utime(journal)

        hook = threading.Thread(target=touch)
        hook.start()
        try:
            ran = sentinel(run, "watch", within_s=12)
        finally:
            ended.set()
            hook.join()
        assert trainer.poll() is None, ran.stderr
    assert not [e for e in events(run) if e["event"] in ("intent", "alert_firing")]


def test_a_rollback_after_the_incident_log_is_lost_gets_an_id_of_its_own(run: Path) -> None:
    """Else the attempt that runs would be taken for the one that this rollback has started, and nothing be done."""
    configure(run, local(run))
    back = ("rollback", "--to", "global_step20", "--yes")
    with training(run):
        assert sentinel(run, *back).returncode == 0
        for lost in ("incidents.jsonl", "overrides.json"):
            (run / "state" / lost).unlink()
        until(lambda: attempts(run) == 2 and (run / "checkpoints" / "global_step40").exists())
        again = sentinel(run, *back)
        assert again.returncode == 0, again.stderr
        assert "incident-2 is carried out" in again.stderr
        moved = run / "checkpoints" / ".sentinel-quarantine" / "incident-2" / "incident-2-r1" / "global_step40"
        assert moved.is_dir()


def test_a_slurm_job_is_not_stopped_as_a_process_of_this_machine(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It would be started again outside of Slurm, beside whatever Slurm starts in its place."""
    configure(run, local(run))
    monkeypatch.setenv("SLURM_JOB_ID", "4711")
    with training(run) as trainer:
        inside = sentinel(run, "rollback", "--to", "global_step20", "--dry-run")
        monkeypatch.delenv("SLURM_JOB_ID")
        ran = sentinel(run, "rollback", "--to", "global_step20", "--yes")
        assert (inside.returncode, ran.returncode) == (0, 2), ran.stderr
        assert "attempt 1 is Slurm's job 4711" in ran.stderr
        assert trainer.poll() is None
    assert events(run) == []


def test_a_state_folder_that_is_not_the_trainers_says_nothing_of_the_run(run: Path) -> None:
    """The default counts from the current folder: elsewhere no journal is seen, and the last save may be long ago."""
    configure(run, local(run), judge="gone_after_s = 0.1")
    (run / "live.toml").write_text(
        (run / "live.toml").read_text().replace('state_dir = "state"', "state_dir = 'other'")
    )
    with training(run) as trainer:
        trainer.send_signal(signal.SIGSTOP)
        there = files(run)
        time.sleep(1.0)
        for words in (("rollback", "--to", "global_step20", "--yes"), ("undo", "--yes"), ("watch",)):
            ran = sentinel(run, *words)
            assert ran.returncode == 2, ran.stderr
            assert "[run] state_dir should name the folder that the trainer writes its journal to" in ran.stderr
        assert there <= files(run)
        assert trainer.poll() is None


def test_a_second_and_a_copied_state_folder_do_not_act_on_the_same_checkpoints(run: Path) -> None:
    """Each has a lock of its own: two watches in mode act would stop, move and start against one another."""
    configure(run, local(run), mode="observe")
    sentinel(run, "watch", "--once")
    record = run / "checkpoints" / ".sentinel-quarantine" / "state-folder.json"
    assert not record.exists()
    configure(run, local(run))
    text = (run / "live.toml").read_text()
    with training(run) as trainer:
        assert sentinel(run, "watch", "--once").returncode == 0
        assert record.exists()
        there = files(run)
        shutil.copytree(run / "state", run / "copy")
        (run / "second" / "attempts").mkdir(parents=True)
        for other in ("copy", "second"):
            (run / "live.toml").write_text(text.replace('"state"', f'"{other}"'))
            for words in (("watch",), ("rollback", "--to", "global_step20", "--yes"), ("undo", "--yes"), ("doctor",)):
                ran = sentinel(run, *words)
                assert ran.returncode == (1 if words == ("doctor",) else 2), ran.stderr
                assert f"acted on from the state folder {run / 'state'} " in ran.stdout + ran.stderr
                assert f"this one is {run / other}: " in ran.stdout + ran.stderr
        assert there <= files(run)
        assert trainer.poll() is None
    (run / "state").rename(run / "moved")
    (run / "live.toml").write_text(text.replace('"state"', '"moved"'))
    assert "acted on from" not in sentinel(run, "doctor").stdout
    record.unlink()
    (run / "live.toml").write_text(text.replace('"state"', '"copy"'))
    assert "acted on from" not in sentinel(run, "doctor").stdout


def test_nothing_is_stopped_or_started_while_two_attempts_of_the_run_train(run: Path) -> None:
    """The newest diverges, and would be rolled back and started again, were it alone."""
    configure(run, local(run))
    (run / "live.toml").write_text(
        (run / "live.toml").read_text()
        + 'margin_steps = 1\n[[policy.ladder]]\nname = "again"\nhypothesis = "it was chance"\noptions = ["--again"]\n'
    )
    line = [sys.executable, "-m", "sentinel", "watch", "--run", str(run / "live.toml")]
    with training(run) as first, training(run) as second:
        until(lambda: attempts(run) == 2)
        watch = subprocess.Popen(line, stderr=subprocess.PIPE, text=True)
        try:
            until(lambda: any(e["event"] == "alert_firing" and e["topic"] == "overlap" for e in events(run)))
            (run / "nan2").touch()
            until(lambda: any(e["event"] == "opened" for e in events(run)))
            time.sleep(5.0)
            there = files(run)
            assert watch.poll() is None
        finally:
            watch.terminate()
            said = watch.communicate(timeout=60)[1]
        assert (first.poll(), second.poll()) == (None, None), said
    (page,) = [e for e in events(run) if e["event"] == "alert_firing" and e["topic"] == "overlap"]
    assert page["severity"] == "critical"
    assert "attempts 1 (process " in page["reason"]
    assert "nothing is started while two attempts train" in said
    done = [e["action"]["kind"] for e in events(run) if e["event"] == "intent"]
    assert set(done) <= {"verify_checkpoint"}, done
    assert attempts(run) == 2
    assert there <= files(run)


def test_an_attempt_that_hangs_counts_however_many_have_died_since(run: Path) -> None:
    """As of a job that is requeued: the newest five are dead for certain, the first one holds on."""
    configure(run, local(run))
    with training(run) as trainer:
        trainer.send_signal(signal.SIGSTOP)
        first = json.loads((run / "state" / "attempts" / "0001.jsonl").read_text().splitlines()[0])
        for number in range(2, 7):
            line = {**first, "attempt": number, "pid": 1 << 21, "time_unix_s": time.time()}
            (run / "state" / "attempts" / f"{number:04d}.jsonl").write_text(json.dumps(line) + "\n")
        there = files(run)
        for words in (("rollback", "--to", "global_step20", "--yes"), ("undo", "--yes"), ("watch", "--once")):
            ran = sentinel(run, *words)
            assert ran.returncode != 0 or words[0] == "watch", ran.stderr
            assert there == files(run)
        assert f"process {trainer.pid} of attempt 1 on {socket.gethostname()} is alive" in ran.stderr
    assert attempts(run) == 6
    assert [event["event"] for event in events(run) if event["event"] in ("intent", "done")] == []


def test_nothing_is_moved_while_another_rank_writes_its_shard(run: Path) -> None:
    """Rank 0 has ended for certain; of the other ranks nothing is known but that a file of theirs changes."""
    configure(run, local(run))
    (run / "live.toml").write_text((run / "live.toml").read_text().replace("[judge]", "[judge]\nquiet_s = 2"))
    with training(run) as trainer:
        trainer.kill()
        trainer.wait()
        shard = max((run / "checkpoints").glob("global_step*"), key=lambda save: int(save.name[11:])) / "shard.pt"
        writes = f"while sleep 0.3; do echo more >> {shard}; done"
        with subprocess.Popen(["sh", "-c", writes]) as rank:  # noqa: S607
            try:
                until(shard.exists)
                there = files(run)
                ran = sentinel(run, "rollback", "--to", "global_step20", "--yes")
                assert ran.returncode == 3, ran.stderr
                assert f"{shard} was written" in ran.stderr
                assert "nothing is moved or started until no file of the checkpoints has changed for 2 s" in ran.stderr
                sentinel(run, "watch", within_s=6)
                assert there == files(run)
                assert attempts(run) == 1
            finally:
                rank.kill()
        ran = sentinel(run, "rollback", "--to", "global_step20", "--no-start", "--yes")
        assert ran.returncode == 0, ran.stderr


def test_a_trainer_of_another_state_folder_lives_by_its_heartbeat_beside_the_checkpoints(run: Path) -> None:
    """This state folder has never heard of it: its own only attempt is dead for certain."""
    configure(run, local(run), judge="quiet_s = 0.1")
    with training(run) as trainer:
        trainer.kill()
    told = Heartbeat(
        rank=0, host="node-7", pid=4711, interval_s=10.0, state_dir="/elsewhere/state", boot_id="another", attempt=3
    )
    path = run / "checkpoints" / ".sentinel-heartbeats" / told.file_name
    path.parent.mkdir()
    path.write_text(encode_heartbeat(told))
    there = files(run)
    ran = sentinel(run, "rollback", "--to", "global_step10", "--yes")
    assert ran.returncode in (1, 3), ran.stderr
    said = "rank 0 of attempt 3 (process 4711 on node-7; state folder /elsewhere/state) renewed its heartbeat"
    assert said in ran.stdout + ran.stderr
    assert there == files(run)
    os.utime(path, (time.time() - 31,) * 2)
    ran = sentinel(run, "rollback", "--to", "global_step10", "--no-start", "--yes")
    assert ran.returncode == 0, ran.stdout + ran.stderr
