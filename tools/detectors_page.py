"""Writes docs/DETECTORS.md: the noise band and the criterion of each detector, from the docstrings of their modules."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator
from types import ModuleType

from sentinel.judge import noise_band, recovery_check, schedule_changes, unhealthy_spans
from sentinel.judge.detectors import DETECTORS

__all__ = ["page"]

HEAD = """# Detectors

The criteria of [the judge](JUDGE.md), in the order in which the detectors look; then planned changes, checkpoints that
are no target, and what counts as recovered. Memory does not grow with the samples.

This page is made from the code by `tools/detectors_page.py` (`make pages`).
"""


def page() -> str:
    """The page, as Markdown."""
    detectors = (sys.modules[detector.__module__] for detector in DETECTORS)
    modules = [noise_band, *detectors, schedule_changes, unhealthy_spans, recovery_check]
    return "\n".join((HEAD, *(line for module in modules for line in _section(module))))


def _section(module: ModuleType) -> Iterator[str]:
    yield f"## {module.__name__.rpartition('.')[2].replace('_', ' ')}\n"
    yield _escaped(inspect.getdoc(module) or "") + "\n"


def _escaped(text: str) -> str:
    return text.replace("|", "\\|").replace("*", "\\*")
