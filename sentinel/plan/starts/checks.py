"""Whether an attempt goes on with what was saved: its position, Adam's state, the settings, the loss scale, the loss.

Each check that is contradicted names its fault, and says why. What a rung has decided is no fault. Of several
contradictions the likeliest cause is named: what was loaded comes before what follows from it.

- The checkpoint, with what `latest` names and the newest one there: started from scratch, newest checkpoint torn,
  wrong checkpoint.
- Adam's state before the first update (sum and max of sqrt(v), norms of momentum and parameters), with the readings
  of the step that was saved, to 1 part in 10^5: optimizer state not loaded, wrong shard of one rank, wrong checkpoint
  (it names the step whose state it is).
- What overrides.json decides, with the proof: override ignored.
- Learning rate, with the decided or reported schedule, the same steps before, or the last rates: scheduler lost,
  scheduler stepped twice, another learning rate.
- Consumed samples, with those at the save: samples skipped, samples replayed, data from epoch start.
- Batch digests, with those of the same steps, and of all steps before: the same three, and data order of another
  seed.
- Loss scale, half to twice the one at the save: loss scale reset.
- Seed, length, batch, Adam's settings, precision, with the attempt before: setting changed.
- First loss on the same batch, to 5 % or three sigmas; else the median of the first ones, to 10 % or the noise: loss
  jumps, loss drops.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

from sentinel.judge.noise_band import median, robust_sigma, wandering_sigma
from sentinel.judge.recovery_check import comparable
from sentinel.plan.incident.baseline import baseline_of
from sentinel.plan.incident.incident import Proof
from sentinel.plan.starts.audit import (
    EPOCH,
    FIRST,
    MOMENTS,
    RECENT,
    REPLAYED,
    SHARD,
    SKIPPED,
    SPOILS,
    WRONG,
    Ancestor,
    Continued,
    Start,
    StartAudit,
)
from sentinel.plan.starts.curves import data, learning_rate
from sentinel.plan.starts.evidence import FIRST_STEPS, Evidence
from sentinel.plan.starts.proof import Check, confirmed, contradicted, outcome, prove, silent
from sentinel.vocabulary.sample import Sample
from sentinel.vocabulary.training_settings import difference, settings_of

SCRATCH, TORN = "started from scratch", "newest checkpoint torn"
IGNORED, SETTING = "override ignored", "setting changed"
SCALE, JUMP, DROP = "loss scale reset", "loss jumps", "loss drops"

SAME_STATE = 1e-5  # share by which sums over the same numbers differ when they are added up in another order
_LOST_SHARE = 0.5  # of sqrt(v): less of it at the first step is not what was saved
_SAME_LOSS = 0.05  # share by which the loss of the same batch on the same weights may differ: dropout, other kernels
_LOSS_SHARE, _LOSS_SIGMAS = 0.1, 8.0  # by which the mean of the first losses has to differ from the last ones before
_FEW, _ENOUGH = 5, 32  # losses of the start, and before it, without which the two are not compared


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
    begun, skips = first.consumed_samples - made * first.global_batch_samples, bool(start.started.skipped_samples)
    if begun < before:
        why = f"{before} samples were consumed at step {at}, and it goes on from sample {begun}"
        yield contradicted(EPOCH if begun == 0 else REPLAYED, before, begun, why)
    elif begun > before and not skips and "skip_samples" not in start.decided:
        yield contradicted(SKIPPED, before, begun, f"{begun - before} samples after step {at} were not trained on")
    else:
        yield confirmed("position")


def state(start: Start, ancestor: Ancestor) -> Iterator[Check]:
    """Adam's moments and the weights, as they were loaded, against what the step had that was saved."""
    saved, loaded = ancestor.at(start.resumed_from), start.loaded
    v = saved.adam_variance_l1 if saved is not None else None
    if saved is None or v is None or not math.isfinite(v) or not v or "reset_moments" in start.decided:
        yield silent("state", "Adam's variance at the checkpoint's step is not reported")
        return
    if loaded is None:
        yield _state_by_first_step(start, v)
        return
    if not loaded.adam_variance_l1:
        why = f"Adam's moments are 0 after the load; the sum of sqrt(v) was {v:.4g} at step {start.resumed_from}"
        yield contradicted(MOMENTS, v, loaded.adam_variance_l1, why)
        return
    names = ("adam_variance_l1", "adam_variance_max", "momentum_l2", "param_norm")
    pairs = {name: (getattr(saved, name), getattr(loaded, name)) for name in names}
    known = {name: both for name, both in pairs.items() if None not in both}
    if other := [name for name, (was, now) in known.items() if not _same(was, now)]:
        yield _other_state(start, ancestor, other[0], *known[other[0]])
    else:
        yield confirmed("state")


def _same(was: float, now: float) -> bool:
    return math.isclose(was, now, rel_tol=SAME_STATE) or (math.isnan(was) and math.isnan(now))


def _state_by_first_step(start: Start, saved: float) -> Check:
    now = next((s.adam_variance_l1 for s in start.samples if s.adam_variance_l1 is not None), None)
    if now is None or now >= _LOST_SHARE * saved:
        return silent("state", "the state that was loaded is not reported")
    why = f"the sum of sqrt(v) was {saved:.4g} at the checkpoint and is {now:.4g} after its first step"
    return contradicted(MOMENTS, saved, now, why)


def _other_state(start: Start, ancestor: Ancestor, name: str, was: float, now: float) -> Check:
    """Which state it is: that of another step, or in part the right one."""
    loaded, at, told = start.loaded, start.resumed_from, f"{name} was {was:.6g} when it was saved and is {now:.6g}"
    variance = loaded.adam_variance_l1 if loaded is not None else None
    step = ancestor.trail.step_with_variance(variance, SAME_STATE / 10) if variance else None
    if step is not None and step != at:
        return contradicted(WRONG, at, step, f"the state that was loaded is that of step {step}, not of step {at}")
    layers = ancestor.layers
    if loaded is not None and layers is not None and layers.layers == loaded.layers:
        each = zip(layers.layers, layers.adam_variance_l1, loaded.layer_variance_l1, strict=True)
        other = [layer for layer, before, after in each if not _same(before, after)]
        if 0 < len(other) < len(layers.layers):
            why = f"Adam's state of {_few(other)} is not what was saved; that of the other layers is"
            return contradicted(SHARD, None, other, why)
    return contradicted(WRONG, was, now, f"the state that was loaded is not that of step {at}: {told}")


def _few(names: list[str]) -> str:
    return ", ".join(names[:4]) + (f" and {len(names) - 4} more layers" if len(names) > 4 else "")


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


_LOSS_STAYS = frozenset({"seed", "skip_samples"})  # what may be decided without another loss from the first step on


def loss(start: Start, ancestor: Ancestor) -> Iterator[Check]:
    """Of the same batch it is the same; else the mean of the first ones is near that of the last ones before."""
    first, was = (start.samples[0], ancestor.later[0]) if start.samples and ancestor.later else (None, None)
    if first is not None and was is not None and _same_batch(first, was) and math.isfinite(was.loss):
        losses = [s.loss for s in ancestor.recent if s.seqlen == first.seqlen and comparable(s, None)]
        noise = robust_sigma([abs(b - a) for a, b in pairwise(losses)])  # dropout draws anew on other ranks
        if abs(first.loss - was.loss) <= max(_SAME_LOSS * abs(was.loss), 3 * noise):
            yield confirmed("loss")
        else:
            why = f"its first loss is {first.loss:.4g}, and was {was.loss:.4g} on the same batch before"
            yield contradicted(DROP if first.loss < was.loss else JUMP, was.loss, first.loss, why)
        return
    yield from _mean_loss(start, ancestor)


def _same_batch(one: Sample, other: Sample) -> bool:
    same = all(getattr(one, n) == getattr(other, n) for n in ("global_step", "batch_digest", "seqlen", "kept_tokens"))
    return same and one.batch_digest is not None


def _mean_loss(start: Start, ancestor: Ancestor) -> Iterator[Check]:
    if start.decided - _LOSS_STAYS or not start.samples:
        yield silent("loss", "a rung changes what the loss is compared by")
        return
    at = start.samples[0].seqlen
    before = [s.loss for s in ancestor.recent[-RECENT:] if s.seqlen == at and comparable(s, None)]
    now = [s.loss for s in start.samples if s.seqlen == at and not s.skipped]
    if len(before) < _ENOUGH or len(now) < _FEW:
        yield silent("loss", "too few losses of one sequence length")
        return
    level, mean = median(before[-_ENOUGH:]), median(now)
    noise = max(robust_sigma([abs(b - a) for a, b in pairwise(before)]), wandering_sigma(before, (4, 8)))
    allowed = max(_LOSS_SIGMAS * noise / math.sqrt(_FEW), _LOSS_SHARE * abs(level))
    half = len(before) // 2
    slope = (median(before[:half]) - median(before[half:])) / half  # learning goes on, no faster than before
    fell = max(0.0, slope) * (_ENOUGH + len(now)) / 2
    if math.isfinite(mean) and -allowed - fell <= mean - level <= allowed:
        yield confirmed("loss")
    else:
        why = f"the median of its first {len(now)} losses is {mean:.4g}, and was {level:.4g} before"
        yield contradicted(DROP if mean < level else JUMP, level, mean, why)


_IN_ORDER = (state, override, learning_rate, position, loss_scale, data, settings, loss)


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
    if "position" in sure and sure & {"state", "loss"}:
        why = f"goes on from step {start.resumed_from}: {', '.join(sorted(sure))} are as expected"
        verdict = Continued.YES
    else:
        missing = "; ".join(f"{c.what}: {c.why}" for c in checks if c.answer is Proof.NOT_VERIFIED)
        verdict, why = Continued.UNKNOWN, missing or "nothing is known of the run before"
    return StartAudit(**known, verdict=verdict, reason=why, settled=seen, checks=tuple(checks))
