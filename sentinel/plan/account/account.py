"""What a lineage was trained on: counts of samples, faults, and whether the account closes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from sentinel.plan.account.batches import Batches
from sentinel.plan.account.coverage import Positions
from sentinel.vocabulary.sample import RunStarted, Sample, ScrapedSample

_MOSTLY = 0.1  # share of the steps that may pass over samples which no mitigation has left out


@dataclass(frozen=True, slots=True, kw_only=True)
class DataFault:
    """A start that did not go on with the data where its checkpoint stood."""

    attempt: int
    first_step: int  # the first that it has made
    what: str  # the fault, in the words of docs/STARTS.md, and why, as a sentence


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """Samples. None: unknown. A new epoch's samples are new ones."""

    once: int | None = None
    again: int | None = None  # trained on more than once in an epoch
    never: int | None = None  # passed over, and not left out by a mitigation
    out_of_order: int | None = None  # for the first time, after later ones


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """Of one lineage: the newest attempt, and those that it goes on from."""

    attempts: tuple[int, ...]  # from the first on
    first_step: int | None = None  # of the lineage, as far as it is reported; None before the first
    last_step: int | None = None
    steps: int = 0  # that are reported
    samples: Counts = field(default_factory=Counts)  # the best of the two below
    positions: Counts | None = None  # by the consumed samples that the trainer reports; None where it does not
    batches: Counts | None = None  # by digests
    left_out: int = 0  # samples that mitigations left out: that is meant, and no fault
    faults: tuple[DataFault, ...] = ()
    unknown: tuple[str, ...] = ()  # what can't be said, and why
    not_finite: str | None = None  # why the end is no end, as a sentence; None where the last loss is a number

    @property
    def closes(self) -> bool:
        """Whether nothing that is known contradicts that each sample was trained on as meant, to the end."""
        return not self.faults and self.not_finite is None

    @property
    def why(self) -> str:
        """Whether it closes, as a sentence."""
        found = [f"attempt {one.attempt} from step {one.first_step}: {one.what}" for one in self.faults]
        found += [] if self.not_finite is None else [self.not_finite]
        if found:
            return f"the account of the data does not close: {'; '.join(found)}"
        return "the account of the data closes"


class DataLedger:
    """Takes the samples of a lineage in their order. Its memory grows by 24 bytes a step where digests are reported,
    and by nothing else: positions are intervals."""

    def __init__(self) -> None:
        self._positions, self._batches = Positions(), Batches()
        self._attempts: list[int] = []
        self._last: Sample | None = None
        self._first_step: int | None = None
        self._started: RunStarted | None = None
        self._steps = self._placed = self._passing = 0
        self._epoch_samples: int | None = None
        self._declared = 0  # samples that mitigations left out so far
        self._begins = False  # whether the next sample is an attempt's first
        self._backward = False
        self._by_batches = True  # whether positions grow by a step's samples, as far as that was ever seen
        self._grown = 0  # by the last step

    def begin(self, attempt: int, started: RunStarted | None) -> None:
        """Before the samples of an attempt."""
        self._attempts.append(attempt)
        self._batches.replay(over=True)
        self._started, self._begins = started, True
        if started is not None:
            self._epoch_samples = self._epoch_samples if started.epoch_samples is None else started.epoch_samples
            self._declared = max(self._declared, started.skipped_samples or 0)

    def replays(self) -> None:
        """Says that the attempt that has begun is fed again what its lineage was trained on."""
        self._batches.replay(over=False)

    def push(self, sample: Sample) -> None:
        self._steps += 1
        self._batches.add(sample)
        if sample.consumed_samples is not None and sample.global_batch_samples and not self._backward:
            self._place(sample, sample.consumed_samples, sample.global_batch_samples)
        self._first_step = sample.global_step if self._first_step is None else self._first_step
        self._last, self._begins = sample, False

    def _place(self, sample: Sample, end: int, batch: int) -> None:
        last = self._last
        made = sample.global_step - last.global_step if last is not None else 1
        if not self._begins and last is not None and last.consumed_samples is not None:
            begin = last.consumed_samples
        else:
            begin = self._first_position(sample, end, batch, made)
        if end < begin:  # not counted over the run's life
            self._backward = True
            return
        if made == 1 and not self._begins:
            self._by_batches = end - begin == batch or (self._by_batches and self._grown > 0)
            self._grown = end - begin
        left_out = max(0, end - begin - batch) if made == 1 else 0
        self._placed, self._passing = self._placed + 1, self._passing + (left_out > 0)
        if end > begin:
            self._positions.consumed(begin, end, left_out=left_out)

    def _first_position(self, sample: Sample, end: int, batch: int, made: int) -> int:
        """Where an attempt begins: as it reports, else by its first batch."""
        started = self._started
        if started is not None and started.first_sample_index is not None and not started.from_arguments:
            return started.first_sample_index
        before = started.resumed_from or 0 if started is not None else sample.global_step - 1
        of_step = batch if self._by_batches else self._grown
        return max(0, end - of_step * max(1, min(made, sample.global_step - before)))

    def account(self, faults: Sequence[DataFault] = ()) -> Account:
        """As far as it was pushed."""
        unknown = list[str]()
        positions, left_out = self._of_positions(unknown)
        batches = self._of_batches(unknown)
        last = self._last
        if self._first_step is not None and self._first_step > 1:
            unknown.append(f"what was trained on before step {self._first_step} is not in the journals")
        if isinstance(last, ScrapedSample):
            unknown.append("the steps between two scrapes are not seen")
        return Account(
            attempts=tuple(self._attempts),
            first_step=self._first_step,
            last_step=None if last is None else last.global_step,
            steps=self._steps,
            samples=_best(positions, batches),
            positions=positions,
            batches=batches,
            left_out=left_out,
            faults=tuple(faults),
            unknown=tuple(unknown),
            not_finite=_not_finite(last),
        )

    def _of_positions(self, unknown: list[str]) -> tuple[Counts | None, int]:
        """The counts, and what was left out on purpose."""
        found, why = self._positions, None
        if not self._placed:
            why = "consumed samples are not reported, or not the samples of a step (global_batch_samples)"
        elif self._backward:
            why = "consumed samples go back within an attempt"
        elif found.scattered:
            why = "consumed samples are too scattered to be counted"
        elif not self._declared and self._passing > max(1.0, _MOSTLY * self._placed):
            why = "consumed samples do not grow by the samples of a step"
        if why is not None:
            unknown.append(f"positions: {why}")
            return None, 0
        left_out = min(found.gaps, self._declared)
        never = found.gaps - left_out
        return Counts(once=found.once, again=found.again, never=never, out_of_order=found.out_of_order), left_out

    def _of_batches(self, unknown: list[str]) -> Counts | None:
        if not len(self._batches):
            unknown.append("batches: their digests are not reported")
            return None
        counts = self._batches.counts(self._epoch_samples)
        if counts is None:
            unknown.append("batches: some came again, and whether that was in another epoch is not known")
            return None
        if len(self._batches) < self._steps:
            unknown.append(f"batches: {self._steps - len(self._batches)} of {self._steps} steps have no digest")
        return Counts(once=counts[0], again=counts[1])


def _best(positions: Counts | None, batches: Counts | None) -> Counts:
    """What came again is the larger of both: a trainer may count on while its loader begins again."""
    if positions is None or batches is None:
        return positions or batches or Counts()
    if (batches.again or 0) <= (positions.again or 0):
        return positions
    once, again = max(0, (positions.once or 0) - (batches.again or 0)), batches.again
    return Counts(once=once, again=again, never=positions.never, out_of_order=positions.out_of_order)


def _not_finite(last: Sample | None) -> str | None:
    """Of the last step. A skipped one has no word on the weights."""
    if last is None or last.skipped or math.isfinite(last.loss):
        return None
    return f"the last loss, of step {last.global_step}, is {last.loss}"
