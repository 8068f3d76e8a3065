"""Writes docs/CRITERIA.md: by which formula each thing is decided, from the docstrings of the deciding modules."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator
from types import ModuleType

from sentinel.judge import noise_band, recovery_check, schedule_changes, unhealthy_spans
from sentinel.judge.detectors import DETECTORS
from sentinel.lab.bisect import causes, hardware, narrow, proof, question
from sentinel.plan.starts import checks

__all__ = ["page"]

HEAD = """# Criteria

By which formula each thing is decided: the noise band and the detectors of [the judge](JUDGE.md), in the order in which
they look; planned changes, checkpoints that are no target, what counts as recovered; how [a start](STARTS.md) and [a
cause](BISECT.md) are found. Only divergence and nan recommend a rollback.

This page is made from the code by `tools/criteria_page.py` (`make pages`).
"""


def page() -> str:
    """The page, as Markdown."""
    detectors = (sys.modules[detector.__module__] for detector in DETECTORS)
    judged = [noise_band, *detectors, schedule_changes, unhealthy_spans, recovery_check]
    titled = {module.__name__.rpartition(".")[2].replace("_", " "): module for module in judged}
    titled |= {"start checks": checks, "bisect": causes, "bisect probes": question, "bisect proof": proof}
    titled |= {"bisect hardware": hardware, "bisect samples": narrow}
    return "\n".join((HEAD, *(line for title, module in titled.items() for line in _section(title, module))))


def _section(title: str, module: ModuleType) -> Iterator[str]:
    yield f"## {title}\n"
    yield _escaped(inspect.getdoc(module) or "") + "\n"


def _escaped(text: str) -> str:
    return text.replace("|", "\\|").replace("*", "\\*")
