"""How far the analysis is, on stderr: a bar on a terminal, a plain line now and then elsewhere."""

from __future__ import annotations

import time
from typing import TextIO

__all__ = ["ProgressBar"]

_LINE_EVERY_S = 10.0
_BAR = 30


class ProgressBar:
    """Of one stage. The rate counts what this start has done, not what an earlier one had."""

    def __init__(self, out: TextIO | None, stage: str, total: int, done: int) -> None:
        self._out, self._stage, self._total, self._begun_with = out, stage, total, done
        self._began = time.monotonic()
        self._said = -_LINE_EVERY_S
        self._terminal = out is not None and out.isatty()
        self.update(done)

    def update(self, done: int) -> None:
        """So many samples are done."""
        now = time.monotonic()
        if self._out is None or not (self._terminal or done == self._total or now - self._said >= _LINE_EVERY_S):
            return
        self._said = now
        rate = (done - self._begun_with) / max(now - self._began, 1e-9)
        left = (self._total - done) / rate if rate else None
        share = done / max(self._total, 1)
        said = f"{self._stage}: {done:,} of {self._total:,} samples ({share:.0%})"
        if rate:
            said += f", {rate:,.0f} a second, {_clock(left)} left"
        if self._terminal:
            bar = "#" * round(share * _BAR)
            self._out.write(f"\r[{bar:<{_BAR}}] {said}\033[K" + ("\n" if done == self._total else ""))
        else:
            self._out.write(said + "\n")
        self._out.flush()


def _clock(seconds: float | None) -> str:
    if seconds is None:
        return "?"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}"
