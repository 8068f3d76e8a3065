"""Lines of `name: value | name: value |`, as Megatron and its relatives write them: the fields, by one set of names."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sentinel.sources.numerals import number, whole

__all__ = ["LOSS", "NAN", "SCALE", "SKIPPED", "STEP", "Fields", "fields_of"]

Fields = dict[str, Any]
"""Fields of Sample by their names, and LOSS, SKIPPED, NAN; None for what is no number."""

LOSS, SKIPPED, NAN, SCALE, STEP = (
    "loss",
    "number of skipped iterations",
    "number of nan iterations",
    "loss_scale",
    "step",
)


def _seconds(text: str) -> float | None:
    """Primus writes the mean of the last iterations behind it: `5444.9/5450.1`."""
    return number(text.partition("/")[0])


def _milliseconds(text: str) -> float | None:
    read = _seconds(text)
    return None if read is None else read / 1000


Reads = Callable[[str], Any]
_KNOWN: dict[str, tuple[str, Reads]] = {
    "consumed samples": ("consumed_samples", whole),
    "consumed train samples": ("consumed_samples", whole),
    "consumed tokens": ("consumed_tokens", whole),
    "elapsed time per iteration (ms)": ("step_time_s", _milliseconds),
    "elapsed time per iteration ms": ("step_time_s", _milliseconds),
    "elapsed time per iteration (s)": ("step_time_s", _seconds),
    "elapsed time per iteration s": ("step_time_s", _seconds),
    "elapsed time per iteration": ("step_time_s", _milliseconds),
    "train step timing in s": ("step_time_s", number),
    "learning rate": ("lr", number),
    "lr": ("lr", number),
    "global batch size": ("global_batch_samples", whole),
    "batch size": ("global_batch_samples", whole),
    "loss scale": (SCALE, number),
    "grad norm": ("grad_norm", number),
    "gradient norm": ("grad_norm", number),
    "total grad norm": ("grad_norm", number),
    "actual seqlen": ("seqlen", whole),
    "seqlen": ("seqlen", whole),
    "curriculum seqlen": ("seqlen", whole),
    "number of skipped iterations": (SKIPPED, whole),
    "number of nan iterations": (NAN, whole),
    "global step": (STEP, whole),
    "epoch": ("epoch", number),
}
_LOSSES = (
    "lm loss",
    "lm loss training",
    "reduced train loss",
    "loss",
    "total loss",
    "train loss",
    "training loss",
    "language model loss",
)
"""The first that is there counts."""

_KNOWN |= {name: (f"{LOSS} {rank}", number) for rank, name in enumerate(_LOSSES)}
_RANKED = [f"{LOSS} {rank}" for rank in range(len(_LOSSES))]

_names: dict[str, tuple[str, Reads] | None] = {}
"""What each spelling of a name that was met stands for."""

_MOST_SPELLINGS = 4096
_LONGEST_SPELLING = 100


def _meaning(spelling: str) -> tuple[str, Reads] | None:
    name = " ".join(spelling.lower().replace("_", " ").replace("-", " ").split())
    if len(_names) >= _MOST_SPELLINGS:
        _names.clear()
    found = _KNOWN.get(name)
    if len(spelling) <= _LONGEST_SPELLING:
        _names[spelling] = found
    return found


def fields_of(segments: list[str]) -> Fields:
    """The known fields among the segments between the bars. A name before `:`, `=` or, in the oldest lines, a space."""
    fields: Fields = {}
    for segment in segments:
        spelling, sign, text = segment.rpartition(":")
        if not sign:
            spelling, sign, text = segment.rpartition("=")
            if not sign:
                spelling, _, text = segment.strip().rpartition(" ")
        known = _names[spelling] if spelling in _names else _meaning(spelling)
        if known is not None:
            name, reads = known
            fields[name] = reads(text)
    for ranked in _RANKED:
        if ranked in fields:
            value = fields.pop(ranked)
            fields.setdefault(LOSS, value)
    return fields
