"""Any line with a step and a loss, in whatever order: nanoGPT's `iter 10: loss 3.1680, time 444.91ms`, and all others'.

Which loss is taken is decided in `line_losses`, which lines in `step_kinds`; a name that the user gives decides both.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from sentinel.sources.column_names import AS_FAIRSEQ
from sentinel.sources.line_events import FROM_ZERO, Decoder, Evaluated, Event, Reading, checkpoint_events
from sentinel.sources.line_losses import (
    EVALUATES,
    VALUE,
    Loss,
    other_training_loss,
    training_loss_in,
    validation_loss_in,
)
from sentinel.sources.line_text import number, rank_of, time_of, whole
from sentinel.sources.step_kinds import Kind, StepKinds
from sentinel.vocabulary.errors import LineError

_STEP = re.compile(
    r"(?:^|[\s\[(|,{'\":])(global[_ ]?)?(steps?|iterations?|iter|num_updates|update|batch)(?:\(train\))?['\"]?"
    r"\s*[:=#]?\s*\[?\s*(\d[\d,]*(?:K\b)?)(?:\.0+)?(?!\.?\d|%)(?:\s*(?:/|of)\s*(\d[\d,]*))?",
    re.IGNORECASE,
)
_IN_EPOCH = re.compile(r"\bepoch(?:\(train\))?:?\s*\[?\d+\]?.{0,200}?[\[|]\s*(\d+)/(\d+)(?=\]| \[\d)", re.IGNORECASE)
"""`Epoch(train) [100][3200/4309]`, `Epoch: [0]  [340/1504]`, a progress bar's `Epoch 0: 1%|# | 340/1504 [00:10<`."""

_AFTER_EPOCH = re.compile(r"\bepoch:?\s*\[?\d+(?:/\d+)?\]?\s*[:,|-]?\s+(\d+) ?/ ?(\d+)(?!\s*[/%:.\d])", re.IGNORECASE)
"""`| epoch 010  2000 / 8223 loss=1.2`, `Epoch  1, 2000/8223; xent: 1.2`, `| epoch   1 |   200/ 8223 batches`"""

_WITH_SHARE = re.compile(r"(?:\bTrain:\s+\d+(?:/\d+ \(\s*\d+%\))? \[|^)\s*(\d+)/(\d+) (?:\(\s*\d+%\)\]|= [\d.]+%)")
"""`Train: 0 [  50/1251 (  4%)]`, `100/10000 = 1.0%, SPS: 1.2`; not `Train Epoch: 1 [640/60000 (1%)]`, samples"""

_RANGE = re.compile(r"\d+epoch:train:\d+-(\d+)batch")
"""ESPnet's `2epoch:train:101-200batch`"""

_CLU = re.compile(r"logging_writer\.py:\d+\] \[(\d+)\]")  # of Google's trainers in JAX

_PROGRESS = re.compile(r"\bProgress on:\s*train\s+([\d.]+k?)it/([\d.]+k?)it", re.IGNORECASE)
"""levanter's, steps to three digits."""

_LEADING = re.compile(r"(?:^|[\]\s])(?:\[|\(\d+,\s*)?(?:\d+\|)?(\d{1,12})[\])]?\s*(?:\||(?=step_loss))")
"""`490 | loss 5.7`, llama2.c's; `[490 | 12.5] loss=5.7`; after the epoch `1|490|Loss: 5.7`, `(0, 490) step_loss : 5`"""

_NAMED = re.compile(r"(?:[A-Za-z_]\s*[:=]|poch)[\s\[(]*$")  # before a number that is another one
_BAR = re.compile(r"%\|[^|]{0,200}\|\s*(\d+)/(\d+) \[\d")
_BRACKETED = re.compile(r"(?:^|\s)\[\s*(\d+)/(\d+)\]")
_OF_EPOCHS = re.compile(r"poch:?\s*$", re.IGNORECASE)
_EPOCH = re.compile(
    r"(?:\bepochs?(?:\(train\))?['\"]?\s*[:=]?\s*\[?\s*|\btrain:\s*(?=\d+(?:/\d+ \(\s*\d+%\))?\s*\[)|\b(?=\d+epoch:))"
    r"(\d{1,9})(?![\d.]*\.\d)",
    re.IGNORECASE,
)
_LR = re.compile(rf"lr(?:ate)?(?: \([^)]{{1,20}}\))?{VALUE}")
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


class Counted:
    """The step that a line names, and where it stands in the line."""

    def __init__(self, found: re.Match[str], group: int, line: str) -> None:
        self.begin, self.end = found.start(), found.end(group)
        self.step = whole(found[group].upper())
        total = found.re.groups > group and found[group + 1]
        self.total = whole(total.upper()) if total else None
        self.redrawn = found.re is not _STEP and "%|" in line
        word = ("global_" if found[1] else "") + found[2].lower() if found.re is _STEP else ""
        self.word = "bar" if self.redrawn else word
        self.of_batches = self.word == "batch"  # an evaluation counts its own
        self.of_epochs = found.re is _BRACKETED and _OF_EPOCHS.search(line, 0, self.begin) is not None
        self.rounded = found.re is _PROGRESS
        epoch = _EPOCH.search(line) if "poch" in line or "Train:" in line else None
        self.epoch = None if epoch is None else whole(epoch[1])


def counted_in(line: str) -> Counted | None:
    """The step, as counted over the whole run where the line has that beside another one."""
    found = _STEP.search(line)
    if found is not None:
        if not found[1] and "lobal" in line:
            found = next((each for each in _STEP.finditer(line) if each[1]), found)
        return Counted(found, 3, line)
    for pattern in _COUNTS:
        found = pattern.search(line)
        if found is not None and not (pattern is _LEADING and _NAMED.search(line, 0, found.start(1))):
            return Counted(found, 1, line)
    return None


_COUNTS = (_IN_EPOCH, _AFTER_EPOCH, _WITH_SHARE, _RANGE, _CLU, _PROGRESS, _LEADING, _BAR, _BRACKETED)


def _fields_in(rest: str) -> dict[str, Any]:
    """Fields of Sample beside the loss."""
    fields: dict[str, Any] = {}
    if ("orm" in rest or "rad" in rest or "ORM" in rest) and (found := _NORM.search(rest) or _BARE_NORM.search(rest)):
        fields["grad_norm"] = number(found[1].replace(",", ""))
    if (found := _lr_in(rest)) is not None:
        fields["lr"] = number(found[1].replace(",", ""))
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


class _Epochs:
    """Makes of steps that begin anew in each epoch those of the whole run."""

    def __init__(self) -> None:
        self._before: dict[int, int] = {}  # updates before each epoch
        self._epoch: int | None = None
        self._step = 0  # the newest of the epoch
        self.anew = False

    def over_all(self, counted: Counted, step: int) -> int:
        """The update."""
        epoch = counted.epoch
        if epoch is None:
            return step
        if self._epoch is None or epoch < self._epoch:  # the log's first, or a restart
            self._before.setdefault(epoch, 0)
        elif epoch > self._epoch:
            passed = 0
            if step <= self._step:
                self.anew = True
                passed = self._step if counted.total is None else counted.total * (epoch - self._epoch)
            self._before[epoch] = self._before[self._epoch] + passed
        self._epoch, self._step = epoch, step
        return self._before[epoch] + step


def _named(name: str, value: str) -> re.Pattern[str]:
    """A value by the name that a user gives, however its words are joined."""
    words = r"[\s_./-]".join(re.escape(word) for word in re.split(r"[\s_./-]+", name.strip()))
    return re.compile(rf"(?<![\w./-]){words}{value}", re.IGNORECASE)


class Generic(Decoder):
    """Any line with a step and a loss. Recognised only where no format of its own is."""

    takes_columns = True

    def __init__(self) -> None:
        self.note = ""
        self._from_zero = self._of_fairseq = False
        self._epochs = _Epochs()
        self._kinds = StepKinds()
        self._kind = Kind(False, 0, "", "")  # of the line before
        self._columns: dict[str, re.Pattern[str]] = {}
        self._loss = ""  # the name of the loss that is asked for
        self._looks = 0
        self._bar: Reading | None = None
        """What a progress bar showed last. It is drawn anew for a step first with the loss of the one before."""

    def ask(self, columns: Mapping[str, str]) -> None:
        self._columns = {ours: _named(theirs, _COUNT if ours == "step" else VALUE) for ours, theirs in columns.items()}
        self._loss = columns.get("loss", "")

    def learn(self, other: Decoder) -> None:
        if isinstance(other, Generic):
            self._kinds = other._kinds.afresh()

    @property
    def left_out(self) -> int:
        return sum(self._kinds.left_out.values())

    @property
    def notes(self) -> list[str]:
        return [note for note in (self.note, self._kinds.note, AS_FAIRSEQ if self._of_fairseq else "") if note]

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
            if not self._kinds.problem and (other := other_training_loss(text, loss)) is not None:
                self._kinds.problem = (
                    f"two losses of a line may be the training loss: {loss.name} {loss.text} and {other.name} "
                    f"{other.text}; say which with --column loss={loss.name}"
                )
        return loss

    @property
    def problem(self) -> str:
        return self._kinds.problem

    @property
    def displaced(self) -> str:
        return self._kinds.displaced

    def end(self) -> Sequence[Event]:
        """A progress bar's last step."""
        bar, self._bar = self._bar, None
        return () if bar is None else (bar,)

    def _reading(self, counted: Counted, head: str, rest: str, text: str) -> Reading:
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
        return Reading(update, loss, rank_of(head), fields, None if self._epochs.anew else counted.total)

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
