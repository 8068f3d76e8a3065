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

# attention_logits: the largest attention logit has passed 100 and grows, until a softmax has one key left (Wortsman et
# al. 2023, arXiv:2309.14322, 3.1); lagging_variance: the gradients have grown at once, and the root of Adam's variance
# has not followed yet, so that updates are too large (Wortsman et al. 2023, arXiv:2304.13013, 3.3)
Instability = Literal["attention_logits", "lagging_variance"]

_GREW = 4.0  # Gradients, by themselves and over sqrt(v): 60-fold where v lags, 2.2-fold at most where it did not
_LASTS = 5  # Readings from the first grown one on, most of which have grown: one batch with a large gradient is none
_BEFORE_STEPS = 10  # Before the early end of the onset: how far back the gradients may have grown
_QUIET_STEPS = 500  # Before these: their median
_MIN_QUIET = 20
_LOGITS_GREW = 1.5  # Against the oldest third of the readings: large ones that stand are healthy
_NOW = 3  # Logits whose median is the level at the onset


@dataclass(frozen=True, slots=True, kw_only=True)
class InstabilitySeen:
    kind: Instability
    first_step: int  # From which it shows
    value: float  # The largest attention logit shortly before the onset; or by how many times the gradients grew

    @property
    def sentence(self) -> str:
        if self.kind == "attention_logits":
            return f"attention logits above {LIMIT:g} since step {self.first_step}, {self.value:.3g} before the onset"
        return f"Adam's variance lags: gradients {self.value:.3g}-fold from step {self.first_step} on"


def instability_before(
    stretches: Sequence[Readings], onset_range: tuple[int, int], clip: float | None, first_step: int = 0
) -> InstabilitySeen | None:
    """What the readings before an onset show, from `first_step` on; None where they show neither, or were not measured.
    `stretches`: one lineage, from well before the onset to some steps past it. `clip`: the largest norm of the gradient
    that an update is made of, 0 for no limit; where it is None, the variance is not judged. Where both show it is the
    attention logits, which take long to grow."""
    return _grown(stretches, onset_range[0], first_step) or _lagging(stretches, onset_range, clip)


def _grown(stretches: Sequence[Readings], early: int, first_step: int) -> InstabilitySeen | None:
    steps, logits = _column(stretches, ""), _column(stretches, "attention_logit_max")
    there = (steps >= first_step) & (steps < early) & np.isfinite(logits)
    steps, logits = steps[there], logits[there]
    if len(logits) < 2 * _NOW or not (level := float(np.median(logits[-_NOW:]))) > LIMIT:
        return None
    if level < _LOGITS_GREW * np.median(logits[: max(_NOW, len(logits) // 3)]):
        return None
    below = np.flatnonzero(logits[:-1] <= LIMIT)
    since = steps[below[-1] + 1] if len(below) else steps[0]
    return InstabilitySeen(kind="attention_logits", first_step=int(since), value=level)


def _lagging(stretches: Sequence[Readings], onset_range: tuple[int, int], clip: float | None) -> InstabilitySeen | None:
    if clip is None:
        return None
    early, late = onset_range
    begin = early - _BEFORE_STEPS
    steps, norms, roots = (_column(stretches, name) for name in ("", "grad_norm", "adam_variance_l1"))
    measured = ~np.isnan(roots) & np.concatenate([r.has("grad_norm") for r in stretches]) & (roots > 0)
    steps, norms, roots = steps[measured], np.minimum(norms[measured], clip or np.inf), roots[measured]
    taken = np.isfinite(norms) & np.concatenate([r.updated for r in stretches])[measured]
    norms = np.where(taken, norms, 0.0)  # a step without an update has not grown
    quiet = taken & (steps >= begin - _QUIET_STEPS) & (steps < begin)
    if quiet.sum() < _MIN_QUIET:
        return None
    of_norms, of_ratios = float(np.median(norms[quiet])), float(np.median((norms / roots)[quiet]))
    if not min(of_norms, of_ratios) > 0:
        return None
    grew = np.minimum(norms / of_norms, norms / roots / of_ratios)
    began = (grew >= _GREW) & np.concatenate([[False], grew[:-1] < _GREW])
    for place in np.flatnonzero((steps >= begin) & (steps < late) & began):
        after = grew[place : place + _LASTS]
        if len(after) == _LASTS and (lasting := float(np.median(after))) >= _GREW:
            return InstabilitySeen(kind="lagging_variance", first_step=int(steps[place]), value=lasting)
    return None


def _column(stretches: Sequence[Readings], name: str) -> NDArray[np.float64]:
    """(n,) of all stretches, nan where it was not measured; "": the steps."""
    return np.concatenate([r.values(name) if name else r.steps.astype(np.float64) for r in stretches])
