"""Writes docs/DETECTORS.md: the noise band and the criterion of each detector, from the docstrings of their modules."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator
from types import ModuleType

from sentinel.judge import noise_band
from sentinel.judge.detectors import DETECTORS

__all__ = ["page"]

HEAD = """# Detectors

The criteria of [the judge](JUDGE.md), in the order in which the detectors look. Only divergence and nan recommend a
rollback. Each is a file of `sentinel/judge/detectors/`; memory does not grow with the samples.

This page is made from the code by `tools/detectors_page.py` (`make pages`).
"""


def page() -> str:
    """The page, as Markdown."""
    modules = [noise_band, *(sys.modules[detector.__module__] for detector in DETECTORS)]
    return "\n".join((HEAD, *(line for module in modules for line in _section(module))))


def _section(module: ModuleType) -> Iterator[str]:
    yield f"## {module.__name__.rpartition('.')[2].replace('_', ' ')}\n"
    yield _escaped(inspect.getdoc(module) or "") + "\n"


def _escaped(text: str) -> str:
    return text.replace("|", "\\|").replace("*", "\\*")
