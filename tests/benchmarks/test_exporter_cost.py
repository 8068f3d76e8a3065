"""benchmarks/exporter_cost.py: its document, and what it says of the exporter's thread."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).parents[2] / "benchmarks" / "exporter_cost.py"


@pytest.mark.soak
def test_every_condition_has_its_row_and_a_storm_is_answered_by_a_small_share_of_a_core() -> None:
    ran = subprocess.run(
        [sys.executable, PROGRAM, "--quick", "--json"], capture_output=True, text=True, timeout=240, check=False
    )
    assert ran.returncode == 0, ran.stderr
    document = json.loads(ran.stdout)
    assert set(document["training_thread"]) == {"encode_us", "put_us", "collector_us", "together_us"}
    rows = {(row["threads"], row["condition"]): row for row in document["rows"]}
    assert len(rows) == len(document["rows"]) == 10
    for threads in (1, 2):
        assert rows[threads, "without"]["ratio"] == 1
        assert rows[threads, "unscraped"]["core_share"] < 0.01
        storm = rows[threads, "scraped 1,000/s"]
        assert storm["answered_per_s"] > 0
        assert storm["core_share"] < 0.1  # 1 %, and what was saved up, within half a second
