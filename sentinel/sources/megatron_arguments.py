"""The arguments that Megatron prints at its start, as what the attempt reports to run with."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sentinel.jobscript.megatron_log import given_by_log
from sentinel.sources.events import Announced
from sentinel.sources.numerals import number, whole
from sentinel.vocabulary.errors import ConfigError
from sentinel.vocabulary.pacing import LrSchedule

__all__ = ["Arguments", "Taken"]

_HEADER = re.compile(r"-{3,} (end of )?arguments -{3,}\s*$")
_STATUS = re.compile(r"(?:\.{2,}(?:updated|default))?\s*$")
_MOST_LINES = 5_000
"""Megatron prints some 300; more than this is no list of arguments."""

_LONGEST = 4_000
"""Characters of one of them; only lists of data files are longer."""

_REPORTED: Mapping[str, str] = {
    "seed": "seed",
    "seq-length": "full_seqlen",
    "train-iters": "total_steps",
    "save-interval": "checkpoint_interval_steps",
    "world-size": "world_size",
}
_MEASURED: Mapping[str, str] = {
    "clip-grad": "gradient_clipping",
    "gradient-clipping": "gradient_clipping",
    "adam-beta1": "adam_beta1",
    "adam-beta2": "adam_beta2",
    "weight-decay": "weight_decay",
}
_KEPT = ("global-batch-size", "micro-batch-size", "log-interval", "train-samples", "train-tokens", "load", "save")


@dataclass(frozen=True, slots=True)
class Taken:
    """A line of the list."""

    events: Sequence[Announced] = ()


class Arguments:
    """Collects the list while it is printed."""

    def __init__(self) -> None:
        self._lines: list[str] = []
        self.interval: int | None = None
        """`--log-interval` of the last list."""

    @property
    def open(self) -> bool:
        """Whether the list has begun and not ended."""
        return bool(self._lines)

    def take(self, line: str) -> Taken | None:
        """What the line adds; None for one that is not of the list. Its end announces a start of the program."""
        found = _HEADER.search(line)
        if found is None:
            if not self.open or " .." not in line or len(line) > _LONGEST:
                return None
            if len(self._lines) < _MOST_LINES:
                self._lines.append(_STATUS.sub("", line, count=1))
            return Taken()
        if found[1] is None:
            self._lines = [line]
            return Taken()
        if not self.open:
            return Taken()
        self._lines.append(line)
        return Taken(self.close())

    def close(self) -> Sequence[Announced]:
        """The start that the list announces, also where its end was lost among other lines."""
        facts, self._lines = _facts(given_by_log_of(self._lines)), []
        self.interval = whole(str(facts["settings"].get("log-interval", ""))) or None
        return (Announced(facts=facts, certain=True, interval=self.interval),)


def given_by_log_of(lines: Sequence[str]) -> dict[str, str]:
    """Option -> its value; switches that are on are "True"; what is None or False is left out."""
    given = given_by_log("\n".join(lines))
    return {option.flag.removeprefix("--"): " ".join(option.values) or "True" for option in given.options}


def _facts(options: Mapping[str, str]) -> dict[str, Any]:
    facts: dict[str, Any] = {field: whole(options[name]) for name, field in _REPORTED.items() if name in options}
    facts |= {field: number(options[name]) for name, field in _MEASURED.items() if name in options}
    facts["precision"] = _precision(options)
    facts["lr_schedule"] = _schedule(options)
    facts["settings"] = {name: options[name] for name in _KEPT if name in options}
    told = {name: value for name, value in facts.items() if value is not None}
    brought_back = tuple(name for name in ("lr_schedule", *dict.fromkeys(_MEASURED.values())) if name in told)
    return told | ({"from_arguments": brought_back} if brought_back else {})


def _precision(options: Mapping[str, str]) -> str | None:
    told = options.get("params-dtype", "") + options.get("precision", "")
    for name, dtype in (("bf16", "bfloat16"), ("fp16", "float16"), ("fp16", "half")):
        if name in options or dtype in told or name in told:
            return name
    return "fp32" if "float32" in told else None


def _schedule(options: Mapping[str, str]) -> dict[str, Any] | None:
    """The LR schedule where it is counted in iterations: linear warmup, then a cosine or nothing."""
    peak, total = number(options.get("lr", "")), whole(options.get("train-iters", ""))
    style = options.get("lr-decay-style", "cosine")
    by_samples = "train-samples" in options or any(
        whole(options.get(name, "")) for name in ("lr-warmup-samples", "lr-warmup-tokens", "lr-decay-tokens")
    )
    if peak is None or total is None or by_samples or style not in ("cosine", "constant"):
        return None
    decay_end = whole(options.get("lr-decay-iters", "")) or total
    fraction = number(options.get("lr-warmup-fraction", ""))
    warmup = whole(options.get("lr-warmup-iters", "")) or 0
    if fraction is not None and 0 <= fraction <= 1:
        warmup = round(fraction * decay_end)
    minimum = number(options.get("min-lr", "")) or 0.0
    try:
        return LrSchedule(
            peak=peak,
            warmup=warmup,
            decay_start=warmup,
            decay_end=decay_end if style == "cosine" else 0,
            minimum=minimum,
        ).to_json()
    except ConfigError:
        return None
