"""What a restart was to change against what the attempt reports: the proof that the mitigation took effect."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from sentinel.plan.incident import Rollback
from sentinel.vocabulary.sample import RunStarted

__all__ = ["Check", "prove"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One thing that was to be so."""

    what: str
    expected: Any
    reported: Any
    """None when the trainer did not say."""

    @property
    def holds(self) -> bool:
        """Whether the report equals the expectation; numbers to 1 part in 10^9."""
        if isinstance(self.expected, float) and isinstance(self.reported, int | float):
            return abs(self.expected - self.reported) <= 1e-9 * max(abs(self.expected), abs(self.reported))
        return bool(self.expected == self.reported)

    def to_json(self) -> dict[str, Any]:
        """The check with its answer, for the incident log."""
        return asdict(self) | {"holds": self.holds}


def prove(rollback: Rollback, started: RunStarted) -> tuple[Check, ...]:
    """Everything that the decision fixes, compared with what the attempt says that it runs with.

    An attempt that was restarted after a crash resumes later than the target: then what is checked is what stands.
    """
    overrides, anchor = rollback.overrides, rollback.overrides.anchor
    checks = [Check(what="rollback", expected=rollback.id, reported=started.rollback)]
    resumed = started.resumed_from or 0
    if resumed <= anchor.global_step:
        checks.append(Check(what="resumed_from", expected=anchor.global_step, reported=resumed))
        if anchor.consumed_samples is not None:
            expected = anchor.consumed_samples
            checks.append(Check(what="first_sample_index", expected=expected, reported=started.first_sample_index))
    if overrides.once is not None:
        applied = overrides.once.id in started.applied_once
        checks.append(Check(what=f"one-shot changes of {overrides.once.id}", expected=True, reported=applied))
        if overrides.once.seed is not None:
            checks.append(Check(what="seed", expected=overrides.once.seed, reported=started.seed))
    lr, seqlen = overrides.standing.lr, overrides.standing.seqlen
    if lr is not None:
        checks.append(Check(what="lr_schedule", expected=lr.to_json(), reported=started.lr_schedule))
        first_lr = lr.lr(step=resumed + 1, consumed_tokens=started.consumed_tokens or 0)
        checks.append(Check(what="lr of the first step", expected=first_lr, reported=started.lr))
    if seqlen is not None:
        checks.append(Check(what="seqlen_schedule", expected=seqlen.to_json(), reported=started.seqlen_schedule))
        checks.append(
            Check(what="seqlen of the first step", expected=seqlen.seqlen(resumed + 1), reported=started.seqlen)
        )
    return tuple(checks)
