"""A run that ended with a rising loss, after too few samples for a noise band."""

from __future__ import annotations

from sentinel.judge.detectors.detector import Detector, Finding, Known

_SAMPLES = 5
# What is called rising: so many losses in a row, and so many times the first. Of five independent losses, one order in
# 120 is this.
_FACTOR = 1.25


class RisingAtEnd(Detector):
    """The last five losses have only risen, and by a quarter in all."""

    def end(self, known: Known) -> Finding | None:
        episode = known.baseline.episode
        if known.baseline.band.ready or (episode is not None and episode.back_step is None):
            return None
        last = list(known.recent)[-_SAMPLES:]
        losses = [loss for _, loss in last]
        if len(losses) < _SAMPLES or losses[-1] < _FACTOR * losses[0] or losses != sorted(set(losses)):
            return None
        first = last[1][0]
        reason = f"the loss has only risen since step {first}: from {losses[0]:.3f} to {losses[-1]:.3f}"
        return Finding(onset_range=(first, first), reason=reason)
