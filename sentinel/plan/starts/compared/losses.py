"""Whether an attempt's losses and gradients are those of the same batches before, or go on from the last ones.

A step that is made again, from the same state and on the same batch, has the same loss, up to the order in which a
device adds, and the masks of a dropout whose generators were not restored. What such resumes show is allowed, more of
it with every step, as small differences grow; the noise between batches, which is far larger, is not.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import pairwise

from sentinel.judge.noise_band import median, robust_sigma, wandering_sigma
from sentinel.judge.recovery_check import comparable
from sentinel.plan.starts.audit import ACCUMULATION, RECENT, Ancestor, Start
from sentinel.plan.starts.proof import Check, confirmed, contradicted, silent
from sentinel.vocabulary.sample import Sample

JUMP, DROP, UPDATES, GRADIENT = "loss jumps", "loss drops", "updates differ", "gradient differs"

# Shares by which the loss, or the gradient's norm, of the same batch on the same weights may differ. The second is of a
# batch of one token: it falls with the square root of the tokens. See docs/STARTS.md for what they were measured on.
_SAME_LOSS, _SAME_LOSS_OF_A_TOKEN = 2.5e-3, 0.15
_SAME_NORM, _SAME_NORM_OF_A_TOKEN = 1e-2, 2.0
_GROWTH = 0.25  # of the first step's share, with each further step
_REGROUPED = 0.05  # share for the first loss, where other samples are averaged first: samples may be of unequal lengths
_LOSS_SHARE, _LOSS_SIGMAS = 0.1, 8.0  # by which the mean of the first losses has to differ from the last ones before
_FEW, _ENOUGH = 5, 32  # losses of the start, and before it, without which the two are not compared
_LOSS_STAYS = frozenset({"seed", "skip_samples"})  # what may be decided without another loss from the first step on

Pair = tuple[Sample, Sample]
"""A step as it was made before, and as the attempt has made it."""


def loss(start: Start, ancestor: Ancestor) -> Iterator[Check]:
    """Of the same batches it is the same; else the mean of the first ones is near that of the last ones before."""
    pairs = _made_again(start, ancestor)
    if not pairs:
        yield from _mean_loss(start, ancestor)
        return
    first, at = pairs[0][0].global_step, start.resumed_from + 1
    regrouped = _regrouped(start, ancestor)
    share = _REGROUPED if regrouped else _SAME_LOSS
    other = [
        pair for pair in pairs[: 1 if regrouped else None] if not _same_loss(pair, pair[0].global_step - at, share)
    ]
    if not other:
        yield confirmed("loss")
        return
    was, now = other[0]
    if other[0] == pairs[0] and first == at:
        why = f"its first loss is {now.loss:.4g}, and was {was.loss:.4g} on the same batch before"
        yield contradicted(DROP if now.loss < was.loss else JUMP, was.loss, now.loss, why)
    else:
        why = f"the loss of step {was.global_step} is {now.loss:.4g}, and was {was.loss:.4g} on the same batch before"
        of = f"{len(other)} of {len(pairs)} steps that are made again have another loss than then"
        yield contradicted(UPDATES, was.loss, now.loss, f"{why}; {of}")


def gradient(start: Start, ancestor: Ancestor) -> Iterator[Check]:
    """The first step's, on the same weights and batch."""
    was, now = next(iter(_made_again(start, ancestor)), (None, None))
    if (
        _regrouped(start, ancestor)
        or was is None
        or now is None
        or now.global_step != start.resumed_from + 1
        or was.skipped
        or now.skipped
    ):
        return
    before, after = was.grad_norm, now.grad_norm
    if not before or not after or not math.isfinite(before) or not math.isfinite(after):
        return
    ratio, allowed = after / before, _allowed(was, _SAME_NORM, _SAME_NORM_OF_A_TOKEN)
    if abs(ratio - 1) <= allowed:
        yield confirmed("gradient")
        return
    why = f"the norm of its first gradient is {after:.4g}, and was {before:.4g} on the same batch before"
    times = max(ratio, 1 / ratio)
    whole = round(times) > 1 and abs(times - round(times)) <= allowed * times and _may_be_counted(round(times), start)
    if whole and _same_loss((was, now), 0):
        how = "summed, not averaged" if ratio > 1 else "divided once more"
        yield contradicted(ACCUMULATION, before, after, f"{why}: that of {round(times)} micro-batches, {how}")
    else:
        yield contradicted(GRADIENT, before, after, why)


def _may_be_counted(parts: int, start: Start) -> bool:
    """Whether a step may have so many parts, over which its gradient is averaged: its micro-batches, ranks, or both."""
    of_rank, ranks = start.started.accumulation_steps, start.started.world_size
    return of_rank is None or parts in {of_rank, ranks or 1, of_rank * (ranks or 1)}


def _made_again(start: Start, ancestor: Ancestor) -> list[Pair]:
    """The steps from the first one on that are made again on the same batches; after a rollback the first alone: a rung
    may change the updates, and what was made before has diverged."""
    rolled_back = start.rollback is not None and not (
        ancestor.started is not None and ancestor.started.rollback == start.rollback.id
    )
    before, pairs = {s.global_step: s for s in ancestor.later}, list[Pair]()
    for now in start.samples:
        was = before.get(now.global_step)
        if was is None or not _same_batch(now, was) or not math.isfinite(was.loss):
            break
        pairs.append((was, now))
        if was.skipped != now.skipped:
            break
    return pairs[:1] if rolled_back else pairs


def _regrouped(start: Start, ancestor: Ancestor) -> bool:
    """Whether its ranks or micro-batches are known to be others than before."""
    if ancestor.started is None:
        return False
    was, now = ((one.world_size, one.accumulation_steps) for one in (ancestor.started, start.started))
    return any(None not in pair and pair[0] != pair[1] for pair in zip(was, now, strict=True))


def _same_batch(one: Sample, other: Sample) -> bool:
    same = all(getattr(one, n) == getattr(other, n) for n in ("global_step", "batch_digest", "seqlen", "kept_tokens"))
    return same and one.batch_digest is not None


def _same_loss(pair: Pair, updates: int, share: float = _SAME_LOSS) -> bool:
    """After so many updates."""
    was, now = pair
    allowed = _allowed(was, share, _SAME_LOSS_OF_A_TOKEN) * (1 + _GROWTH * max(0, updates))
    return abs(now.loss - was.loss) <= allowed * abs(was.loss)


def _allowed(of: Sample, share: float, of_a_token: float) -> float:
    tokens = (of.global_batch_samples or 1) * (of.kept_tokens or of.seqlen or 1)
    return max(share, of_a_token / math.sqrt(tokens))


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
