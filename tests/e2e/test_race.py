"""Three rungs race on a run that really diverged: the healthiest becomes the run, recovers, and is undone."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import time
from itertools import chain
from pathlib import Path

import pytest

from sentinel.act.perform import Pinning
from sentinel.adapters.checkpoints import Checkpoints
from sentinel.adapters.incident_log import IncidentLog
from sentinel.adapters.journal import Journals
from sentinel.adapters.local import LocalJobs
from sentinel.adapters.state_files import OwnPins
from sentinel.demo.configuration import write_configuration
from sentinel.plan.incident_events import fold
from sentinel.vocabulary.sample import RunStarted, Sample
from tests.e2e.test_watch import SENTINEL, inventory, live, sentinel

pytestmark = pytest.mark.full


@pytest.mark.timeout(900)
def test_the_healthiest_of_three_rungs_becomes_the_run_and_undo_gives_back_every_byte(
    diverged: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    shutil.copytree(diverged, run, symlinks=True)
    configuration = write_configuration(run, seed=0)
    text = configuration.read_text().replace('mode = "act"\n', 'mode = "act"\nrace = 3\nrace_steps = 60\n')
    configuration.write_text(f"{text}\n[bisect]\nparallel = 2\n")
    before, unmoved = live(inventory(run)), _seen(run)
    log, jobs = IncidentLog(run / "state" / "incidents.jsonl"), LocalJobs(run / "state")
    line = [*SENTINEL, "watch", "--run", str(configuration)]
    env = dict(os.environ, OMP_NUM_THREADS="1")
    with subprocess.Popen(line, env=env, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as watch:
        try:
            end = time.monotonic() + 800
            kinds: set[str] = set()
            while not kinds & {"closed", "rung_failed", "not_proved", "stopped"}:
                gone, seen = watch.poll() is not None, _seen(run)  # before the log, which is ahead of what is done
                kinds = {e["event"] for e in log.read()}
                assert seen == unmoved or "race_ended" in kinds  # nothing of the run moves while its rungs race
                assert (not gone and time.monotonic() < end) or "closed" in kinds, kinds
                time.sleep(0.5)
        finally:
            watch.terminate()
            jobs.stop(grace_s=20)
    (incident,) = fold(log.read())
    (race,), (rollback,) = incident.races, incident.rollbacks
    assert incident.outcome == "recovered", incident.note
    assert rollback.rung == "earlier + reseed + LR / 8", race.over
    assert rollback.adopts == race.winner is not None
    assert (rollback.proved, rollback.starts) == (True, 1)
    records = Journals(run / "state").poll()
    started = [r for r in records if isinstance(r, RunStarted)]
    assert [s.rollback for s in started[1:]] == [rollback.adopts.probe, rollback.id]
    assert (started[-1].resumed_from, started[-1].parent_attempt) == (race.winner.global_step, started[-2].attempt)
    made = [r.global_step for r in records if isinstance(r, Sample) and r.attempt == started[-2].attempt]
    assert made == list(range(rollback.target_step + 1, race.until_step + 1))  # the probe's own steps are the run's

    pins = Pinning(Checkpoints(run / "checkpoints"), OwnPins(run / "state"))
    pins.keep((race.winner.tag,))  # as the watch does in the turns after the recovery, if it has any
    assert OwnPins(run / "state").read()
    sentinel(run, "undo", "--yes")
    assert live(inventory(run)) == before
    sentinel(run, "purge", incident.id, "--yes")
    assert not (run / "checkpoints" / ".sentinel-quarantine" / incident.id).exists()


def _seen(run: Path) -> dict[str, tuple[int, int]]:
    """Size and time of each file of the run, but what sentinel itself writes and takes away beside them."""
    found = {}
    for folder, _, names in chain(os.walk(run / "checkpoints"), os.walk(run / "tensorboard")):
        within = os.path.relpath(folder, run)
        for path in (Path(folder, name) for name in names if "/." not in f"{within}/{name}"):
            with contextlib.suppress(FileNotFoundError):  # after the race, when it is not asked for any more
                found[str(path)] = (path.stat().st_size, path.stat().st_mtime_ns)
    return found
