"""The losses that a line of any trainer names, and which of them is the training loss.

A loss has a qualifier, the word before it. Only those that stand for the training loss are taken, the one over the
tokens before a sum with auxiliary ones; a word that is not known (`aux_loss`, `nll_loss`, `actor/pg_loss`) is another
quantity.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

_NUMBER = r"[-+]?(?:\d[\d,]*\.?\d*(?:[eE][-+]?\d+)?|\.\d+(?:[eE][-+]?\d+)?|nan|inf(?:inity)?)"
_WITHIN = r"(?:(?:[a-z]{1,20}\.)?(?:tensor|[aA]rray|float\d*)\(|\{'[^']{1,40}':\s*)?\[{0,2}"
"""What numbers stand in: `tensor(2.5, device='cuda:0')`, `{'0_default': 1.5, …}`, `[1e-4, 1e-4]`."""

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
_RANKED = (frozenset({""}) | _OF_TOKENS, _OF_A_STEP, _OF_ALL)
_VALIDATION = _words("val valid validation eval evaluation val_lm valid_lm eval_lm")
_OTHERWISE = _words(
    "test dev aux auxiliary moe router balance balancing load_balancing z mtp kl policy value critic actor reward dpo "
    "distill distillation contrastive sop nsp nll best min initial sum smooth smoothed ema running last previous ctc "
    "att recon reconstruction generator discriminator gen disc"
)
_SPACED = _OTHERWISE | _VALIDATION | _OF_TOKENS | _OF_ALL | _OF_A_STEP - {"step", "batch"}
"""Words before `loss` with a blank between: any other word there is no qualifier."""

EVALUATES = re.compile(
    r"(?:^|[\s:\[(|\]])(?:(Saving dict for|eval(?:uat(?:ion|ing|e))?|valid(?:ation|ating|ate)?|val)"
    r"|(test(?:ing)?(?= (?:step|iter|epoch|batch|set|loss))))(?=$|[\s\]:|),])",
    re.IGNORECASE,
)
"""What stands before a step of an evaluation; the second group is there for a test."""


class Loss(NamedTuple):
    """A training loss."""

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
    """The loss whose kind counts most."""
    best, of = None, len(_RANKED)
    for found in pattern.finditer(line):
        qualifier = _qualifier(line, found.start())
        if qualifier in _RANKED[0]:
            return Loss(found[1], 0, f"{qualifier}_loss" if qualifier else "loss")
        rank = next((at for at, names in enumerate(_RANKED[:of]) if qualifier in names), of)
        if rank < of:
            best, of = Loss(found[1], rank, f"{qualifier}_loss"), rank
    return best


def _losses(pattern: re.Pattern[str], line: str) -> Iterator[Loss]:
    for found in pattern.finditer(line):
        qualifier = _qualifier(line, found.start())
        rank = next((at for at, names in enumerate(_RANKED) if qualifier in names), None)
        if rank is not None:
            yield Loss(found[1], rank, f"{qualifier}_loss" if qualifier else "loss")


def _qualifier(line: str, at: int) -> str:
    """The qualifier of a loss, in small letters: `val` of `val_loss` and of `val loss`; empty for `loss` alone.

    A word that runs into `loss` (`closs`) is another word: it is returned with a sign that no name has.
    """
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
