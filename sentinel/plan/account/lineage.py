"""account_of(history, attempt, rollbacks): the account of an attempt and of all that it goes on from."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence

from sentinel.judge.history import Attempt, History
from sentinel.plan.account.account import Account, DataFault, DataLedger
from sentinel.plan.incident.incident import Proof, Rollback
from sentinel.plan.starts.audit import EPOCH, FIRST, NEXT_EPOCH, RECENT, REPLAYED, SKIPPED, Ancestor, Start, Trail
from sentinel.plan.starts.curves import data
from sentinel.plan.starts.evidence import FIRST_STEPS
from sentinel.plan.starts.position import epochs, position, stops_before
from sentinel.vocabulary.sample import Sample, ScrapedSample

OF_THE_DATA = frozenset({EPOCH, NEXT_EPOCH, REPLAYED, SKIPPED})
"""Faults of a start after which samples were trained on again, or left out. In another order all may yet come once."""


def account_of(history: History, attempt: Attempt, rollbacks: Iterable[Rollback] = ()) -> Account:
    """Reads the samples of the lineage once, in order; what one of the rollbacks has decided is no fault. What
    `history.samples` raises."""
    reading = _Reading(history, {rollback.id: rollback for rollback in rollbacks})
    for one, until in history.descent(attempt):
        reading.take(one, until)
    return reading.ledger.account(reading.faults)


class _Reading:
    """One pass over a lineage, with what each start is compared with: 56 bytes a step, with the ledger's."""

    def __init__(self, history: History, decided: Mapping[str, Rollback]) -> None:
        self.ledger, self.faults = DataLedger(), list[DataFault]()
        self._history, self._decided = history, decided
        self._trail = Trail()
        self._recent = deque[Sample](maxlen=RECENT)
        self._parent: Attempt | None = None
        self._at = 0  # the step that the next attempt goes on from
        self._later: Sequence[Sample] = ()  # what was made after it before, its first steps

    def take(self, attempt: Attempt, until: int | None) -> None:
        """The attempt's samples up to that step (None: all), and its start compared with what was before."""
        first, later, own = list[Sample](), list[Sample](), 0
        self.ledger.begin(attempt.number, attempt.started)
        after = -1 if self._parent is None else self._at
        for sample in self._history.samples(attempt, after):
            if until is None or sample.global_step <= until:
                own += 1
            else:
                later.append(sample)
                if len(later) >= FIRST:
                    break
            if len(first) < FIRST:
                first.append(sample)
                if len(first) == FIRST:
                    self._begin(attempt, first, own)
            elif own > 0 and not later:
                self._push(sample)
        if len(first) < FIRST:
            self._begin(attempt, first, own)
        if own:  # else nothing of it is in force, and what was made after the step is what the one before made
            self._later = later
        self._parent, self._at = attempt, until or 0

    def _begin(self, attempt: Attempt, first: Sequence[Sample], own: int) -> None:
        """`first`: its first steps; of these the first `own` are of the lineage."""
        if own and self._parent is not None and not isinstance(first[0], ScrapedSample):
            self.faults += self._compared(attempt, self._parent, first)
        for sample in first[:own]:
            self._push(sample)

    def _compared(self, attempt: Attempt, parent: Attempt, first: Sequence[Sample]) -> Iterator[DataFault]:
        if attempt.started is None:
            return
        trail, known = self._trail, len(self._trail.steps)
        for sample in self._later:
            trail.note(sample)
        trail.foresee(self._at, parent.foreseen(self._at))
        ancestor = Ancestor(
            started=parent.started,
            recent=tuple(self._recent),
            later=tuple(self._later),
            trail=trail,
            stops=stops_before(self._history, parent, self._at),
        )
        over = attempt.finished is not None or attempt is not self._history.latest
        rollback = self._decided.get(attempt.started.rollback or "")
        start = Start(started=attempt.started, samples=tuple(first), over=over, ancestor=ancestor, rollback=rollback)
        wrong = [
            check
            for compared in (position, epochs, data)
            for check in compared(start, ancestor)
            if check.answer is Proof.CONTRADICTED and check.what in OF_THE_DATA
        ]
        trail.cut(known)
        if wrong and (len(first) >= FIRST_STEPS or over):
            if wrong[0].what in (EPOCH, REPLAYED):
                self.ledger.replays()
            what = f"{wrong[0].what}: {wrong[0].why}"
            yield DataFault(attempt=attempt.number, first_step=first[0].global_step, what=what)

    def _push(self, sample: Sample) -> None:
        self.ledger.push(sample)
        self._trail.note(sample)
        self._recent.append(sample)
