"""Whether a schedule is in force: by the schedule that the attempt reports, and by its values at the first steps."""

from __future__ import annotations

from collections.abc import Iterator

from sentinel.plan.evidence import PRINTED, Evidence, Finding, same
from sentinel.plan.proof_value import Proof
from sentinel.vocabulary.pacing import LrSchedule, SeqlenSchedule

__all__ = ["Seen", "exactly", "lr_seen", "seqlen_seen"]

Seen = Iterator[tuple[str, Finding]]
"""(what is checked, what was found)."""


def lr_seen(lr: LrSchedule, evidence: Evidence, *, in_script: bool, changed: bool) -> Seen:
    """The LR as it is reported, of the first step, and of the steps that were made.

    Where the change was written into a job script, that trainer performs it in its own form: what is `changed` shows
    in its steps, and the rest stands there as it did.
    """
    started = evidence.started
    if in_script:
        if changed:
            yield "lr of the first steps", _lr_in_script(lr, evidence)
        return
    reported = exactly(lr.to_json(), started.lr_schedule)
    only_asked_for = evidence.reported("lr_schedule") is None and not evidence.learning_rates()
    if only_asked_for and reported.answer is Proof.CONFIRMED:
        reported = Finding(answer=Proof.NOT_VERIFIED, seen=reported.seen, expected=reported.expected)
    yield "lr_schedule", reported
    # Where it counts tokens, it counts those that random-LTD has left, if the trainer reports them.
    tokens = started.consumed_tokens if started.effective_tokens is None else started.effective_tokens
    first = lr.lr(step=(started.resumed_from or 0) + 1, consumed_tokens=tokens or 0)
    yield "lr of the first step", exactly(first, started.lr)
    if (found := _lr_of_steps(lr, evidence)) is not None:
        yield "lr of the first steps", found


def seqlen_seen(seqlen: SeqlenSchedule, evidence: Evidence, *, in_script: bool, changed: bool) -> Seen:
    """The sequence length, likewise."""
    started = evidence.started
    if not in_script:
        yield "seqlen_schedule", exactly(seqlen.to_json(), started.seqlen_schedule)
        if (first := seqlen.foreseen((started.resumed_from or 0) + 1)) is not None:
            yield "seqlen of the first step", exactly(first, started.seqlen)
    if (changed or not in_script) and (found := _lengths(seqlen, evidence, in_script=in_script)) is not None:
        yield "seqlen of the first steps", found


def exactly(expected: object, reported: object) -> Finding:
    """Equal as JSON holds them, numbers to 1 part in 10^9; what was not reported is not verified."""
    if reported is None:
        return Finding(answer=Proof.NOT_VERIFIED, expected=expected)
    equal = expected == reported
    if isinstance(expected, float) and isinstance(reported, int | float):
        equal = same(expected, reported)
    return Finding(answer=Proof.CONFIRMED if equal else Proof.CONTRADICTED, seen=reported, expected=expected)


def _lr_of_steps(lr: LrSchedule, evidence: Evidence) -> Finding | None:
    """Where the schedule counts steps: it gives the learning rate of each."""
    seen = evidence.learning_rates()
    if not seen or {lr.unit, lr.decay_unit or lr.unit} != {"steps"}:
        return None
    for step, value in seen.items():
        if not same(value, lr.lr(step=step), PRINTED):
            why = f"the lr of step {step}"
            return Finding(answer=Proof.CONTRADICTED, expected=lr.lr(step=step), seen=value, why=why)
    first = min(seen)
    return Finding(answer=Proof.CONFIRMED, expected=lr.lr(step=first), seen=seen[first])


def _lr_in_script(lr: LrSchedule, evidence: Evidence) -> Finding:
    """What counts is that the same steps have another lr than before. No lr may lie above the peak."""
    highest = max(evidence.learning_rates().values(), default=None)
    if highest is not None and highest > lr.peak * (1 + PRINTED):
        return Finding(answer=Proof.CONTRADICTED, expected=f"at most {lr.peak:g}", seen=highest)
    pairs, another = evidence.same_steps(), "another lr than before"
    if not pairs:
        return Finding(answer=Proof.NOT_VERIFIED, expected=another, seen=highest)
    if all(same(now, old, PRINTED) for now, old in pairs):
        why = "the same steps had the same lr before"
        return Finding(answer=Proof.CONTRADICTED, expected=another, seen=highest, why=why)
    return Finding(answer=Proof.CONFIRMED, expected=another, seen=highest)


def _lengths(seqlen: SeqlenSchedule, evidence: Evidence, *, in_script: bool) -> Finding | None:
    """Each step's length, as far as it can be foreseen; where a script performs it, as far as it is a warmup at all."""
    first = None
    for sample in evidence.samples:
        expected, seen = seqlen.foreseen(sample.global_step), sample.seqlen
        first = sample if first is None and seen is not None else first
        if expected is None or seen in (None, expected) or (in_script and seen is not None and seen < seqlen.full):
            continue
        why = f"the length of step {sample.global_step}"
        return Finding(answer=Proof.CONTRADICTED, expected=expected, seen=seen, why=why)
    if first is not None:
        return Finding(answer=Proof.CONFIRMED, expected=seqlen.foreseen(first.global_step), seen=first.seqlen)
    return Finding(answer=Proof.NOT_VERIFIED, expected=seqlen.to_json()) if in_script else None
