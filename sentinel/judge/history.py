"""What is known of the run's attempts, and the lineage through them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Protocol, assert_never

from sentinel.vocabulary.sample import (
    CheckpointSaved,
    LayerVariance,
    MemoryTarget,
    Parked,
    RanksStandStill,
    Record,
    Released,
    RunFinished,
    RunStarted,
    Sample,
    StateLoaded,
    StateSaved,
    Validation,
)

SAVES_WITH_STATE = 16  # Saves of an attempt whose state and layers are kept: a start is compared with what was saved
LAST_SAMPLES = 512  # Samples of the newest attempt that a history keeps at hand where the others can be asked for again


@dataclass(slots=True)
class Attempt:
    number: int
    started: RunStarted | None = None
    loaded: StateLoaded | None = None
    states: list[StateSaved] = field(default_factory=list)  # Of the last saves
    # In order; where the others can be asked for again the last ones only, and one of an attempt that has a successor.
    samples: list[Sample] = field(default_factory=list)
    made: int = 0  # Samples so far, those included that are not at hand
    layers: list[LayerVariance] = field(default_factory=list)
    validations: list[Validation] = field(default_factory=list)
    saved: list[CheckpointSaved] = field(default_factory=list)
    memory: MemoryTarget | None = None  # The last word on the states that its ranks keep in memory
    still: RanksStandStill | None = None  # The last word on ranks that stand still
    parked: Parked | None = None  # The attempt's newest record, where that says so
    released: Released | None = None  # The last word on a park that is over, or could not be
    finished: RunFinished | None = None

    @property
    def end_reason(self) -> str | None:
        """How the attempt ended: "finished" only at its planned end, as far as one was reported; None while it has not.
        A run may plan steps and tokens: whichever comes first is its end."""
        if self.finished is None:
            return None
        if self.finished.reason != "finished" or self.started is None:
            return self.finished.reason
        step, tokens = self.finished.global_step, self.samples[-1].consumed_tokens if self.samples else None
        planned, planned_tokens = self.started.total_steps, self.started.total_tokens
        short_of = [f"{planned} steps"] if planned is not None and step < planned else []
        if planned_tokens is not None and tokens is not None and tokens < planned_tokens:
            short_of.append(f"{planned_tokens} tokens")
        plans = (planned is not None) + (planned_tokens is not None)
        if not plans or len(short_of) < plans:
            return "finished"
        return f"stopped at step {step}, before its planned end of {' or '.join(short_of)}"

    def say(self, word: MemoryTarget | RanksStandStill | Released) -> None:
        """Of each kind the last word counts."""
        if isinstance(word, MemoryTarget):
            self.memory = word
        elif isinstance(word, Released):
            self.released = word
        else:
            self.still = word

    def foreseen(self, at: int) -> tuple[int, ...]:
        """The digests of the batches after step `at`, as they were reported when it was saved."""
        return next((saved.next_batch_digests for saved in self.saved if saved.global_step == at), ())


class Again(Protocol):
    def __call__(self, attempt: int, after: int = -1, /) -> Iterable[Sample]:
        """The attempt's samples of steps above `after` once more, in order."""


def sentence_of(still: RanksStandStill | None) -> str | None:
    """Which ranks the next step waits for; None where none are known."""
    if still is None or not still.ranks:
        return None
    told = [
        f"rank {rank} on {host} (pid {pid}) {_HOW.get(how, how)} since"
        f" {datetime.fromtimestamp(since, UTC):%Y-%m-%d %H:%M:%S} UTC"
        for rank, host, pid, since, how in zip(
            still.ranks, still.hosts, still.pids, still.since_unix_s, still.how, strict=False
        )
    ]
    more = still.in_all - len(told)
    return "; ".join(told) + (f"; and {more} ranks more" if more > 0 else "")


_HOW = {"stopped": "gives no sign of life", "behind": "has not come as far as the others,"}


class History:
    """All attempts, in the order of their numbers. `again` gives an attempt's samples once more, from its first one.
    With it the history does not grow with the steps: of samples and layers the last ones are kept. Without it
    everything is kept, as for a command that reads a run once."""

    def __init__(self, records: Iterable[Record] = (), *, again: Again | None = None) -> None:
        self._again = again
        self.attempts: dict[int, Attempt] = {}
        for record in records:
            self.push(record)

    @classmethod
    def of(cls, attempts: dict[int, Attempt]) -> History:
        """The history that these are the attempts of, as it was once; its samples can't be asked for again."""
        history = cls()
        history.attempts = attempts
        return history

    @property
    def latest(self) -> Attempt | None:
        return self.attempts[max(self.attempts)] if self.attempts else None

    def push(self, record: Record) -> None:
        attempt = self.attempts.get(record.attempt) or self._begun(record.attempt)
        attempt.parked = record if isinstance(record, Parked) else None
        match record:
            case Sample():
                attempt.samples.append(record)
                attempt.made += 1
                if self._again is not None and len(attempt.samples) > LAST_SAMPLES * 5 // 4:  # not at every sample
                    del attempt.samples[:-LAST_SAMPLES]
            case LayerVariance():
                self._keep_layers(attempt, record)
            case RunStarted():
                attempt.started = record
            case StateLoaded():
                attempt.loaded = record
            case StateSaved():
                attempt.states.append(record)
                del attempt.states[:-SAVES_WITH_STATE]
            case Validation():
                attempt.validations.append(record)
            case CheckpointSaved():
                attempt.saved.append(record)
            case MemoryTarget() | RanksStandStill() | Released():
                attempt.say(record)
            case Parked():
                pass
            case RunFinished():
                attempt.finished = record
            case _:
                assert_never(record)

    def samples(self, attempt: Attempt, after: int = -1) -> Iterable[Sample]:
        """All of steps above `after` that the attempt has made, in order; asked for again where not at hand."""
        if self._again is None or attempt.made == len(attempt.samples):
            return attempt.samples if after < 0 else [s for s in attempt.samples if s.global_step > after]
        return self._again(attempt.number, after)

    def lineage(self, attempt: Attempt, after: int = -1) -> Iterator[Sample]:
        """The samples of steps above `after` that the attempt's weights descend from, its own included, one per step,
        in order. What an ancestor did after the step that was resumed from is not part of it."""
        for ancestor, until in self.descent(attempt):
            if until is not None and until <= after:
                continue
            for sample in self.samples(ancestor, after):
                if until is None or sample.global_step <= until:
                    yield sample

    def validations(self, attempt: Attempt) -> list[Validation]:
        descent = self.descent(attempt)
        return [v for one, until in descent for v in one.validations if until is None or v.global_step <= until]

    def from_scratch(self, attempt: Attempt) -> bool:
        return self.parent(attempt)[0] is None

    def _keep_layers(self, attempt: Attempt, reading: LayerVariance) -> None:
        """All of them; where samples are asked for again the last one, and those of the last saves."""
        kept, saved = attempt.layers, {s.global_step for s in attempt.saved[-SAVES_WITH_STATE:]}
        if self._again is not None:
            kept[:] = [one for one in kept if one.global_step in saved]
        kept.append(reading)

    def _begun(self, number: int) -> Attempt:
        if self._again is not None:  # what an attempt before it was last seen doing is asked for again if ever
            for older in self.attempts.values():
                del older.samples[:-1]
        return self.attempts.setdefault(number, Attempt(number))

    def descent(self, attempt: Attempt) -> list[tuple[Attempt, int | None]]:
        """(attempt, the last step of it that the next one goes on from; None of the last) from the first one on."""
        descent: list[tuple[Attempt, int | None]] = [(attempt, None)]
        while True:
            child, until = descent[0]
            parent, at = self.parent(child)
            if parent is None:
                return descent
            descent.insert(0, (parent, at if until is None else min(at, until)))

    def parent(self, attempt: Attempt) -> tuple[Attempt | None, int]:
        """The attempt whose checkpoint this one goes on from, and after which step; None from scratch. A loop names the
        attempt before it: one that began at that step or later has not saved it, and one before that has."""
        started = attempt.started
        if started is None or started.resumed_from is None or started.parent_attempt is None:
            return None, 0
        parent, at = self._named(started, attempt.number), started.resumed_from
        while parent is not None and (own := parent.started) is not None:
            older = self._named(own, parent.number)
            if older is None or own.resumed_from is None or at > own.resumed_from:
                break
            parent = older
        return parent, at

    def _named(self, started: RunStarted, number: int) -> Attempt | None:
        """The attempt that this start of attempt `number` says it continues, where it is an earlier one."""
        named = started.parent_attempt
        return self.attempts.get(named) if named is not None and named < number else None
