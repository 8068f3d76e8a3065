"""What is to be tuned: the run's lengths and warmup, and the space that follows from them."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

from sentinel.jobscript.derived import total_steps, warmup_steps
from sentinel.jobscript.facts import Facts
from sentinel.plan.slw_tuning import Tuning
from sentinel.tune.search import Pacing, Space
from sentinel.vocabulary.errors import ConfigError
from sentinel.vocabulary.overrides import Anchor, Overrides, TrainingSettings
from sentinel.vocabulary.pacing import FixedLinear, SeqlenSchedule

_DURATIONS = (1, 2, 3, 4, 6, 8, 12, 16, 20, 24, 32)  # x LR warmup. The paper tried up to 27, chose 20 for GPT-2 117M
_FIRST = 4  # A few multiples of the LR warmup
_HORIZON = 3  # Multiples of the LR warmup that are risky; the paper looked at 10K steps where the warmup had 3K


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One run's search, whole: two of the same task may share their probes."""

    space: Space
    full: int  # Full length, tokens per sample
    difficulty_step: int
    fluctuation: float
    validate_every: int  # Steps between two validations, which the reference trainer is told
    lr_warmup_steps: int
    full_steps: int | None = None  # Optimizer steps of one full run without SLW; None where it is not known
    full_tokens: int | None = None  # Tokens of one full run; None where that is not known

    def schedule(self, pacing: Pacing) -> SeqlenSchedule:
        """The pacing as the trainer performs it, from its first step on."""
        return FixedLinear(
            start=pacing.start, full=self.full, total_steps=pacing.total_steps, multiple=self.difficulty_step
        )

    def overrides(self, pacing: Pacing) -> Overrides:
        """A probe's overrides.json: the pacing from scratch, and nothing else of the run changed, its seed neither."""
        return Overrides(
            incident="tune",
            rollback=f"start{pacing.start}-T{pacing.total_steps}",
            anchor=Anchor(global_step=0, consumed_samples=0, consumed_tokens=0),
            standing=TrainingSettings(seqlen=self.schedule(pacing)),
        )

    def to_json(self) -> dict[str, Any]:
        """What decides about an answer, as the record of a search begins with it."""
        return {
            **{name: list(v) if isinstance(v, tuple) else v for name, v in asdict(self.space).items()},
            "full_seqlen": self.full,
            "difficulty_step": self.difficulty_step,
            "fluctuation": self.fluctuation,
            "validate_every": self.validate_every,
        }


def task_of(tuning: Tuning, facts: Facts) -> Task:
    """The search that the settings ask for, at the run that the facts describe. ConfigError names what is missing."""
    warmup = tuning.lr_warmup_steps or _whole(warmup_steps(facts))
    full = tuning.full_seqlen or facts.seq_length
    if not warmup:
        raise ConfigError("the run's LR warmup is not to be seen, or there is none: [tune] lr_warmup_steps can say it")
    if full is None:
        raise ConfigError("the run's full length is not to be seen: [tune] full_seqlen can say it")
    doublings = (tuning.difficulty_step << power for power in range(full.bit_length()))
    starts = tuning.starts or tuple(start for start in doublings if start < full)
    if not starts or starts[-1] >= full:
        raise ConfigError(f"[tune] starts: each should be below the full length {full}, and there should be one")
    durations = tuning.durations or tuple(factor * warmup for factor in _DURATIONS)
    few = [duration for duration in durations if duration <= _FIRST * warmup] or [min(durations)]
    beginning = tuning.beginning_steps or warmup
    every = tuning.validate_every or max(1, beginning // 4)
    steps = _whole(total_steps(facts))
    horizon = math.ceil((tuning.horizon_steps or _HORIZON * warmup) / every) * every
    if steps is not None and horizon > steps:
        raise ConfigError(f"[tune] horizon_steps: the run has {steps} steps, and the probes would need {horizon}")
    space = Space(
        starts=starts,
        durations=durations,
        first_duration=tuning.first_duration or few[-1],
        beginning_steps=min(beginning, horizon),
        horizon_steps=horizon,
    )
    batch = facts.global_batch_size
    return Task(
        space=space,
        full=full,
        difficulty_step=tuning.difficulty_step,
        fluctuation=tuning.fluctuation,
        validate_every=every,
        lr_warmup_steps=warmup,
        full_steps=steps,
        full_tokens=None if steps is None or batch is None else steps * batch * full,
    )


def _whole(number: float | None) -> int | None:
    return None if number is None else round(number)
