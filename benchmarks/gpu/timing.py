"""How long something takes, ms: by the clock, or on a CUDA device alone."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import torch

__all__ = ["by_the_clock", "launched", "on_the_device"]

_BUSY_CYCLES = 4_000_000
"""About 2 ms of a GPU's clock: longer than launching one pass takes."""


def by_the_clock(what: Callable[[], object]) -> float:
    """The host's time until the call returns."""
    began = time.perf_counter()
    what()
    return (time.perf_counter() - began) * 1e3


def on_the_device(what: Callable[[], object]) -> float:
    """Of the device alone: it is kept busy until the host has launched all, as it is within a training step."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    torch.cuda._sleep(_BUSY_CYCLES)
    start.record()
    what()
    end.record()
    torch.cuda.synchronize()
    return float(start.elapsed_time(end))


def launched(what: Callable[[], object], repetitions: int) -> float:
    """What the host takes to launch it on CUDA: the median."""
    took = []
    for _ in range(repetitions):
        torch.cuda.synchronize()
        torch.cuda._sleep(_BUSY_CYCLES)
        took.append(by_the_clock(what))
    torch.cuda.synchronize()
    return statistics.median(took)
