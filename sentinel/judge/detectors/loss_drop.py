"""A sudden drop of the loss: learned from only once it has lasted.

A block's median below the level by max(2 sigma, 2 %) and three times what the level falls by in a block: nothing is
learned until it has lasted for the patience and three blocks; then it is the level. Within 16 samples of a resume, with
an LR no lower than 70 % of the one before, it is an event (data seen before), and a rise back to the old level is its
end. Without a resume and such a lower LR, from a level that stood for 128 samples: so for ten patiences.
"""

from __future__ import annotations

import math
from collections import deque

from sentinel.judge.detectors.detector import Block, Detector, Known, Reset, ResumeDrop
from sentinel.judge.noise_band import BLOCK

_FALLS = 3  # Times what the loss falls by in a block that a drop must exceed: a level lags a steady fall by 1.5 blocks
_LEAST_BLOCKS = 3  # Blocks that a drop must have lasted for, however many steps they are apart
_SETTLES_BLOCKS = 5  # Blocks after an episode in which the level follows: it stood while the loss went on falling
_KEPT_BLOCKS = 12  # Blocks of a drop that a band is learned from when it is accepted
_AFTER_RESUME = 2 * BLOCK  # Samples since a resume within which a drop is of the resume
_LOWER_LR = 0.7  # Share of the LR from before the resume, or the drop, below which the lower LR explains a drop
_KNOWN_PATIENCES = 10  # Patiences from the first step of a drop in which the band from before it is not forgotten


class LossDrop(Detector):
    """Data that repeats itself makes the loss drop at once and return to its old level soon: that is no divergence."""

    def reset(self, why: Reset) -> None:
        if why is Reset.SETTINGS:
            self._forget()

    def _forget(self) -> None:
        self._unsettled = 0
        self._since: int | None = None
        self._depth = 0.0
        self._resumed = False
        self._level_before = math.nan
        self._back_at = -math.inf  # Half-way back to the level from before a drop that was learned, nats
        self._lrs: deque[float] = deque(maxlen=_SETTLES_BLOCKS)  # of the last blocks that were of no drop
        self._blocks: deque[list[float]] = deque(maxlen=_KEPT_BLOCKS)

    def learn(self, block: Block, known: Known) -> None:
        """Pauses the band while the block is part of a drop that has not lasted for a patience yet."""
        if known.baseline.episode is not None:
            self._unsettled = _SETTLES_BLOCKS
        if self._unsettled:
            self._unsettled -= 1
        past = known.baseline
        if block.last_step > past.ceiling_until:
            past.ceiling, past.ceiling_until, past.before_drop = -math.inf, math.inf, -math.inf
        known.band_paused = not self._unsettled and self._doubted(block, known)
        known.drop_lasts = past.before_drop > -math.inf and block.median < self._back_at
        if self._since is None and known.lr is not None:
            self._lrs.append(known.lr)
        if known.resume_drop is not None and known.resume_drop.lasts:
            self._follow(known.resume_drop, block, known)

    def _follow(self, drop: ResumeDrop, block: Block, known: Known) -> None:
        """The drop is over once the loss is half-way back to the level from before it."""
        depth = max(drop.depth, self._level_before - block.median) if self._since is not None else drop.depth
        known.resume_drop = ResumeDrop(drop.step, depth, block.median < self._level_before - depth / 2)

    def _doubted(self, block: Block, known: Known) -> bool:
        band = known.baseline.band
        if not band.ready or math.isinf(known.thresholds.band_sigmas):
            return False
        depth = band.level - block.median
        if self._since is None and not _is_drop(depth, known):
            return False
        since = self._begin(block, known) if self._since is None else self._since
        self._depth = max(self._depth, depth)
        if depth < self._depth / 2:
            self._since = None
            return _is_drop(depth, known)  # a block that is partly of the drop
        self._blocks.append([loss for _, loss in block.losses])
        if len(self._blocks) >= _LEAST_BLOCKS and block.last_step - since >= known.thresholds.patience_steps:
            self._accept(known)
        return True

    def _begin(self, block: Block, known: Known) -> int:
        self._since, self._depth = block.first_step, 0.0
        self._blocks.clear()
        resumed, band = known.resumed_step, known.baseline.band
        seen = sum(1 for step, _ in known.recent if resumed is not None and step >= resumed)
        lr, lr_before = known.lr, known.lr_before_resume
        lower_lr = lr is not None and lr_before is not None and lr < _LOWER_LR * lr_before
        self._resumed = resumed is not None and 0 < seen <= _AFTER_RESUME and not lower_lr
        if self._resumed:
            self._level_before = band.level
            known.resume_drop = ResumeDrop(block.first_step, band.level - block.median)
            what = f"the loss dropped from {band.level:.3f} to {block.median:.3f} after the resume at step {resumed}"
            known.findings.change(block.first_step, f"{what}: data that it has seen before, or other data; no progress")
        return block.first_step

    def _accept(self, known: Known) -> None:
        past, band, lr = known.baseline, known.baseline.band, known.lr
        lower_lr = lr is not None and bool(self._lrs) and lr < _LOWER_LR * max(self._lrs)
        if self._resumed:
            past.ceiling, past.ceiling_until, past.before_drop = band.upper, math.inf, -math.inf
        elif self._since is not None and not lower_lr and band.has_stood(self._depth / 2):
            self._back_at = band.level - self._depth / 2
            past.ceiling, past.before_drop = (
                max(past.ceiling, min(band.upper, band.level + self._depth)),
                max(past.before_drop, band.level),
            )
            past.ceiling_until = self._since + _KNOWN_PATIENCES * known.thresholds.patience_steps
        self._since = None
        band.clear()
        for losses in self._blocks:
            band.learn(losses)


def _is_drop(depth: float, known: Known) -> bool:
    """Whether a block's median that far below the level is no learning: it has less than half of one's noise."""
    if depth <= 0:
        return False
    t, band = known.thresholds, known.baseline.band
    least = max(t.band_sigmas * band.sigma / 3, t.band_floor * abs(band.level))
    return depth > least and depth > least + _FALLS * band.falling
