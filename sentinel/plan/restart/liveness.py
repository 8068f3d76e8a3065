"""life_of(evidence, except_for) -> Liveness: alive by any evidence, gone only by positive evidence."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from sentinel.plan.incident.incident import Incident
from sentinel.plan.observation import AttemptSeen, FileSeen, JobsSeen, Life, LivenessEvidence
from sentinel.plan.restart.in_place.parked import why_not_parked
from sentinel.vocabulary.sample import RunStarted

_SETTLE_S = 60.0  # seconds without a sign of life that an end needs which is likely, and not certain
_SETTLE_STEPS = 5  # the same in steps, for a trainer whose steps are long

# a checkpoint's file that is so much newer than the last attempt's journal was written by somebody else
_SAVED_LATER_S = 60.0


@dataclass(frozen=True, slots=True)
class Liveness:
    """The answer, with its reason."""

    life: Life
    sentence: str


def life_of(evidence: LivenessEvidence, *, except_for: str | None = None) -> Liveness:
    """Whether anything of the run may write, but what was started for the rollback `except_for`. Alive: the launcher
    sees it, so that it can be stopped. Gone: the scheduler says by id that the job has ended, or the process is seen
    dead on its own machine, or an attempt's files were silent for `gone_after_s`. All else is unknown: a fresh file
    without a visible job, an attempt that grows after its job has ended, and a checkpoint or a log of any age where
    no attempt is known, since a save can take its time and the journal may lie elsewhere. Parked: alive, and every
    witness agrees that it writes nothing until it is resumed; asked with `except_for`, only where it waits for just
    that rollback."""
    jobs = evidence.jobs
    if not jobs.known:
        return Liveness(Life.UNKNOWN, f"job state unknown: {jobs.why_unknown}")
    others = [w for w in jobs.writers if except_for is None or w.rollback != except_for]
    running = [w.id for w in others if not w.pending]
    beat = next((b for b in evidence.heartbeats if except_for is None or b.rollback != except_for), None)
    if beat is not None and not running:
        return Liveness(
            Life.UNKNOWN,
            f"job state unknown: {beat.sentence}, and the launcher finds no job of the run that it could stop; nothing "
            f"is done until that process ends, or has renewed nothing for {beat.expires_s:g} s and holds no lock",
        )
    doubt = next(_doubts(evidence, except_for, visible=bool(running)), None)
    if doubt is not None:
        return Liveness(
            Life.UNKNOWN,
            f"job state unknown: {doubt}; nothing is done until that is resolved, or no file is written "
            f"for {evidence.gone_after_s:g} s",
        )
    if running:
        return _parked(evidence, except_for) or Liveness(Life.ALIVE, " and ".join(running))
    if (file := _unreported(evidence, except_for)) is not None:
        return Liveness(
            Life.UNKNOWN,
            f"job state unknown: {file.what} was written {max(0.0, file.age_s):.0f} s ago, and no attempt has reported "
            "itself; [run] state_dir should name the folder that the trainer writes its journal to",
        )
    process_state = next((attempt.process_state for attempt in _of_others(evidence, except_for)), None)
    why = process_state.sentence if process_state is not None else "no job of the run is seen"
    return Liveness(Life.GONE, why)


def _parked(evidence: LivenessEvidence, except_for: str | None) -> Liveness | None:
    parked = evidence.parked
    if (
        parked is None
        or except_for not in (None, parked.rollback)
        or why_not_parked(evidence, parked.rollback) is not None
    ):
        return None
    at = f"attempt {parked.attempt} is parked at step {parked.global_step}"
    sentence = f"{at}: it writes nothing, and waits for {parked.rollback}"
    return Liveness(Life.PARKED, sentence)


def hindered(evidence: LivenessEvidence, *, except_for: str | None = None) -> str | None:
    """Why nothing may be stopped, moved or started, as a sentence; None where all that may write is known and ours."""
    known = life_of(evidence, except_for=except_for)
    if known.life is Life.UNKNOWN:
        return known.sentence
    if evidence.stranger is not None:
        return evidence.stranger
    return next((w.foreign for w in evidence.jobs.writers if w.foreign), None)


def quiet_left_s(evidence: LivenessEvidence, *, except_for: str | None = None) -> float:
    """Seconds for which nothing may be moved or started yet: a file of the checkpoints has changed a moment ago,
    whatever is known of the job. 0 while a job is seen, which has to be stopped first, or where that of the rollback
    `except_for` has begun, which saves. A job that says to be parked for that rollback is not stopped."""
    begun = {*(a.rollback for a in evidence.attempts), *(w.rollback for w in evidence.jobs.writers if not w.pending)}
    stays = evidence.parked is not None and evidence.parked.rollback == except_for
    runs = any(not writer.pending for writer in evidence.jobs.writers)
    if (except_for is not None and except_for in begun) or (runs and not stays):
        return 0.0
    return max(
        (evidence.quiet_s - max(0.0, file.age_s) for file in evidence.files_seen if file.checkpoint),
        default=0.0,
    )


def settles(evidence: LivenessEvidence, *, except_for: str | None = None) -> str | None:
    """That the checkpoints are not quiet yet, as a sentence; None where they are."""
    left_s = quiet_left_s(evidence, except_for=except_for)
    if left_s <= 0:
        return None
    file = min((s for s in evidence.files_seen if s.checkpoint), key=lambda s: s.age_s)
    return (
        f"{file.what} was written {max(0.0, file.age_s):.0f} s ago: nothing is moved or started until no file of the "
        f"checkpoints has changed for {evidence.quiet_s:g} s"
    )


def rollback_of(started: RunStarted, jobs: JobsSeen, incidents: Iterable[Incident]) -> str | None:
    """The rollback whose job writes now, if the attempt has begun since that was started; None where nobody can say. By
    the attempts' numbers: a log's times are another clock's than the daemon's. An attempt that is numbered anew (a log
    that was rotated before the daemon was started again) is taken for it where it has no time of its own and resumed
    from the rollback's own target."""
    labels = {writer.rollback for writer in jobs.writers if not writer.pending}
    label = labels.pop() if len(labels) == 1 else None
    rollback = next((r for i in incidents for r in i.rollbacks if r.id == label), None)
    if rollback is None or rollback.last_start_unix_s is None:
        return None
    if rollback.last_start_attempt is not None and started.attempt > rollback.last_start_attempt:
        return label
    from_its_target = (started.resumed_from or 0) == rollback.overrides.anchor.global_step
    return label if from_its_target and not math.isfinite(started.time_unix_s) else None


def _of_others(evidence: LivenessEvidence, except_for: str | None) -> list[AttemptSeen]:  # the newest first
    return [a for a in reversed(evidence.attempts) if except_for is None or a.rollback != except_for]


def _doubts(evidence: LivenessEvidence, except_for: str | None, *, visible: bool) -> Iterator[str]:
    """What contradicts the end of the run, as sentences."""
    attempts = _of_others(evidence, except_for)
    begun = {*(a.rollback for a in evidence.attempts), *(w.rollback for w in evidence.jobs.writers)}
    ours = except_for is not None and except_for in begun
    explained = visible or any(w.rollback == except_for and not w.pending for w in evidence.jobs.writers)
    anybodys = [] if ours or visible else [file for file in evidence.files_seen if file.attempt is None]
    for place, attempt in enumerate(attempts):
        process_state = attempt.process_state
        if process_state is not None and process_state.life is Life.ALIVE:
            if not visible:
                yield f"{process_state.sentence}, and the launcher finds no job of the run that it could stop"
            continue
        if explained and process_state is None:
            continue  # it names nothing, and a job is there that may have written it
        own = [file for file in evidence.files_seen if file.attempt == attempt.number]
        nameless = f"attempt {attempt.number} names neither a job nor a process that is seen"
        end = nameless if process_state is None else process_state.sentence
        but = f"{end}, and it has reported its end" if attempt.finished else end
        needed_s = _quiet_needed_s(attempt, evidence, newest=place == 0)
        yield from _fresh([*own, *(anybodys if place == 0 else [])], needed_s, but)
        if place == 0 and own:
            later = [s for s in anybodys if s.checkpoint and s.age_s + _SAVED_LATER_S < own[0].age_s]
            but = f"attempt {attempt.number} wrote its journal long before that"
            yield from _fresh(later, _settle_s(evidence), but)
    last = evidence.jobs.process_states.get(None)
    if not attempts and last is not None and last.life is Life.GONE:
        yield from _fresh(anybodys, _settle_s(evidence), last.sentence)


def _unreported(evidence: LivenessEvidence, except_for: str | None) -> FileSeen | None:
    """The newest file of a trainer that has never reported itself: after a save its silence is no evidence of its end.
    A log alone may be of a job that ended before its first step: it counts for `gone_after_s`."""
    last = evidence.jobs.process_states.get(None)
    ours = except_for is not None and any(w.rollback == except_for for w in evidence.jobs.writers)
    if evidence.attempts or ours or (last is not None and last.life is Life.GONE):
        return None
    files_seen = [file for file in evidence.files_seen if file.checkpoint or file.age_s < evidence.gone_after_s]
    return min(files_seen, key=lambda file: file.age_s, default=None)


def _fresh(files_seen: Sequence[FileSeen], needed_s: float, but: str) -> Iterator[str]:
    newest = min(files_seen, key=lambda file: file.age_s, default=None)
    if newest is not None and newest.age_s < needed_s:
        yield f"{newest.what} was written {max(0.0, newest.age_s):.0f} s ago, but {but}"


def _quiet_needed_s(attempt: AttemptSeen, evidence: LivenessEvidence, *, newest: bool) -> float:
    """Seconds without a sign of life after which the attempt is over."""
    settle_s = _settle_s(evidence)
    needed_s = evidence.gone_after_s if newest else min(settle_s, evidence.gone_after_s)
    if attempt.grew_after_end:
        return needed_s
    if attempt.finished:
        needed_s = min(needed_s, settle_s if attempt.process_state is not None else 0.0)
    if attempt.process_state is not None and attempt.process_state.life is Life.GONE:
        needed_s = min(needed_s, 0.0 if attempt.process_state.certain else settle_s)
    return needed_s


def _settle_s(evidence: LivenessEvidence) -> float:
    return max(_SETTLE_S, _SETTLE_STEPS * (evidence.step_time_s or 0.0))
