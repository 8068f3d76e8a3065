"""What a start takes, as a program: its document's grammar. How long it takes is for a quiet machine to say."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

PROGRAM = Path(__file__).parents[2] / "benchmarks" / "start_time.py"


def test_the_document_has_a_row_for_each_start_of_each_case() -> None:
    command = [sys.executable, PROGRAM, "--quick", "--json"]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)
    assert ran.returncode == 0, ran.stderr
    rows = json.loads(ran.stdout)["rows"]
    cases = [(row["steps"], row["case"], row["start"]) for row in rows]
    both = [(case, start) for case in ("whole", "kept") for start in ("status", "watch")]
    both += [("1,000 more", "status"), ("1,000 more", "watch"), ("goes back", "watch")]
    assert sorted(cases) == sorted(
        [(10, "nothing", "status"), (10, "nothing", "watch"), *((2000, *one) for one in both)]
    )
    assert all(min(row["cpu_s"], row["wall_s"], row["rss_mb"]) > 0 for row in rows)
    assert all(row["cache_kb"] > 1 for row in rows if row["steps"] == 2000)
