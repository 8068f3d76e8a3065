"""What the command prints and writes: the machine, then each part's table and what is not as it has to be."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import date
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from .parts import PARTS
from .setting import UNFINISHED, Row

__all__ = ["PartReport", "about", "document", "header", "text"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PartReport:
    """A part, as far as it came."""

    name: str
    rows: Mapping[str, Row]
    failed: Mapping[str, str] = field(default_factory=dict)
    """{case: why}, in this call."""

    not_run: str | None = None
    """Why the part was not run in this call."""

    @property
    def faults(self) -> list[str]:
        """What is wrong. A case that was stopped by the clock is not."""
        broken = [f"{case}: {why}" for case, why in self.failed.items() if not _by_the_clock(why)]
        return [*PARTS[self.name].faults(self.rows), *broken]

    @property
    def left(self) -> list[str]:
        """What the next call goes on with."""
        rows = [f"{case}: {row[UNFINISHED]}" for case, row in self.rows.items() if UNFINISHED in row]
        stopped = [f"{case}: {why}" for case, why in self.failed.items() if _by_the_clock(why)]
        return [*rows, *stopped, *([self.not_run] if self.not_run else [])]


def _by_the_clock(why: str) -> bool:
    return why.startswith("stopped")


def about(device: str, *, quick: bool) -> dict[str, str]:
    """The machine and the versions, without any name of the machine."""
    import torch

    versions = {name: _version(name) for name in ("torch", "triton", "deepspeed")}
    cuda = device == "cuda"
    return {
        "hardware": f"one {torch.cuda.get_device_name()}" if cuda else f"a CPU, {platform.machine()}",
        "capability": ".".join(map(str, torch.cuda.get_device_capability())) if cuda else "none",
        "cuda": str(torch.version.cuda) if cuda else "none",
        "cpus": str(os.cpu_count()),
        "python": platform.python_version(),
        **versions,
        "form": "quick: it shows that the parts run, and its figures say nothing" if quick else "full",
    }


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "none"


def header(machine: Mapping[str, str]) -> str:
    """The date and the machine."""
    return "\n".join([date.today().isoformat(), *(f"{key:11}{value}" for key, value in machine.items())])


def text(part: PartReport) -> str:
    """One part's section."""
    of = PARTS[part.name]
    lines = [f"== {of.TITLE} ({part.name})", ""]
    lines += [of.table(part.rows)] if part.rows else []
    lines += [f"NOT AS IT HAS TO BE: {fault}" for fault in part.faults]
    lines += [f"not done: {left}" for left in part.left]
    return "\n".join(lines)


def document(machine: Mapping[str, str], parts: list[PartReport]) -> dict[str, Any]:
    """What --json prints."""
    return {
        "date": date.today().isoformat(),
        "machine": dict(machine),
        "parts": [
            {"name": p.name, "title": PARTS[p.name].TITLE, "rows": dict(p.rows), "faults": p.faults, "not_done": p.left}
            for p in parts
        ],
    }
