"""What is known of the run's attempts, and the line of descent through them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import assert_never

from sentinel.vocabulary.sample import CheckpointSaved, Record, RunFinished, RunStarted, Sample, Validation

__all__ = ["Attempt", "History"]


@dataclass(slots=True)
class Attempt:
    """One life of the training process group, as its journal tells it."""

    number: int
    started: RunStarted | None = None
    samples: list[Sample] = field(default_factory=list)
    validations: list[Validation] = field(default_factory=list)
    saved: list[CheckpointSaved] = field(default_factory=list)
    finished: RunFinished | None = None


class History:
    """All attempts, in the order of their numbers."""

    def __init__(self) -> None:
        self.attempts: dict[int, Attempt] = {}

    @property
    def latest(self) -> Attempt | None:
        """The attempt with the highest number, or None before the first."""
        return self.attempts[max(self.attempts)] if self.attempts else None

    def push(self, record: Record) -> None:
        """Takes the next record of a journal."""
        attempt = self.attempts.setdefault(record.attempt, Attempt(record.attempt))
        match record:
            case Sample():
                attempt.samples.append(record)
            case RunStarted():
                attempt.started = record
            case Validation():
                attempt.validations.append(record)
            case CheckpointSaved():
                attempt.saved.append(record)
            case RunFinished():
                attempt.finished = record
            case _:
                assert_never(record)

    def lineage(self, attempt: Attempt) -> list[Sample]:
        """The samples that the attempt's weights descend from, its own included, one per step, in order.

        What an ancestor did after the step that was resumed from is not part of it.
        """
        ancestors: list[Sample] = []
        started = attempt.started
        if started is not None and started.resumed_from is not None and started.parent_attempt is not None:
            parent = self.attempts.get(started.parent_attempt)
            if parent is not None and parent.number < attempt.number:
                ancestors = [s for s in self.lineage(parent) if s.global_step <= started.resumed_from]
        return ancestors + attempt.samples

    def position(self, attempt: Attempt, step: int) -> Sample | None:
        """The sample of that step on the attempt's line of descent, or None."""
        return next((s for s in reversed(self.lineage(attempt)) if s.global_step == step), None)
