"""Whether the LR and the sequence length follow what was decided: by the reported schedules, and by the first steps."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from sentinel.plan.evidence import PRINTED, Evidence, Finding, exactly, same
from sentinel.plan.incident import Proof
from sentinel.vocabulary.pacing import LrSchedule, SeqlenSchedule

_WARMUP = ("peak", "warmup", "unit", "anchor")  # of an LR schedule: what Megatron's schedulers say and a rung changes

Seen = Iterator[tuple[str, Finding]]  # (what is checked, what was found)


def lr_seen(lr: LrSchedule, evidence: Evidence, *, in_script: bool, changed: bool) -> Seen:
    """The LR as it is reported, of the first step, and of the steps that were made. Where the change was written into a
    job script, that trainer performs it in its own form: what is `changed` shows in its steps, and the rest stands
    there as it did."""
    if in_script:
        yield from _lr_of_script(lr, evidence) if changed else ()
        return
    started, reported = evidence.started, exactly(lr.to_json(), evidence.started.lr_schedule)
    only_asked_for = evidence.reported("lr_schedule") is None and not evidence.learning_rates()
    if only_asked_for and reported.answer is Proof.CONFIRMED:
        reported = replace(reported, answer=Proof.NOT_VERIFIED)
    yield "lr_schedule", reported
    # Where it counts tokens, it counts those that random-LTD has left, if the trainer reports them.
    tokens = started.consumed_tokens if started.effective_tokens is None else started.effective_tokens
    first = lr.lr(step=(started.resumed_from or 0) + 1, consumed_tokens=tokens or 0)
    yield "lr of the first step", exactly(first, started.lr)
    if (found := _lr_of_steps(lr, evidence)) is not None:
        yield "lr of the first steps", found


def seqlen_seen(seqlen: SeqlenSchedule, evidence: Evidence, *, in_script: bool, changed: bool) -> Seen:
    started = evidence.started
    if in_script and changed and (reported := evidence.reported("seqlen_schedule")) is not None:
        yield "seqlen_schedule", _same_lengths(seqlen, reported)
    if not in_script:
        yield "seqlen_schedule", exactly(seqlen.to_json(), started.seqlen_schedule)
        if (first := seqlen.foreseen((started.resumed_from or 0) + 1)) is not None:
            yield "seqlen of the first step", exactly(first, started.seqlen)
    if (changed or not in_script) and (found := _lengths(seqlen, evidence, in_script=in_script)) is not None:
        yield "seqlen of the first steps", found


def _lr_of_steps(lr: LrSchedule, evidence: Evidence) -> Finding | None:
    seen = evidence.learning_rates()
    if not seen or {lr.unit, lr.decay_unit or lr.unit} != {"steps"}:
        return None
    for step, value in seen.items():
        if not same(value, lr.lr(step=step), PRINTED):
            return Finding(Proof.CONTRADICTED, value, f"the lr of step {step}", lr.lr(step=step))
    first = min(seen)
    return Finding(Proof.CONFIRMED, seen[first], expected=lr.lr(step=first))


def _same_lengths(seqlen: SeqlenSchedule, reported: Mapping[str, Any]) -> Finding:
    """A script writes a schedule as a staircase: what counts are the lengths of the steps, up to 200 of them."""
    told, first = SeqlenSchedule.from_json(dict(reported)), seqlen.anchor_step + 1
    last = max(first, seqlen.end_step or first) + 1
    for step in {*range(first, last, max(1, (last - first) // 200)), last}:
        wanted, seen = seqlen.foreseen(step), told.foreseen(step)
        if wanted != seen:
            return Finding(Proof.CONTRADICTED, seen, f"the length that is planned for step {step}", wanted)
    return Finding(Proof.CONFIRMED, dict(reported), expected=seqlen.to_json())


def _lr_of_script(lr: LrSchedule, evidence: Evidence) -> Seen:
    """The trainer's own scheduler, where the trainer reports it; and the steps: what counts is that the same steps have
    another lr than before, and none lies above the peak."""
    reported = evidence.reported("lr_schedule")
    if reported is not None:
        wanted, told = ({name: each.get(name) for name in _WARMUP} for each in (lr.to_json(), reported))
        yield "lr_schedule", exactly(wanted, told)
    what, another, pairs = "lr of the first steps", "another lr than before", evidence.same_steps()
    highest = max(evidence.learning_rates().values(), default=None)
    if highest is not None and highest > lr.peak * (1 + PRINTED):
        yield what, Finding(Proof.CONTRADICTED, highest, expected=f"at most {lr.peak:g}")
    elif not pairs and (reported is None or highest is None):
        yield what, Finding(Proof.NOT_VERIFIED, highest, expected=another)
    elif pairs and all(same(now, old, PRINTED) for now, old in pairs):
        yield what, Finding(Proof.CONTRADICTED, highest, "the same steps had the same lr before", another)
    else:
        yield what, Finding(Proof.CONFIRMED, highest, expected=another)


def _lengths(seqlen: SeqlenSchedule, evidence: Evidence, *, in_script: bool) -> Finding | None:
    """Each step's length, as far as it can be foreseen; where a script performs it, as far as it is a warmup at all."""
    first = None
    for sample in evidence.samples:
        expected, seen = seqlen.foreseen(sample.global_step), sample.seqlen
        first = sample if first is None and seen is not None else first
        if expected is None or seen in (None, expected) or (in_script and seen is not None and seen < seqlen.full):
            continue
        return Finding(Proof.CONTRADICTED, seen, f"the length of step {sample.global_step}", expected)
    if first is not None:
        return Finding(Proof.CONFIRMED, first.seqlen, expected=seqlen.foreseen(first.global_step))
    return Finding(Proof.NOT_VERIFIED, expected=seqlen.to_json()) if in_script else None
