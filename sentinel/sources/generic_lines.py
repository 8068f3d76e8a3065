"""Any line with a step and a loss, in whatever order: nanoGPT's `iter 10: loss 3.1680, time 444.91ms`, and all others'.

Which loss is taken is decided in `step_and_loss`, which lines in `step_kinds`; a name that the user gives decides both.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from sentinel.sources.column_names import AS_FAIRSEQ
from sentinel.sources.line_events import (
    CHECKPOINT_WORDS,
    FROM_ZERO,
    Decoder,
    Evaluated,
    Event,
    LineReading,
    checkpoint_events,
)
from sentinel.sources.line_text import number, rank_of, time_of, whole
from sentinel.sources.step_and_loss import (
    EVALUATES,
    VALUE,
    Counted,
    Epochs,
    Loss,
    counted_in,
    other_training_loss,
    training_loss_in,
    validation_loss_in,
)
from sentinel.sources.step_kinds import Kind, StepKinds
from sentinel.vocabulary.errors import LineError

_LR = re.compile(rf"lr(?:ate)?(?: \([^)]{{1,20}}\))?{VALUE}")
_SCALED_LR = re.compile(rf"\blr\((1e-?\d)\){VALUE}")  # verl's `train/lr(1e-3):0.01`
_CURRENT = re.compile(r"\bcur(?:rent)?_$")
_LEARNING_RATE = re.compile(rf"\b(?:lr(?:ate)?|learning[-_ ]rate)(?: \([^)]{{1,20}}\))?{VALUE}", re.IGNORECASE)
_NORM = re.compile(rf"\b(?:grad(?:ient)?s?[-_. ]{{0,2}}norm|gnorm|global[-_ ](?:grad[-_ ])?norm){VALUE}", re.IGNORECASE)
_BARE_NORM = re.compile(rf"(?<!\w )\b(?:norm|grads?){VALUE}", re.IGNORECASE)
_SCALE = re.compile(rf"\bloss[-_ ]scale{VALUE}", re.IGNORECASE)
_TOKENS = re.compile(rf"\b(?:(?:num_|total_)?consumed[-_ ]tokens|tokens[-_ ]seen){VALUE}", re.IGNORECASE)
_SAMPLES = re.compile(rf"\bconsumed[-_ ](?:train[-_ ])?samples{VALUE}", re.IGNORECASE)
_MS = re.compile(r"(?:\||\b(?:time|dt|per_step_time|step[-_ ]time)\s*[:= ])\s*([\d.]+) ?ms\b", re.IGNORECASE)
_SECONDS = re.compile(
    r"(?<!total )(?<!elapsed )\b(?:(?:step[-_ ])?time\s*[:= ]\s*([\d.]+) ?s(?:ec)?\b|seconds:\s*([\d.]+)"
    r"|iter time \(s\):\s*([\d.]+))",
    re.IGNORECASE,
)
_MMENGINE = re.compile(r"(?<!\w)time: ([\d.]+)")


def _fields_in(rest: str) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    if ("orm" in rest or "rad" in rest or "ORM" in rest) and (found := _NORM.search(rest) or _BARE_NORM.search(rest)):
        fields["grad_norm"] = number(found[1].replace(",", ""))
    if (found := _lr_in(rest)) is not None:
        fields["lr"] = number(found[1].replace(",", ""))
    elif (
        "lr(1e" in rest and (found := _SCALED_LR.search(rest)) is not None and (scaled := number(found[2])) is not None
    ):
        fields["lr"] = scaled * float(found[1])
    if "cale" in rest and (found := _SCALE.search(rest)) is not None:
        fields["loss_scale"] = number(found[1].replace(",", ""))
    if "okens" in rest and (found := _TOKENS.search(rest)) is not None:
        fields["consumed_tokens"] = whole(found[1].replace(",", ""))
    if "onsumed" in rest and (found := _SAMPLES.search(rest)) is not None:
        fields["consumed_samples"] = whole(found[1].replace(",", ""))
    if (at := rest.find("ms")) > 0 and (pace := _MS.search(rest, max(0, at - 40))) is not None:
        fields["step_time_s"] = None if (milliseconds := number(pace[1])) is None else milliseconds / 1000
    elif ("ime" in rest or "econds" in rest) and (seconds := _SECONDS.search(rest)) is not None:
        fields["step_time_s"] = number(seconds[1] or seconds[2] or seconds[3])
    elif "data_time" in rest and (seconds := _MMENGINE.search(rest)) is not None:
        fields["step_time_s"] = number(seconds[1])
    return fields


def _lr_in(rest: str) -> re.Match[str] | None:
    """The LR: not `base_lr`, but `cur_lr`."""
    for found in _LR.finditer(rest):
        at = found.start()
        if not (at and (rest[at - 1].isalpha() or rest[at - 1] == "_")) or _CURRENT.search(rest, 0, at):
            return found
    return _LEARNING_RATE.search(rest) if "earning" in rest or "LR" in rest or "RATE" in rest else None


_ITER = re.compile(r"\biter (\d+)\s*:\s*(?:train )?loss", re.IGNORECASE)
_COUNT = r"['\"]?\s*[:=#]?\s*\[?\s*(\d[\d,]*)(?!\.?\d)(?:\s*(?:/|of)\s*(\d[\d,]*))?"
_JSON = ('{"', "[{")
_LONGEST = 4_000  # characters of a line that is looked at: these patterns are tried at every place of it
_IN_EPOCHS = "steps are counted anew in each epoch of the log, and over all epochs here"
_EPOCHS_AS_STEPS = "the log counts epochs and no steps: a step here is an epoch"
_LOOKED_AT = 64  # step lines that are searched for a second training loss
_ROUNDED = "steps are rounded to three digits, as the log has them"


def _named(name: str, value: str) -> re.Pattern[str]:
    """A value by the name that a user gives, however its words are joined."""
    words = r"[\s_./-]".join(re.escape(word) for word in re.split(r"[\s_./-]+", name.strip()))
    return re.compile(rf"(?<![\w./-]){words}{value}", re.IGNORECASE)


class Generic(Decoder):
    """Any line with a step and a loss. Recognised only where no format of its own is."""

    takes_columns = True
    words: tuple[str, ...] = ("oss", "OSS", "xent", *CHECKPOINT_WORDS)

    def __init__(self) -> None:
        self.note = ""
        self._from_zero = self._of_fairseq = False
        self._epochs = Epochs()
        self.kinds = self._kinds = StepKinds()  # twice: Python finds a name faster that no class has
        self._kind = Kind(False, 0, "", "")  # of the line before
        self._columns: dict[str, re.Pattern[str]] = {}
        self._loss = ""  # the name of the loss that is asked for
        self._looks = 0
        # What a progress bar showed last. It is drawn anew for a step first with the loss of the one before.
        self._bar: LineReading | None = None

    def ask(self, columns: Mapping[str, str]) -> None:
        self._columns = {ours: _named(theirs, _COUNT if ours == "step" else VALUE) for ours, theirs in columns.items()}
        self._loss = columns.get("loss", "")
        self.words = ("",) if self._loss else self.words

    def learn(self, other: Decoder) -> None:
        self.kinds = self._kinds = other.kinds.afresh()

    @property
    def notes(self) -> list[str]:
        return [*super().notes, *([AS_FAIRSEQ] if self._of_fairseq else [])]

    def decode(self, line: str) -> Sequence[Event] | None:
        if len(line) > _LONGEST or not ("oss" in line or "OSS" in line or "xent" in line or self._loss):
            return checkpoint_events(line)
        counted = self._counted_in(line)
        if counted is None:
            return None
        if counted.step is None:
            raise LineError("a step that is not a number")
        head, rest = line[: counted.begin], line[counted.end :]
        evaluated = EVALUATES.search(head)
        if evaluated is not None:
            loss = training_loss_in(rest)
            text = loss.text if loss is not None else validation_loss_in(rest)
            return () if evaluated[2] else self._evaluated(counted, head, text)
        loss = self._loss_in(rest)
        if loss is None and not line.lstrip().startswith(_JSON) and (loss := self._loss_in(head)) is not None:
            rest = head + rest  # the step stands last
        valid = validation_loss_in(rest) if "val" in rest else None
        if loss is None or (valid is not None and "train loss" in rest and "time" not in rest):
            return self._evaluated(counted, head, valid)  # nanoGPT's estimates are both over many batches
        beside = () if valid is None else self._evaluated(counted, head, valid) or ()
        kind = (valid is not None, loss.rank, counted.word, loss.name)
        if kind != self._kind:
            self._kind = Kind(*kind)
        if not self._kinds.take(self._kind, counted.step):
            return beside
        reading = self._reading(counted, head, rest, loss.text)
        if not counted.redrawn:
            return (reading, *beside)
        before, self._bar = self._bar, reading
        return () if before is None or before.step == reading.step else (before,)

    def _counted_in(self, line: str) -> Counted | None:
        if "step" not in self._columns:
            return counted_in(line)
        found = self._columns["step"].search(line)
        return None if found is None else Counted(found, 1, line)

    def _loss_in(self, text: str) -> Loss | None:
        if self._loss:
            found = self._columns["loss"].search(text)
            return None if found is None else Loss(found[1], 0, self._loss)
        loss = training_loss_in(text)
        if loss is not None and self._looks < _LOOKED_AT:
            self._looks += 1
            if not self.kinds.problem and (other := other_training_loss(text, loss)) is not None:
                self.kinds.problem = (
                    f"two losses of a line may be the training loss: {loss.name} {loss.text} and {other.name} "
                    f"{other.text}; say which with --column loss={loss.name}"
                )
        return loss

    def end(self) -> Sequence[Event]:
        """A progress bar's last step."""
        bar, self._bar = self._bar, None
        return () if bar is None else (bar,)

    def _reading(self, counted: Counted, head: str, rest: str, text: str) -> LineReading:
        loss, step = number(text.replace(",", "")), counted.step or 0
        if loss is None:
            raise LineError("a loss that is not a number")
        self._from_zero |= step == 0
        update = self._epochs.over_all(counted, step + self._from_zero)
        if self._from_zero or self._epochs.anew or counted.rounded:
            self.note = FROM_ZERO if not self._epochs.anew else _IN_EPOCHS
            self.note = _ROUNDED if counted.rounded else self.note
        if counted.of_epochs:
            self.note = _EPOCHS_AS_STEPS
        self._of_fairseq = self._of_fairseq or "wpb=" in rest
        fields = {"time_unix_s": time_of(head), **_fields_in(rest)}
        for ours, pattern in self._columns.items():
            if ours not in ("step", "loss") and (found := pattern.search(head + rest)) is not None:
                fields[ours] = number(found[1].replace(",", ""))
        return LineReading(update, loss, rank_of(head), fields, None if self._epochs.anew else counted.total)

    def _evaluated(self, counted: Counted, head: str, text: str | None) -> Sequence[Event] | None:
        """A validation loss: nanoGPT's `step 0: train loss 4.28, val loss 4.28`; other trainers' evaluations."""
        loss = None if text is None else number(text.replace(",", ""))
        if loss is None or math.isinf(loss):
            return None
        step = None if counted.of_batches else counted.step
        return (Evaluated(loss=loss, step=step, time_unix_s=time_of(head)),)


class NanoGpt(Generic):
    """nanoGPT and its descendants. Its iteration 0 is the first update: one is added where a log begins with 0."""

    def decode(self, line: str) -> Sequence[Event] | None:
        if "oss" not in line:
            return checkpoint_events(line)
        if _ITER.search(line) is not None:
            return super().decode(line)
        valid = validation_loss_in(line)
        counted = None if valid is None else counted_in(line)
        return None if counted is None else self._evaluated(counted, line[: counted.begin], valid)
