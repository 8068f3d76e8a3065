"""What switching sequence length warmup on means for a run: five changes, not one."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Literal

from sentinel.vocabulary.errors import ConfigError
from sentinel.vocabulary.pacing.lr_and_batch import BatchSizeSchedule, LrSchedule
from sentinel.vocabulary.pacing.seqlen import SeqlenSchedule
from sentinel.vocabulary.pacing.track import Position, Shortening, Track

BILLION = 1e9  # Parameters from which on a model is one of billions


@dataclass(frozen=True, slots=True, kw_only=True)
class SlwRun:
    """A run, and the position at which a warmup of its sequence length is switched on."""

    full_seqlen: int  # Tokens per sample at the full length
    batch: BatchSizeSchedule  # Samples per step; it may warm up
    at: Position = field(default_factory=Position)  # The position resumed from
    seqlen: SeqlenSchedule | None = None  # The lengths as the run has them; None is the full length at every step
    shorten: Shortening = "truncate"  # How the run shortens its batches
    lr: LrSchedule | None = None  # None where it is not known, and is not changed
    total_steps: int | None = None  # Where the run ends by its optimizer steps
    total_samples: int | None = None  # Where it ends by its samples
    total_tokens: int | None = None  # Where it ends by its tokens. All None: not known, and not changed.
    counts: Literal["steps", "samples"] | None = None  # What an LR warmup in tokens is to count; None: tokens

    @property
    def track(self) -> Track:
        return Track(full=self.full_seqlen, batch=self.batch, seqlen=self.seqlen, shorten=self.shorten)


def slw_changes(run: SlwRun, schedule: SeqlenSchedule, *, shorten: Shortening = "truncate") -> SlwRun:
    """The run as it is once this warmup is switched on: its lengths (2.1); the full batch from here on, no batch-size
    warmup beside it (2.2); its end after as many tokens as it was to see, None where that is unknown (2.3); an LR that
    decays by tokens (2.4) and whose warmup is re-sized, but not counted in tokens (2.5). ConfigError where it warms
    nothing up. Where batches are shortened by a reshape, a step keeps its tokens: then the end and the LR stay as they
    are. Source: DeepSpeed's curriculum tutorial, sections 2.1 to 2.5."""
    if not schedule.warms_up:
        raise ConfigError(f"a sequence length of {schedule} does not warm up: nothing has to change")
    changed = replace(run, seqlen=schedule, shorten=shorten, batch=replace(run.batch, ramp_samples=0))
    if shorten.startswith("reshape"):
        return changed
    lr = run.lr
    if lr is not None:
        lr = _resized(lr, run, changed.track)
        unit = lr.decay_unit or lr.unit
        if lr.decay_end and unit != "tokens":
            start, end = (_full_tokens(run, unit, count) for count in (lr.decay_start, lr.decay_end))
            lr = replace(lr, decay_unit="tokens", decay_start=start, decay_end=end)
    return replace(changed, total_tokens=_total_tokens(run), lr=lr)


def warmup_tokens(run: SlwRun) -> int | None:
    """X, the tokens that are consumed where the run's LR warmup ends; None where it is over, or there is none."""
    lr = run.lr
    if lr is None or not lr.warmup:
        return None
    if lr.warmup_end <= run.at.counted(lr.unit):
        return None
    return run.track.tokens_at(run.at, lr.unit, lr.warmup_end)


def start_for_size(parameters: float | None) -> int:
    """min_difficulty: 8, or 64 for billions of parameters. Source: DeepSpeed's curriculum tutorial, section 1."""
    return 64 if parameters is not None and parameters >= BILLION else 8


def _resized(lr: LrSchedule, run: SlwRun, shortened: Track) -> LrSchedule:
    """The warmup ends at the first step at which the run has consumed the tokens that its own warmup takes: the
    tutorial's X / min_difficulty, without its assumption that the length stays near the start."""
    tokens = warmup_tokens(run)
    if tokens is None or (lr.unit == "tokens" and run.counts is None):
        return lr
    end = shortened.reach(run.at, "tokens", tokens)
    if lr.unit == "tokens" and run.counts is not None:
        lr = replace(lr, unit=run.counts, anchor=0, decay_unit="tokens")
    return replace(lr, warmup=end.counted(lr.unit) - lr.anchor)


def _total_tokens(run: SlwRun) -> int | None:
    """The first of the run's ends, in tokens at the full length."""
    others = (("steps", run.total_steps), ("samples", run.total_samples))
    ends = [_full_tokens(run, unit, count) for unit, count in others if count is not None]
    return min(ends if run.total_tokens is None else [*ends, run.total_tokens], default=None)


def _full_tokens(run: SlwRun, unit: str, count: int) -> int:
    return Track(full=run.full_seqlen, batch=run.batch).tokens_at(Position(), unit, count)
