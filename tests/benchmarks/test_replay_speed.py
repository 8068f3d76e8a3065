"""The speed of a replay as a program: its document's grammar. How fast it is, is for a quiet machine to say."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

PROGRAM = Path(__file__).parents[2] / "benchmarks" / "replay_speed.py"


def test_the_document_has_a_row_for_each_format_with_every_sample_judged() -> None:
    command = [sys.executable, PROGRAM, "--quick", "--json"]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)
    assert ran.returncode == 0, ran.stderr
    document = json.loads(ran.stdout)
    rows = {(row["format"], row["signals"], row["curve"]): row for row in document["rows"]}
    logs = {"megatron_log", "torchtitan_log", "huggingface_log"}
    assert {name for name, _, _ in rows} == {"arrays", "csv", "parquet", "journal", "jsonl"} | logs
    assert document["refusal_s"] > 0
    for (name, _, _), row in rows.items():
        assert row["samples"] == (10_000 if name in logs else 100_000)
        assert min(row["samples_per_s"], row["samples_per_s_wall"], row["read_per_s"], row["peak_rss_mb"]) > 0
        assert row["loops"] == (row["cpu_s"] - row["read_s"]) / row["loop_s"] > 0
    columns = [rows[name, "few", "healthy"] for name in ("csv", "parquet")]
    assert document["samples_per_s"] == min(row["samples_per_s"] for row in columns)
    assert document["loops"] == max(row["loops"] for row in columns)
    assert document["peak_rss_mb"] == max(row["peak_rss_mb"] for row in columns)
