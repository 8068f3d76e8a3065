"""The early warning's benchmark as a program: its document, its tables, and what the counts have to obey."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).parents[2] / "benchmarks" / "early_warning.py"


@pytest.mark.full
@pytest.mark.timeout(400)
def test_the_document_and_the_tables_have_each_rule_on_both_parts(tmp_path: Path) -> None:
    tables = tmp_path / "tables.txt"
    command = [sys.executable, str(PROGRAM), "--quick", "--json", "--results", str(tables)]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert ran.returncode == 0, ran.stderr
    document = json.loads(ran.stdout)
    assert list(document) == ["tuning", "held out", "public"]
    rules = [row["rule"] for row in document["tuning"]]
    assert rules[0] == "early warning"
    for rows in document.values():
        assert [row["rule"] for row in rows] == rules
        assert len({(row["healthy_steps"], row["growing"]["n"], row["sudden"]["n"]) for row in rows}) == 1
        for row in rows:
            low, high = row["precision_95"]
            assert 0 <= low <= high <= 1
            assert row["false_per_10000_95"][0] <= row["false_per_10000"] <= row["false_per_10000_95"][1]
            counts = row["growing"], row["sudden"]
            assert all(c["before_onset"] <= c["before_verdict"] <= c["n"] for c in counts), row
    tuned = document["tuning"]
    thresholds = [row for row in tuned if row["rule"].endswith(" alone")]
    assert [row["rule"] for row in thresholds if row["false_per_10000"] > 1] == []  # as they are tuned
    assert tuned[0]["growing"]["before_verdict"] > 0
    written = tables.read_text()
    assert all(rule in written for rule in rules)
