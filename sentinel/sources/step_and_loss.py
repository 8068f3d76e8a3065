"""The step and the losses that a line of any trainer names, and which of the losses is the training loss.

A step is named by a word, by its place, or within an epoch, which begins again. A loss has a qualifier, the word before
it: only those that stand for the training loss are taken, the one over the tokens before a sum with auxiliary ones; a
word that is not known (`aux_loss`, `nll_loss`, `actor/pg_loss`) is another quantity."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from sentinel.sources.line_text import whole

_NUMBER = r"[-+]?(?:\d[\d,]*\.?\d*(?:[eE][-+]?\d+)?|\.\d+(?:[eE][-+]?\d+)?|nan|inf(?:inity)?)"
# What numbers stand in: `tensor(2.5, device='cuda:0')`, `{'0_default': 1.5, …}`, `[1e-4, 1e-4]`.
_WITHIN = r"(?:(?:[a-z]{1,20}\.)?(?:tensor|[aA]rray|float\d*)\(|\{'[^']{1,40}':\s*)?\[{0,2}"
VALUE = rf"['\"]?(?:\s*[:=]\s*|\s+(?:is\s+)?){_WITHIN}({_NUMBER})\b"
_LOSS = re.compile(rf"loss(?:/train)?(?:/total)?{VALUE}")
_LOSS_ANYHOW = re.compile(rf"(?:loss(?:/train)?(?:/total)?|xent){VALUE}", re.IGNORECASE)  # several times as slow
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
_RANKS = dict.fromkeys(_OF_ALL, 2) | dict.fromkeys(_OF_A_STEP, 1) | dict.fromkeys(_OF_TOKENS | {""}, 0)
_VALIDATION = _words("val valid validation eval evaluation val_lm valid_lm eval_lm")
_OTHERWISE = _words(
    "test dev aux auxiliary moe router balance balancing load_balancing z mtp kl policy value critic actor reward dpo "
    "distill distillation contrastive sop nsp nll best min initial sum smooth smoothed ema running last previous ctc "
    "att recon reconstruction generator discriminator gen disc"
)
# Words before `loss` with a blank between: any other word there is no qualifier.
_SPACED = _OTHERWISE | _VALIDATION | _OF_TOKENS | _OF_ALL | _OF_A_STEP - {"step", "batch"}
# What stands before a step of an evaluation; the second group is there for a test.
EVALUATES = re.compile(
    r"(?:^|[\s:\[(|\]])(?:(Saving dict for|eval(?:uat(?:ion|ing|e))?|valid(?:ation|ating|ate)?|val)"
    r"|(test(?:ing)?(?= (?:step|iter|epoch|batch|set|loss))))(?=$|[\s\]:|),])",
    re.IGNORECASE,
)


class Loss(NamedTuple):
    text: str  # the number as it is written
    rank: int  # place of its kind: the smallest is preferred
    name: str  # with underscores between its words


def training_loss_in(line: str) -> Loss | None:
    """The training loss; None where there is none, or only one of another quantity."""
    best = _best(_LOSS, line)
    return best if best is not None and not best.rank else _best(_LOSS_ANYHOW, line)


def other_training_loss(line: str, best: Loss) -> Loss | None:
    """Another loss with the rank of `best` and another number; None where `best` is the only one."""
    return next((o for o in _losses(_LOSS_ANYHOW, line) if o.rank == best.rank and o.text != best.text), None)


def validation_loss_in(line: str) -> str | None:
    """The validation loss, as it is written."""
    return next((f[1] for f in _LOSS_ANYHOW.finditer(line) if _qualifier(line, f.start()) in _VALIDATION), None)


def _best(pattern: re.Pattern[str], line: str) -> Loss | None:
    """The loss whose kind counts most; of the same kind the first."""
    best: Loss | None = None
    for loss in _losses(pattern, line):
        if best is None or loss.rank < best.rank:
            best = loss
        if not best.rank:
            break
    return best


def _losses(pattern: re.Pattern[str], line: str) -> Iterator[Loss]:
    for found in pattern.finditer(line):
        qualifier = _qualifier(line, found.start())
        rank = _RANKS.get(qualifier)
        if rank is not None:
            yield Loss(found[1], rank, f"{qualifier}_loss" if qualifier else "loss")


def _qualifier(line: str, at: int) -> str:
    """The qualifier of a loss, in small letters: `val` of `val_loss` and of `val loss`; empty for `loss` alone. A word
    that runs into `loss` (`closs`) is another word: it is returned with a sign that no name has."""
    last = line[at - 1] if at else " "
    if last == " " and at > 1 and line[at - 2].isalnum() and (word := _WORD_BEFORE.search(line, max(0, at - 40), at)):
        name = word[1].lower().partition("_")[0]
        return name if name in _SPACED else ""
    if not (last.isalnum() or last in "_-/."):
        opened = line.rfind("loss[", 0, at)  # icefall's `loss[ctc_loss=1.2, loss=1.3], tot_loss[loss=1.4]`
        return "" if opened < 0 or line.find("]", opened, at) >= 0 else _qualifier(line, opened)
    joined = _QUALIFIER.search(line, max(0, at - 40), at)
    name = "" if joined is None else joined[0].lower().replace("-", "_")
    return name.rstrip("_/") if last in "_-/" else f"{name}…"


_STEP = re.compile(
    r"(?:^|[\s\[(|,{'\":])(global[_ ]?)?(steps?|iterations?|iter|num_updates|update|batch)(?:\(train\))?['\"]?"
    r"\s*[:=#]?\s*\[?\s*(\d[\d,]*(?:K\b)?)(?:\.0+)?(?!\.?\d|%)(?:\s*(?:/|of)\s*(\d[\d,]*))?",
    re.IGNORECASE,
)
# `Epoch(train) [100][3200/4309]`, `Epoch: [0]  [340/1504]`, a progress bar's `Epoch 0: 1%|# | 340/1504 [00:10<`.
_IN_EPOCH = re.compile(r"\bepoch(?:\(train\))?:?\s*\[?\d+\]?.{0,200}?[\[|]\s*(\d+)/(\d+)(?=\]| \[\d)", re.IGNORECASE)
# `| epoch 010  2000 / 8223 loss=1.2`, `Epoch  1, 2000/8223; xent: 1.2`, `| epoch   1 |   200/ 8223 batches`
_AFTER_EPOCH = re.compile(r"\bepoch:?\s*\[?\d+(?:/\d+)?\]?\s*[:,|-]?\s+(\d+) ?/ ?(\d+)(?!\s*[/%:.\d])", re.IGNORECASE)
# `Train: 0 [  50/1251 (  4%)]`, `100/10000 = 1.0%, SPS: 1.2`; not `Train Epoch: 1 [640/60000 (1%)]`, samples
_WITH_SHARE = re.compile(r"(?:\bTrain:\s+\d+(?:/\d+ \(\s*\d+%\))? \[|^)\s*(\d+)/(\d+) (?:\(\s*\d+%\)\]|= [\d.]+%)")
_RANGE = re.compile(r"\d+epoch:train:\d+-(\d+)batch")  # ESPnet's `2epoch:train:101-200batch`
_CLU = re.compile(r"logging_writer\.py:\d+\] \[(\d+)\]")  # of Google's trainers in JAX

# levanter's, steps to three digits.
_PROGRESS = re.compile(r"\bProgress on:\s*train\s+([\d.]+k?)it/([\d.]+k?)it", re.IGNORECASE)
# `490 | loss 5.7`, llama2.c's; `[490 | 12.5] loss=5.7`; after the epoch `1|490|Loss: 5.7`, `(0, 490) step_loss : 5`
_LEADING = re.compile(r"(?:^|[\]\s])(?:\[|\(\d+,\s*)?(?:\d+\|)?(\d{1,12})[\])]?\s*(?:\||(?=step_loss))")
_NAMED = re.compile(r"(?:[A-Za-z_]\s*[:=]|poch)[\s\[(]*$")  # before a number that is another one
_WITH_BRACKET = re.compile(r"(?:^|[\]\s])(\d{1,12})\) (?=loss\b)")  # AlgoPerf's `500) loss = 6.8, grad_norm = 0.6`
_BAR = re.compile(r"%\|[^|]{0,200}\|\s*(\d+)/(\d+) \[\d")
_BRACKETED = re.compile(r"(?:^|\s)\[\s*(\d+)/(\d+)\]")
_OF_EPOCHS = re.compile(r"poch:?\s*$", re.IGNORECASE)
_EPOCH = re.compile(
    r"(?:\bepochs?(?:\(train\))?['\"]?\s*[:=]?\s*\[?\s*|\btrain:\s*(?=\d+(?:/\d+ \(\s*\d+%\))?\s*\[)|\b(?=\d+epoch:))"
    r"(\d{1,9})(?![\d.]*\.\d)",
    re.IGNORECASE,
)


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


_COUNTS = (_IN_EPOCH, _AFTER_EPOCH, _WITH_SHARE, _RANGE, _CLU, _PROGRESS, _WITH_BRACKET, _LEADING, _BAR, _BRACKETED)


class Epochs:
    """Makes of steps that begin anew in each epoch those of the whole run."""

    def __init__(self) -> None:
        self._before: dict[int, int] = {}  # updates before each epoch
        self._epoch: int | None = None
        self._step = 0  # the newest of the epoch
        self.anew = False

    def over_all(self, counted: Counted, step: int) -> int:
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
