"""What a decision needs of the journals and of the judge beside the verdict, as values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from sentinel.judge.detectors.attention_logits import LogitWarning
from sentinel.judge.unhealthy_spans import UnhealthySpan
from sentinel.vocabulary.overrides import Anchor


@dataclass(frozen=True, slots=True, kw_only=True)
class SpoiltSpan:
    """Steps whose checkpoints hold another model than the run's: what an attempt loaded was not what was saved. While
    `pending`, they may: the audit of its start is not over."""

    first_step: int
    last_step: int
    reason: str
    pending: bool = False

    @property
    def sentence(self) -> str:
        return f"is not certified: {self.reason}"


@dataclass(frozen=True, slots=True, kw_only=True)
class JournalFacts:
    """What a decision needs of one attempt's journal."""

    number: int
    reported: bool = False  # whether it has reported its start
    rollback: str | None = None  # the rollback that it was started for, as it reports; None for any other
    made: int = 0  # samples so far
    saved: bool = False  # whether it has reported a checkpoint
    finished: bool = False  # whether it has reported its own end
    end_reason: str | None = None  # how it ended, "finished" only at its planned end; None while it has not
    can_park: bool = False  # whether it has declared that it obeys PARK and RESUME
    memory: tuple[int, ...] = ()  # steps whose states its ranks keep in memory, ascending; none once it has ended
    not_parked_for: str | None = None  # the rollback for which it was asked to park last, where it could not
    why_not_parked: str | None = None  # of `not_parked_for`, as a sentence


@dataclass(frozen=True, slots=True, kw_only=True)
class PlateauSeen:
    """A loss that falls more slowly than it should, and does so still."""

    onset_step: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadingsSeen:
    """What a decision needs of the journals and of the judge beside the verdict. Steps are optimizer steps."""

    journals: tuple[JournalFacts, ...] = ()  # in the order of the attempts' numbers
    last_step: int | None = None  # the newest attempt's last global_step; None before its first
    judged_step: int | None = None  # of the newest reading that the judge has taken, of any attempt; None before it
    # the last step of the lineage that `latest` names: not of an attempt that an undo took back. None before the first
    trained_to: int | None = None
    positions: Mapping[int, Anchor] = field(default_factory=dict)  # global_step -> position, for the checkpoints' steps
    unhealthy_spans: tuple[UnhealthySpan, ...] = ()  # where the lineage's readings were far out of proportion
    spoilt_spans: tuple[SpoiltSpan, ...] = ()  # of the lineage, by the audits of its starts
    logit_warning: LogitWarning | None = None  # in force: the largest attention logit is above its limit
    plateaus: tuple[PlateauSeen, ...] = ()

    def anchor(self, step: int) -> Anchor:
        """The position at that step, as far as it is known."""
        return self.positions.get(step, Anchor(global_step=step))

    def unhealthy_at(self, step: int) -> UnhealthySpan | SpoiltSpan | None:
        """The span of unhealthy readings, or of a bad start, that a checkpoint of that step lies in; None for none."""
        spans: tuple[UnhealthySpan | SpoiltSpan, ...] = (*self.unhealthy_spans, *self.spoilt_spans)
        return next((s for s in spans if s.first_step <= step <= s.last_step), None)
