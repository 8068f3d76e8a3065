"""Which known instability an onset shows, by the readings before the loss left its band: a rung of the ladder can be
for one alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from sentinel.judge.detectors.attention_logits import LIMIT
from sentinel.judge.readings import Readings

# attention_logits: the largest attention logit has passed 100, where a softmax has one key left (Wortsman et al. 2023,
# arXiv:2309.14322, 3.1); lagging_variance: the gradients have grown at once, and the root of Adam's variance has not
# followed yet, so that updates are too large (Wortsman et al. 2023, arXiv:2304.13013, 3.3)
Instability = Literal["attention_logits", "lagging_variance"]

_GREW = 4.0  # Gradients over sqrt(v), against their median before: 60 where v lags, 2.2 at most where it does not
_LASTS = 5  # Readings from the first grown one on, half of which have grown: one batch with a large gradient is none
_BEFORE_STEPS = 10  # Before the early end of the onset: how far back the gradients may have grown
_QUIET_STEPS = 100  # Before these: their median
_MIN_QUIET = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class InstabilitySeen:
    kind: Instability
    first_step: int  # From which it shows
    value: float  # The largest attention logit up to the onset; or by how many times the gradients grew over sqrt(v)

    @property
    def sentence(self) -> str:
        if self.kind == "attention_logits":
            return f"attention logits above {LIMIT:g} since step {self.first_step}, up to {self.value:.3g}"
        return f"Adam's variance lags: gradients over its root {self.value:.3g}-fold from step {self.first_step} on"


def instability_before(
    stretches: Sequence[Readings], onset_range: tuple[int, int], clip: float | None
) -> InstabilitySeen | None:
    """What the readings around an onset show; None where they show neither, or were not measured. `stretches`: one
    lineage, from well before the onset to some steps past it. `clip`: the largest norm of the gradient that an update
    is made of, 0 for no limit; where it is None, the variance is not judged. Where both show, it is the variance."""
    return _lagging(stretches, onset_range, clip) or _grown(stretches, onset_range[1])


def _lagging(stretches: Sequence[Readings], onset_range: tuple[int, int], clip: float | None) -> InstabilitySeen | None:
    if clip is None:
        return None
    steps, norms, roots = (_column(stretches, name) for name in ("", "grad_norm", "adam_variance_l1"))
    there = np.isfinite(norms) & (roots > 0) & np.concatenate([r.updated for r in stretches])
    steps, ratios = steps[there], np.minimum(norms[there], clip or np.inf) / roots[there]
    early, late = onset_range
    begin = early - _BEFORE_STEPS
    quiet = ratios[(steps >= begin - _QUIET_STEPS) & (steps < begin)]
    if len(quiet) < _MIN_QUIET or not (level := float(np.median(quiet))) > 0:
        return None
    for place in np.flatnonzero((steps >= begin) & (steps <= late) & (ratios >= _GREW * level)):
        lasting = float(np.median(ratios[place : place + _LASTS])) / level
        if lasting >= _GREW:
            return InstabilitySeen(kind="lagging_variance", first_step=int(steps[place]), value=lasting)
    return None


def _grown(stretches: Sequence[Readings], late: int) -> InstabilitySeen | None:
    steps, logits = _column(stretches, ""), _column(stretches, "attention_logit_max")
    above = (steps <= late) & (logits > LIMIT)
    if not above.any():
        return None
    first, largest = int(steps[above][0]), float(logits[above].max())
    return InstabilitySeen(kind="attention_logits", first_step=first, value=largest)


def _column(stretches: Sequence[Readings], name: str) -> NDArray[np.float64]:
    """(n,) of all stretches, nan where it was not measured; "": the steps."""
    return np.concatenate([r.values(name) if name else r.steps.astype(np.float64) for r in stretches])
