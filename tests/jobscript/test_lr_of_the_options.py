"""The LR that is read from a script is the one that Megatron's scheduler gives for the same options."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import pytest

from sentinel.jobscript.script_changes import baseline_of_script
from tests.support.there import there

PEAK, FULL, BATCH = 6e-5, 2048, 32


@dataclass(frozen=True, kw_only=True)
class Options:
    """What a script gives; what is None is left out of it."""

    by: str
    train: int
    decay: int | None = None
    decay_tokens: int | None = None
    warmup: int | None = None
    warmup_tokens: int | None = None
    fraction: float | None = None
    min_lr: float | None = None
    style: str | None = "cosine"

    @property
    def script(self) -> str:
        given = {
            f"--train-{self.by}": self.train,
            f"--lr-decay-{self.by}": self.decay,
            "--lr-decay-tokens": self.decay_tokens,
            f"--lr-warmup-{self.by}": self.warmup,
            "--lr-warmup-tokens": self.warmup_tokens,
            "--lr-warmup-fraction": self.fraction,
            "--min-lr": self.min_lr,
            "--lr-decay-style": self.style,
        }
        words = " ".join(f"{flag} {value}" for flag, value in given.items() if value is not None)
        return f"python pretrain_gpt.py --lr {PEAK} --seq-length {FULL} --global-batch-size {BATCH} {words}\n"

    def lr(self, step: int) -> float:
        """`AnnealingLR.get_lr` of Megatron-DeepSpeed (megatron/learning_rates.py), which counts samples or tokens."""
        each = BATCH if self.by == "iters" else 1
        seen, decay = step * BATCH, (self.decay or self.train) * each
        warmup = (self.warmup or 0) * each if self.fraction is None else round(self.fraction * decay)
        at, warmed = (seen * FULL, self.warmup_tokens) if self.warmup_tokens is not None else (seen, warmup)
        if warmed and at <= warmed:
            return PEAK * at / warmed
        if self.style != "cosine":
            return PEAK
        first, last, now = warmup, decay, seen
        if self.decay_tokens is not None:
            begun = -(-warmup // BATCH) * BATCH * FULL if self.warmup_tokens is None else self.warmup_tokens
            first, last, now = begun, self.decay_tokens, seen * FULL
        share = min(1.0, max(0, now - first) / (last - first))
        minimum = self.min_lr or 0.0
        return minimum + (PEAK - minimum) * 0.5 * (1 + math.cos(math.pi * share))


SAMPLES = Options(by="samples", train=32_000, decay=16_000, warmup=1600, min_lr=6e-6)
ITERS = Options(by="iters", train=1000, decay=500, warmup=50, min_lr=6e-6)
TOKENS = 16_000 * FULL

WAYS = {
    "samples": SAMPLES,
    "iterations": ITERS,
    "a decay to the run's end": replace(SAMPLES, decay=None),
    "iterations to the run's end": replace(ITERS, decay=None),
    "a minimum of zero": replace(SAMPLES, min_lr=None),
    "a warmup of nothing": replace(SAMPLES, warmup=0),
    "a share of the decay": replace(SAMPLES, warmup=None, fraction=0.1),
    "a share of the run": replace(SAMPLES, warmup=None, fraction=0.1, decay=None),
    "a share of the iterations": replace(ITERS, warmup=None, fraction=0.02),
    "a decay by tokens": replace(SAMPLES, decay=None, decay_tokens=TOKENS),
    "iterations, then a decay by tokens": replace(ITERS, decay=None, decay_tokens=TOKENS),
    "all of it by tokens": replace(SAMPLES, decay=None, decay_tokens=TOKENS, warmup=None, warmup_tokens=1600 * FULL),
    "a constant LR": replace(SAMPLES, style="constant"),
    "a constant LR by iterations": replace(ITERS, style="constant"),
}


@pytest.mark.parametrize("options", WAYS.values(), ids=WAYS.keys())
def test_the_lr_of_each_step_is_megatron_s(options: Options) -> None:
    lr = baseline_of_script(options.script).lr
    for step in range(0, 1001, 10):
        ours = there(lr).lr(step=step, consumed_samples=step * BATCH, consumed_tokens=step * BATCH * FULL)
        assert ours == pytest.approx(options.lr(step)), step


@pytest.mark.parametrize("peak", [0.0, 3e-6])
def test_a_minimum_above_the_peak_is_the_peak(peak: float) -> None:
    lr = there(baseline_of_script(SAMPLES.script.replace(f"--lr {PEAK}", f"--lr {peak}")).lr)
    assert (lr.peak, lr.minimum) == (peak, peak)


def test_a_schedule_that_the_options_do_not_show_is_not_known() -> None:
    without_a_peak = SAMPLES.script.replace(f"--lr {PEAK} ", "")
    share_of_nothing = "python pretrain_gpt.py --lr 1e-4 --train-tokens 9 --lr-warmup-fraction 0.1\n"
    for text in (without_a_peak, share_of_nothing):
        assert baseline_of_script(text).lr is None
