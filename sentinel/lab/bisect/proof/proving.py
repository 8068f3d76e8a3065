"""Whether a probe was what it says, by its own journal over all of its steps. Pure.

A probe is proven as a restart is: settings by the start report and the steps, LR, sequence length and global batch step
by step beside the run's own, skipped and reordered samples by the digests of what was trained on, dtype and the reset
of Adam's moments by what the trainer reports. What is contradicted or not confirmed makes the probe "not tried": no
evidence for a cause and none against.

What a probe does not ask about is as it was in the run, step by step: LR to 1 %, sequence length and global batch
exactly. A changed LR is the run's own times the ratio of the two schedules, to 5 %. A longer warmup that shows no
divergence has taken its last 8 steps at the LR that the run's own schedule has there (99 %), and at no less than half
of the LR at the onset. The control is the run at its first step: the same samples, LR, length.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import replace

from sentinel.judge.history import Attempt
from sentinel.lab.bisect import causes as bisect
from sentinel.lab.bisect.causes import AGAIN, CONTROL, Question
from sentinel.lab.bisect.proof.beside_run import BesideRun
from sentinel.lab.bisect.proof.lr import learning_rates, peak, unchanged, unknown_rates
from sentinel.lab.bisect.proof.samples import read_in_spite, same_order, skips, unknown_order, unknown_whether_read
from sentinel.lab.bisect.record.changes import undo_of
from sentinel.lab.probes.probe import Ended, Probe, ProbeResult, result_of
from sentinel.plan.incident.incident import Proof, Rollback
from sentinel.plan.starts.evidence import Evidence, same
from sentinel.plan.starts.proof import prove
from sentinel.vocabulary.overrides import Overrides
from sentinel.vocabulary.sample import RunStarted

# checks of a restart that are made here over all steps
_BY_STEPS: tuple[str, ...] = ("rollback", "resumed_from", "lr", "seqlen", "first_sample", "skipped", "ranges")
_BY_STEPS = (*_BY_STEPS, "one-shot", "seed", "moments", "total_tokens")
_ASKS_LR = (bisect.LOWER_LR, bisect.WARMUP, undo_of("lr"))
_ASKS_LENGTH = (bisect.SLW, undo_of("seqlen"))
_ASKS_BATCH = (undo_of("batch_size"),)
_ASKS_DATA = (bisect.ORDER, undo_of("curriculum"), *_ASKS_LENGTH, *_ASKS_BATCH)


def shown_by(
    probe: Probe, attempt: Attempt | None, question: Question, ended: Ended | None = None, seconds: float = 0.0
) -> ProbeResult:
    """What the probe has shown; "not tried", with the reason, where its journal does not confirm what it says."""
    result = result_of(probe, attempt, question.window, ended=ended, seconds=seconds)
    if attempt is None or not attempt.samples:
        return result
    why = contradicted(probe, attempt, question)
    if why is None and result.outcome != "unknown":
        why = next(_unconfirmed(_beside(probe, attempt, question), calm=result.outcome == "calm"), None)
    return result if why is None else replace(result, outcome="not tried", why=why)


def contradicted(probe: Probe, attempt: Attempt | None, question: Question) -> str | None:
    """What of the probe its journal contradicts by now, as a sentence: no later step can mend it. None for nothing."""
    if attempt is None or not attempt.samples:
        return None
    return next(_contradictions(_beside(probe, attempt, question)), None)


def _beside(probe: Probe, attempt: Attempt, question: Question) -> BesideRun:
    samples = [s for s in attempt.samples if s.global_step <= probe.until_step]
    started = attempt.started or RunStarted(attempt=attempt.number, time_unix_s=math.nan)
    return BesideRun(probe, started, samples, question.window, question.baseline)


def _contradictions(shown: BesideRun) -> Iterator[str]:
    name = shown.probe.name
    yield from _beginning(shown)
    yield from _repetition(shown) if name in (CONTROL, AGAIN) else _unchanged(shown)
    yield from _settings(shown, Proof.CONTRADICTED)
    if name in _ASKS_LR:
        yield from learning_rates(shown)
    if (skipped := skips(shown.probe)) is not None:
        yield from read_in_spite(shown, skipped)
    match name:
        case bisect.ORDER:
            yield from same_order(shown)
        case bisect.FP32:
            if (precision := shown.reported("precision")) != "fp32":
                yield f"it was to compute in fp32, and its trainer reports {precision or 'no precision'}"
        case bisect.MOMENTS:
            yield from _moments(shown)
        case bisect.NODE:
            yield from _node(shown)


def _unconfirmed(shown: BesideRun, *, calm: bool) -> Iterator[str]:
    """What only the whole of a probe can show, and this one has not."""
    name = shown.probe.name
    yield from _settings(shown, Proof.NOT_VERIFIED)
    if name in _ASKS_LR:
        yield from unknown_rates(shown)
    if name == bisect.WARMUP and calm:
        yield from peak(shown)
    if name in _ASKS_LENGTH:
        yield from _other_than_the_runs(shown, "seqlen", "sequence length")
    if name in _ASKS_BATCH:
        yield from _other_than_the_runs(shown, "global_batch_samples", "global batch")
    if (skipped := skips(shown.probe)) is not None:
        yield from unknown_whether_read(shown, skipped)
    if name == bisect.ORDER:
        yield from unknown_order(shown)


def _beginning(shown: BesideRun) -> Iterator[str]:
    at, first = shown.probe.global_step, shown.samples[0].global_step
    told = shown.started.resumed_from
    if told is not None and told != at:
        yield f"it resumed from step {told}, not from step {at}"
    if first <= at:
        yield f"its first step is {first}, and it was to begin after step {at}"


def _repetition(shown: BesideRun) -> Iterator[str]:
    """A control that differs later on, differs from what the run did there."""
    own, run = next(shown.pairs, (None, None))
    if own is None or run is None:
        return
    for name in ("batch_digest", "lr", "seqlen", "global_batch_samples"):
        now, before = getattr(own, name), getattr(run, name)
        if now is not None and before is not None and now != before:
            yield f"it does not repeat the run: {name} of step {own.global_step} is {now}, the run's {before}"


def _unchanged(shown: BesideRun) -> Iterator[str]:
    name = shown.probe.name
    for own, run in shown.pairs:
        step = own.global_step
        if name not in _ASKS_LR and own.lr is not None and run.lr is not None and not unchanged(own.lr, run.lr):
            yield f"its LR is {own.lr:.3g} at step {step}, the run's {run.lr:.3g}: the LR would explain its outcome too"
        if name not in _ASKS_LENGTH and None not in (own.seqlen, run.seqlen) and own.seqlen != run.seqlen:
            yield f"its samples are {own.seqlen} tokens long at step {step}, the run's {run.seqlen}"
        batches = own.global_batch_samples, run.global_batch_samples
        if name not in (*_ASKS_BATCH, *_ASKS_LENGTH) and None not in batches and batches[0] != batches[1]:
            yield f"its global batch is {batches[0]} at step {step}, the run's {batches[1]}"
        digests = own.batch_digest, run.batch_digest
        if name not in _ASKS_DATA and not skips(shown.probe) and None not in digests and digests[0] != digests[1]:
            yield f"its samples at step {step} are others than the run's"


def _settings(shown: BesideRun, answer: Proof) -> Iterator[str]:
    """The settings that a start report tells, as they are proven of a restart: those with that answer."""
    overrides, told = shown.probe.overrides, shown.started.rollback
    if overrides is None:
        return
    if told is not None and told != overrides.rollback:
        yield f"its trainer reports the overrides of {told}, not of {overrides.rollback}"
    evidence = Evidence(started=shown.started, samples=tuple(shown.samples))
    for check in prove(_as_restart(shown.probe, overrides), evidence, shown.baseline):
        if check.what.startswith(_BY_STEPS) or check.answer is not answer:
            continue
        if answer is Proof.CONTRADICTED:
            yield f"{check.what} was to be {check.expected}, and is {check.reported}"
        elif check.changed:
            yield f"{check.what} was to be {check.expected}, and the trainer does not show which is in force"


def _as_restart(probe: Probe, overrides: Overrides) -> Rollback:
    return Rollback(
        id=overrides.rollback,
        rung=probe.name,
        hypothesis="",
        target_tag=probe.tag,
        target_step=probe.global_step,
        overrides=overrides,
        changes=(),
        decided_unix_s=0.0,
        lost_steps=0,
    )


def _other_than_the_runs(shown: BesideRun, name: str, words: str) -> Iterator[str]:
    own_and_run = [(getattr(own, name), getattr(run, name)) for own, run in shown.pairs]
    if not any(None not in pair for pair in own_and_run):
        yield f"the trainer does not report the {words} of its steps"
    elif all(own == run for own, run in own_and_run if own is not None):
        yield f"its {words} is the run's own at every step"


def _moments(shown: BesideRun) -> Iterator[str]:
    at, told = shown.probe.global_step, shown.started.moments_reset_steps
    own, run = next(shown.pairs, (None, None))
    now, before = (s.adam_variance_l1 if s else None for s in (own, run))
    if own is not None and now is not None and before is not None and same(now, before, 0.01):
        yield f"Adam's variance at step {own.global_step} is the run's own: its moments were not reset"
    if told is not None and at not in told:
        yield "its trainer does not report a reset of Adam's moments"
    if told is None and (now is None or before is None or now > before / 2):
        yield "neither the trainer's report nor Adam's variance shows that the moments were reset"


def _node(shown: BesideRun) -> Iterator[str]:
    """On which host rank 0 runs; the scheduler's word stands for the others."""
    excluded = shown.probe.exclude_nodes
    if not excluded:
        return  # another environment on the same host: its process was started with it
    host = (shown.started.host or "").partition(".")[0]
    if not host:
        yield "its trainer does not report its host: whether it ran on another node is not known"
    elif any(host in _names(nodes) for nodes in excluded):
        yield f"it ran on {host}, one of the nodes that it was to leave out"


def _names(nodes: str) -> frozenset[str]:
    """Of `n[1-3,7],m`: n1, n2, n3, n7, m."""
    found = set[str]()
    for head, inside, tail in re.findall(r"([^,\[]+)(?:\[([^]]*)\]([^,\[]*))?", nodes):
        found |= {f"{head}{number}{tail}" for part in inside.split(",") for number in _numbers(part)}
    return frozenset(found)


def _numbers(part: str) -> list[str]:
    first, _, last = part.partition("-")
    if not (last.isdigit() and first.isdigit()):
        return [first]
    return [f"{n:0{len(first)}d}" for n in range(int(first), int(last) + 1)]
