"""benchmarks/load.py: what it simulates is what trainers write and show, and the real daemon tells the divergences."""

from __future__ import annotations

import json
import math
import os
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from benchmarks.simulated.journals import begun, line
from benchmarks.simulated.runs import FIRST_STEP, SimulatedRun, simulated
from benchmarks.simulated.targets import Exposed
from sentinel.adapters.journal import Journals
from sentinel.vocabulary.metrics import COUNTERS, SAMPLE_METRICS
from sentinel.vocabulary.sample import RunStarted, encode

PROMETHEUS = shutil.which("prometheus")
PROGRAM = Path(__file__).parents[2] / "benchmarks" / "load.py"
NAN, HIGH = SimulatedRun(number=0, diverges_at=FIRST_STEP + 150), SimulatedRun(number=20, diverges_at=FIRST_STEP + 150)


def test_one_run_in_twenty_diverges_and_can_be_known_to_when_it_is_looked_for() -> None:
    runs = simulated(200, known_from=FIRST_STEP + 300, within=60)
    ill = [run for run in runs if run.diverges_at is not None]
    assert len(ill) == 10
    assert Counter(run.ends_in_nan for run in ill) == {True: 5, False: 5}
    for run in ill:
        known_at = run.known_at(FIRST_STEP)
        assert known_at is not None
        assert FIRST_STEP + 295 <= known_at < FIRST_STEP + 375
    assert runs[1].known_at(FIRST_STEP) is None


def test_a_simulated_journal_reads_as_the_samples_that_it_is_made_of(tmp_path: Path) -> None:
    for run in (NAN, HIGH):
        folder = tmp_path / run.name
        os.close(begun(run, folder, 160, 1000.0))
        started, *samples = Journals(folder).poll()
        assert isinstance(started, RunStarted)
        assert [encode(s) for s in samples] == [
            encode(s) for s in run.samples(range(FIRST_STEP, FIRST_STEP + 160), 1e3)
        ]
    assert line(HIGH, FIRST_STEP, 7.25) == encode(HIGH.sample(FIRST_STEP, 7.25)).replace("7.25,", "7.250000,") + "\n"


@pytest.mark.parametrize("step", [FIRST_STEP, FIRST_STEP + 155])
def test_a_simulated_exporter_shows_what_the_real_one_would(step: int) -> None:
    families = text_string_to_metric_families(Exposed().text(NAN, step))
    shown = {s.name: s.value for family in families for s in family.samples if s.labels["run"] == NAN.name}
    sample, counts = NAN.sample(step, 0.0), (step - FIRST_STEP + 1, 6 if step > FIRST_STEP else 0)
    for metric in SAMPLE_METRICS:
        reading = getattr(sample, metric.field)
        assert shown.get(metric.name) == pytest.approx(None if reading is None else float(reading), nan_ok=True)
    assert (shown[COUNTERS[0].name], shown[COUNTERS[2].name]) == counts
    assert shown["sentinel_loss_window_max"] == (math.inf if step > FIRST_STEP else pytest.approx(sample.loss))


@pytest.mark.soak
@pytest.mark.skipif(
    shutil.which("prometheus") is None, reason="prometheus is not installed: apt-get install prometheus"
)
def test_the_document_has_a_row_for_each_source_in_which_the_divergence_was_told() -> None:
    command = [sys.executable, PROGRAM, "--quick", "--json"]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)
    assert ran.returncode == 0, ran.stderr
    document = json.loads(ran.stdout)
    assert document["runs"] == 6
    rows = {row["source"]: row for row in document["rows"]}
    assert set(rows) == {"journal", "prometheus"}
    for row in rows.values():
        assert (row["divergences"], row["told"], row["untrue"]) == (1, 1, 0)
        assert min(row["cpu_share"], row["rss_mb"], row["metrics_mb"], row["start_s"]) > 0
    assert document["cpu_share"] == max(row["cpu_share"] for row in rows.values())
    assert document["rss_mb"] == max(row["rss_mb"] for row in rows.values())
    assert document["verdict_lag_polls_p99"] == max(row["verdict_lag_polls_p99"] for row in rows.values())
    assert [row["steps"] for row in document["over_steps"]] == [1000]
