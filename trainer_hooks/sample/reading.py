"""The readings of one step: of one rank, of all ranks, and as a Sample. A rank's reading travels as two rows
of float64: one is summed over all ranks, one is reduced to its maxima. Their length is the same for every model."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sentinel.vocabulary.loss_ratio import LossMinimum
from sentinel.vocabulary.sample import Sample, StateLoaded

_NOTHING = -math.inf  # the part of a rank that has no reading, where a maximum is taken
_MEANS = ("loss", "grad_norm", "local_grad_norm")  # fields of RankReading that are averaged over the ranks
# Fields in the summed row, in its order: of each the number of ranks that have it, then the sum (or mean).
_ADDED = (
    *(*_MEANS, "variance_l1", "grad_squares", "update_squares", "momentum_squares", "parameter_squares", "elements"),
    "batch_digest",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RankReading:
    """One rank's readings of one step. "Share": each element counts 1 / (ranks that hold the same element)."""

    global_step: int
    failed: bool = False  # Whether the rank could not read; the other fields then have no meaning
    loss: float = 0.0  # Mean over this rank's micro-batches
    # Sum of sqrt(v) over this rank's elements, each times its share; None without a state.
    variance_l1: float | None = None
    variance_top: float = _NOTHING  # max of v (not of its root) over this rank's elements
    # Sum of squares over this rank's gradients, each times its share; None where DeepSpeed has measured the norm.
    grad_squares: float | None = None
    grad_norm: float | None = None  # The global norm, where DeepSpeed has measured it; the same on every rank
    # Norm of this rank's gradients before they are averaged; None where that was not measured.
    local_grad_norm: float | None = None
    # Sum of squares of the update before lr, each times its share; None where the moments were not measured.
    update_squares: float | None = None
    momentum_squares: float | None = None
    parameter_squares: float | None = None
    elements: float | None = None  # Number of elements that the three sums of squares are of, each times its share
    attention_logit: float = _NOTHING  # Largest magnitude that was given on this rank, inf where one was nan
    output_logit: float = _NOTHING
    batch_digest: float | None = None  # Of this rank's micro-batches; a whole number

    def sums(self, world: int) -> list[float]:
        """The row to be summed over `world` ranks."""
        row = [float(self.global_step), float(self.failed), float(math.isnan(self.variance_top))]  # a MAX may lose nan
        for name in _ADDED:
            value = getattr(self, name)
            row += [float(value is not None), (value or 0.0) * (1.0 / world if name in _MEANS else 1.0)]
        return row

    def tops(self) -> list[float]:
        """The row of which the maxima are taken, position by position."""
        if self.failed:
            return [_NOTHING] * 7
        local = self.local_grad_norm
        norms = [_NOTHING, _NOTHING] if local is None else [local, -local]
        return [self.variance_top, self.loss, -self.loss, *norms, self.attention_logit, self.output_logit]


Reading = Mapping[str, Any]
"""The readings of all ranks of one step, under the names of Sample's fields. `loss` is nan where a rank's is."""


def reading_of(sums: Sequence[float], tops: Sequence[float], *, global_step: int, world: int) -> Reading:
    """From the two rows over all ranks. RuntimeError where a rank could not read, or read another step."""
    steps, failed, nans, *added = sums
    if steps != float(global_step) * world:
        raise RuntimeError(f"the ranks' readings of step {global_step} and of other steps came together")
    if failed:
        raise RuntimeError(f"{failed:.0f} rank(s) could not read step {global_step}")
    ranks, total = (dict(zip(_ADDED, added[first::2], strict=True)) for first in (0, 1))
    largest_v, largest_loss, least_loss, largest_norm, least_norm, *logits = tops
    with_state, locally = ranks["variance_l1"] == world, ranks["local_grad_norm"]
    measured = ranks["elements"] == world and total["elements"] > 0
    attention, output = (None if largest == _NOTHING else largest for largest in logits)
    given_norm = total["grad_norm"] if ranks["grad_norm"] == world else None
    norm_spread = _spread(largest_norm, least_norm, total["local_grad_norm"]) if locally == world > 1 else None
    return {
        "loss": total["loss"],
        "loss_spread": _spread(largest_loss, least_loss, total["loss"]) if world > 1 else None,
        "adam_variance_l1": total["variance_l1"] if with_state else None,
        "adam_variance_max": _root(math.nan if nans else largest_v) if with_state else None,
        "grad_norm": _root(total["grad_squares"]) if ranks["grad_squares"] else given_norm,
        "grad_norm_spread": norm_spread,
        "update_norm": _root(total["update_squares"] / total["elements"]) if measured else None,
        "momentum_l2": _root(total["momentum_squares"]) if measured else None,
        "param_norm": _root(total["parameter_squares"]) if measured else None,
        "attention_logit_max": attention,
        "output_logit_max": output,
        "batch_digest": int(total["batch_digest"]) if ranks["batch_digest"] == world else None,
    }


def _spread(largest: float, minus_least: float, mean: float) -> float:
    """Over the ranks; nan where a rank's reading is, which a MAX may have lost and the mean has not."""
    return math.nan if math.isnan(mean) else largest + minus_least


def _root(square: float) -> float:
    return math.sqrt(square) if square >= 0 else math.nan


def loss_scale(optimizer: Any) -> float | None:
    """The loss scale of fp16 training; None where there is none."""
    for name in ("cur_scale", "loss_scale"):
        scale = getattr(optimizer, name, None)
        if isinstance(scale, int | float) and scale > 0 and hasattr(optimizer, "optimizer"):
            return float(scale) if getattr(optimizer, "dynamic_loss_scale", True) or scale != 1 else None
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Position:
    """What the engine does not know of the step that was just made, as the fields of Sample; None is left out."""

    consumed_samples: int | None = None
    consumed_tokens: int | None = None
    seqlen: int | None = None
    kept_tokens: int | None = None
    curriculum_share: float | None = None
    lr: float | None = None
    lr_warmup_steps: int | None = None
    global_batch_samples: int | None = None


class StepFacts:
    """Reads the fields of Sample that need no reduction, on rank 0, in the order of the steps."""

    def __init__(self, engine: Any, position: Callable[[], Position] | None) -> None:
        self._engine = engine
        self._position = position
        self._stepped_at: float | None = None
        self._tokens: int | None = None
        self._lr: float | None = None

    def update_coming(self) -> None:
        """Before each update: reads its learning rate, which a schedule within the step changes."""
        self._lr = float(self._engine.optimizer.param_groups[0]["lr"])

    def read(self) -> dict[str, Any]:
        """{field of Sample: value} of the step that was just made."""
        engine, now = self._engine, time.time()
        step_time_s = now - self._stepped_at if self._stepped_at is not None else None
        self._stepped_at = now
        facts = {
            "global_step": engine.global_steps,
            "time_unix_s": now,
            "step_time_s": step_time_s,
            "lr": self._lr,
            "loss_scale": loss_scale(engine.optimizer),
            "skipped": not engine.was_step_applied() if hasattr(engine, "was_step_applied") else False,
            "global_batch_samples": engine.train_batch_size(),
        }
        position = self._position() if self._position is not None else Position()
        stated = ((name, getattr(position, name)) for name in Position.__slots__)
        facts |= {name: value for name, value in stated if value is not None}
        before, self._tokens = self._tokens, position.consumed_tokens
        if before is not None and self._tokens is not None and step_time_s:
            facts["tokens_per_s"] = float((self._tokens - before) / step_time_s)
        return facts


def make_sample(attempt: int, facts: Mapping[str, Any], reading: Reading, minimum: LossMinimum) -> Sample:
    """The sample of a step that all ranks have read; `minimum` takes its loss up."""
    if facts["skipped"]:
        reading = {**reading, "update_norm": None}
    loss, seqlen = reading["loss"], facts.get("seqlen")
    over_all = minimum.over_all_lengths(loss, seqlen)
    ratio = minimum.push(loss, seqlen)
    return Sample(attempt=attempt, loss_ratio=ratio, loss_ratio_all_lengths=over_all, **facts, **reading)


@dataclass(frozen=True, slots=True)
class Load:
    """Stands for a step's facts where the readings are of the state before the first update."""

    global_step: int

    def loaded(
        self, attempt: int, reading: Reading, names: tuple[str, ...], layers: Mapping[str, Any] | None
    ) -> StateLoaded:
        of_all = ("adam_variance_l1", "adam_variance_max", "momentum_l2", "param_norm")
        return StateLoaded(
            attempt=attempt,
            global_step=self.global_step,
            time_unix_s=time.time(),
            **{name: reading[name] for name in of_all},
            layers=names if layers else (),
            layer_variance_l1=layers["adam_variance_l1"] if layers else (),
        )
