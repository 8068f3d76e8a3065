"""The backtest as a program: its document, its pictures, its refusals."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from benchmarks.backtest.peers import PEERS
from benchmarks.backtest.sensitivity import variants
from sentinel.judge.thresholds import Thresholds

PROGRAM = Path(__file__).parents[2] / "benchmarks" / "detectors.py"
KEYS = {"missed", "divergences", "unneeded", "harmless", "onset_error_median_steps", "us_per_sample"}


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, PROGRAM, *arguments], capture_output=True, text=True, timeout=240, check=False
    )


def test_the_document_has_every_detector_with_every_key() -> None:
    ran = run("--quick", "--json")
    assert ran.returncode == 0, ran.stderr
    document = json.loads(ran.stdout)
    assert set(document["detectors"]) == {"sentinel", *PEERS}
    for numbers in document["detectors"].values():
        assert set(numbers) >= KEYS
        assert 0 <= numbers["missed"] <= numbers["divergences"]
        assert 0 <= numbers["unneeded_on_harmless"] <= numbers["harmless"]
        assert numbers["us_per_sample"] > 0
        assert numbers["onset_error_median_steps"] is None or numbers["onset_error_median_steps"] >= 0
    assert len({n["divergences"] for n in document["detectors"].values()}) == 1


def test_a_folder_of_ones_own_is_scored_drawn_and_written_down(tmp_path: Path) -> None:
    (tmp_path / "INDEX.csv").write_text("name,label,events\nmine,nan,nan:81-81-90\nyours,stable,\n")
    rows = [f"{i},{'nan' if i > 80 else 2 + i % 2 / 50}\n" for i in range(1, 91)]
    (tmp_path / "mine.csv").write_text("step,loss\n" + "".join(rows))
    (tmp_path / "yours.csv").write_text("step,loss\n" + "".join(rows[:80]))
    written, pictures = tmp_path / "results.txt", tmp_path / "plots"
    ran = run("--curves", str(tmp_path), "--json", "--results", str(written), "--plot", str(pictures))
    assert ran.returncode == 0, ran.stderr
    detectors = json.loads(ran.stdout)["detectors"]
    assert {(d["divergences"], d["harmless"]) for d in detectors.values()} == {(1, 1)}
    assert (detectors["sentinel"]["missed"], detectors["sentinel"]["unneeded"]) == (0, 0)
    assert (detectors["zclip"]["missed"], detectors["zclip"]["missed_not_applicable"]) == (1, 1)
    assert "Confusion matrix" in written.read_text()
    assert str(tmp_path) not in written.read_text()
    assert sorted(p.name for p in pictures.iterdir()) == [f"{tmp_path.name}-{n}.png" for n in ("mine", "yours")]


def test_an_index_that_is_wrong_is_refused_with_its_place(tmp_path: Path) -> None:
    (tmp_path / "INDEX.csv").write_text("name,label\na,fine\n")
    ran = run("--curves", str(tmp_path))
    assert ran.returncode == 2
    assert "INDEX.csv, line 2" in ran.stderr


def test_every_number_among_the_thresholds_is_halved_and_doubled() -> None:
    changed = {name: (value, pair) for name, value, pair in variants(Thresholds())}
    numbers = {f for f in Thresholds.__slots__ if type(getattr(Thresholds(), f)) in (int, float)}
    assert set(changed) == numbers - {"stalled_after_s", "first_sample_within_s", "gone_after_s"}  # of the job
    for name, (value, pair) in changed.items():
        for factor, thresholds in zip((0.5, 2.0), pair, strict=True):
            assert thresholds is None or abs(getattr(thresholds, name) - factor * value) <= 0.5, name
