"""Any line with a step and a loss, in whatever order: nanoGPT's `iter 10: loss 3.1680, time 444.91ms`, and all others'.

A loss has a qualifier, the word before it. Only those that stand for the training loss are taken, the one over the
tokens before a sum with auxiliary ones; a word that is not known (`aux_loss`, `nll_loss`, `actor/pg_loss`) is another
quantity.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Any

from sentinel.sources.line_events import COUNTS, FROM_ZERO, Decoder, Evaluated, Event, Reading, checkpoint_events
from sentinel.sources.line_text import number, rank_of, time_of, whole
from sentinel.vocabulary.errors import LineError

_NUMBER = r"[-+]?(?:\d[\d,]*\.?\d*(?:[eE][-+]?\d+)?|\.\d+(?:[eE][-+]?\d+)?|nan|inf(?:inity)?)"
_WITHIN = r"(?:(?:[a-z]{1,20}\.)?(?:tensor|[aA]rray|float\d*)\(|\{'[^']{1,40}':\s*)?\[{0,2}"
"""What numbers stand in: `tensor(2.5, device='cuda:0')`, `{'0_default': 1.5, …}`, `[1e-4, 1e-4]`."""

_VALUE = rf"['\"]?(?:\s*[:=]\s*|\s+(?:is\s+)?){_WITHIN}({_NUMBER})\b"
_STEP = re.compile(
    r"(?:^|[\s\[(|,{'\":])(global[_ ]?)?(?:step|steps|iteration|iter|num_updates|update|batch)(?:\(train\))?['\"]?"
    r"\s*[:=#]?\s*\[?\s*(\d[\d,]*(?:K\b)?)(?:\.0+)?(?!\.?\d)(?:\s*(?:/|of)\s*(\d[\d,]*))?",
    re.IGNORECASE,
)
_IN_EPOCH = re.compile(r"\bepoch(?:\(train\))?:?\s*\[?\d+\]?.{0,200}?[\[|]\s*(\d+)/(\d+)(?=\]| \[\d)", re.IGNORECASE)
"""`Epoch(train) [100][3200/4309]`, `Epoch: [0]  [340/1504]`, a progress bar's `Epoch 0: 1%|# | 340/1504 [00:10<`."""

_PROGRESS = re.compile(r"\bProgress on:\s*train\s+([\d.]+k?)it/([\d.]+k?)it", re.IGNORECASE)
"""levanter's, steps to three digits."""

_LEADING = re.compile(r"(?:^|[\]\s])(?:\[|\(\d+,\s*)?(?:\d+\|)?(\d{1,12})[\])]?\s*(?:\||(?=step_loss))")
"""`490 | loss 5.7`, llama2.c's; `[490 | 12.5] loss=5.7`; after the epoch `1|490|Loss: 5.7`, `(0, 490) step_loss : 5`"""

_BAR = re.compile(r"%\|[^|]{0,200}\|\s*(\d+)/(\d+) \[\d")
_BRACKETED = re.compile(r"(?:^|\s)\[\s*(\d+)/(\d+)\]")
_EPOCH = re.compile(r"\bepochs?(?:\(train\))?['\"]?\s*[:=]?\s*\[?\s*(\d{1,9})(?![\d.]*\.\d)", re.IGNORECASE)
_LOSS = re.compile(rf"loss(?:/train)?(?:/total)?{_VALUE}")
_LOSS_ANYHOW = re.compile(rf"(?:loss(?:/train)?(?:/total)?|xent){_VALUE}", re.IGNORECASE)  # several times as slow
_QUALIFIER = re.compile(r"[\w/.-]*$")
_WORD_BEFORE = re.compile(r"\b([A-Za-z]\w*) $")


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_OF_TOKENS = _words(
    "train training lm train_lm training_lm train/lm language_model main_model main train/main llm reduced_llm "
    "train/llm ce cross_entropy train/ce"
)
_OF_A_STEP = _words("step train_step batch gpt reduced_train avg average mean global_avg")
_OF_ALL = _words("total train_total tot train/total")
_RANKED = (frozenset({""}) | _OF_TOKENS, _OF_A_STEP, _OF_ALL)
_VALIDATION = _words("val valid validation eval evaluation val_lm valid_lm eval_lm")
_OTHERWISE = _words(
    "test dev aux auxiliary moe router balance balancing load_balancing z mtp kl policy value critic actor reward dpo "
    "distill distillation contrastive sop nsp nll best min initial"
)
_SPACED = _OTHERWISE | _VALIDATION | _OF_TOKENS | _OF_ALL | _OF_A_STEP - {"step", "batch"}
"""Words before `loss` with a blank between: any other word there is no qualifier."""

EVALUATES = re.compile(
    r"(?:^|[\s\[(|\]])(?:(eval(?:uat(?:ion|ing|e))?|valid(?:ation|ating|ate)?|val)"
    r"|(test(?:ing)?(?= (?:step|iter|epoch|batch|set|loss))))(?=$|[\s\]:|),])",
    re.IGNORECASE,
)
"""What stands before a step of an evaluation; the second group is there for a test."""
_LR = re.compile(rf"lr(?: \([^)]{{1,20}}\))?{_VALUE}")
_CURRENT = re.compile(r"\bcur(?:rent)?_$")
_LEARNING_RATE = re.compile(rf"\b(?:lr|learning[-_ ]rate)(?: \([^)]{{1,20}}\))?{_VALUE}", re.IGNORECASE)
_NORM = re.compile(
    rf"\b(?:grad(?:ient)?s?[-_. ]{{0,2}}norm|gnorm|global[-_ ](?:grad[-_ ])?norm){_VALUE}", re.IGNORECASE
)
_BARE_NORM = re.compile(rf"(?<!\w )\bnorm{_VALUE}", re.IGNORECASE)
_SCALE = re.compile(rf"\bloss[-_ ]scale{_VALUE}", re.IGNORECASE)
_TOKENS = re.compile(rf"\b(?:(?:num_|total_)?consumed[-_ ]tokens|tokens[-_ ]seen){_VALUE}", re.IGNORECASE)
_SAMPLES = re.compile(rf"\bconsumed[-_ ](?:train[-_ ])?samples{_VALUE}", re.IGNORECASE)
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
        self.of_batches = "batch" in found[0].lower()  # an evaluation counts its own
        self.rounded = found.re is _PROGRESS
        self.redrawn = found.re is not _STEP and "%|" in line
        epoch = _EPOCH.search(line) if "poch" in line else None
        self.epoch = None if epoch is None else whole(epoch[1])


def counted_in(line: str) -> Counted | None:
    """The step, as counted over the whole run where the line has that beside another one."""
    found = _STEP.search(line)
    if found is not None:
        if not found[1] and "lobal" in line:
            found = next((each for each in _STEP.finditer(line) if each[1]), found)
        return Counted(found, 2, line)
    patterns = (_IN_EPOCH, _PROGRESS, _LEADING, _BAR, _BRACKETED)
    found = next((match for pattern in patterns if (match := pattern.search(line)) is not None), None)
    return None if found is None else Counted(found, 1, line)


def training_loss_in(line: str) -> str | None:
    """The training loss, as it is written; None where there is none, or only one of another quantity."""
    text, rank = _best(_LOSS, line)
    return text if not rank else _best(_LOSS_ANYHOW, line)[0]


def _best(pattern: re.Pattern[str], line: str) -> tuple[str | None, int]:
    """The loss whose kind counts most, and the kind's place; as many as there are kinds where there is none."""
    best, rank = None, len(_RANKED)
    for found in pattern.finditer(line):
        qualifier = _qualifier(line, found.start())
        of = next((at for at, names in enumerate(_RANKED[:rank]) if qualifier in names), rank)
        if of < rank:
            best, rank = found[1], of
            if not of:
                break
    return best, rank


def validation_loss_in(line: str) -> str | None:
    """The validation loss, as it is written."""
    return next((f[1] for f in _LOSS_ANYHOW.finditer(line) if _qualifier(line, f.start()) in _VALIDATION), None)


def _qualifier(line: str, at: int) -> str:
    """The qualifier of a loss, in small letters: `val` of `val_loss` and of `val loss`; empty for `loss` alone.

    A word that runs into `loss` (`closs`) is another word: it is returned with a sign that no name has.
    """
    last = line[at - 1] if at else " "
    if last == " ":
        word = _WORD_BEFORE.search(line, max(0, at - 40), at) if at > 1 and line[at - 2].isalnum() else None
        name = "" if word is None else word[1].lower().partition("_")[0]
        return name if name in _SPACED else ""
    if not (last.isalnum() or last in "_-/."):
        return ""
    joined = _QUALIFIER.search(line, max(0, at - 40), at)
    name = "" if joined is None else joined[0].lower().replace("-", "_")
    return name.rstrip("_/") if last in "_-/" else f"{name}…"


def _fields_in(rest: str) -> dict[str, Any]:
    """Fields of Sample beside the loss."""
    found = {
        "grad_norm": (_NORM.search(rest) or _BARE_NORM.search(rest)) if "orm" in rest or "ORM" in rest else None,
        "lr": _lr_in(rest),
        "loss_scale": _SCALE.search(rest) if "cale" in rest else None,
        "consumed_tokens": _TOKENS.search(rest) if "okens" in rest else None,
        "consumed_samples": _SAMPLES.search(rest) if "onsumed" in rest else None,
    }
    texts = {name: match[1].replace(",", "") for name, match in found.items() if match is not None}
    fields: dict[str, Any] = {name: (whole if name in COUNTS else number)(text) for name, text in texts.items()}
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
_JSON = ('{"', "[{")
_LONGEST = 4_000  # characters of a line that is looked at: these patterns are tried at every place of it
_SAYS_A_LOSS = ("oss", "OSS", "xent")
_IN_EPOCHS = "steps are counted anew in each epoch of the log, and over all epochs here"
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


class Generic(Decoder):
    """Any line with a step and a loss. Recognised only where no format of its own is."""

    def __init__(self) -> None:
        self.note = ""
        self._from_zero = False
        self._epochs = _Epochs()
        self._bar: Reading | None = None
        """What a progress bar showed last. It is drawn anew for a step first with the loss of the one before."""

    def decode(self, line: str) -> Sequence[Event] | None:
        if len(line) > _LONGEST or not any(word in line for word in _SAYS_A_LOSS):
            return checkpoint_events(line)
        counted = counted_in(line)
        if counted is None:
            return None
        if counted.step is None:
            raise LineError("a step that is not a number")
        head, rest = line[: counted.begin], line[counted.end :]
        evaluated = EVALUATES.search(head)
        if evaluated is not None:
            text = training_loss_in(rest) or validation_loss_in(rest)
            return () if evaluated[2] else self._evaluated(counted, head, text)
        text = training_loss_in(rest)
        if text is None and not line.lstrip().startswith(_JSON) and (text := training_loss_in(head)) is not None:
            rest = head + rest  # the step stands last
        if text is None:
            return self._evaluated(counted, head, validation_loss_in(rest))
        if "train loss" in rest and "time" not in rest and (valid := validation_loss_in(rest)) is not None:
            return self._evaluated(counted, head, valid)  # nanoGPT's estimates are both over many batches
        reading = self._reading(counted, head, rest, text)
        if not counted.redrawn:
            return (reading,)
        before, self._bar = self._bar, reading
        return () if before is None or before.step == reading.step else (before,)

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
        fields = {"time_unix_s": time_of(head), **_fields_in(rest)}
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
