"""The chart as helm renders it."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
CHART = ROOT / "charts" / "sentinel"
SHAPES = ROOT / "tests" / "data" / "prometheus-operator"
VALUES = sorted((CHART / "ci").glob("*.yaml"))
Objects = list[dict[str, Any]]


def program(name: str) -> str:
    """Where a program is that comes with the development dependencies; the test is left out where it is not."""
    found = shutil.which(name, path=str(Path(sys.executable).parent)) or shutil.which(name)
    if found is None:
        pytest.skip(f"{name} is not installed: pip install '.[dev]'")
    return found


def helm(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([program("helm"), *words], capture_output=True, text=True, timeout=60, check=False)


def rendered(*words: str, chart: Path = CHART) -> Objects:
    """What `helm template` makes of the chart with these options."""
    ran = helm("template", "watch", str(chart), "--namespace", "training", *words)
    assert ran.returncode == 0, ran.stderr
    return [document for document in yaml.safe_load_all(ran.stdout) if document]


def of_kind(objects: Objects, kind: str) -> Objects:
    return [one for one in objects if one["kind"] == kind]


def shape(kind: str) -> dict[str, Any]:
    """The schema of one of the Prometheus operator's resources; see the README beside them."""
    loaded: dict[str, Any] = json.loads((SHAPES / f"{kind.lower()}.json").read_text())
    return loaded
