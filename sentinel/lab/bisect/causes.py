"""Why a run diverged: which probe to run next, and what their results say. Pure functions of the results so far.

The control repeats the run from the last healthy checkpoint and changes nothing. If it diverges again, the cause is in
the data, the settings or the checkpoint, and one change at a time tells which. If it does not, the cause was not in
what is saved: chance, or a machine. A trainer whose two controls agree bit for bit leaves no chance.

The record comes first: what a start of the lineage changed before the onset, or an LR that rose more than 1.5-fold past
its warmup or above its schedule, is a suspect without any probe, and is undone first; likewise a spread over the ranks
that grew 5-fold. Then the cheapest first.

A probe diverged if the judge says so of its readings, or if the median of its last 8 losses is nearer to the run's than
to the healthy ones of the same length (where the run's is 8 % above those; of a run that came back by itself, the
losses from the onset to the alarm are compared). It is calm if that median is within 2 % of the healthy one, or within
its noise, and has not risen by as much since the onset; between the two it is unknown, as where the run has no healthy
step of that length. A probe whose own journal does not confirm that it was what it says is "not tried": no evidence for
a cause and none against. The control ends at the alarm, the others half a window later, longer-warmup a window later.

Sure is a cause only where the control repeated the run bit for bit, the change prevented the divergence, and what else
was tried did not. The suspected samples are then halved while the budget lasts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from sentinel.lab.bisect.bad_start import BadStart
from sentinel.lab.bisect.hardware import ADAM as ADAM
from sentinel.lab.bisect.hardware import CHANCE as CHANCE
from sentinel.lab.bisect.hardware import GRADIENTS as GRADIENTS
from sentinel.lab.bisect.hardware import MACHINE as MACHINE
from sentinel.lab.bisect.hardware import OTHER_INPUT as OTHER_INPUT
from sentinel.lab.bisect.hardware import WEIGHTS as WEIGHTS
from sentinel.lab.bisect.narrow import narrowed, part_named
from sentinel.lab.bisect.record.changes import Changed
from sentinel.lab.bisect.record.changes import undo_of as undo_of
from sentinel.lab.probes.probe import Probe, ProbeResult, Window
from sentinel.plan.incident.baseline import Baseline
from sentinel.vocabulary.codec import Described
from sentinel.vocabulary.overrides import Overrides

Results = Mapping[str, ProbeResult]

CONTROL, AGAIN = "control", "control-again"
SKIP, OTHERS, ORDER = "skip-suspects", "skip-others", "other-order"
FP32, LOWER_LR, WARMUP = "fp32", "lower-lr", "longer-warmup"
SLW, MOMENTS, NODE = "slw", "fresh-moments", "other-node"
LR_ROSE = 1.5  # Factor by which an LR rises that is no noise of its schedule
SUSPECTED_BEFORE = 5  # Steps before the early end of the onset whose samples are suspected too
CHEAPEST_FIRST = (SKIP, OTHERS, ORDER, FP32, LOWER_LR, WARMUP, SLW, MOMENTS, NODE)

# causes, as a person calls them
SAMPLES, DATA_ORDER, PRECISION = "samples of the data", "the order of the data", "precision"
RATE, SHORT_WARMUP, LENGTH = "learning rate", "LR warmup too short", "sequence length"
STALE_MOMENTS, BROKEN_NODE = "Adam's moments", "hardware: a node of the attempt"
BAD_START = "a start that did not continue the run"

HEALS = {  # change -> the cause that it speaks for where it heals
    SKIP: SAMPLES,
    ORDER: DATA_ORDER,
    FP32: PRECISION,
    LOWER_LR: RATE,
    WARMUP: SHORT_WARMUP,
    SLW: LENGTH,
    MOMENTS: STALE_MOMENTS,
    NODE: BROKEN_NODE,
}
Sure = Literal["sure", "likely", "possible"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordEvidence:
    """What the run's own record shows beside the probes."""

    # LR of a step over the one before, the largest since the checkpoint: past the warmup, or above the schedule's own
    lr_jump: float = 1.0
    lr_jump_at: int | None = None
    lr_above_peak: bool = False  # lr_jump is by how much all steps up to the onset lie above the schedule's peak
    in_risky_window: bool = False  # whether the onset lies in the first three LR warmups
    spread_growth: float = 1.0  # largest spread over the ranks near the onset over the usual one
    spread_of: str | None = None  # of which reading
    bad_start: BadStart | None = None
    changes: tuple[Changed, ...] = ()  # What starts of the lineage changed before the onset

    @property
    def lr_rose(self) -> bool:
        return self.lr_jump > LR_ROSE


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """One incident's window, and the probes that can be run."""

    incident: str
    window: Window
    probes: Mapping[str, Probe]  # by name: the control, and one for each change that can be made here
    not_possible: Mapping[str, str]  # name -> why no such probe can be run, as a sentence
    rungs: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # name -> keys of the rung that follows
    restarts: Mapping[str, Overrides] = field(default_factory=dict)  # name -> the run's own restart with that change
    evidence: RecordEvidence = field(default_factory=RecordEvidence)
    baseline: Baseline = field(default_factory=Baseline)  # What the run ran with when the incident began
    read_until: int | None = None  # Position in the data that the run had read up to at its alarm
    batch_samples: int | None = None

    def probe(self, name: str) -> Probe | None:
        """Also one that skips a part of the suspected samples."""
        return self.probes.get(name) or part_named(self.probes.get(SKIP), name)

    @property
    def undoing(self) -> tuple[str, ...]:
        """The probes that undo what the record shows, the newest change first."""
        return tuple(c.probe for c in self.evidence.changes if c.probe is not None and c.probe in self.probes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Suspect(Described):
    """One cause that the results speak for."""

    cause: str
    sure: Sure
    why: str  # As sentences: which probes, and what they showed
    rung: Mapping[str, Any] | None = None  # Keys of the rung that follows from it; None for none
    probe: str | None = None  # Whose change the run's restart takes over; None where none follows from it


@dataclass(frozen=True, slots=True, kw_only=True)
class BisectAnswer(Described):
    """What is known so far."""

    ranked: tuple[Suspect, ...]  # The likeliest first; empty where nothing speaks for anything
    reason: str  # As a sentence
    repeats: str  # Whether the trainer repeats itself bit for bit, as a sentence
    not_tried: tuple[tuple[str, str], ...]  # (probe, why)


def next_probes(question: Question, results: Results, room: int = 1, *, narrow: bool = False) -> tuple[Probe, ...]:
    """The probes to run now, at most `room`; none once the answer stands. A second one is what would come next if the
    first diverges, as most do. `narrow`: then those that halve the suspected samples."""
    supposed, found = dict(results), list[Probe]()
    while len(found) < room and (name := _next(question, supposed, narrow=narrow)) is not None:
        if (probe := question.probe(name)) is None:
            break
        found.append(probe)
        if name == CONTROL:
            break  # all that follows depends on what they show
        supposed[name] = ProbeResult(name=name, ended="verdict", outcome="diverged", why="supposed")
    return tuple(found)


def _next(question: Question, results: Results, *, narrow: bool) -> str | None:
    control = results.get(CONTROL)
    if control is None:
        return CONTROL
    if control.outcome == "calm" and not control.exact:
        return AGAIN if AGAIN not in results else None
    if control.outcome != "diverged":
        return None
    asked = (n for n in order(question) if n not in results and _is_asked(n, question, results))
    name = next(asked, None)
    return smallest_range(question, results)[1] if name is None and narrow else name


def order(question: Question) -> tuple[str, ...]:
    """Cheapest first, but what the run's own record points at before."""
    evidence, first = question.evidence, list(question.undoing)
    if any(change.key == "precision" for change in evidence.changes):
        first.append(FP32)
    if evidence.spread_growth > 5:
        first.append(NODE)
    if evidence.lr_rose:
        first += [LOWER_LR, SKIP]
    return (*first, *(name for name in CHEAPEST_FIRST if name not in first))


def _is_asked(name: str, question: Question, results: Results) -> bool:
    """Whether the change can be tried here, and would still tell something."""
    if name not in question.probes:
        return False
    calm = {n for n, result in results.items() if result.outcome == "calm"}
    if NODE in calm or _data_is_found(question, results):
        return False
    undone = calm & set(question.undoing)
    match name:
        case "skip-others":
            return SKIP in calm
        case "other-order":
            return SKIP not in calm and not undone
        case "longer-warmup":
            lower = LOWER_LR in calm or (LOWER_LR not in question.probes and not undone)
            return lower or undo_of("lr") in calm
        case "lower-lr":
            return not undone
        case "slw" | "fresh-moments" | "other-node" | "fp32":
            return not undone and not calm & {LOWER_LR, WARMUP, FP32, SLW, MOMENTS}
    return True


def _data_is_found(question: Question, results: Results) -> bool:
    """Whether skipping the suspected samples prevents it, and skipping others does not, or can't be tried."""
    calm = {n for n, result in results.items() if result.outcome == "calm"}
    return SKIP in calm and OTHERS not in calm and OTHERS in (*results, *question.not_possible)


def smallest_range(question: Question, results: Results) -> tuple[tuple[int, int] | None, str | None]:
    """([first, after the last) position of the fewest samples that are known to do it, the probe that tells more)."""
    suspects = question.probes.get(SKIP)
    if suspects is None or not _data_is_found(question, results):
        return None, None
    return narrowed(suspects, question.read_until, question.batch_samples, results)
