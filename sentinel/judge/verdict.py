"""judge(series, context, thresholds) -> Verdict: the state of the run, with the reason as a sentence."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from enum import StrEnum

from sentinel.judge.detectors.no_loss import why_no_loss
from sentinel.judge.series import Series
from sentinel.judge.thresholds import Thresholds


class VerdictKind(StrEnum):
    """The words of the verdict. Only DIVERGED leads to a rollback."""

    HEALTHY = "healthy"
    WARMING_UP = "warming_up"
    SPIKE = "spike"
    DIVERGED = "diverged"
    PENDING = "pending"
    STARTING = "starting"
    STALLED = "stalled"
    DOWN = "down"
    BLIND = "blind"
    FINISHED = "finished"


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """What is known beside the samples."""

    now_unix_s: float
    job_alive: bool | None  # Whether a process of the run is alive; None where that is unknown
    why_unknown: str | None = None  # Why that is unknown, as a sentence; None where it is known
    elsewhere: bool = False  # Whether [launcher] kind is elsewhere: the job is not visible, its end is seen as silence
    job_was_seen: bool = False  # Whether a job of this run has been there before, by what it left besides a journal
    pending: bool = False  # Whether the job waits in a scheduler's queue
    unavailable: str | None = None  # Why the readings cannot be taken at all; None where they can
    attempt: int | None = None  # The newest attempt; None before the first
    taken_back: str | None = None  # The incident whose undo took the newest attempt back; None where none did
    finished_reason: str | None = None  # How the newest attempt ended, "finished" only at its planned end
    gone: bool = False  # Whether the newest attempt's process or job is seen to have ended: a job that lives is another
    unclosed: str | None = None  # Why a planned end is no end, as a sentence: its data is not accounted for
    # When the newest attempt's last sample came: `now` less the silence of the journal or log that it is read from, by
    # the filesystem's clock and this machine's monotonic one. Of Prometheus, when it was scraped, by Prometheus's
    # clock. None before its first, nan where its source has no clock.
    last_sample_unix_s: float | None = None
    attempt_started_unix_s: float | None = None  # When the newest attempt began, by the same reckoning
    # Since when the running job is seen, by this watch's own clock; None where none runs, or that is unknown.
    job_seen_unix_s: float | None = None
    second_witness_unix_s: float | None = None  # When a log, checkpoint or journal was written last, likewise
    still: str | None = None  # The ranks that the next step waits for, as a sentence; None where none are known
    warmup_end_step: int | None = None  # Where the newest attempt's warmups and curricula have come to their ends


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    kind: VerdictKind
    reason: str
    global_step: int | None = None  # The step that it is about; None where there is none yet
    onset_range: tuple[int, int] | None = None  # First step of the episode, earliest and latest; None without one
    alarm_step: int | None = None  # The step at which the divergence was known

    @property
    def severity(self) -> str:
        return _SEVERITIES.get(self.kind, "info")


_SEVERITIES = {
    VerdictKind.SPIKE: "warning",
    VerdictKind.BLIND: "warning",
    VerdictKind.DIVERGED: "critical",
    VerdictKind.STALLED: "critical",
    VerdictKind.DOWN: "critical",
}
_Answer = tuple[VerdictKind, str]
UNAVAILABLE = "the readings are not available: the state of the run is unknown"


def judge(series: Series, context: Context, thresholds: Thresholds) -> Verdict:
    """The verdict on a run. Pure: everything that it depends on is in its arguments."""
    step, alarm = series.last_step, series.alarm
    if context.unavailable is not None:
        return Verdict(kind=VerdictKind.BLIND, reason=context.unavailable, global_step=step)
    if alarm is not None:
        return Verdict(
            kind=VerdictKind.DIVERGED,
            reason=alarm.reason,
            global_step=step,
            onset_range=alarm.onset_range,
            alarm_step=alarm.verdict_step,
        )
    answer = _taken_back(context) or _verdict_without_samples(context, thresholds)
    kind, reason = answer or _verdict_of_samples(series, context)
    onset_range = series.episode.onset_range if kind is VerdictKind.SPIKE and series.episode is not None else None
    return Verdict(kind=kind, reason=reason, global_step=step, onset_range=onset_range)


def judge_past(series: Series, finished_reason: str | None) -> Verdict:
    """The verdict at the end of what a run left behind; nothing is known of its job. `finished_reason`: see Context."""
    context = Context(now_unix_s=0.0, job_alive=None, last_sample_unix_s=0.0)
    past = judge(series, context, Thresholds(stalled_after_s=math.inf))
    if past.kind is VerdictKind.HEALTHY and finished_reason == "finished":
        last = series.last
        if last is not None and not last.skipped and not math.isfinite(last.loss):
            why = f"it reported its planned end, and the last loss, of step {last.global_step}, is {last.loss}"
            return replace(past, kind=VerdictKind.DOWN, reason=why)
        return replace(past, kind=VerdictKind.FINISHED, reason="the run reached its planned end")
    return past


def _taken_back(context: Context) -> _Answer | None:
    if context.taken_back is None or context.job_alive or context.pending:
        return None
    undone = f"the undo of {context.taken_back} took attempt {context.attempt} back"
    return VerdictKind.PENDING, f"{undone}, and no job has begun since: a person starts it"


def _verdict_without_samples(context: Context, thresholds: Thresholds) -> _Answer | None:
    """The verdicts for when no samples come, or None when they do."""
    attempt, ended, alive = context.attempt, context.finished_reason, context.job_alive
    if ended == "finished" and not alive:
        return _planned_end(context)
    if context.pending:
        return VerdictKind.PENDING, "the job waits in the queue"
    if ended is not None and not alive:
        return VerdictKind.DOWN, f"attempt {attempt} ended: {ended}"
    if alive is False:
        return _job_is_gone(context)
    if ended is not None:  # its own end, or another attempt's beginning
        return _between_attempts(context, thresholds)
    if context.elsewhere and (unheard := _silence(context, thresholds)) is not None:
        return VerdictKind.BLIND, unheard
    if context.elsewhere and attempt is None:
        return VerdictKind.PENDING, "no attempt has begun"
    if attempt is None and context.why_unknown is not None:
        return VerdictKind.PENDING, f"no attempt has begun; {context.why_unknown}"
    if context.why_unknown is not None and _silence(context, thresholds) is not None:
        return VerdictKind.BLIND, context.why_unknown
    if context.last_sample_unix_s is None:
        return _starting(context, thresholds)
    stalled = _stalled(context, thresholds)
    return _between_attempts(context, thresholds) if stalled is not None and context.gone else stalled


def _between_attempts(context: Context, thresholds: Thresholds) -> _Answer:
    """Of a job that is there after the newest attempt's end, and has begun no other: the time of a start is counted
    from when the job is seen, not from the ended attempt's last step, which may be days ago."""
    new = f"attempt {context.attempt} has ended, and the job that is there has begun no other yet"
    seen_s = 0.0 if context.job_seen_unix_s is None else context.now_unix_s - context.job_seen_unix_s
    if not (context.job_alive and seen_s >= thresholds.first_sample_within_s):
        return VerdictKind.STARTING, new
    return _stalled(context, thresholds) or (VerdictKind.BLIND, f"{new}, for {seen_s:.0f} s")


def _planned_end(context: Context) -> _Answer:
    """Finished only where the data of the run is accounted for."""
    if context.unclosed is not None:
        return VerdictKind.DOWN, f"attempt {context.attempt} reported its planned end, and {context.unclosed}"
    return VerdictKind.FINISHED, f"attempt {context.attempt} reached its planned end"


def _starting(context: Context, thresholds: Thresholds) -> _Answer:
    since = context.job_seen_unix_s if context.attempt_started_unix_s is None else context.attempt_started_unix_s
    started_s = 0.0 if since is None else context.now_unix_s - since
    if context.job_alive is True and started_s >= thresholds.first_sample_within_s:
        return _without_first_sample(context, thresholds, started_s)
    for_s = "" if since is None else f" for {started_s:.0f} s"
    return VerdictKind.STARTING, context.why_unknown or f"the job is there{for_s} and has not made a step yet"


def _without_first_sample(context: Context, thresholds: Thresholds, started_s: float) -> _Answer:
    """Stalled only where it is known what the job writes: an attempt, or a log, that is silent."""
    witness, begun = context.second_witness_unix_s, context.attempt_started_unix_s is not None
    silent = None if witness is None else context.now_unix_s - witness >= thresholds.stalled_after_s
    if begun:
        never = f"the job is alive, and no sample has come since attempt {context.attempt} began {started_s:.0f} s ago"
    else:
        never = f"the job is alive for {started_s:.0f} s at least, and its trainer has begun no attempt"
    if silent or (silent is None and begun):
        return VerdictKind.STALLED, f"{never}: it hangs before its first step"
    if silent is None:
        return (
            VerdictKind.BLIND,
            f"{never}: it hangs, its hook is not attached, or it writes to another [run] state_dir",
        )
    return VerdictKind.BLIND, f"{never}; it writes its log: its metrics do not arrive, or it makes no step"


def _job_is_gone(context: Context) -> _Answer:
    if context.attempt is not None:
        return VerdictKind.DOWN, f"attempt {context.attempt} has ended without reporting its end: no process is left"
    if context.job_was_seen:
        return VerdictKind.DOWN, "the job is gone, and its first attempt had not begun"
    return VerdictKind.PENDING, "no attempt has begun, and no job is there"


def _silence(context: Context, thresholds: Thresholds) -> str | None:
    """The reason for a job that is out of sight and silent; None while readings come, or where none ever came."""
    signs = (context.last_sample_unix_s, context.attempt_started_unix_s, context.second_witness_unix_s)
    heard = [sign for sign in signs if sign is not None and math.isfinite(sign)]
    silent_s = context.now_unix_s - max(heard, default=math.inf)
    if context.attempt is None or silent_s < thresholds.stalled_after_s:
        return None
    return f"nothing has come from the run for {silent_s:.0f} s: it ended, hangs, or its metrics do not arrive"


def _stalled(context: Context, thresholds: Thresholds) -> _Answer | None:
    witness, limit_s = context.second_witness_unix_s, thresholds.stalled_after_s
    if context.last_sample_unix_s is None or witness is None or context.job_alive is not True:
        return None
    silent_s = context.now_unix_s - context.last_sample_unix_s
    if silent_s < -limit_s:  # the clock is off (another time zone): as without a clock
        silent_s = math.nan
    if silent_s < limit_s or context.now_unix_s - witness < limit_s:
        return None
    if math.isnan(silent_s):  # no clock: it is not older than what the job wrote last
        silent_s = context.now_unix_s - witness
    silent = f"the job is alive, but journal and log have been silent for {silent_s:.0f} s"
    return VerdictKind.STALLED, silent if context.still is None else f"{silent}: {context.still}"


def _verdict_of_samples(series: Series, context: Context) -> _Answer:
    step, end = series.last_step, context.warmup_end_step
    if series.episode is not None:
        return VerdictKind.SPIKE, series.episode.waiting
    if (why := why_no_loss(series.known.baseline)) is not None:
        return VerdictKind.BLIND, why
    if end is not None and step is not None and step < end:
        return VerdictKind.WARMING_UP, f"a warmup or curriculum goes on until step {end}; no spike is open"
    if not series.band_ready:
        return VerdictKind.WARMING_UP, "too few samples yet to know the noise of this loss"
    return VerdictKind.HEALTHY, "the loss is inside its own noise band"
