"""Whether an attempt goes on with what was saved: its position, Adam's state, the settings, the loss scale, the loss.

Each check that is contradicted names its fault, and says why. What a rung has decided is no fault. Of several
contradictions the likeliest cause is named: what was loaded comes before what follows from it.

- The checkpoint, with what `latest` names and the newest one there: started from scratch, newest checkpoint torn,
  wrong checkpoint.
- Adam's state before the first update (sum and max of sqrt(v), norms of momentum and parameters), of the model, of
  each layer and of each rank in their order, with what was reported at the save, to 1 part in 10^5: optimizer state not
  loaded, first moment not loaded, shards exchanged, layers exchanged, moments rounded, weights partly loaded, wrong
  shard of one rank, wrong checkpoint (it names the step whose state it is). An older hook reports the model at the
  save, and layers at every 10th step.
- Adam's own count of its updates, with that at the save: Adam's step count.
- What overrides.json decides, with the proof: override ignored.
- Micro-batches of a step, where its samples changed by the same factor: accumulation changed.
- Learning rate, with the decided or reported schedule, the same steps before, or the last rates: scheduler lost,
  scheduler stepped twice, another learning rate.
- Consumed samples, with those at the save: samples skipped, samples replayed, data from epoch start.
- The trainer's count of epochs, with that at the save: epoch skipped, samples skipped.
- Batch digests, with those of the same steps, and of all steps before: the same three, part of a batch skipped, data
  order of another seed. The last two are told apart after 16 steps that were made before. The run's first batches again
  are no fault where an epoch ended at the save, and are not judged where that can't be known: by the length of an epoch
  or the count of epochs that is reported, by what came after the save before, by the saves before.
- Loss scale, half to twice the one at the save: loss scale reset.
- Seed, length, batch, Adam's settings, precision, with the attempt before: setting changed.
- The gradient's norm of the first step on the same batch, to 1 %, or 2 / sqrt(tokens): accumulation changed (an n-fold
  norm with the same loss), gradient differs.
- Each of the first 20 steps' losses on the same batch, as far as all batches before it were the same, to 0.25 %, or
  0.15 / sqrt(tokens), and a quarter of that more with each step: loss jumps, loss drops (the first), updates differ
  (a later one). Else the median of the first losses, to 10 % or the noise: loss jumps, loss drops.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

from sentinel.plan.incident.baseline import baseline_of
from sentinel.plan.incident.incident import Proof
from sentinel.plan.starts.audit import (
    ACCUMULATION,
    EPOCH,
    FIRST,
    REPLAYED,
    SKIPPED,
    SPOILS,
    WRONG,
    Ancestor,
    Continued,
    Start,
    StartAudit,
)
from sentinel.plan.starts.compared.losses import gradient, loss
from sentinel.plan.starts.compared.state import state
from sentinel.plan.starts.curves import data, learning_rate
from sentinel.plan.starts.epochs import EPOCH_END, epoch_samples, epochs
from sentinel.plan.starts.evidence import FIRST_STEPS, Evidence
from sentinel.plan.starts.proof import Check, confirmed, contradicted, outcome, prove, silent
from sentinel.vocabulary.training_settings import difference, settings_of

SCRATCH, TORN = "started from scratch", "newest checkpoint torn"
IGNORED, SETTING = "override ignored", "setting changed"
SCALE = "loss scale reset"

_ENOUGH = 32  # samples before the start, all with one batch and length, without which those are not compared


def whence(start: Start) -> Iterator[Check]:
    """The checkpoint that it says it resumes from."""
    newest, at = start.newest, start.resumed_from
    if newest is None or start.pointed is None or at >= newest.global_step or at in start.pointed:
        yield confirmed("checkpoint") if at else silent("checkpoint", "none was there to resume from")
        return
    if not at and (not start.samples or start.samples[0].global_step > FIRST_STEPS):
        yield silent("checkpoint", "the step that it resumed from is not reported")
        return
    torn = f", which can't be read: {newest.problem}" if newest.problem else ""
    if not at:
        why = f"attempt {start.started.attempt} began at step 0, and there is {newest.tag}{torn}"
        yield contradicted(SCRATCH, newest.global_step, 0, why)
    else:
        why = f"it resumed from step {at}, and not from {newest.tag}{torn}; nothing has decided that"
        yield contradicted(TORN if torn else WRONG, newest.global_step, at, why)


def position(start: Start, ancestor: Ancestor) -> Iterator[Check]:
    """The first step, and the samples consumed before it."""
    if not start.samples:
        return
    first, saved, at = start.samples[0], ancestor.at(start.resumed_from), start.resumed_from
    if first.global_step <= at:
        why = f"its first step is {first.global_step}, and the checkpoint is of step {at}"
        yield contradicted(REPLAYED, at + 1, first.global_step, why)
    before = saved.consumed_samples if saved is not None else None
    if before is None or first.consumed_samples is None or first.global_batch_samples is None:
        yield silent("position", "consumed samples are not reported")
        return
    made = max(1, first.global_step - at)  # the first of them are not reported where a log has every tenth step
    if made > 1 and saved is not None and saved.global_batch_samples not in (None, first.global_batch_samples):
        yield silent("position", "the batch has changed in steps that are not reported")
        return
    if not _grows_by_batches(ancestor):
        yield silent("position", "consumed samples do not grow by the samples of a step")
        return
    begun, skips = first.consumed_samples - made * first.global_batch_samples, bool(start.started.skipped_samples)
    if made > 1 and 0 < abs(begun - before) < first.global_batch_samples:
        yield silent("position", "how large the batches were that are not reported is not known")
    elif begun < before:
        why = f"{before} samples were consumed at step {at}, and it goes on from sample {begun}"
        yield contradicted(EPOCH if begun == 0 else REPLAYED, before, begun, why)
    elif begun > before and not skips and "skip_samples" not in start.decided:
        yield _passed_over(start, ancestor, before, begun)
    else:
        yield confirmed("position")


def _grows_by_batches(ancestor: Ancestor) -> bool:
    """Whether consumed samples have grown by a step's samples at any of the last steps; True where none are at hand."""
    pairs = [
        (after.consumed_samples - before.consumed_samples, after.global_batch_samples)
        for before, after in pairwise(ancestor.recent[-FIRST_STEPS:])
        if before.consumed_samples is not None and after.consumed_samples is not None
        if after.global_step == before.global_step + 1
    ]
    return not pairs or any(grown == batch for grown, batch in pairs)


def _passed_over(start: Start, ancestor: Ancestor, before: int, begun: int) -> Check:
    """Less than a batch at an epoch's end is what drop_last leaves out, where it is counted."""
    first, length = start.samples[0], epoch_samples(start, ancestor)
    if begun - before < (first.global_batch_samples or 0) and length != 0:
        if length is None:
            return silent("position", "less than a batch was passed over, and the length of an epoch is not reported")
        if before // length < (first.consumed_samples or 0) // length:
            return confirmed("position")
    why = f"{begun - before} samples after step {start.resumed_from} were not trained on"
    return contradicted(SKIPPED, before, begun, why)


def override(start: Start, ancestor: Ancestor) -> Iterator[Check]:
    """What a rung has decided, by the proof of rollbacks. A trainer that reads no overrides.json is not asked."""
    rollback, before = start.rollback, ancestor.started
    if rollback is None or not start.started.applies or len(start.samples) < FIRST_STEPS:
        return
    first = start.samples[:FIRST_STEPS]
    lr_before = {s.global_step: s.lr for s in ancestor.later if s.lr is not None}
    evidence = Evidence(started=start.started, samples=first, before=before, lr_before=lr_before)
    checks = prove(rollback, evidence, baseline_of(before))
    wrong = [check for check in checks if check.answer is Proof.CONTRADICTED]
    if outcome(checks) is not Proof.CONTRADICTED:
        yield confirmed("override")
    elif wrong:
        named = "; ".join(f"{check.what} should be {check.expected!r} and is {check.reported!r}" for check in wrong[:3])
        yield contradicted(IGNORED, rollback.id, None, f"{rollback.id} was decided: {named}")


def loss_scale(start: Start, ancestor: Ancestor) -> Iterator[Check]:
    """At one step it goes up or down by a factor of 2 at most."""
    saved = ancestor.at(start.resumed_from)
    was = saved.loss_scale if saved is not None else None
    now = next((s.loss_scale for s in start.samples[:1] if s.loss_scale is not None), start.started.loss_scale)
    if was is None or now is None or "loss_scale" in start.decided:
        return
    if 0.4 < now / was < 2.5:
        yield confirmed("loss scale")
    else:
        yield contradicted(SCALE, was, now, f"the loss scale was {was:g} at the checkpoint and is {now:g}")


_BY_VALUE = ("lr", "total_tokens", "skipped", "free")  # compared by what the steps show, or no part of a state


def settings(start: Start, ancestor: Ancestor) -> Iterator[Check]:
    """Settings that neither the run had before nor a rung has decided."""
    if ancestor.started is None:
        return
    before, now = baseline_of(ancestor.started), baseline_of(start.started)
    names = [name for name in difference(before, now) if name not in _BY_VALUE and getattr(before, name) is not None]
    names += [n for n in ("seed", "full_seqlen", "precision") if _differ(getattr(before, n), getattr(now, n))]
    sampled = _batch_changed(start, ancestor)
    for name in [*names, *sampled]:
        if name in start.decided:
            continue
        words = settings_of()[name].words if name in settings_of() else name.replace("_", " ")
        was, is_now = sampled.get(name) or (getattr(before, name), getattr(now, name))
        why = f"{words} was {was}, is {is_now}, and nothing has decided that"
        yield contradicted(SETTING, str(was), str(is_now), why)


def accumulation(start: Start, ancestor: Ancestor) -> Iterator[Check]:
    """Micro-batches of a step, where its samples have changed by the same factor."""
    before = ancestor.started.accumulation_steps if ancestor.started is not None else None
    now, samples = start.started.accumulation_steps, _batch_changed(start, ancestor).get("global_batch_samples")
    if samples is None or before is None or now is None or before == now:
        return
    was, is_now = samples
    if was * now == is_now * before:
        why = f"a step had {before} micro-batches with {was} samples and has {now} with {is_now}"
        yield contradicted(ACCUMULATION, before, now, f"{why}; nothing has decided that")


def _differ(was: object, now: object) -> bool:
    return was is not None and now is not None and was != now


def _batch_changed(start: Start, ancestor: Ancestor) -> dict[str, tuple[int, int]]:
    """Batch and length, as the steps show them, where they were the same at all the last steps and are another one."""
    changed = {}
    for name, key in (("global_batch_samples", "batch_size"), ("seqlen", "seqlen")):
        was = {getattr(s, name) for s in ancestor.recent}
        now = {getattr(s, name) for s in start.samples}
        steady = len(ancestor.recent) >= _ENOUGH and len(start.samples) >= FIRST_STEPS and len(was) == len(now) == 1
        if steady and key not in start.decided and None not in was | now and was != now:
            changed[key if name == "seqlen" else name] = (was.pop(), now.pop())
    return changed


_IN_ORDER = (state, override, accumulation, learning_rate, position, epochs, loss_scale, data, settings, gradient, loss)


def audit(start: Start) -> StartAudit:
    """The verdict so far; `settled` once a fault is seen, or the first 20 steps were, or no more will come."""
    known: dict[str, Any] = {"attempt": start.started.attempt, "resumed_from": start.resumed_from}
    checks = list(whence(start))
    seen = len(start.samples) >= FIRST or start.over
    if start.ancestor is not None and start.resumed_from:
        checks += [check for compared in _IN_ORDER for check in compared(start, start.ancestor)]
    wrong = [check for check in checks if check.answer is Proof.CONTRADICTED]
    enough = len(start.samples) >= FIRST_STEPS or start.over
    if wrong and (enough or wrong[0].what in SPOILS):
        first, others = wrong[0], sorted({c.what for c in wrong[1:]} - {wrong[0].what})
        also = f"; seen with it: {', '.join(others)}" if others else ""
        why = f"{first.what}: {first.why}{also}"
        return StartAudit(**known, verdict=Continued.NO, reason=why, fault=first.what, checks=tuple(checks))
    sure = {check.what for check in checks if check.answer is Proof.CONFIRMED}
    if "position" in sure and sure & {"state", "loss"} and all(check.what != EPOCH_END for check in checks):
        why = f"goes on from step {start.resumed_from}: {', '.join(sorted(sure))} are as expected"
        verdict = Continued.YES
    else:
        missing = "; ".join(f"{c.what}: {c.why}" for c in checks if c.answer is Proof.NOT_VERIFIED)
        verdict, why = Continued.UNKNOWN, missing or "nothing is known of the run before"
    return StartAudit(**known, verdict=verdict, reason=why, settled=seen, checks=tuple(checks))
