"""The standing schedules against the first steps that an attempt has made."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any

from sentinel.plan.evidence import Evidence, same
from sentinel.plan.proof_value import Proof
from sentinel.vocabulary.pacing import LrSchedule, SeqlenSchedule
from sentinel.vocabulary.training_settings import TrainingSettings

__all__ = ["OfSteps", "of_first_steps"]

_PRINTED = 1e-3
"""Logs print a learning rate to four digits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OfSteps:
    """What the first steps say of a schedule."""

    answer: Proof
    expected: Any
    seen: Any
    why: str | None = None


def of_first_steps(
    standing: TrainingSettings, evidence: Evidence, changed: Collection[str], *, in_script: bool
) -> Iterator[tuple[str, str, OfSteps]]:
    """(key of TrainingSettings, what is checked, the answer) of each schedule that the steps' readings can speak of.

    `in_script`: what is `changed` was written into the options of a job script, in that trainer's own form; the rest
    stands there as it did.
    """
    lr = None if in_script and "lr" not in changed else standing.lr
    seqlen = None if in_script and "seqlen" not in changed else standing.seqlen
    if lr is not None:
        found = _lr_in_script(lr, evidence) if in_script else _lr(lr, evidence)
        if found is not None:
            yield "lr", "lr of the first steps", found
    if seqlen is not None and (lengths := _seqlen(seqlen, evidence, in_script=in_script)) is not None:
        yield "seqlen", "seqlen of the first steps", lengths


def _lr(lr: LrSchedule, evidence: Evidence) -> OfSteps | None:
    """Where the schedule counts steps: it gives the learning rate of each."""
    seen = dict(evidence.learning_rates())
    if not seen or {lr.unit, lr.decay_unit or lr.unit} != {"steps"}:
        return None
    for step, value in seen.items():
        if not same(value, lr.lr(step=step), _PRINTED):
            expected = lr.lr(step=step)
            return OfSteps(answer=Proof.CONTRADICTED, expected=expected, seen=value, why=f"the lr of step {step}")
    first = min(seen)
    return OfSteps(answer=Proof.CONFIRMED, expected=lr.lr(step=first), seen=seen[first])


def _lr_in_script(lr: LrSchedule, evidence: Evidence) -> OfSteps:
    """The trainer performs the change in its own way: what counts is that the same steps have another lr than before.

    No lr may lie above the peak.
    """
    seen = dict(evidence.learning_rates())
    highest = max(seen.values(), default=None)
    if highest is not None and highest > lr.peak * (1 + _PRINTED):
        return OfSteps(answer=Proof.CONTRADICTED, expected=f"at most {lr.peak:g}", seen=highest)
    pairs = [(value, evidence.lr_before[step]) for step, value in seen.items() if evidence.lr_before.get(step)]
    if not pairs:
        return OfSteps(answer=Proof.NOT_VERIFIED, expected="another lr than before", seen=highest)
    if all(same(now, old, _PRINTED) for now, old in pairs):
        why = "the same steps had the same lr before"
        return OfSteps(answer=Proof.CONTRADICTED, expected="another lr than before", seen=highest, why=why)
    return OfSteps(answer=Proof.CONFIRMED, expected="another lr than before", seen=highest)


def _seqlen(seqlen: SeqlenSchedule, evidence: Evidence, *, in_script: bool) -> OfSteps | None:
    """Each step's length, as far as it can be foreseen; where a script performs it, as far as it is a warmup at all."""
    for sample in evidence.samples:
        expected, seen = seqlen.foreseen(sample.global_step), sample.seqlen
        if expected is None or seen is None:
            continue
        if seen == expected or (in_script and seen < seqlen.full):
            continue
        why = f"the length of step {sample.global_step}"
        return OfSteps(answer=Proof.CONTRADICTED, expected=expected, seen=seen, why=why)
    first = next((s for s in evidence.samples if s.seqlen is not None), None)
    if first is None:
        if in_script:
            return OfSteps(answer=Proof.NOT_VERIFIED, expected=seqlen.to_json(), seen=None)
        return None
    return OfSteps(answer=Proof.CONFIRMED, expected=seqlen.foreseen(first.global_step), seen=first.seqlen)
