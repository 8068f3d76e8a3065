"""Peers that compare a reading with a window of those before it. What `push` means is in peers.py."""

from __future__ import annotations

import math
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from .reading import Reading

__all__ = ["Cusum", "KillLossSpike", "LightningSpike", "OlmoSkipStep", "OlmoStability"]


class Window:
    """The last n values."""

    def __init__(self, size: int) -> None:
        self._ring = np.full(size, np.nan)
        self.count = 0
        """Values pushed so far."""

    @property
    def full(self) -> bool:
        return self.count >= len(self._ring)

    @property
    def values(self) -> NDArray[np.float64]:
        """In no particular order."""
        return self._ring[: min(self.count, len(self._ring))]

    def push(self, value: float) -> None:
        self._ring[self.count % len(self._ring)] = value
        self.count += 1


class KillLossSpike:
    """The fifth loss in a row of at least twice the window's mean; or half of the window above its cap.

    The window is 100 losses or 5 % of the run (here: of the rows, since it sees nothing else), armed once it is full;
    the cap is the largest loss of the first full window, 10 at most, and counts from two windows on. Every loss enters
    the window. A nan makes its mean nan: nothing compares with that, and it is silent for a window.
    Source: mosaicml/llm-foundry, callbacks/kill_loss_spike_callback.py, KillLossSpike.
    """

    reads: ClassVar[frozenset[str]] = frozenset({"loss"})
    survives_restart: ClassVar[bool] = False
    patience, multiplier = 4, 2.0

    def __init__(self, samples: int = 0) -> None:
        self._size = max(100, round(0.05 * samples))
        self._window = Window(self._size)
        self._cap = 10.0
        self._outliers = 0

    def push(self, reading: Reading) -> bool:
        loss = reading.loss
        if loss is None:
            return False
        fires = self._window.full and (self._is_spike(loss) or self._is_high())
        self._window.push(loss)
        if self._window.count == self._size:
            self._cap = min(float(self._window.values.max()), self._cap)
        return fires

    def _is_spike(self, loss: float) -> bool:
        outlier = loss >= float(self._window.values.mean()) * self.multiplier
        self._outliers = self._outliers + 1 if outlier else 0
        return self._outliers > self.patience

    def _is_high(self) -> bool:
        if self._window.count + 1 < 2 * self._size:
            return False
        return bool(2 * (self._window.values > self._cap).sum() >= self._size)


class LightningSpike:
    """A loss that is not finite; or one above the last and at least twice the mean of ten away from that mean.

    What fires enters neither the mean nor `last`. The first step is never judged.
    Source: Lightning-AI/pytorch-lightning, fabric/utilities/spike.py, SpikeDetection (window 10, warmup 1, rtol 2.0).
    """

    reads: ClassVar[frozenset[str]] = frozenset({"loss"})
    survives_restart: ClassVar[bool] = False
    rtol = 2.0

    def __init__(self) -> None:
        self._window = Window(10)
        self._last = 0.0
        self._batches = 0

    def push(self, reading: Reading) -> bool:
        loss = reading.loss
        if loss is None:
            return False
        self._batches += 1
        if self._batches > 1 and self._is_spike(loss):
            return True
        if math.isfinite(loss):
            self._window.push(loss)
            self._last = loss
        return False

    def _is_spike(self, loss: float) -> bool:
        if not math.isfinite(loss):
            return True
        if loss <= self._last or not self._window.count:
            return False
        mean = float(self._window.values.mean())
        return abs(loss - mean) >= abs(self.rtol * mean)


class OlmoSkipStep:
    """Loss or gradient norm above mean + 6 standard deviations (unbiased) of up to 128 values before it.

    From the 64th value on. Every value enters, the one that fires too: a nan fires, and every step after it until it
    has left the window, for nothing is "at most" nan.
    Source: allenai/OLMo-core, optim/skip_step_optimizer.py, SkipStepOptimizer.
    """

    reads: ClassVar[frozenset[str]] = frozenset({"loss", "grad_norm"})
    survives_restart: ClassVar[bool] = False
    sigmas, size = 6.0, 128

    def __init__(self) -> None:
        self._losses, self._norms = Window(self.size), Window(self.size)

    def push(self, reading: Reading) -> bool:
        armed = self._losses.count + 1 >= self.size // 2
        fires = False
        for window, value in ((self._losses, reading.loss), (self._norms, reading.grad_norm)):
            if value is None:
                continue
            if armed and window.count >= 2:
                before = window.values
                with np.errstate(invalid="ignore"):
                    fires |= not value - float(before.mean()) <= self.sigmas * float(before.std(ddof=1))
            window.push(value)
        return fires


class OlmoStability:
    """Loss or gradient norm above mean + 6 population standard deviations of the 128 values before it.

    Only with a full window. Every value enters, nan too: nothing is above a nan, so it is silent for 128 values then.
    Source: allenai/OLMo-core, train/callbacks/stability_monitor.py, StabilityMonitorCallback.
    """

    reads: ClassVar[frozenset[str]] = frozenset({"loss", "grad_norm"})
    survives_restart: ClassVar[bool] = True
    sigmas, size = 6.0, 128

    def __init__(self) -> None:
        self._losses, self._norms = Window(self.size), Window(self.size)

    def push(self, reading: Reading) -> bool:
        fires = False
        for window, value in ((self._losses, reading.loss), (self._norms, reading.grad_norm)):
            if value is None:
                continue
            if window.full:
                with np.errstate(invalid="ignore"):
                    deviation = float(window.values.std())
                    fires |= deviation >= 1e-10 and value > float(window.values.mean()) + self.sigmas * deviation
            window.push(value)
        return fires


class Cusum:
    """A change-point detector: g = max(0, g + (loss - mean) / deviation - 0.5) of the 128 losses before; fires above 5.

    Every loss enters the window, the one that fires too: after a while it is the new normal. A loss that is no number
    fires, and enters nothing.
    Source: Page 1954, "Continuous Inspection Schemes", Biometrika 41:100 (one-sided; the usual k = 0.5, h = 5).
    """

    reads: ClassVar[frozenset[str]] = frozenset({"loss"})
    survives_restart: ClassVar[bool] = False
    limit, drift, size = 5.0, 0.5, 128

    def __init__(self) -> None:
        self._window = Window(self.size)
        self._sum = 0.0

    def push(self, reading: Reading) -> bool:
        loss = reading.loss
        if loss is None or not math.isfinite(loss):
            return loss is not None
        if self._window.full:
            deviation = float(self._window.values.std())
            if deviation > 0:
                above = (loss - float(self._window.values.mean())) / deviation
                self._sum = max(0.0, self._sum + above - self.drift)
        self._window.push(loss)
        return self._sum > self.limit
