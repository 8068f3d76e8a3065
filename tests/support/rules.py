"""The recording and alert rules, and promtool."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
RULES = ROOT / "dashboards" / "rules"
PROMTOOL = shutil.which("promtool")


def groups(name: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load((RULES / name).read_text())["groups"])


RECORDING = [rule for group in groups("recording.yaml") for rule in group["rules"]]
RECORDED = {rule["record"] for rule in RECORDING}


def promtool(*words: str | Path, given: bytes | None = None) -> str:
    if PROMTOOL is None:
        pytest.skip("promtool is not installed: apt-get install prometheus")
    ran = subprocess.run([PROMTOOL, *map(str, words)], capture_output=True, input=given, timeout=60, check=False)
    said = (ran.stdout + ran.stderr).decode()
    assert ran.returncode == 0, said
    return said
