"""The `[tune]` table: between which bounds `sentinel tune slw` looks for a run's pacing."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated

from sentinel.vocabulary.errors import ConfigError
from sentinel.vocabulary.numbers import AT_LEAST_1, Range, outside

__all__ = ["Tuning"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Tuning:
    """What a person says of the search. Whatever is left out follows from the run's LR warmup and its full length."""

    starts: Annotated[tuple[int, ...], AT_LEAST_1] = ()
    """Starts to try, tokens per sample, ascending; default 8, 16, 32 … below the full length. Billions of parameters
    are as a rule begun at 64: leave the smaller ones out there."""

    difficulty_step: Annotated[int, AT_LEAST_1] = 8
    """Lengths are rounded down to multiples of it: 8 for fp16's tensor cores, 16 for int8."""

    durations: Annotated[tuple[int, ...], AT_LEAST_1] = ()
    """Candidates for T in steps, ascending; default 1, 2, 3, 4, 6, 8, 12, 16, 20, 24 and 32 times the LR warmup."""

    first_duration: Annotated[int | None, AT_LEAST_1] = None
    """T of the first probes; default the longest of the durations that is at most 4 times the LR warmup."""

    beginning_steps: Annotated[int | None, AT_LEAST_1] = None
    """A fluctuation up to this step speaks against the start, a later one against T; default the LR warmup."""

    horizon_steps: Annotated[int | None, AT_LEAST_1] = None
    """A probe that does not fluctuate by this step is calm; default 3 times the LR warmup: the risky ones."""

    validate_every: Annotated[int | None, AT_LEAST_1] = None
    """Steps between two validations of a probe; default a quarter of beginning_steps. The reference trainer is told
    it; for another one, put it into options, and here as well."""

    fluctuation: Annotated[float, Range(above=1, below=math.inf)] = 1.3
    """A validation perplexity above so many times the best before it is a significant fluctuation (the paper's)."""

    parallel: Annotated[int, AT_LEAST_1] = 1
    """Probes that may run at once. More than one shortens the search and costs more steps."""

    options: tuple[str, ...] = ()
    """Added to the trainer's options in every probe, as "--flag=value": fewer saves, more validations. {checkpoints} is
    the probe's own checkpoints folder, for a job script that does not show the run's: "--save={checkpoints}"."""

    lr_warmup_steps: Annotated[int | None, AT_LEAST_1] = None
    """LR warmup of the run in steps, where its command or script does not show it."""

    full_seqlen: Annotated[int | None, AT_LEAST_1] = None
    """Full length in tokens, where the command or script does not show it."""

    def __post_init__(self) -> None:
        if (problem := outside(self)) is not None:
            raise ConfigError(problem)
        if odd := next((s for s in self.starts if s % self.difficulty_step), None):
            raise ConfigError(f"start {odd} should be a multiple of difficulty_step {self.difficulty_step}")
        if odd_option := next((o for o in self.options if not o.startswith("--")), None):
            raise ConfigError(f"option {odd_option!r} should be like '--flag=value'")
