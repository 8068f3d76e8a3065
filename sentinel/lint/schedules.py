"""The run's length and its learning rate: warmup, decay, peak."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from sentinel.jobscript.facts import ScriptFacts
from sentinel.lint.finding import Remark, big, error, note, warning

_GPT3_LR = (
    (125e6, 6.0e-4),
    (350e6, 3.0e-4),
    (760e6, 2.5e-4),
    (1.3e9, 2.0e-4),
    (2.7e9, 1.6e-4),
    (6.7e9, 1.2e-4),
    (13e9, 1.0e-4),
    (175e9, 0.6e-4),
)
"""Parameters and peak LR of the GPT-3 models: Brown et al. 2020, Table 2.1 (arXiv:2005.14165)."""


def one_unit(facts: ScriptFacts) -> Iterator[Remark]:
    """A run counts iterations or samples, and its LR warmup and decay are counted alike (tokens may come on top).

    Source: Megatron-LM, megatron/arguments.py.
    """
    if facts.train_iters and facts.train_samples:
        yield error("both --train-iters and --train-samples are given, which Megatron refuses: leave one out")
    elif facts.train_iters and (facts.lr_decay_samples or facts.lr_warmup_samples):
        yield error(
            "the run is counted in iterations, and its LR in samples, which Megatron refuses: "
            "say --lr-warmup-iters and --lr-decay-iters, or --train-samples"
        )
    elif facts.train_samples and (facts.lr_decay_iters or facts.lr_warmup_iters):
        yield error(
            "the run is counted in samples, and its LR in iterations, which Megatron refuses: "
            "say --lr-warmup-samples and --lr-decay-samples, or --train-iters"
        )


def warmup_against_total(warmup: float, total: float) -> Iterator[Remark]:
    """LR warmup against the run's steps: it has to end before the run does; more than 10 % is a note, 20 % a warning.

    GPT-3 took 0.1 %, Megatron's GPT-2 1 %, the SLW paper's large batches 8 %.

    Source: Brown et al. 2020, appendix B; Li, Zhang & He 2022, section 3 (arXiv:2108.06084).
    """
    if not warmup or not total:
        return
    share = warmup / total
    said = f"the LR warmup takes {warmup:.0f} of {total:.0f} steps"
    if share >= 1:
        yield error(f"{said}: the LR never reaches its peak; 0.1 to 10 % is usual")
    elif share > 0.1:
        remark = f"{said} ({share:.0%}); 0.1 to 10 % is usual"
        yield warning(remark) if share > 0.2 else note(remark)


def warmup_for_adam(facts: ScriptFacts, warmup: float, total: float | None = None) -> Iterator[Remark]:
    """LR warmup of at least 2 / (1 - beta2) steps: 2000 for beta2 = 0.999, 40 for 0.95; before, Adam's v is noise.

    The first 3 x warmup steps are the risky ones (Conglong Li, in tr8's chronicle), so a short warmup does not pass
    the risk by. No warmup at all is said of any beta2.

    Source: Ma & Yarats 2019, section 5 (arXiv:1910.04209).
    """
    if warmup == 0:
        yield warning(
            "there is no LR warmup: the first steps are taken at the peak LR with an Adam that knows nothing; "
            "0.1 to 10 % of the run is usual"
        )
    elif facts.adam_beta2 is not None and facts.adam_beta2 < 1:
        needed = 2 / (1 - facts.adam_beta2)
        if warmup >= needed * (1 - 1e-9):
            return
        said = (
            f"an LR warmup of {warmup:.0f} steps is short for Adam with beta2 {facts.adam_beta2:g}: "
            f"its variance takes 2 / (1 - beta2) = {needed:.0f}"
        )
        no_room = total is not None and needed > 0.2 * total
        yield warning(f"{said}, and a smaller beta2 fewer" if no_room else said)


def decay_against_total(facts: ScriptFacts) -> Iterator[Remark]:
    """LR decay against the run, in the same unit: longer than 1.25 x the run a warning, shorter than half a note.

    A cosine that is longer than the run by a quarter costs loss at its end. GPT-3 decayed over 260 of 300B tokens.

    Source: Hoffmann et al. 2022, appendix B (arXiv:2203.15556); Brown et al. 2020, appendix B.
    """
    for unit, decay, total in (
        ("iterations", facts.lr_decay_iters, facts.train_iters),
        ("samples", facts.lr_decay_samples, facts.train_samples),
        ("tokens", facts.lr_decay_tokens, facts.train_tokens),
    ):
        if decay is None or not total:
            continue
        said = f"the LR decays over {decay} {unit}, and the run takes {total}"
        if decay > 1.25 * total:
            yield warning(f"{said}: it ends with an LR that is still high; let it decay over {total} or somewhat less")
        elif decay < 0.5 * total:
            yield note(f"{said}: more than half of it is trained at --min-lr")


def lr_bounds(lr: float, min_lr: float) -> Iterator[Remark]:
    """min_lr of at most lr.

    Source: Megatron-LM, megatron/learning_rates.py.
    """
    if min_lr > lr:
        yield error(f"--min-lr {min_lr:g} is above --lr {lr:g}: a tenth of it, {lr / 10:g}, is usual")


def lr_for_size(lr: float, size: float) -> Iterator[Remark]:
    """Peak LR against GPT-3's for this size, between its sizes by logarithms: more than 3 x is a warning.

    Below 125M, where the table ends, and with muP it is a note, and no more than that.

    Source: Brown et al. 2020, Table 2.1 (arXiv:2005.14165); Li, Zhang & He 2022, section 5.2, for what 30 x does.
    """
    sizes, rates = np.log(_GPT3_LR).T
    usual = math.exp(np.interp(math.log(size), sizes, rates))
    if lr > 3 * usual * (1 + 1e-9):
        said = f"a peak LR of {lr:g} is {lr / usual:.2g} x what GPT-3 took at {big(size)}, {usual:.2g}"
        yield note(said) if size < _GPT3_LR[0][0] * 0.9 else warning(f"{said}: try that first, or a longer warmup")
