"""From which checkpoint a bisect begins: one of the lineage, before the onset; and the starts of that lineage."""

from __future__ import annotations

from collections.abc import Mapping

from sentinel.judge.history import Attempt, History
from sentinel.lab.bisect.bad_start import BadStart
from sentinel.lab.probes.probe import Window
from sentinel.plan.choose.target import Target
from sentinel.plan.facts import Facts
from sentinel.plan.incident.incident import Incident
from sentinel.plan.observation import Checkpoint
from sentinel.plan.starts.audit import Continued, StartAudit
from sentinel.vocabulary.errors import ConfigError


def of_its_line(checkpoints: tuple[Checkpoint, ...], history: History, attempt: Attempt) -> tuple[Checkpoint, ...]:
    """Without those that an attempt of another line has saved under the same names, as after a rollback, and those that
    an ancestor saved after the step that its successor went on from."""
    line = {ancestor.number: until for ancestor, until in history.descent(attempt)}
    savers = {saved.tag: number for number in sorted(history.attempts) for saved in history.attempts[number].saved}

    def is_of_it(one: Checkpoint) -> bool:
        saver = savers.get(one.tag)
        if saver is None:
            return True
        until = line.get(saver, 0)
        return until is None or one.global_step <= until

    return tuple(filter(is_of_it, checkpoints))


def of_the_attempt(target: Target, attempt: Attempt, facts: Facts, onset_step: int) -> Target:
    """No earlier than where the attempt that diverged began, unless it began after the onset: what came before ran with
    other settings, perhaps."""
    resumed = attempt.started.resumed_from or 0 if attempt.started is not None else 0
    began = next((c for c in facts.folders.checkpoints if c.global_step == resumed and c.complete), None)
    if began is None or resumed <= target.global_step or resumed >= onset_step:
        return target
    return Target(tag=began.tag, global_step=resumed, reason=f"attempt {attempt.number} began at {began.tag}")


def refuse_after_the_onset(incident: Incident, target: Target, window: Window) -> None:
    """ConfigError where the run's readings do not show it healthy after the checkpoint: what made it ill lies before,
    in every probe."""
    first = min(window.after, default=None)
    base = target.tag or "its beginning"
    if target.global_step >= window.onset_step:
        raise ConfigError(f"{incident.id}: {base} is after the onset (step {window.onset_step}): nothing to repeat")
    if first is not None and first > window.onset_step:
        raise ConfigError(
            f"{incident.id}: the onset is at step {window.onset_step}, and no reading of this lineage between {base} "
            f"and step {first} is known: a bisect would begin after the onset"
        )


def bad_start_in(
    history: History, attempt: Attempt, audits: Mapping[int, StartAudit], until_step: int
) -> BadStart | None:
    """The last start of the lineage, up to that step, that did not continue the run by its audit; None for none."""
    for ancestor, _ in reversed(history.descent(attempt)):
        found = audits.get(ancestor.number)
        if found is not None and found.verdict is Continued.NO and found.resumed_from < until_step:
            return BadStart(attempt=ancestor.number, resumed_from=found.resumed_from, reason=found.reason)
    return None
