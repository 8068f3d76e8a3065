"""Megatron-LM, Megatron-DeepSpeed (Microsoft's, BigScience's, ALCF's) and GPT-NeoX: `iteration N/ M | … | lm loss: …`.

Megatron leaves `lm loss` out where it is not above 0 (training_log in megatron/training.py): when it is nan, and on
steps that were skipped. Three cases are distinguished:

    the step was skipped (overflow)         skipped, loss nan or as printed, grad_norm None
    its loss was nan, and it was skipped    skipped, loss nan, grad_norm nan ("number of nan iterations" above 0)
    a nan that may have reached the weights not skipped, loss nan

DeepSpeed's engine skips without Megatron counting it: then the grad norm is the one of the step before, to its last
digit, while the loss scale is in use. It is not taken; the step counts as skipped where it has no loss, or where
DeepSpeed's own OVERFLOW line says so. A loss that is printed is a reading of the weights. A loss over several
iterations (--log-interval) is one sample at the last of them.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from sentinel.jobscript.megatron_log import given_by_log
from sentinel.sources.bar_lines import LOSS, NAN, SCALE, SKIPPED, STEP, Fields, fields_of
from sentinel.sources.line_events import Evaluated, Event, ProgramStarted, Reading, Saved
from sentinel.sources.line_text import number, rank_of, time_of, whole
from sentinel.vocabulary.errors import ConfigError, LineError
from sentinel.vocabulary.pacing import LrSchedule

__all__ = ["GptNeox", "Megatron"]

_ITERATION = re.compile(r"\biteration\s*[:=#]?\s*(\d[\d,]*)\s*(?:(?:/|of)\s*(\d[\d,]*))?\s*(?=\||$)", re.IGNORECASE)
_VALIDATION = re.compile(r"\bvalid\w* (?:loss|results?) at iteration\s*[:=]?\s*(\d+)(.*)", re.IGNORECASE | re.DOTALL)
_VALUE = re.compile(r"(?:\b|_)loss(?: value)?\s*[:=]\s*([^\s|]+)", re.IGNORECASE)
_LOADED = re.compile(
    r"\bload(?:ed|ing)\b.*\bcheckpoint\b.*?\b(?:iteration|step|global_step)\s*[:=]?\s*(\d+)", re.IGNORECASE
)
_SAVED = re.compile(
    r"\bsuccessfully saved checkpoint (?:at|from|for)?\s*iteration\s*(\d+)(?:\s+to\s+(\S+))?", re.IGNORECASE
)
_PACE = re.compile(r"[\s\d.]*samples/sec:[^|]*\|\s*$")
"""GPT-NeoX writes this before the iteration."""

_TAG = re.compile(r"(?:global_step|iter_)\d+(?=/|$)")
_AFTER_THE_LOSS = (SCALE, "grad_norm", SKIPPED, NAN)
_LONGEST_SENTENCE = 2_000
_TELLING_DIGITS = 100.0
"""A grad norm as large as this is printed with six digits: the same value twice is not a coincidence."""


class Megatron:
    """Megatron's training_log and its arguments."""

    def __init__(self) -> None:
        self.note = ""
        self._arguments = _Arguments()
        self._barred = False
        self._overflow = False
        self._last: tuple[int, float | None, float | None] = (0, None, None)

    def decode(self, line: str) -> Sequence[Event] | None:
        if "teration" in line or "ITERATION" in line:
            return self._of_iteration(line)
        if (self._arguments.open or " arguments " in line) and (taken := self._arguments.take(line)) is not None:
            return taken
        if "OVERFLOW!" in line and "kipping step" in line:
            self._overflow = True
            return ()
        if "start from random" in line or "not load any checkpoint" in line:
            return (ProgramStarted(facts={"resumed_from": None}, time_unix_s=time_of(line)),)
        return None

    def end(self) -> Sequence[Event]:
        return ()

    def _of_iteration(self, line: str) -> Sequence[Event] | None:
        found = _ITERATION.search(line)
        if found is not None and "|" in line and "alid" not in line[: found.start()]:
            readings = self._readings(line, found)
            return (*self._arguments.close(), *readings) if self._arguments.open else readings
        if self._arguments.open and (taken := self._arguments.take(line)) is not None:
            return taken
        if (valid := _VALIDATION.search(line)) is not None:
            step, value = whole(valid[1]), _VALUE.search(valid[2])
            loss = number(value[1]) if value else None
            if step is None or loss is None:
                raise LineError("a validation without its loss")
            return (Evaluated(loss=loss, step=step, time_unix_s=time_of(line[: valid.start()])),)
        if "heckpoint" in line and len(line) <= _LONGEST_SENTENCE:
            return _of_checkpoint(line)
        return None

    def _readings(self, line: str, found: re.Match[str]) -> tuple[Reading, ...]:
        """One; several where other processes have swallowed the ends of the lines between them."""
        of_so_many = line[found.end(1) : found.end(2)]  # "/ 500", which the other line has as well, is soon looked for
        if found[2] and of_so_many not in line[found.end() :]:
            return (self._reading(line, found),)
        following = _ITERATION.search(line, found.end())
        if following is None:
            return (self._reading(line, found),)
        bar = line.rfind("|", found.end(), following.start()) + 1  # before it: the first one's last field
        if (pace := _PACE.search(line, found.end(), following.start())) is not None:
            bar = pace.start()
        if not bar or following.end() - bar > _LONGEST_SENTENCE:
            return (self._reading(line, found),)
        rest = line[bar:]
        again = _ITERATION.search(rest)
        first = self._reading(line[:bar], found)
        return (first,) if again is None else (first, *self._readings(rest, again))

    def _reading(self, line: str, found: re.Match[str]) -> Reading:
        step = whole(found[1])
        if step is None:
            raise LineError("an iteration that is not a number")
        head = line[: found.start()]
        segments = line[found.end() :].split("|")
        tail = segments.pop()
        barred = not tail.strip()
        if barred:
            self._barred = True
        elif not self._barred:
            segments.append(tail)  # a trainer that ends no line with a bar; else the line is cut in the middle of this
        if "|" in head:
            segments += head.split("|")
        fields = fields_of(segments)
        if LOSS in fields and fields[LOSS] is None:
            raise LineError("a loss that is not a number")
        if LOSS not in fields and not any(name in fields for name in _AFTER_THE_LOSS):
            raise LineError("cut before its loss")
        total = whole(found[2]) if found[2] else None
        fields.pop(STEP, None)
        fields["time_unix_s"] = time_of(head)
        loss = self._judged(step, fields)
        return Reading(step, loss, rank_of(head), fields, total)

    def _judged(self, step: int, fields: Fields) -> float:
        """The loss; corrects the fields for skipped steps and for a grad norm of an earlier step."""
        loss: float = fields.pop(LOSS, math.nan)
        skipped, nans = fields.pop(SKIPPED, None) or 0, fields.pop(NAN, None) or 0
        norm, scale = fields.get("grad_norm"), fields.get(SCALE)
        last_step, last_norm, last_scale = self._last
        interval = step - last_step if 0 < last_step < step else self._arguments.interval or 1
        fell = scale is not None and last_scale is not None and scale < last_scale
        scaled = scale is not None and scale != 1.0
        stale = scaled and norm is not None and norm == last_norm and (norm >= _TELLING_DIGITS or fell)
        if norm == 0.0 or stale:
            fields["grad_norm"] = None
        unsaid = interval == 1 and (self._overflow or (math.isnan(loss) and (stale or fell)))
        if (skipped and (skipped >= interval or math.isnan(loss))) or unsaid:
            fields["skipped"] = True
            fields["grad_norm"] = math.nan if nans else None
        self._overflow = False
        self._last = (step, norm or None, scale)
        return loss


class GptNeox(Megatron):
    """GPT-NeoX's lines, which begin with the pace and have `lm_loss`."""

    def decode(self, line: str) -> Sequence[Event] | None:
        if "teration" in line and "|" in line and "samples/sec" not in line and "approx flops" not in line:
            return None if _ITERATION.search(line) is not None and "alid" not in line else super().decode(line)
        return super().decode(line)


def _of_checkpoint(line: str) -> Sequence[Event] | None:
    if (saved := _SAVED.search(line)) is not None:
        step = whole(saved[1])
        tag: Any = _TAG.search(saved[2]) if saved[2] else None
        if step is not None:
            named = tag[0] if tag else f"global_step{step}"
            return (Saved(step=step, tag=named, time_unix_s=time_of(line[: saved.start()])),)
    if (loaded := _LOADED.search(line)) is not None and (step := whole(loaded[1])) is not None:
        return (ProgramStarted(facts={"resumed_from": step or None}, time_unix_s=time_of(line[: loaded.start()])),)
    return None


_HEADER = re.compile(r"-{3,} (end of )?arguments -{3,}\s*$")
_STATUS = re.compile(r"(?:\.{2,}(?:updated|default))?\s*$")
_MOST_LINES = 5_000
"""Megatron prints about 300."""

_LONGEST_ARGUMENT = 4_000
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


class _Arguments:
    """Collects the list while it is printed."""

    def __init__(self) -> None:
        self._lines: list[str] = []
        self.interval: int | None = None
        """`--log-interval` of the last list."""

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
        facts, self._lines = _facts(_options(self._lines)), []
        self.interval = whole(str(facts["settings"].get("log-interval", ""))) or None
        return (ProgramStarted(facts=facts, certain=True, interval=self.interval),)


def _options(lines: Sequence[str]) -> dict[str, str]:
    """Option -> its value; switches that are on are "True"; what is None or False is left out."""
    given = given_by_log("\n".join(lines))
    return {option.flag.removeprefix("--"): " ".join(option.values) or "True" for option in given.options}


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
