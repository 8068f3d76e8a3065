"""The events of the incident log up to a decision: one class each, with its keys in the order of a line of the log.

A line is a JSON object: `event` (the class's `kind`), `incident`, the fields, and `time_unix_s`, which is added when it
is written. What follows on a decision: `log_outcomes`; how a line is read: `log_lines`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, ClassVar, Self

from sentinel.judge.analysis.departures import FirstMoved
from sentinel.plan.incident.baseline import Baseline
from sentinel.plan.incident.incident import OnDisk, Place, Rollback, WrittenOverrides, overrides_to_json
from sentinel.vocabulary.codec import kept
from sentinel.vocabulary.names import checked_name
from sentinel.vocabulary.overrides import Overrides

_OF_THE_LINE = ("incident", "time_unix_s", "shifted_by_s", "keys", "more")


@dataclass(frozen=True, slots=True, kw_only=True)
class IncidentEvent:
    """One line of the incident log."""

    kind: ClassVar[str]
    seldom: ClassVar[tuple[str, ...]] = ()  # keys that a new line has only where they say something

    incident: str | None  # None for what belongs to no incident, such as a restart after a crash
    time_unix_s: float = math.nan  # when it was written; nan: it is not yet
    shifted_by_s: float | None = None  # by which its times differ from those of the log: the wall clock was set since
    keys: tuple[str, ...] = field(default=(), compare=False, repr=False)  # of the line that it was read from, in order
    more: Mapping[str, Any] = field(default_factory=dict, compare=False, repr=False)  # what that line has otherwise

    def __init_subclass__(cls, kind: str | None = None) -> None:
        if kind is not None:  # a dataclass with slots is made twice
            cls.kind = kind

    @property
    def name(self) -> str:
        """What the log calls it."""
        return self.kind

    def has(self, key: str) -> bool:
        """Whether its line has the key: an older release may have had no word of it."""
        return not self.keys or key in self.keys

    def shifted(self, by_s: float) -> Self:
        """The event, so much later than the incident log says: the wall clock was set since."""
        return replace(self, time_unix_s=self.time_unix_s + by_s, shifted_by_s=by_s)

    def to_json(self) -> dict[str, Any]:
        """The event as a line of the log holds it: the keys of the line that it was read from, in their order."""
        own = {f.name: _written(getattr(self, f.name)) for f in fields(self) if f.name not in _OF_THE_LINE}
        made = {"event": self.kind, "incident": self.incident, **own, **self.more}
        wanted = self.keys or tuple(key for key, value in made.items() if value or key not in self.seldom)
        times = {} if math.isnan(self.time_unix_s) else {"time_unix_s": self.time_unix_s}
        times |= {} if self.shifted_by_s is None else {"shifted_by_s": self.shifted_by_s}
        made |= times
        return {key: made[key] for key in (*wanted, *times) if key in made}


def _written(value: Any) -> Any:
    return overrides_to_json(value) if isinstance(value, Overrides) else kept(value)


@dataclass(frozen=True, slots=True, kw_only=True)
class UnreadEvent(IncidentEvent, kind=""):
    """An event that this release has no class for, or whose keys it can't read; `more` is the line."""

    why: str | None = None  # what can't be read of it; None: it is of another version, and says nothing to this one

    @property
    def name(self) -> str:
        return str(self.more["event"])

    def to_json(self) -> dict[str, Any]:
        shift = (
            {} if self.shifted_by_s is None else {"time_unix_s": self.time_unix_s, "shifted_by_s": self.shifted_by_s}
        )
        return {**self.more, **shift}


@dataclass(frozen=True, slots=True, kw_only=True)
class OfIncident(IncidentEvent):
    """An event that always belongs to an incident."""

    incident: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Opened(OfIncident, kind="opened"):
    """A divergence was found, a person asked for a rollback, or a rollback did not take effect (`ignored`)."""

    seldom = ("ignored", "tried_before")

    attempt: int  # that diverged; 0 for none
    onset_range: tuple[int, int] | None  # optimizer steps; None for a person's own rollback
    alarm_step: int | None
    onset_tokens: int | None  # consumed_tokens at the late end of the onset
    onset_samples: int | None = None  # consumed_samples there
    batch_samples: int | None = None  # samples of that step
    best_mean: float | None  # best 20-sample mean of the loss before the onset, nats
    moved_first: FirstMoved | None = None
    reason: str
    led_by: tuple[str, ...]  # signals
    baseline: Baseline
    overrides: WrittenOverrides | None = None  # overrides.json as it was; None where there was none
    ignored: str | None = None  # the rollback whose missing effect it is about
    tried_before: tuple[str, ...] = ()  # rungs that the run was restarted by before, whose recovery did not hold


@dataclass(frozen=True, slots=True, kw_only=True)
class BaselineCompleted(OfIncident, kind="baseline_completed"):
    """What the job script asks for completes the baseline: Slurm did not answer when the incident was opened."""

    baseline: Baseline


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedTarget:
    """What a rollback goes back to."""

    tag: str | None  # None is from scratch; memory:STEP: a state in memory
    global_step: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AdoptedProbe:
    """The probe of an older release whose checkpoints became the run's."""

    probe: str
    tag: str | None = None
    global_step: int | None = None

    def __post_init__(self) -> None:
        checked_name(self.probe, "probe")


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedRollback(OfIncident):
    """A rung, its target and what it changes."""

    seldom: ClassVar[tuple[str, ...]] = ("in_place", "on_disk")

    rollback: str
    rung: str
    hypothesis: str
    target: SavedTarget
    overrides: WrittenOverrides
    changes: tuple[str, ...]
    lost_steps: int  # optimizer steps that it throws away
    lost_gpu_hours: float | None = None  # None where pace or size of the run was not known
    unconfirmed: tuple[str, ...] = ()  # names of checks that can't be confirmed
    in_script: bool = False  # whether the job script carries its changes
    restart: bool = True  # whether the job is started again
    in_place: bool = False  # whether in its own processes; an older release has no word
    on_disk: OnDisk | None = None  # of a target in memory: what it becomes where that is lost

    def __post_init__(self) -> None:
        checked_name(self.rollback, "rollback")
        if self.target.tag is not None:
            checked_name(self.target.tag, "target")
        if self.on_disk is not None and self.on_disk.tag is not None:
            checked_name(self.on_disk.tag, "on_disk")

    @classmethod
    def of(cls, incident: str, decision: Rollback, **more: Any) -> Self:
        target = SavedTarget(tag=decision.target_tag, global_step=decision.target_step)
        own = {f.name for f in fields(PlannedRollback)} - {f.name for f in fields(OfIncident)} - {"rollback", "target"}
        same = {name: getattr(decision, name) for name in own}
        return cls(incident=incident, rollback=decision.id, target=target, **same, **more)


@dataclass(frozen=True, slots=True, kw_only=True)
class Decided(PlannedRollback, kind="decided"):
    """What the coming intents carry out."""

    seldom = ("in_place", "on_disk", "adopts", "save_folder")

    adopts: AdoptedProbe | None = None  # of an older release
    newest_attempt: int | None = None  # 0 for none; None: an older release has no word
    jobs: tuple[str, ...] = ()  # what ran or waited, as a launcher names it
    save_folder: Place | None = None  # that it is decided for


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposed(PlannedRollback, kind="proposed"):
    """Mode approve: what a person is asked to agree to."""

    digest: str  # SHA-256, in hex


@dataclass(frozen=True, slots=True, kw_only=True)
class Shadow(PlannedRollback, kind="shadow"):
    """Mode observe: what would have been done."""

    refusal: str | None = None  # why it would not have been done after all


@dataclass(frozen=True, slots=True, kw_only=True)
class ShadowRefused(OfIncident, kind="shadow"):
    """Mode observe: why nothing would have been done."""

    refusal: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Approved(OfIncident, kind="approved"):
    """A person's yes to the proposal of that digest."""

    digest: str
    by: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Expired(OfIncident, kind="expired"):
    """No yes came in time."""

    digest: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting(OfIncident, kind="waiting"):
    """A rung that only watches whether the run recovers by itself."""

    rung: str
    hypothesis: str
    from_step: int
    until_step: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitOver(OfIncident, kind="wait_over"):
    """The run has not recovered by itself."""

    rung: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RungSkipped(OfIncident, kind="rung_skipped"):
    """A rung can't be carried out; the next one is tried."""

    rung: str
    hypothesis: str
    reason: str
