"""Whether an attempt's weights and Adam's moments are those that were saved: as a whole, of each layer, of each rank.

The order matters: two layers, or two ranks, that have one another's state leave every sum as it was.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from sentinel.plan.starts.audit import (
    ADAM_STEP,
    FIRST_MOMENT,
    LAYERS,
    MOMENTS,
    PARTLY,
    ROUNDED,
    SHARD,
    SHARDS,
    WITHIN,
    WRONG,
    Ancestor,
    Start,
)
from sentinel.plan.starts.compared.projections import moved
from sentinel.plan.starts.proof import Check, confirmed, contradicted, silent
from sentinel.vocabulary.sample import State

SAME_STATE = 1e-5  # share by which sums over the same numbers differ when they are added up in another order
_LOST_SHARE = 0.5  # of sqrt(v): less of it at the first step is not what was saved
_ROUNDED_BY = 2**-8  # share by which a number moves at most when it is rounded to bfloat16

_WHOLE = ("adam_variance_l1", "adam_variance_max", "momentum_l2", "param_norm")
_OF_LAYERS = ("layer_variance_l1", "layer_variance_max", "layer_momentum_l2", "layer_param_norm")
_OF_RANKS = ("rank_variance_l1", "rank_momentum_l2", "rank_param_norm")
_WEIGHTS = frozenset({"param_norm", "layer_param_norm", "rank_param_norm"})

Row = tuple[float, ...]


@dataclass(frozen=True, slots=True)
class StateParts:
    """The readings of all layers, or of all ranks, that both the save and the start have."""

    names: Sequence[str]
    readings: Sequence[str]  # fields of State
    was: Sequence[Row]  # of each part the readings at the save
    now: Sequence[Row]

    @classmethod
    def of(cls, was: State, now: State, readings: Sequence[str], names: Sequence[str]) -> StateParts:
        known = [name for name in readings if len(getattr(was, name)) == len(getattr(now, name)) == len(names)]
        before, after = (list(zip(*(getattr(state, name) for name in known), strict=True)) for state in (was, now))
        return cls(names, known, before, after)

    @property
    def other(self) -> list[int]:
        """The parts of which a reading is not what it was."""
        return [at for at, (was, now) in enumerate(zip(self.was, self.now, strict=True)) if not _same_row(was, now)]

    @property
    def differing(self) -> set[str]:
        """The readings that are not what they were, of some part."""
        pairs = zip(self.was, self.now, strict=True)
        return {n for was, now in pairs for n, a, b in zip(self.readings, was, now, strict=True) if not same(a, b)}

    def exchanged(self) -> bool:
        """Whether the parts that are not what they were have one another's readings, as far as these differ."""
        columns = [column for column, name in enumerate(self.readings) if name in self.differing]
        was, now = ([tuple(rows[at][c] for c in columns) for at in self.other] for rows in (self.was, self.now))
        left = list(was)
        for row_now in now:
            found = next((row for row in left if _same_row(row, row_now)), None)
            if found is None:
                return False
            left.remove(found)
        return bool(self.other)

    def share(self, which: Sequence[int]) -> str:
        """Those parts by name, and how many they are of all; empty for none."""
        kinds = "ranks" if {*self.readings} <= {*_OF_RANKS} else "layers"
        return f"{self.told(which)} ({len(which)} of {len(self.names)} {kinds})" if which else ""

    def told(self, which: Sequence[int]) -> str:
        more = f" and {len(which) - 4} more" if len(which) > 4 else ""
        return ", ".join(self.names[at] for at in which[:4]) + more


def same(was: float, now: float) -> bool:
    return math.isclose(was, now, rel_tol=SAME_STATE) or (math.isnan(was) and math.isnan(now))


def _same_row(was: Row, now: Row) -> bool:
    return all(same(a, b) for a, b in zip(was, now, strict=True))


def state(start: Start, ancestor: Ancestor) -> Iterator[Check]:
    """Adam's moments and the weights, as they were loaded, against those that were saved."""
    saved, loaded = _saved(ancestor, start.resumed_from), start.loaded
    v = saved.adam_variance_l1 if saved is not None else None
    if saved is None or v is None or not math.isfinite(v) or not v or "reset_moments" in start.decided:
        yield silent("state", "Adam's variance at the checkpoint's step is not reported")
    elif loaded is None:
        yield _by_first_step(start, v)
    elif not loaded.adam_variance_l1:
        why = f"Adam's moments are 0 after the load; the sum of sqrt(v) was {v:.4g} at step {start.resumed_from}"
        yield contradicted(MOMENTS, v, loaded.adam_variance_l1, why)
    else:
        yield _compared(start, ancestor, saved, loaded)
        yield from _adam_step(saved, loaded)


def _saved(ancestor: Ancestor, at: int) -> State | None:
    """The state as its save has reported it; from an older hook, as the step's sample and layers have it."""
    if ancestor.saved is not None and ancestor.saved.adam_variance_l1 is not None:
        return ancestor.saved
    sample, layers = ancestor.at(at), ancestor.layers
    if sample is None:
        return None
    return State(
        attempt=sample.attempt,
        global_step=at,
        time_unix_s=sample.time_unix_s,
        **{name: getattr(sample, name) for name in _WHOLE},
        layers=layers.layers if layers is not None else (),
        layer_variance_l1=layers.adam_variance_l1 if layers is not None else (),
        layer_variance_max=layers.adam_variance_max if layers is not None else (),
    )


def _by_first_step(start: Start, saved: float) -> Check:
    now = next((s.adam_variance_l1 for s in start.samples if s.adam_variance_l1 is not None), None)
    if now is None or now >= _LOST_SHARE * saved:
        return silent("state", "the state that was loaded is not reported")
    why = f"the sum of sqrt(v) was {saved:.4g} at the checkpoint and is {now:.4g} after its first step"
    return contradicted(MOMENTS, saved, now, why)


def _compared(start: Start, ancestor: Ancestor, was: State, now: State) -> Check:
    at = start.resumed_from
    whole = {name: pair for name in _WHOLE if None not in (pair := (getattr(was, name), getattr(now, name)))}
    other = {name: pair for name, pair in whole.items() if not same(*pair)}
    layers = StateParts.of(was, now, _OF_LAYERS, now.layers if now.layers == was.layers else ())
    ranks = StateParts.of(was, now, _OF_RANKS, [f"rank {n}" for n in range(len(now.rank_variance_l1))])
    if not other and not layers.other and not ranks.other:
        return _within_layers(was, now, at)
    if now.momentum_l2 == 0 and was.momentum_l2:
        why = f"Adam's first moment is 0 after the load; its norm was {was.momentum_l2:.4g} at step {at}"
        return contradicted(FIRST_MOMENT, was.momentum_l2, 0.0, why)
    if (step := _of_step(ancestor, now, at)) is not None and "adam_variance_l1" in other:
        return contradicted(WRONG, at, step, f"the state that was loaded is that of step {step}, not of step {at}")
    for fault, parts in ((SHARDS, ranks), (LAYERS, layers)):
        if parts.exchanged():
            what = _kinds(parts.differing)
            why = f"{parts.told(parts.other)} have one another's {what}: the sums are the same, the order is not"
            return contradicted(fault, None, [parts.names[n] for n in parts.other], why)
    if not other and not layers.other:
        return silent("state", "the ranks hold other parts of it than before; its layers are the same")
    return _changed_in_part(at, other, layers, ranks)


def _within_layers(was: State, now: State, at: int) -> Check:
    """Of a state whose sums and norms are those that were saved."""
    if not (parts := moved(was, now)):
        return confirmed("state")
    why = f"{'; '.join(part.told for part in parts)}; the norms are those that were saved at step {at}"
    return contradicted(WITHIN, None, sorted({layer for part in parts for layer in part.layers}), why)


def _changed_in_part(at: int, other: Mapping[str, tuple[float, float]], layers: StateParts, ranks: StateParts) -> Check:
    """Which part of it is another one, and how."""
    differing = {*other} | layers.differing
    which = [layers.names[n] for n in layers.other]
    if _rounded(other, layers):
        why = f"Adam's moments at step {at} were rounded to 8 bits, as bfloat16 has them, after they were saved"
        return contradicted(ROUNDED, None, None, why)
    empty = [n for n in layers.other if layers.was[n][0] and not layers.now[n][0]]
    if differing <= _WEIGHTS or empty:
        of = layers.share(empty or layers.other) or "the model"
        moments = "their moments are 0" if empty else "Adam's moments are those that were saved"
        return contradicted(PARTLY, None, which, f"the weights of {of} are not those of step {at}; {moments}")
    for parts, of_the_others in ((ranks, "that of the other ranks is"), (layers, "that of the other layers is")):
        if 0 < len(parts.other) < len(parts.names):
            why = f"the state of {parts.share(parts.other)} is not what was saved; {of_the_others}"
            return contradicted(SHARD, None, [parts.names[n] for n in parts.other], why)
    if not other:
        why = f"the state of {layers.share(layers.other)} is not that of step {at}"
        return contradicted(WRONG, None, which, why)
    name, (before, after) = next(iter(other.items()))
    why = f"the state that was loaded is not that of step {at}: {name} was {before:.6g} when it was saved"
    differ = f"; {layers.share(layers.other)} differ" if layers.other else ""
    return contradicted(WRONG, before, after, f"{why} and is {after:.6g}{differ}")


def _of_step(ancestor: Ancestor, now: State, at: int) -> int | None:
    """Another step whose state it is."""
    step = ancestor.trail.step_with_variance(now.adam_variance_l1, SAME_STATE / 10) if now.adam_variance_l1 else None
    return step if step != at else None


def _kinds(differing: set[str]) -> str:
    if differing <= _WEIGHTS:
        return "weights"
    return "weights and moments" if differing & _WEIGHTS else "moments"


def _rounded(other: Mapping[str, tuple[float, float]], layers: StateParts) -> bool:
    """Whether the largest v of the model, and of each layer, is what rounding to bfloat16 makes of the saved one, and
    no sum has moved by more than rounding moves it."""
    tops = [other["adam_variance_max"]] if "adam_variance_max" in other else []
    if "layer_variance_max" in layers.readings:
        at = layers.readings.index("layer_variance_max")
        tops += [(was[at], now[at]) for was, now in zip(layers.was, layers.now, strict=True) if was[at] != now[at]]
    near = all(math.isclose(*pair, rel_tol=_ROUNDED_BY) for pair in (*other.values(), *tops))
    return bool(tops) and near and all(_is_bfloat16(now**2) and not _is_bfloat16(was**2) for was, now in tops)


def _is_bfloat16(number: float) -> bool:
    """Whether the float32 nearest to it has no more than bfloat16's 8 bits."""
    return 0 <= number < 3e38 and struct.unpack("<I", struct.pack("<f", number))[0] & 0xFFFF == 0


def _adam_step(was: State, now: State) -> Iterator[Check]:
    """Adam's own count of its updates, which its bias correction goes by."""
    for name in ("adam_step", "adam_step_least"):
        before, after = getattr(was, name), getattr(now, name)
        if before is not None and after is not None and before != after:
            why = f"Adam had counted {before} updates when it was saved and has counted {after} after the load"
            yield contradicted(ADAM_STEP, before, after, why)
            return
    if now.adam_step is not None and now.adam_step == was.adam_step:
        yield confirmed("Adam's step")
