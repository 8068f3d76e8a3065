"""The papers' recipes. Each takes `full_steps`, the steps of the recipe on all of its data, and `data_share`, how much
of that data this run sees (1 is all): durations scale with it, and the peak of the LR with its inverse. Source: Li et
al. 2022 (arXiv:2212.03597), section 4.1, table 1: GPT-3 1.3B on 300B tokens (286,102 steps of 512 x 2048)."""

from __future__ import annotations

from sentinel.vocabulary.errors import ConfigError
from sentinel.vocabulary.pacing.data_efficiency import DifficultySchedule, RandomLtdSchedule
from sentinel.vocabulary.pacing.lr_and_batch import LrSchedule
from sentinel.vocabulary.pacing.slw_formulas import FixedLinear

_GPT_STEPS = 286_102
_GPT_CURRICULUM = 110_000 / _GPT_STEPS
_GPT_LTD = 200_000 / _GPT_STEPS


def gpt_seqlen(
    *, full_steps: int, data_share: float = 1.0, full_seqlen: int = 2048, start: int = 80, anchor_step: int = 0
) -> FixedLinear:
    """GPT-3's seqtru and seqres: 80 tokens to all, linearly, in 38 % of the steps (110K of 286K)."""
    steps = _steps(full_steps, data_share, _GPT_CURRICULUM)
    return FixedLinear(start=min(start, full_seqlen), full=full_seqlen, total_steps=steps, anchor_step=anchor_step)


def gpt_rarity(*, full_steps: int, data_share: float = 1.0, start: int = 1, anchor_step: int = 0) -> DifficultySchedule:
    """GPT-3's voc: 1 % to 100 % of the samples, by the square root, as long as the sequence length warms up."""
    steps = _steps(full_steps, data_share, _GPT_CURRICULUM)
    return DifficultySchedule(
        kind="percentile", start=start, full=100, total_steps=steps, root_degree=2.0, anchor_step=anchor_step
    )


def gpt_random_ltd(
    *, full_steps: int, data_share: float = 1.0, full_seqlen: int = 2048, start: int = 128, anchor_step: int = 0
) -> RandomLtdSchedule:
    """GPT-3's random-LTD: 128 tokens to all, linearly, in 70 % of the steps (200K of 286K)."""
    steps, start = _steps(full_steps, data_share, _GPT_LTD), min(start, full_seqlen)
    return RandomLtdSchedule(start=start, full=full_seqlen, total_steps=steps, anchor_step=anchor_step)


def lr(*, peak: float, full_tokens: int, warmup_tokens: int, data_share: float = 1.0) -> LrSchedule:
    """Peak x 1 / data share, a cosine over all the run's tokens, down to 1e-6; warmed up by tokens (GPT-3: 3 billion).
    The recipes train GPT-3 1.3B at 2e-4 on all the data, and at 4e-4 on half of it."""
    _check_share(data_share)
    peak = peak / data_share
    return LrSchedule(
        peak=peak,
        warmup=warmup_tokens,
        decay_start=warmup_tokens,
        decay_end=round(full_tokens * data_share),
        minimum=min(1e-6, peak),
        unit="tokens",
    )


def _steps(full_steps: int, data_share: float, share: float) -> int:
    _check_share(data_share)
    if full_steps < 1:
        raise ConfigError(f"a recipe is for a run of at least one step, not {full_steps}")
    return max(1, round(full_steps * data_share * share))


def _check_share(data_share: float) -> None:
    if not 0 < data_share <= 1:
        raise ConfigError(f"a data share lies above 0 and is 1 at most, not {data_share}")
