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
- Where all of these agree: a random projection of each layer's momentum and weights, to 1 part in 10^5 of the norm,
  if the same elements lie on the same ranks: state differs within layers (values exchanged, signs turned, rounded).
- Adam's own count of its updates, with that at the save: Adam's step count.
- What overrides.json decides, with the proof: override ignored.
- Micro-batches of a step, where its samples changed by the same factor: accumulation changed.
- Learning rate, with the decided or reported schedule, the same steps before, or the last rates: scheduler lost,
  scheduler stepped twice, another learning rate.
- Consumed samples, with those at the save: samples skipped, samples replayed, data from epoch start.
- The trainer's count of epochs, with that at the save: epoch skipped, samples skipped.
- Batch digests, with those of the same steps, and of all steps before: the same three, part of a batch skipped, data
  order of another seed, other samples (at two steps or more, before one that has its batch again). Part of a batch and
  order are told apart after 16 steps that were made before. The run's first batches again are no fault where an epoch
  ended at the save, and are not judged where that can't be known: by the length of an epoch or the count of epochs that
  is reported, by what came after the save before, by the saves before.
- Loss scale, half to twice the one at the save: loss scale reset.
- Seed, length, batch, Adam's settings, precision, the largest dropout, whether weight decay is decoupled, with the
  attempt before: setting changed.
- The gradient's norm of the first step on the same batch, to 1 %, or 2 / sqrt(tokens): accumulation changed (an n-fold
  norm with the same loss, where a step is averaged over n micro-batches or ranks), gradient differs.
- Each of the first 20 steps' losses on the same batch, as far as all batches before it were the same, to 0.25 %, or
  0.15 / sqrt(tokens), and a quarter of that more with each step: loss jumps, loss drops (the first), updates differ
  (a later one). Else the median of the first losses, to 10 % or the noise: loss jumps, loss drops.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from sentinel.plan.incident.baseline import baseline_of
from sentinel.plan.incident.incident import Proof
from sentinel.plan.starts.audit import ACCUMULATION, FIRST, SPOILS, WRONG, Ancestor, Continued, Start, StartAudit
from sentinel.plan.starts.compared.losses import gradient, loss
from sentinel.plan.starts.compared.state import state
from sentinel.plan.starts.curves import data, learning_rate
from sentinel.plan.starts.evidence import FIRST_STEPS, Evidence
from sentinel.plan.starts.position import EPOCH_END, epochs, position
from sentinel.plan.starts.proof import Check, confirmed, contradicted, prove, silent
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
    if not wrong:
        yield confirmed("override")
    else:
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


_COMPARED = ("seed", "full_seqlen", "precision", "dropout", "decoupled_weight_decay")  # where both report it
_BY_FREE = ("dropout", "decoupled_weight_decay")  # which a free-form change may be meant for
_BY_VALUE = ("lr", "total_tokens", "skipped", "free")  # compared by what the steps show, or no part of a state


def settings(start: Start, ancestor: Ancestor) -> Iterator[Check]:
    """Settings that neither the run had before nor a rung has decided."""
    if ancestor.started is None:
        return
    before, now = baseline_of(ancestor.started), baseline_of(start.started)
    names = [name for name in difference(before, now) if name not in _BY_VALUE and getattr(before, name) is not None]
    pairs = ((n, getattr(before, n), getattr(now, n)) for n in _COMPARED)
    names += [n for n, was, is_now in pairs if None not in (was, is_now) and was != is_now]
    sampled = _batch_changed(start, ancestor)
    for name in [*names, *sampled]:
        if name in start.decided or (name in _BY_FREE and "free" in start.decided):
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
