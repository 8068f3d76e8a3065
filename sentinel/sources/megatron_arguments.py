"""The list of arguments that Megatron prints when it starts: a start of the program, with its settings."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from sentinel.jobscript.facts import ScriptFacts
from sentinel.jobscript.given import Given
from sentinel.jobscript.megatron_log import HEADER, given_by_log
from sentinel.jobscript.megatron_options import lr_schedule
from sentinel.jobscript.option_facts import Known, megatron_facts
from sentinel.sources.line_events import ProgramStarted
from sentinel.sources.line_text import number, whole
from sentinel.vocabulary.errors import ConfigError

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
_STYLES = ("cosine", "constant")
_DTYPES = {"bfloat16": "bf16", "float16": "fp16", "half": "fp16", "float32": "fp32"}
_PRECISIONS = _DTYPES | {name: name for name in _DTYPES.values()}


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
        found = HEADER.search(line)
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
        facts = _facts(given)
        self._lines = []
        self.interval = whole(str(facts["settings"].get("log-interval", ""))) or None
        return (ProgramStarted(facts=facts, certain=True, interval=self.interval),)


def _facts(given: Given) -> dict[str, Any]:
    options = {each.flag.removeprefix("--"): " ".join(each.values) or "True" for each in given.options}
    known = megatron_facts(given, [])
    facts: dict[str, Any] = {field: whole(options[name]) for name, field in _REPORTED.items() if name in options}
    facts |= {field: number(options[name]) for name, field in _MEASURED.items() if name in options}
    printed = (options.get(name, "").removeprefix("torch.") for name in ("precision", "params-dtype"))
    facts["precision"] = known.get("precision") or next((_PRECISIONS[p] for p in printed if p in _PRECISIONS), None)
    facts["lr_schedule"] = _schedule(known, options.get("lr-decay-style", "cosine"))
    facts["settings"] = {name: options[name] for name in _KEPT if name in options}
    found = {name: value for name, value in facts.items() if value is not None}
    brought_back = tuple(name for name in ("lr_schedule", *dict.fromkeys(_MEASURED.values())) if name in found)
    return found | ({"from_arguments": brought_back} if brought_back else {})


def _schedule(known: Known, style: str) -> dict[str, Any] | None:
    """The LR schedule where it is counted in iterations: linear warmup, then a cosine or nothing."""
    by_others = ("train_samples", "lr_warmup_samples", "lr_warmup_tokens", "lr_decay_tokens")
    if not known.get("train_iters") or any(known.get(name) for name in by_others) or style not in _STYLES:
        return None
    try:
        schedule = lr_schedule(ScriptFacts(**known), style=style)
    except ConfigError:
        return None
    return None if schedule is None else schedule.to_json()
