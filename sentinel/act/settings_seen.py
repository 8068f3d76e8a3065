"""What the run's attempts have reported to train with."""

from __future__ import annotations

from sentinel.judge.history import Attempt, History
from sentinel.plan.incident.baseline import baseline_of, filled, with_own_start
from sentinel.plan.observation import JobsSeen, RunSettings
from sentinel.vocabulary.sample import RunStarted


def starts_of(history: History) -> tuple[RunStarted, ...]:
    """What the attempts reported at their starts, the newest last."""
    attempts = history.attempts
    return tuple(s for number in sorted(attempts) if (s := attempts[number].started) is not None)


def settings_seen(history: History, standing: Attempt | None, jobs: JobsSeen) -> RunSettings:
    """`standing`: the newest attempt that no undo took back."""
    started, in_script, newest = starts_of(history), jobs.start.script_baseline, history.latest
    reported = baseline_of(standing.started if standing else None)
    return RunSettings(
        baseline=filled(with_own_start(reported, started[0] if started else None), in_script),
        applies=next((frozenset(s.applies) for s in reversed(started) if s.applies is not None), None),
        trainer=next((s.trainer for s in reversed(started) if s.trainer is not None), None),
        seeds_used=frozenset(s.seed for s in (*started, in_script) if s and s.seed is not None),
        world_size=newest.started.world_size if newest and newest.started else None,
    )
