"""Step, losses and fields in a line of words, in whatever order: `Iter(train) [10/2046]  lr: 3e-05 … loss: 2.3`.

A loss has a qualifier, the word before it. Only those that stand for the training loss are taken, the one over the
tokens before a sum with auxiliary ones; a word that is not known (`aux_loss`, `nll_loss`, `actor/pg_loss`) is another
quantity.
"""

from __future__ import annotations

import re
from typing import Any

from sentinel.sources.line_text import number, whole

__all__ = ["EVALUATES", "Counted", "counted_in", "fields_in", "training_loss_in", "validation_loss_in"]

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
_LOSS_ANYHOW = re.compile(rf"(?:loss(?:/train)?(?:/total)?|xent){_VALUE}", re.IGNORECASE)
"""Several times as slow."""
_QUALIFIER = re.compile(r"[\w/.-]*$")
_WORD_BEFORE = re.compile(r"\b([A-Za-z]\w*) $")
_OF_TOKENS = frozenset(
    {
        *("train", "training", "lm", "train_lm", "training_lm", "train/lm", "language_model", "main_model", "main"),
        *("train/main", "llm", "reduced_llm", "train/llm", "ce", "cross_entropy", "train/ce"),
    }
)
_OF_A_STEP = frozenset({"step", "train_step", "batch", "gpt", "reduced_train", "avg", "average", "mean", "global_avg"})
_OF_ALL = frozenset({"total", "train_total", "tot", "train/total"})
_VALIDATION = frozenset({"val", "valid", "validation", "eval", "evaluation", "val_lm", "valid_lm", "eval_lm"})
_OTHERWISE = frozenset(
    {
        *("test", "dev", "aux", "auxiliary", "moe", "router", "balance", "balancing", "load_balancing", "z", "mtp"),
        *("kl", "policy", "value", "critic", "actor", "reward", "dpo", "distill", "distillation", "contrastive"),
        *("sop", "nsp", "nll", "best", "min", "initial"),
    }
)
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

    __slots__ = ("begin", "end", "epoch", "redrawn", "rounded", "step", "text", "total")

    def __init__(self, found: re.Match[str], group: int, line: str) -> None:
        self.begin, self.end = found.start(), found.end(group)
        self.text = found[0]
        self.step = whole(found[group].upper())
        total = found.re.groups > group and found[group + 1]
        self.total = whole(total.upper()) if total else None
        self.rounded = self.redrawn = False
        epoch = _EPOCH.search(line) if "poch" in line else None
        self.epoch = None if epoch is None else whole(epoch[1])

    @property
    def of_batches(self) -> bool:
        """Whether it is called one; an evaluation counts its own."""
        return "batch" in self.text.lower()


def counted_in(line: str) -> Counted | None:
    """The step, as counted over the whole run where the line has that beside another one."""
    found = _STEP.search(line)
    if found is not None:
        if not found[1] and "lobal" in line:
            found = next((each for each in _STEP.finditer(line) if each[1]), found)
        return Counted(found, 2, line)
    for pattern in (_IN_EPOCH, _PROGRESS, _LEADING, _BAR, _BRACKETED):
        if (found := pattern.search(line)) is not None:
            counted = Counted(found, 1, line)
            counted.rounded = pattern is _PROGRESS
            counted.redrawn = "%|" in line
            return counted
    return None


def training_loss_in(line: str) -> str | None:
    """The training loss, as it is written; None where there is none, or only one of another quantity."""
    text, rank = _best(_LOSS, line)
    return text if not rank else _best(_LOSS_ANYHOW, line)[0]


def _best(pattern: re.Pattern[str], line: str) -> tuple[str | None, int]:
    best, rank = None, len(_RANKED)
    for found in pattern.finditer(line):
        of = _rank(line, found.start())
        if of < rank:
            best, rank = found[1], of
            if not of:
                break
    return best, rank


def validation_loss_in(line: str) -> str | None:
    """The validation loss, as it is written."""
    return next((f[1] for f in _LOSS_ANYHOW.finditer(line) if _qualifier(line, f.start()) in _VALIDATION), None)


_RANKED = (frozenset({""}) | _OF_TOKENS, _OF_A_STEP, _OF_ALL)


def _rank(line: str, at: int) -> int:
    """Which of several losses counts: the smallest. As many as there are kinds: none of them."""
    qualifier = _qualifier(line, at)
    return next((rank for rank, names in enumerate(_RANKED) if qualifier in names), len(_RANKED))


def _qualifier(line: str, at: int) -> str:
    """The qualifier of a loss, in small letters: `val` of `val_loss` and of `val loss`; empty for `loss` alone.

    A word that runs into `loss` (`closs`) is another word: it is returned with a sign that no name has.
    """
    last = line[at - 1] if at else " "
    if last == " ":
        word = _WORD_BEFORE.search(line, max(0, at - 40), at) if at > 1 and line[at - 2].isalnum() else None
        name = "" if word is None else word[1].lower().partition("_")[0]
        return name if name in _OTHERWISE or name in _VALIDATION or name in _SPACED else ""
    if not (last.isalnum() or last in "_-/."):
        return ""
    joined = _QUALIFIER.search(line, max(0, at - 40), at)
    name = "" if joined is None else joined[0].lower().replace("-", "_")
    return name.rstrip("_/") if last in "_-/" else f"{name}…"


_SPACED = _OF_TOKENS | _OF_ALL | _OF_A_STEP - {"step", "batch"}


def fields_in(rest: str) -> dict[str, Any]:
    """Fields of Sample beside the loss."""
    fields: dict[str, Any] = {}
    _put(fields, "grad_norm", _NORM.search(rest) or _BARE_NORM.search(rest) if "orm" in rest or "ORM" in rest else None)
    _put(fields, "lr", _lr_in(rest))
    if "cale" in rest:
        _put(fields, "loss_scale", _SCALE.search(rest))
    if "okens" in rest:
        _put(fields, "consumed_tokens", _TOKENS.search(rest), whole)
    if "onsumed" in rest:
        _put(fields, "consumed_samples", _SAMPLES.search(rest), whole)
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


def _put(fields: dict[str, Any], name: str, found: re.Match[str] | None, read: Any = number) -> None:
    if found is not None:
        fields[name] = read(found[1].replace(",", ""))
