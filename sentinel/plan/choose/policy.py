"""What sentinel may do by itself (mode, ladder, budgets), and the bounds of `sentinel tune`."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Annotated, Literal

from sentinel.judge.analysis.instability import Instability
from sentinel.plan.choose.ladder import DEFAULT_LADDER, Rung
from sentinel.vocabulary.errors import ConfigError
from sentinel.vocabulary.numbers import AT_LEAST_0, AT_LEAST_1, POSITIVE, POSITIVE_OR_INF, Range, outside

# observe: watch, page, log what would be done; approve: ask a person (`sentinel approve`), then do it; act: do it
Mode = Literal["observe", "approve", "act"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """The `[policy]` table of a run's configuration."""

    mode: Mode = "observe"
    """observe is the default: acting is switched on per run, by a person."""

    approve_within_s: Annotated[float, POSITIVE_OR_INF] = 14_400.0
    """Mode approve: seconds after which a proposal without an answer expires, and nothing is done."""

    ladder: tuple[Rung, ...] = DEFAULT_LADDER
    """What is tried, in this order: docs/LADDER.md."""

    margin_steps: Annotated[int, AT_LEAST_0] = 10
    """Optimizer steps that a target keeps away from the early end of the onset; doubled by each rung that failed."""

    rollback_budget: Annotated[int, AT_LEAST_0] = 5
    """Rollbacks over the run's life; when they are spent, sentinel stops and asks for a person."""

    start_budget: Annotated[int, AT_LEAST_1] = 3
    """Starts of the job for one rollback, and restarts after crashes in a row without a new checkpoint. A resume in
    place counts as a start, here and in max_starts_per_hour."""

    max_starts_per_hour: Annotated[int, AT_LEAST_1] = 6
    """Starts of the job by sentinel within an hour, for whatever reason: a bound for the case that all else is wrong. A
    start that would be one too many waits until the hour is over."""

    room_for_saves: Annotated[int, AT_LEAST_0] = 2
    """Checkpoints that there has to be room for (bytes, files) before the job is started again; 0 is not looked at."""

    pin_last_healthy: bool = True
    """Keep the last checkpoint that was saved in health from the trainer's keep-last-k and from site purges, by hard
    links beside it (.sentinel-pinned). Not in mode observe."""

    warn: Literal["off", "tell", "pin", "save"] = "pin"
    """What a warning of attention logits does (docs/JUDGE.md). off: nothing; tell: a line in the log and a page; pin:
    also, the newest whole checkpoint from before it is pinned until it has passed; save: also, the trainer is asked for
    a save (STATE_DIR/SAVE), once in 1,000 steps at most. In mode observe: tell."""

    lost_steps_budget: Annotated[int, AT_LEAST_0] = 100_000
    """Optimizer steps that rollbacks may throw away over the run's life."""

    gpu_hours_budget: Annotated[float | None, Range(least=0)] = None
    """GPU-hours (steps thrown away x median step time x ranks) that rollbacks may cost over the run's life; None is no
    limit. A rollback whose price is not known is let pass."""

    quiet_hours: tuple[str, ...] = ()
    """Local times between which nothing is done without a person, as ["22:00-06:00"]; watched and paged is all the
    same."""

    cooldown_s: Annotated[float, AT_LEAST_0] = 0.0
    """Seconds between the decision for one rollback and the next."""

    restart: Literal["auto", "in_place", "job"] = "auto"
    """How a rollback restarts the training (docs/IN_PLACE.md). auto: in the same processes where the newest attempt has
    declared that it can park, else by a new job; in_place: the same, and where a job runs that can't park, a person is
    asked; job: always by a new job. A rung may ask for a new job by itself."""

    park_within_s: Annotated[float, POSITIVE] = 120.0
    """Seconds within which a trainer has to be parked; else its job is stopped, and started again by the ordinary
    way."""

    min_remaining_s: Annotated[float, AT_LEAST_0] = 3600.0
    """slurm: no restart in place where less is left of the job's time limit, in seconds; a new job has a whole one."""

    confirm_within_s: Annotated[float, POSITIVE_OR_INF] = 900.0
    """Seconds from the start of the job until it has to have confirmed the mitigation."""

    confirm_within_steps: Annotated[int, AT_LEAST_1] = 100
    """Optimizer steps that an attempt may make after a start without having confirmed the mitigation."""

    on_contradicted: Literal["next", "stop"] = "next"
    """What follows where an attempt contradicts a change that was decided. next: the rung is recorded as not taken, and
    the next rung is tried; stop: a person is asked. A start that loaded another checkpoint or other data than was
    decided is worse than before: a person is asked in both cases."""

    hold_steps: Annotated[int, AT_LEAST_1] = 500
    """Steps past onset and warmup by which a restart has to have recovered, or its rung has failed. One whose loss is
    no worse than before the onset and still falls is held on (docs/CRITERIA.md#recovery-check). A divergence within so
    many steps after a recovery goes on with its ladder (docs/LADDER.md)."""

    restart_on_crash: bool = False
    """Start the job again, from `latest`, when it is gone and has not reported its end. A crash is not a divergence.
    The first time at once; while no new checkpoint comes, 10 s after the last start, 20 s, 40 s, … 600 s at most, each
    half as long to half as long again by chance."""

    restart_on_hang: bool = False
    """Stop the job and start it again, from `latest`, when two witnesses say that it hangs: journal and log."""

    stop_bad_start: bool = False
    """Stop the job when its start does not go on with the run (docs/STARTS.md), and leave it to a person. Only in mode
    act; a start of which too little is known is let go on."""

    def __post_init__(self) -> None:
        if len(bisects := [rung.name for rung in self.ladder if rung.bisect]) > 1:
            raise ConfigError(f"[policy] ladder: {' and '.join(map(repr, bisects))} bisect: one rung can")
        for span in self.quiet_hours:
            if not _SPAN.fullmatch(span):
                raise ConfigError(f"quiet_hours: {span!r} should be two times of day, as '22:00-06:00'")

    def ladder_for(self, shown: Instability | None) -> tuple[Rung, ...]:
        """The rungs for an onset that shows this instability, in the ladder's order: those for another are left out."""
        return tuple(rung for rung in self.ladder if rung.instability in (None, shown))

    def quiet_at(self, minute_of_day: int) -> str | None:
        """The span of quiet hours that this local minute lies in, or None; a span may reach over midnight."""
        for span in self.quiet_hours:
            begin, end = (60 * int(time[:2]) + int(time[3:]) for time in span.split("-"))
            inside = begin <= minute_of_day < end if begin <= end else minute_of_day >= begin or minute_of_day < end
            if inside:
                return span
        return None


_SPAN = re.compile(r"([01]\d|2[0-3]):[0-5]\d-([01]\d|2[0-3]):[0-5]\d")


@dataclass(frozen=True, slots=True, kw_only=True)
class Tuning:
    """What a person says of the search. Whatever is left out follows from the run's LR warmup and its full length."""

    starts: Annotated[tuple[int, ...], AT_LEAST_1] = ()
    """Starts to try for `slw` and `random-ltd`, tokens per sample, ascending; default 8, 16, 32 … below the full
    length. Billions of parameters are as a rule begun at 64: leave the smaller ones out there."""

    voc_starts: Annotated[tuple[int, ...], AT_LEAST_1] = ()
    """Starts to try for `voc`, per cent of the samples, ascending, below 100; default 1, 2, 5, 10, 20 and 40."""

    voc_index: str = ""
    """Folder that `sentinel-data analyze --metric voc` made of the run's data, as the trainer sees it; `voc` needs
    it."""

    difficulty_step: Annotated[int, AT_LEAST_1] = 8
    """Lengths are rounded down to multiples of it: 8 for fp16's tensor cores, 16 for int8."""

    durations: Annotated[tuple[int, ...], AT_LEAST_1] = ()
    """Candidates for T in steps, ascending; default 1, 2, 3, 4, 6, 8, 12, 15, 20, 24, 30, 36, 48, 64, 90 and 128
    times the LR warmup."""

    first_duration: Annotated[int | None, AT_LEAST_1] = None
    """T of the first probes; default the longest of the durations that is at most 4 times the LR warmup."""

    beginning_steps: Annotated[int | None, AT_LEAST_1] = None
    """A fluctuation up to this step rejects the start, a later one rejects T; default the LR warmup."""

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
