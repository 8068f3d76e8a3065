"""Whether a trainer repeats itself, by the controls of a bisect. Pure."""

from __future__ import annotations

import math

from sentinel.lab.probes.probe import ProbeResult


def repeats(control: ProbeResult | None, again: ProbeResult | None) -> str:
    """Whether the trainer repeats itself bit for bit, as a sentence."""
    if control is None or not control.compared:
        return "it is not known whether the trainer repeats itself"
    if control.exact:
        return f"the trainer repeats itself bit for bit: {control.compared} steps of the control are as the run's"
    if again is None:
        return f"the control differs from the run from step {control.differs_at} on, in {first_reading(control)}"
    if control.losses == again.losses:
        return "the trainer repeats itself bit for bit: two controls agree in every step"
    return f"the trainer does not repeat itself: two controls differ by up to {noise_floor(control, again):.3g} nats"


def noise_floor(control: ProbeResult, again: ProbeResult) -> float:
    """The largest difference of the losses of the two controls at one step, nats; 0 where they agree."""
    other = dict(again.losses)
    found = [abs(loss - other[step]) for step, loss in control.losses if step in other]
    return max((d for d in found if math.isfinite(d)), default=0.0)


def first_reading(result: ProbeResult) -> str:
    """The reading of a step that differs first from the run's."""
    return result.differs_in[0] if result.differs_in else "nothing"
