"""The list of arguments that Megatron prints when it starts: a start of the program, with its settings."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from sentinel.jobscript.megatron_log import given_by_log
from sentinel.sources.line_events import ProgramStarted
from sentinel.sources.line_text import number, whole
from sentinel.vocabulary.errors import ConfigError
from sentinel.vocabulary.pacing import LrSchedule

_HEADER = re.compile(r"-{3,} (end of )?arguments -{3,}\s*$")
_STATUS = re.compile(r"(?:\.{2,}(?:updated|default))?\s*$")
_MOST_LINES = 5_000  # Megatron prints about 300
_LONGEST_ARGUMENT = 4_000  # characters of one of them; only lists of data files are longer

_REPORTED = {
    "seed": "seed",
    "seq-length": "full_seqlen",
    "train-iters": "total_steps",
    "train-tokens": "total_tokens",
    "save-interval": "checkpoint_interval_steps",
    "world-size": "world_size",
}
_MEASURED = {
    "clip-grad": "gradient_clipping",
    "gradient-clipping": "gradient_clipping",
    "adam-beta1": "adam_beta1",
    "adam-beta2": "adam_beta2",
    "weight-decay": "weight_decay",
}
_KEPT = ("global-batch-size", "micro-batch-size", "log-interval", "train-samples", "train-tokens", "load", "save")


class Arguments:
    """Collects the list while it is printed. `interval` is the `--log-interval` of the last list."""

    def __init__(self) -> None:
        self._lines: list[str] = []
        self.interval: int | None = None

    @property
    def open(self) -> bool:
        """Whether the list has begun and not ended."""
        return bool(self._lines)

    def take(self, line: str) -> Sequence[ProgramStarted] | None:
        """None for a line that is not of the list. The end of the list is a start of the program."""
        found = _HEADER.search(line)
        if found is None:
            if not self.open or " .." not in line or len(line) > _LONGEST_ARGUMENT:
                return None
            if len(self._lines) < _MOST_LINES:
                self._lines.append(_STATUS.sub("", line, count=1))
            return ()
        if found[1] is None:
            self._lines = [line]
            return ()
        if not self.open:
            return ()
        self._lines.append(line)
        return self.close()

    def close(self) -> Sequence[ProgramStarted]:
        """The start of the program, also where the end of the list was lost among other lines."""
        given = given_by_log("\n".join(self._lines))  # switches that are on are "True"; None and False are left out
        facts = _facts({each.flag.removeprefix("--"): " ".join(each.values) or "True" for each in given.options})
        self._lines = []
        self.interval = whole(str(facts["settings"].get("log-interval", ""))) or None
        return (ProgramStarted(facts=facts, certain=True, interval=self.interval),)


def _facts(options: Mapping[str, str]) -> dict[str, Any]:
    facts: dict[str, Any] = {field: whole(options[name]) for name, field in _REPORTED.items() if name in options}
    facts |= {field: number(options[name]) for name, field in _MEASURED.items() if name in options}
    facts["precision"] = _precision(options)
    facts["lr_schedule"] = _schedule(options)
    facts["settings"] = {name: options[name] for name in _KEPT if name in options}
    found = {name: value for name, value in facts.items() if value is not None}
    brought_back = tuple(name for name in ("lr_schedule", *dict.fromkeys(_MEASURED.values())) if name in found)
    return found | ({"from_arguments": brought_back} if brought_back else {})


def _precision(options: Mapping[str, str]) -> str | None:
    found = options.get("params-dtype", "") + options.get("precision", "")
    for name, dtype in (("bf16", "bfloat16"), ("fp16", "float16"), ("fp16", "half")):
        if name in options or dtype in found or name in found:
            return name
    return "fp32" if "float32" in found else None


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
    end = decay_end if style == "cosine" else 0
    try:
        return LrSchedule(peak=peak, warmup=warmup, decay_start=warmup, decay_end=end, minimum=minimum).to_json()
    except ConfigError:
        return None
