"""What is trained: a task, the paper's cases as what each changes of it, and the runs that these make."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

__all__ = ["BASELINE", "CASES", "LONG_LR_WARMUP", "QUICK", "SLW", "TINY", "Case", "Run", "Task", "plan"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """What all cases have in common. A run ends by tokens; its LR warms up by steps and then decays by tokens, to 0."""

    words: tuple[str, ...]
    """Arguments of the reference trainer: model, data, precision."""

    seqlen: int
    batch: int
    """Samples per step."""

    micro: int | None = None
    """Samples per pass; None is all of a step's."""

    steps: int
    """Of the baseline; the others have as many tokens."""

    lr_warmup: int
    """Steps, as the paper keeps it under SLW: no longer because the steps are shorter."""

    shortest: int
    """Tokens per sample that SLW begins with."""

    validate_every: int
    """Of the baseline's steps; half of it while sequences are short."""

    validation_samples: int
    rates: tuple[float, ...]
    """Peak learning rates, rising; all cases run at the last, EVERYWHERE at each."""

    @property
    def tokens(self) -> int:
        """Training tokens of every run whose LR decays."""
        return self.steps * self.batch * self.seqlen

    @property
    def held_steps(self) -> int:
        """Steps at the peak of a run whose LR is held there: 300 of the tiny task."""
        return 2 * self.steps - self.lr_warmup


TINY = Task(
    words=("--preset", "tiny", "--no-block-layernorm"),
    seqlen=128,
    batch=16,
    steps=160,
    lr_warmup=20,
    shortest=8,
    validate_every=10,
    validation_samples=64,
    rates=(3.75e-3, 7.5e-3, 1.5e-2),
)
"""4 layers, 64 wide, text as bytes: without the LayerNorms in its blocks it diverges within seconds."""

QUICK = replace(TINY, seqlen=32, batch=4, steps=24, lr_warmup=4, validate_every=6, validation_samples=16)


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One training run: a case at a learning rate and a seed."""

    case: str
    rate: float
    """The peak LR of the runs that it is compared with; the case may take a lower one itself."""

    seed: int
    batch: int
    micro: int
    arguments: tuple[str, ...]
    """Of the reference trainer, but for folders."""

    @property
    def name(self) -> str:
        """Of its folder: two runs with the same arguments are the same run, whatever their cases are called."""
        return hashlib.sha256(json.dumps(self.arguments).encode()).hexdigest()[:12]

    def __str__(self) -> str:
        return f"{self.case}, lr {self.rate:g}, seed {self.seed}"


@dataclass(frozen=True, slots=True)
class Changes:
    """What a case changes of the task."""

    words: tuple[str, ...] = ()
    lr_share: float = 1.0
    lr_warmup_times: int = 1
    batch: int | None = None
    micro: int | None = None
    held_steps: int | None = None
    """Full steps at the peak LR after the warmup, with no decay: the run is longer than the others. None decays."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A row of the tables."""

    name: str
    how: str
    """In words, beside the name."""

    changes: Callable[[Task], Changes]

    def run(self, task: Task, rate: float, seed: int) -> Run:
        """The same tokens, the same decay over tokens, the same validation samples, whatever changes but for `held`."""
        changes = self.changes(task)
        batch = changes.batch or task.batch
        warmup = task.lr_warmup * changes.lr_warmup_times
        held = changes.held_steps
        micro = min(changes.micro or task.micro or batch, batch)
        options = {
            "--seqlen": task.seqlen,
            "--tokens": task.tokens if held is None else (warmup + held) * task.batch * task.seqlen,
            "--lr": rate * changes.lr_share,
            "--lr-decay-unit": "tokens",
            "--lr-warmup": warmup,
            "--global-batch": batch,
            "--micro-batch": micro,
            "--validate-every": task.validate_every * task.batch // batch,
            "--validation-batches": task.validation_samples // batch,
            "--seed": seed,
        } | ({} if held is None else {"--lr-decay": 0})
        told = tuple(f"{name}={value}" for name, value in options.items())
        return Run(
            case=self.name,
            rate=rate,
            seed=seed,
            batch=batch,
            micro=micro,
            arguments=(*task.words, *told, *changes.words),
        )


def _slw(task: Task) -> Changes:
    return Changes(("--seqlen-start", str(task.shortest), "--seqlen-warmup-steps", str(4 * task.lr_warmup)))


def _shortformer(task: Task) -> Changes:
    short = task.seqlen // 8
    pacing = {"pacing": "fixed_discrete", "start": short, "difficulties": [short, task.seqlen]}
    return _paced(pacing | {"max_steps": [task.steps // 2]})


def _mixed(task: Task) -> Changes:
    rounds = {"short_steps": 18, "full_steps": 2, "total_steps": max(20, task.steps // 40 * 20)}
    return _paced({"pacing": "mixed", "start": task.seqlen // 8, **rounds})


def _paced(pacing: dict[str, object]) -> Changes:
    return Changes(("--seqlen-schedule", json.dumps(pacing)))


def _batch_warmup(task: Task) -> Changes:
    part = task.batch // 4
    samples = 4 * task.lr_warmup * (part + task.batch) // 2  # as many steps as SLW takes
    return Changes(("--rampup-batch-size", str(part), str(part), str(samples)), micro=part)


BASELINE = Case(name="baseline", how="full length and batch from the first step", changes=lambda _: Changes())
SLW = Case(name="SLW", how="length linear over T = 4 LR warmups", changes=_slw)
BATCH_WARMUP = Case(name="bsz warmup", how="from 1/4 of the batch, as many steps as SLW", changes=_batch_warmup)
LONG_LR_WARMUP = Case(name="LR warmup x 6", how="six times as many steps", changes=lambda _: Changes(lr_warmup_times=6))
CASES = (
    BASELINE,
    SLW,
    Case(name="Shortformer", how="1/8 of the length for half the baseline's steps, then all", changes=_shortformer),
    BATCH_WARMUP,
    Case(name="mixed lengths", how="18 steps at 1/8 and 2 at full length, in turn, then all", changes=_mixed),
    LONG_LR_WARMUP,
    Case(name="SLW + warmup x6", how="both of them", changes=lambda task: replace(_slw(task), lr_warmup_times=6)),
    Case(name="LR / 4", how="a quarter of the peak", changes=lambda _: Changes(lr_share=0.25)),
    Case(
        name="warmup x6, held",
        how="six times as many steps, then 300 at the peak, no decay",
        changes=lambda task: Changes(lr_warmup_times=6, held_steps=task.held_steps),
    ),
    Case(
        name="LR x 0.35, held",
        how="at 0.35 x the peak: 20 steps of warmup, then 400 at that LR, no decay",
        changes=lambda task: Changes(lr_share=0.35, held_steps=task.held_steps + 5 * task.lr_warmup),
    ),
    Case(name="clip 0.25", how="in place of 1.0", changes=lambda _: Changes(("--clip", "0.25"))),
    Case(
        name="batch / 4",
        how="at the same LR, four times the steps",
        changes=lambda task: Changes(batch=task.batch // 4),
    ),
)

EVERYWHERE = (BASELINE, SLW, BATCH_WARMUP)
"""At every LR. Batch-size warmup makes more updates of the same tokens, as SLW does, and shortens nothing."""


def plan(task: Task, seeds: Sequence[int]) -> list[Run]:
    """All runs, a seed after the other, so that a plan that is cut short has whole seeds."""
    return [run for seed in seeds for run in _of_seed(task, seed)]


def _of_seed(task: Task, seed: int) -> Iterator[Run]:
    *lower, highest = task.rates
    for case in CASES:
        yield case.run(task, highest, seed)
    for rate in reversed(lower):
        for case in EVERYWHERE:
            yield case.run(task, rate, seed)
