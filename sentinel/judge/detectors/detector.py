"""The interface of all detectors: what each is given, what it may know of the run, and what it returns."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import ClassVar, NamedTuple, Protocol

from sentinel.judge.detectors.episode import Episode
from sentinel.judge.events import Event, EventKind, Findings
from sentinel.judge.noise_band import NoiseBand
from sentinel.judge.readings import Samples
from sentinel.judge.reference import Reference
from sentinel.judge.schedule_changes import Regime
from sentinel.judge.thresholds import Thresholds
from sentinel.vocabulary.sample import ScrapedSample

_RECENT_SAMPLES = 64  # Losses that an onset is looked for in, backwards


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    onset_range: tuple[int, int]  # The first step of it: earliest and latest
    reason: str = ""
    kind: EventKind = EventKind.DIVERGENCE  # DIVERGENCE and NAN raise the alarm
    end_step: int | None = None  # The step by which it was over: ends the alarm or plateau. None while it lasts
    supersedes: bool = False  # Whether it replaces an alarm that is raised already
    is_event: bool = True  # False for a spike that raised a mean and no single loss above the band

    @classmethod
    def over(cls, kind: EventKind, step: int) -> Finding:
        return cls(onset_range=(step, step), kind=kind, end_step=step)


class Block(NamedTuple):
    losses: list[tuple[int, float]]  # (step, loss in nats)
    median: float
    first_step: int
    last_step: int


@dataclass(slots=True, kw_only=True)
class LossBaseline:
    """What losses at the same settings are compared with."""

    band: NoiseBand
    episode: Episode | None = None  # The loss has left its band and has not come back yet
    climbing: bool = False  # Whether the mean loss at any time scale is above its best, by more than noise
    above_best: float = 0.0  # How far the newest 32-sample mean is above the best (share of it); 0 where none is known
    # A rise up to here only ends a drop that came with a resume, or has not lasted yet; nats, -inf without one.
    ceiling: float = -math.inf
    ceiling_until: float = math.inf  # The step up to which that holds
    before_drop: float = -math.inf  # The level from before a drop that has not lasted yet, nats
    quiet: list[Detector] = field(init=False)
    pushed: list[Detector] = field(init=False)
    pushed_quiet: list[Detector] = field(init=False)
    learning: list[Detector] = field(init=False)
    checking: list[Detector] = field(init=False)
    detectors: list[Detector]  # All of them: those with `per_settings` belong to this baseline alone

    def __post_init__(self) -> None:
        self.use(self.detectors)

    @property
    def level(self) -> float:
        """What a loss that has left the band is back at: the band's level, or that from before a drop."""
        return max(self.band.level, self.before_drop)

    def use(self, detectors: list[Detector]) -> None:
        """These are asked from here on: each for what it implements, since a call that does nothing costs time too."""
        self.detectors = detectors
        self.quiet = [d for d in detectors if _implements(d, "is_quiet")]
        self.pushed = [d for d in detectors if _implements(d, "push")]
        self.pushed_quiet = [d for d in self.pushed if not d.only_unusual]
        self.learning = [d for d in detectors if _implements(d, "learn")]
        self.checking = [d for d in detectors if _implements(d, "check")]


class ResumeDrop(NamedTuple):
    """A sudden drop of the loss right after a resume: data that it has seen before, or other data; no progress."""

    step: int  # The first step of it
    depth: float  # How far it is below the level from before it, nats
    lasts: bool = True

    @property
    def sentence(self) -> str:
        return (
            f"the loss dropped by {self.depth:.3f} at step {self.step}, right after the resume: "
            "data that it has seen before, or other data"
        )


class Leading(Protocol):
    """The signals that may move before the loss does, as the other detectors ask for them: `LeadingSignals`."""

    bands: Mapping[str, NoiseBand]

    @property
    def moved(self) -> bool: ...

    @property
    def scale_collapsed(self) -> bool: ...

    def departed_before(self, onset_range: tuple[int, int]) -> bool: ...

    def agree(self, onset_range: tuple[int, int], step: int, samples: int) -> bool: ...

    def stand(self, onset_range: tuple[int, int], step: int, samples: int) -> bool: ...

    def usual(self) -> dict[str, float]: ...

    def fades(self, usual: Mapping[str, float]) -> bool: ...


class Early(Protocol):
    """The early warnings, as the other detectors ask for them: `EarlyWarnings`."""

    @property
    def agrees(self) -> bool: ...


@dataclass(slots=True, kw_only=True)
class Known:
    thresholds: Thresholds
    regime: Regime
    findings: Findings
    leading: Leading
    early: Early
    references: Sequence[Reference]
    baseline: LossBaseline
    # (step, loss) of the last losses before the sample that is taken now.
    recent: deque[tuple[int, float]] = field(default_factory=lambda: deque(maxlen=_RECENT_SAMPLES))
    last_step: int | None = None  # The newest step
    band_paused: bool = False  # Whether nothing is learned from the present block: part of a drop that may end
    drop_lasts: bool = False  # Whether the band has learned a drop that may still end: slow climbs have not
    resumed_step: int | None = None  # The first step of the newest attempt; None before a second one
    lr: float | None = None  # The newest that was reported
    lr_before_resume: float | None = None
    resume_drop: ResumeDrop | None = None  # The newest; None where no resume brought one

    @property
    def alarm(self) -> Event | None:
        return self.findings.alarm

    @property
    def patience_steps(self) -> int:
        """Twice what the slowest spike of this run took to heal, within bounds."""
        least = self.thresholds.patience_steps
        return max(least, min(2 * self.findings.slowest_healed_steps, 10 * least))

    @property
    def edge(self) -> float:
        widened, band = self.regime.widened, self.baseline.band
        return max(self.baseline.ceiling, band.edge(widened) if widened else band.upper)


class Reset(Enum):
    """Why what was learned does not compare with what comes."""

    SETTINGS = auto()  # Losses are compared with another baseline from here on
    TREND = auto()  # A setting has moved by half: the loss still compares, its trend does not
    LEVEL = auto()  # A planned change has had its effect: the level from here on is the one to compare with


class Detector(Protocol):
    """One way of diverging. Its state is its own; each method does nothing unless a detector needs it.

    Samples come one at a time. Where eight are unremarkable (`Samples.plain`, losses inside their band) and every
    detector's `is_quiet` says that they change nothing but what it learns, they come together: that is how millions of
    steps are judged, on the same path as one.
    """

    per_settings: ClassVar[bool] = False  # Whether it learns for the settings in force only: one instance for each
    only_unusual: ClassVar[bool] = False  # Whether eight quiet samples mean nothing to it: it does not get them
    onset_range: tuple[int, int] | None = None  # The onset of what is under way, whether it is a finding yet or not
    excludes: bool = False  # Whether the newest sample has no loss that a later detector may learn from

    def __init__(self, thresholds: Thresholds) -> None:
        self._forget()

    def _forget(self) -> None:
        """Begins with nothing learned."""

    def is_quiet(self, samples: Samples, known: Known) -> bool:
        """Whether these eight plain samples can be taken together, where no onset is under way."""
        return True

    def push(self, samples: Samples, known: Known) -> Finding | None:
        """Takes the next sample, or the next eight."""
        return None

    def push_unseen(self, sample: ScrapedSample, known: Known) -> Finding | None:
        """Takes what this sample reports of the steps before it that no scrape saw."""
        return None

    def learn(self, block: Block, known: Known) -> None:
        """Takes the block that ends with the newest loss."""

    def check(self, block: Block, known: Known) -> Finding | None:
        """What the block shows; after all have learned from it."""
        return None

    def persists(self, block: Block) -> bool:
        """Whether what this detector sees lasts: the alarm ends with a block after which nothing does."""
        return False

    def began(self, known: Known) -> tuple[int, int] | None:
        """The onset of a rise that this detector sees under way, where the loss is now nan; None where it sees none."""
        return None

    def end(self, known: Known) -> Finding | None:
        """What is to be said when no more samples will come."""
        return None

    def reset(self, why: Reset) -> None:
        """Forgets what no longer compares."""


def _implements(detector: Detector, name: str) -> bool:
    return getattr(type(detector), name) is not getattr(Detector, name)
