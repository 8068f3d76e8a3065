"""Megatron-LM, Megatron-DeepSpeed (Microsoft's, BigScience's, ALCF's), GPT-NeoX and NeMo: fields between bars.

`iteration N/ M | … | lm loss: …`. Megatron leaves `lm loss` out where it is not above 0 (training_log in
megatron/training.py): when it is nan, and on steps that were skipped. Three cases are distinguished:

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
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from sentinel.sources.alike_lines import AlikeLines
from sentinel.sources.line_events import (
    CHECKPOINT_WORDS,
    Decoder,
    Evaluated,
    Event,
    LineReading,
    ProgramStarted,
    Saved,
    checkpoint_events,
    fields_of,
)
from sentinel.sources.line_text import number, rank_of, time_of, whole
from sentinel.sources.megatron_arguments import Arguments
from sentinel.vocabulary.errors import LineError


def fields_between_bars(segments: Sequence[str]) -> dict[str, Any]:
    """The known fields of the segments: a name, `:`, `=` or (the oldest lines) a space, then a value."""
    pairs = []
    for segment in segments:
        name, sign, text = segment.rpartition(":")
        if not sign:
            name, sign, text = segment.rpartition("=")
            if not sign:
                name, _, text = segment.strip().rpartition(" ")
        pairs.append((name, text))
    return fields_of(pairs)


_ITERATION = re.compile(r"\biteration\s*[:=#]?\s*(\d[\d,]*)\s*(?:(?:/|of)\s*(\d[\d,]*))?\s*(?=\||$)", re.IGNORECASE)
_VALIDATION = re.compile(r"\bvalid\w* (?:loss|results?) at iteration\s*[:=]?\s*(\d+)(.*)", re.IGNORECASE | re.DOTALL)
_VALUE = re.compile(r"(?:\b|_)loss(?: value)?\s*[:=]\s*([^\s|]+)", re.IGNORECASE)
_LOADED = re.compile(
    r"\bload(?:ed|ing)\b.*\bcheckpoint\b.*?\b(?:iteration|step|global_step)\s*[:=]?\s*(\d+)", re.IGNORECASE
)
_SAVED = re.compile(
    r"\bsuccessfully saved checkpoint (?:at|from|for)?\s*iteration\s*(\d+)(?:\s+to\s+(\S+))?", re.IGNORECASE
)
_PACE = re.compile(r"[\s\d.]*samples/sec:[^|]*\|\s*$")  # GPT-NeoX writes this before the iteration
_TAG = re.compile(r"(?:global_step|iter_)\d+(?=/|$)")
_COUNTED = re.compile(r"\biteration\s*[:=#]?\s*\d", re.IGNORECASE)
_AFTER_THE_LOSS = ("loss_scale", "grad_norm", "skipped", "nan_iterations")
_LONGEST_SENTENCE = 2_000
# A grad norm as large as this is printed with six digits: the same value twice is not a coincidence.
_TELLING_DIGITS = 100.0


class Megatron(Decoder):
    """Megatron's training_log and its arguments."""

    words = ("teration", "ITERATION", " arguments ", "OVERFLOW!", "start from random", "not load any checkpoint")

    def __init__(self) -> None:
        self._arguments = Arguments()
        self._barred = False
        self._overflow = False
        # Step, grad norm and loss scale of the last line.
        self._last: tuple[int, float | None, float | None] = (0, None, None)

    @property
    def within(self) -> bool:  # type: ignore[override]
        return self._arguments.open

    def is_plain(self, line: str) -> bool:
        return line.rstrip().endswith("|") and len(_COUNTED.findall(line)) == 1

    def steps_of(self, lines: AlikeLines) -> Sequence[int] | None:
        _, last_norm, last_scale = self._last
        norms, scales = [last_norm, *lines.column("grad_norm")], [last_scale, *lines.column("loss_scale")]
        stale = any(norm == last and norm is not None and norm >= _TELLING_DIGITS for last, norm in pairwise(norms))
        if self._overflow or stale or 0.0 in norms or any(_fell(*two) for two in pairwise(scales)):
            return None
        steps = lines.column("step")
        return None if None in steps else steps

    def pass_over(self, lines: AlikeLines, steps: Sequence[int]) -> None:
        self._last = (steps[-1], lines.column("grad_norm")[-1], lines.column("loss_scale")[-1])

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

    def _readings(self, line: str, found: re.Match[str]) -> tuple[LineReading, ...]:
        """One; several where other processes have swallowed the ends of the lines between them."""
        of_so_many = line[found.end(1) : found.end(2)]  # "/ 500", which the other line has as well, is soon looked for
        following = None
        if not found[2] or of_so_many in line[found.end() :]:
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

    def _reading(self, line: str, found: re.Match[str]) -> LineReading:
        step = whole(found[1])
        if step is None:
            raise LineError("an iteration that is not a number")
        head = line[: found.start()]
        segments = line[found.end() :].split("|")
        tail = segments.pop()
        if not tail.strip():
            self._barred = True
        elif not self._barred:
            segments.append(tail)  # a trainer that ends no line with a bar; else the line is cut in the middle of this
        if "|" in head:
            segments += head.split("|")
        fields = fields_between_bars(segments)
        if "loss" in fields and fields["loss"] is None:
            raise LineError("a loss that is not a number")
        if "loss" not in fields and not any(name in fields for name in _AFTER_THE_LOSS):
            raise LineError("cut before its loss")
        fields["time_unix_s"] = time_of(head)
        loss = self._judged(step, fields)
        return LineReading(step, loss, rank_of(head), fields, whole(found[2]) if found[2] else None)

    def _judged(self, step: int, fields: dict[str, Any]) -> float:
        """The loss; corrects the fields for skipped steps and for a grad norm of an earlier step."""
        loss: float = fields.pop("loss", math.nan)
        skipped, nans = fields.pop("skipped", None) or 0, fields.get("nan_iterations") or 0
        norm, scale = fields.get("grad_norm"), fields.get("loss_scale")
        last_step, last_norm, last_scale = self._last
        interval = step - last_step if 0 < last_step < step else self._arguments.interval or 1
        fell = _fell(last_scale, scale)
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


def _fell(last_scale: float | None, scale: float | None) -> bool:
    return scale is not None and last_scale is not None and scale < last_scale


class GptNeox(Megatron):
    """GPT-NeoX's lines, which begin with the pace and have `lm_loss`."""

    def decode(self, line: str) -> Sequence[Event] | None:
        if "teration" in line and "|" in line and "samples/sec" not in line and "approx flops" not in line:
            return None if _ITERATION.search(line) is not None and "alid" not in line else super().decode(line)
        return super().decode(line)


def _of_checkpoint(line: str) -> Sequence[Event] | None:
    if (saved := _SAVED.search(line)) is not None and (step := whole(saved[1])) is not None:
        tag = _TAG.search(saved[2] or "")
        named = tag[0] if tag else f"global_step{step}"
        return (Saved(step=step, tag=named, time_unix_s=time_of(line[: saved.start()])),)
    if (loaded := _LOADED.search(line)) is not None and (step := whole(loaded[1])) is not None:
        return (ProgramStarted(facts={"resumed_from": step or None}, time_unix_s=time_of(line[: loaded.start()])),)
    return None


_OF_NEMO = re.compile(r"\biteration:?\s*(\d[\d,]*)\s*/\s*(\d[\d,.]*[KMBG]?)", re.IGNORECASE)
_VAL_LOSS = re.compile(r"\|\s*val(?:idation)?_loss:\s*([^\s|]+)")


class NeMo(Decoder):
    """`Training epoch 0, iteration 1/19 | … | global_step: 1 | reduced_train_loss: … | consumed_samples: …`. NeMo
    counts from 0 (at global_step 1 the samples of two steps are consumed): one is added."""

    words = ("train_loss", "val_loss", *CHECKPOINT_WORDS)
    note = "NeMo counts steps from 0: its step N is update N + 1 here"
    _validated: float | None = None

    def decode(self, line: str) -> Sequence[Event] | None:
        if ("train_loss" not in line and "val_loss" not in line) or "|" not in line:
            return checkpoint_events(line)
        value = _VAL_LOSS.search(line)
        validated = None if value is None else number(value[1])
        if "reduced_train_loss" not in line:
            return None if validated is None else (Evaluated(loss=validated, time_unix_s=time_of(line)),)
        found = _OF_NEMO.search(line)
        fields = fields_between_bars(line.replace(", ", "|").replace("]", "|").split("|"))
        step, loss = fields.get("step"), fields.get("loss")
        if step is None and found is not None:
            step = whole(found[1])
        if step is None or loss is None:
            raise LineError("an iteration without its step or its loss")
        for name in ("loss", "skipped", "epoch"):
            fields.pop(name, None)
        head = line[: found.start()] if found else ""
        fields["time_unix_s"] = time_of(head)
        total = whole(found[2]) if found else None
        events: list[Event] = [LineReading(step + 1, loss, rank_of(head), fields, total and total + 1)]
        if validated is not None and validated != self._validated:  # the newest is repeated on every line
            self._validated = validated
            events.append(Evaluated(loss=validated, time_unix_s=fields["time_unix_s"]))
        return events
