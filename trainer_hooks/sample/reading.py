"""The readings of one step: of one rank, of all ranks, and as a Sample. A rank's reading travels as two rows
of float64: one is summed over all ranks, one is reduced to its maxima. Their length is the same for every model."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from sentinel.vocabulary.loss_ratio import LossMinimum
from sentinel.vocabulary.sample import Sample, StateLoaded, StateSaved
from trainer_hooks.sample.offloaded import Pending
from trainer_hooks.sample.one_pass import Part, Piece
from trainer_hooks.sample.own import has_own
from trainer_hooks.sample.to_host import Copies, on_device

_NOTHING = -math.inf  # the part of a rank that has no reading, where a maximum is taken
_MEANS = ("loss", "grad_norm", "local_grad_norm")  # averaged over the ranks
# What the summed row holds, in its order: of each the number of ranks that have it, then the sum (or mean).
_SUMMED = (
    *(*_MEANS, "variance_l1", "grad_squares", "update_squares", "momentum_squares", "parameter_squares", "elements"),
    *("elements_known", "elements_owned", "batch_digest", "lr"),
)

RankReading = Mapping[str, float]
"""One rank's readings of one step, of what was measured. A "share" is 1 / (ranks that hold the same element).

`loss`: mean over its micro-batches; `grad_norm`: the global norm where DeepSpeed has measured it, the same on every
rank, else `grad_squares`: sum of squares over the rank's gradients, by share; `local_grad_norm`: norm of its gradients
before they are averaged; `variance_l1`: sum of sqrt(v) by share, `variance_top`: max of v (not of its root);
`update_squares` (before lr), `momentum_squares`, `parameter_squares`: sums by share, over so many `elements` by share;
`elements_known` by share of those `elements_owned` (of trainable parameters) whose v is known, once an update was made;
`lr`: on rank 0, where the optimizer has it on a device;
of a state at a save or a start `adam_step`: the largest count of updates that Adam has for a parameter on the rank, and
`state_layout`: 31 bits of a hash of which elements of the parameters lie on the rank;
`attention_logit`, `output_logit`: largest magnitude that was given, inf where one was nan; `batch_digest`."""


def rows_of(read: RankReading | None, *, world: int) -> tuple[list[float], list[float]]:
    """The row to be summed over `world` ranks, and that of which the maxima are taken; None: it could not read."""
    given = {} if read is None else read
    top, loss, local = (given.get(name) for name in ("variance_top", "loss", "local_grad_norm"))
    sums = [float(read is None), float(top is not None and math.isnan(top))]  # a MAX may lose nan
    for name in _SUMMED:
        sums += [float(name in given), given.get(name, 0.0) * (1.0 / world if name in _MEANS else 1.0)]
    spread = [n for value in (loss, local) for n in ([_NOTHING] * 2 if value is None else [value, -value])]
    logits = [given.get(name, _NOTHING) for name in ("attention_logit", "output_logit")]
    return sums, [_NOTHING if top is None else top, *spread, *logits]


ADDED, LARGEST = (len(row) for row in rows_of(None, world=1))
"""The numbers of the two rows."""


LayerParts = tuple[list[float], ...]
"""Of each layer of a state: the sums of m² and of parameter², the projections of m and of the parameter."""


def no_parts(layers: int) -> LayerParts:
    return tuple([0.0] * layers for _ in range(4))


@dataclass(slots=True, kw_only=True)
class Measurement:
    """The readings of one rank's step: some small float64 tensors. On a CPU they are ready at once; from CUDA they are
    copied into pinned memory behind the step's own work, and are ready after that: at the next step, as a rule."""

    scalars: dict[str, Tensor]  # {name in RankReading: () number}, of what was read
    rows: Sequence[Tensor | Pending]  # of each pass (2, S); (5, S) with the moments; of a state (7, S) with projections
    with_moments: bool
    with_state: bool  # whether the rows are of all of this rank's v
    pieces: Sequence[Part | Piece]  # those of the rows' columns
    shares: Tensor  # (S,) float64 on the CPU: what each piece's elements count
    elements: tuple[float, float] | None = None  # (known, owned) as in RankReading
    _copies: Copies = field(init=False)  # The scalars, then the rows that are no thread's

    def __post_init__(self) -> None:
        rows = [row for row in self.rows if isinstance(row, Tensor)]
        self._copies = Copies([*(t.double() for t in self.scalars.values()), *rows])

    def ready(self) -> bool:
        """Whether all of it is on the host; never waits."""
        return self._copies.ready() and all(row.done() for row in self.rows if isinstance(row, Pending))

    def rank_reading(self) -> RankReading:
        read, rows = self._on_the_host()
        if self.elements is not None:
            read["elements_known"], read["elements_owned"] = self.elements
        if rows is None:
            return read
        if self.with_moments:
            names = ("momentum_squares", "update_squares", "parameter_squares")
            read |= {name: float(self.shares @ rows[i]) for i, name in enumerate(names, 2)}
            parts = [piece.part if isinstance(piece, Piece) else piece for piece in self.pieces]
            read["elements"] = sum(part.share * part.elements for part in parts if part.layer is not None)
        if self.with_state:
            read["variance_l1"] = float(self.shares @ rows[0])
        if self.pieces:
            read["variance_top"] = float(rows[1].max())
        return read

    def layer_rows(self, layers: list[str]) -> tuple[list[float], list[float], list[float]]:
        """This rank's part of each of the layers, once it is ready. To be added: of each the sum of sqrt(v), and of
        each whether a v is nan (1) or none is (0). To take the largest of: of each max of v, -inf where it has none."""
        _, rows = self._on_the_host()
        position = {layer: i for i, layer in enumerate(layers)}
        l1, top, nans = [0.0] * len(layers), [-math.inf] * len(layers), [0.0] * len(layers)
        columns = [] if rows is None else list(zip(self.pieces, rows[0].tolist(), rows[1].tolist(), strict=True))
        for piece, total, largest in columns:
            at = position.get(piece.layer or "")
            if at is not None:
                l1[at] += piece.share * total
                top[at] = max(top[at], largest)
                nans[at] = max(nans[at], float(math.isnan(largest)))
        return l1, nans, top

    def layer_parts(self, layers: list[str]) -> LayerParts:
        """This rank's part of each of the layers, to be added. 0 where not read."""
        _, rows = self._on_the_host()
        position = {layer: i for i, layer in enumerate(layers)}
        parts = no_parts(len(layers))
        if rows is not None and self.with_moments:
            columns = rows[[2, 4, 5, 6]].T.tolist()  # without the updates' squares
            for piece, column in zip(self.pieces, columns, strict=True):
                at = position.get(piece.layer or "")
                if at is not None:
                    for part, number in zip(parts, column, strict=True):
                        part[at] += piece.share * number
        return parts

    def _on_the_host(self) -> tuple[dict[str, Any], Tensor | None]:
        """The scalars, and (R, S) rows; None where a thread did not read its own to the end."""
        scalars = {name: float(t) for name, t in zip(self.scalars, self._copies.on_host, strict=False)}
        copied = iter(self._copies.on_host[len(self.scalars) :])
        rows = [row.rows if isinstance(row, Pending) else next(copied) for row in self.rows]
        whole = [row for row in rows if row is not None]
        if len(whole) < len(rows):
            return scalars, None
        return scalars, torch.cat(whole, dim=1) if whole else torch.zeros(5, 0, dtype=torch.float64)


Reading = Mapping[str, Any]
"""The readings of all ranks of one step, under the names of Sample's fields. `loss` is nan where a rank's is."""


def reading_of(sums: Sequence[float], tops: Sequence[float], *, global_step: int, world: int) -> Reading:
    """From the two rows over all ranks. RuntimeError where a rank could not read."""
    failed, nans, *added = sums
    if failed:
        raise RuntimeError(f"{failed:.0f} rank(s) could not read step {global_step}")
    ranks, total = (dict(zip(_SUMMED, added[first::2], strict=True)) for first in (0, 1))
    largest_v, largest_loss, least_loss, largest_norm, least_norm, *logits = tops
    locally = ranks["local_grad_norm"]
    measured_on_all = ranks["elements_owned"] == world
    coverage = _coverage(total["elements_known"], total["elements_owned"]) if measured_on_all else None
    with_state = ranks["variance_l1"] == world and coverage in (None, 1.0)
    measured = with_state and ranks["elements"] == world and total["elements"] > 0
    attention, output = (None if largest == _NOTHING else largest for largest in logits)
    given_norm = total["grad_norm"] if ranks["grad_norm"] == world else None
    norm_spread = _spread(largest_norm, least_norm, total["local_grad_norm"]) if locally == world > 1 else None
    return {
        "loss": total["loss"],
        "loss_spread": _spread(largest_loss, least_loss, total["loss"]) if world > 1 else None,
        "adam_variance_l1": total["variance_l1"] if with_state else None,
        "adam_variance_max": _root(math.nan if nans else largest_v) if with_state else None,
        "adam_variance_coverage": coverage,
        "grad_norm": _root(total["grad_squares"]) if ranks["grad_squares"] else given_norm,
        "grad_norm_spread": norm_spread,
        "update_norm": _root(total["update_squares"] / total["elements"]) if measured else None,
        "momentum_l2": _root(total["momentum_squares"]) if measured else None,
        "param_norm": _root(total["parameter_squares"]) if measured else None,
        "attention_logit_max": attention,
        "output_logit_max": output,
        "batch_digest": int(total["batch_digest"]) if ranks["batch_digest"] == world else None,
        "lr": total["lr"] if ranks["lr"] else None,
    }


def _coverage(known: float, owned: float) -> float:
    """0 to 1, and 1 only where less than half an element is missing: shares of a third do not add up exactly. More than
    is owned is whole: the optimizer has a state of what is not the model's, or is frozen."""
    return 1.0 if owned - known < max(0.5, 1e-12 * owned) else max(0.0, known / owned)


def _spread(largest: float, minus_least: float, mean: float) -> float:
    """Over the ranks; nan where a rank's reading is, which a MAX may have lost and the mean has not."""
    return math.nan if math.isnan(mean) else largest + minus_least


def _root(square: float) -> float:
    return math.sqrt(square) if square >= 0 else math.nan


def loss_scale(engine: Any) -> float | None:
    """The loss scale of fp16 training; None where there is none."""
    if has_own(engine, "scale_in_force"):  # what stands for an engine
        return engine.scale_in_force()  # type: ignore[no-any-return]
    optimizer = engine.optimizer
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
    epoch: float | None = None


class StepFacts:
    """Reads the fields of Sample that need no reduction, on rank 0, in the order of the steps."""

    def __init__(self, engine: Any, position: Callable[[], Position] | None) -> None:
        self._engine = engine
        self._position = position
        self._stepped_at: float | None = None
        self._tokens: int | None = None
        self._lr: float | None = None

    def update_coming(self) -> None:
        """Before each update: reads its learning rate, which a schedule within the step changes. One that lies on a
        device comes with the step's readings: nothing waits for it."""
        lr = self._engine.optimizer.param_groups[0]["lr"]
        self._lr = None if on_device(lr) else float(lr)

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
            "loss_scale": loss_scale(engine),
            "skipped": not engine.was_step_applied() if has_own(engine, "was_step_applied") else False,
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
    if facts.get("lr") is not None:
        reading = {**reading, "lr": facts["lr"]}
    facts = {name: value for name, value in facts.items() if name != "lr"}
    loss, seqlen = reading["loss"], facts.get("seqlen")
    over_all = minimum.over_all_lengths(loss, seqlen)
    ratio = minimum.push(loss, seqlen)
    return Sample(attempt=attempt, loss_ratio=ratio, loss_ratio_all_lengths=over_all, **facts, **reading)


def state_record(
    kind: type[StateLoaded | StateSaved],
    step: int,
    attempt: int,
    reading: Reading,
    names: tuple[str, ...],
    layers: Mapping[str, Any] | None,
) -> StateLoaded | StateSaved:
    """The readings of the state: at a save, or before the first update, as a checkpoint has brought it back."""
    of_all = ("adam_variance_l1", "adam_variance_max", "momentum_l2", "param_norm")
    parts = dict(layers or {})
    of_layers = {f"layer_{name.removeprefix('adam_')}": parts.pop(name) for name in of_all[:2]} if parts else {}
    return kind(
        attempt=attempt,
        global_step=step,
        time_unix_s=time.time(),
        **{name: reading[name] for name in of_all},
        layers=names if parts else (),
        **of_layers,
        **parts,
    )
