"""A ladder with the newer rungs on a run that really diverged: from the wait to what the trainer confirms."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from pathlib import Path

import pytest

from sentinel.adapters.incident_log import IncidentLog
from sentinel.adapters.journal import Journals
from sentinel.adapters.local import LocalJobs
from sentinel.demo.configuration import write_configuration
from sentinel.plan.incident.events import fold
from sentinel.plan.incident.log_outcomes import Proved
from sentinel.vocabulary.sample import RunStarted, Sample
from tests.support.watch_command import SENTINEL

pytestmark = pytest.mark.full

LADDER = """\
[[policy.ladder]]
name = "patience"
hypothesis = "it heals by itself"
wait_steps = 50

[[policy.ladder]]
name = "skip + fresh moments"
hypothesis = "these batches, met by this Adam, did it"
skip_samples = "past_onset"
reset_moments = true
lr_warmup_factor = 8
adam_beta2 = 0.95
clip_grad_factor = 0.5
options = ["--eps=1e-7"]
"""


@pytest.mark.timeout(400)
def test_a_wait_is_followed_by_a_restart_whose_every_change_is_confirmed(diverged: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(diverged, run, symlinks=True)
    configuration = write_configuration(run, seed=0)
    text = configuration.read_text()
    configuration.write_text(text[: text.index("[[policy.ladder]]")] + LADDER)
    log, jobs = IncidentLog(run / "state" / "incidents.jsonl"), LocalJobs(run / "state")
    line = [*SENTINEL, "watch", "--run", str(configuration)]
    env = dict(os.environ, OMP_NUM_THREADS="1")
    with subprocess.Popen(line, env=env, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as watch:
        try:
            end = time.monotonic() + 200
            while not (kinds := {e.kind for e in log.read()}) & {"proved", "not_proved", "stopped"}:
                assert time.monotonic() < end, kinds
                assert watch.poll() is None, watch.stderr.read() if watch.stderr else ""
                time.sleep(0.2)
        finally:
            watch.terminate()
            jobs.stop(grace_s=20)
    (incident,) = fold(log.read())
    (wait,), (rollback,) = incident.waits, incident.rollbacks
    assert wait.failed is not None
    assert wait.failed.startswith("the job is gone before step ")  # nobody had watched this run while it lived
    assert (rollback.rung, rollback.proved, rollback.unconfirmed) == ("skip + fresh moments", True, ())
    checks = next(e.checks for e in log.read() if isinstance(e, Proved))
    assert {c.what for c in checks} >= {
        "skipped_samples",
        "moments_reset_steps",
        "adam_beta2",
        "gradient_clipping",
        "free",
        "lr_schedule",
    }

    records = Journals(run / "state").poll()
    started = [r for r in records if isinstance(r, RunStarted)][-1]
    samples = {r.global_step: r for r in records if isinstance(r, Sample) and r.attempt == 1}
    assert incident.onset_range is not None
    past = samples[incident.onset_range[1] + 10].consumed_samples  # [policy] margin_steps
    assert started.first_sample_index == past
    assert started.moments_reset_steps == (rollback.target_step,)
    assert (started.adam_beta2, started.gradient_clipping, started.settings["eps"]) == (0.95, 0.5, 1e-7)
