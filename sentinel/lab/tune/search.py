"""Which pacing to try next: pure functions of what the probes have shown so far.

(1) Raise the start until the validation perplexity does not fluctuate at the very beginning. (2) At that start, halve
the interval between the longest duration that is known to be calm and the shortest that fluctuates. A probe serves
both: the one that shows a calm beginning goes on to the horizon, and is the first of the second question.

Source: Li, Zhang & He 2022, section 4, "tuning strategy" (arXiv:2108.06084); Li et al. 2022, section 4.1
(arXiv:2212.03597), takes it for the start and the duration of a curriculum. What happens where no duration at all is
calm at the start that the beginning has led to is not said there: here the start is raised once more.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise

from sentinel.vocabulary.errors import ConfigError


@dataclass(frozen=True, slots=True, order=True)
class Pacing:
    """One candidate: from a start to all there is."""

    start: int  # At the first step; in tokens per sample, or in per cent of the samples
    total_steps: int  # T, optimizer steps from the start to all

    def __str__(self) -> str:
        return f"start {self.start}, T {self.total_steps}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Space:
    """Where is searched, and for how long one looks."""

    starts: tuple[int, ...]  # Ascending, all below what a schedule ends at
    durations: tuple[int, ...]  # Candidates for T in optimizer steps, ascending
    first_duration: int  # T of the first probes; one of the durations
    beginning_steps: int  # A fluctuation up to this step rejects the start, not T
    horizon_steps: int  # A probe that has not fluctuated by this step is calm

    def __post_init__(self) -> None:
        for name, values in (("starts", self.starts), ("durations", self.durations)):
            if not values or list(values) != sorted(set(values)) or values[0] < 1:
                raise ConfigError(f"{name} should be whole numbers above 0, each larger than the one before: {values}")
        if self.first_duration not in self.durations:
            raise ConfigError(f"first_duration {self.first_duration} should be one of the durations {self.durations}")
        if not 1 <= self.beginning_steps <= self.horizon_steps:
            raise ConfigError(
                f"beginning_steps {self.beginning_steps} should lie between 1 and horizon_steps {self.horizon_steps}"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeSeen:
    """What one probe has shown so far."""

    fluctuated_at: int | None = None  # The step of its first significant fluctuation; None for none yet
    calm_through: int = 0  # The last step that was validated
    ended: bool = False  # Whether the training is over by itself: nothing more can be seen of it

    def calm_at_first(self, space: Space) -> bool | None:
        """Whether the beginning is calm; None while that is open."""
        if self.fluctuated_at is not None:
            return self.fluctuated_at > space.beginning_steps
        return True if self.ended or self.calm_through >= space.beginning_steps else None

    def calm(self, space: Space) -> bool | None:
        """Whether all is calm up to the horizon; None while that is open."""
        if self.fluctuated_at is not None:
            return False
        return True if self.ended or self.calm_through >= space.horizon_steps else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """What follows from what was seen."""

    probes: tuple[Pacing, ...] = ()  # To run now, the one that tells most first; others tell no more
    chosen: Pacing | None = None  # The answer
    over: bool = False  # Whether there is nothing left to try; without a chosen one, no pacing of the space is calm
    reason: str = ""  # A sentence


def decide(space: Space, seen: Mapping[Pacing, ProbeSeen], *, room: int = 1) -> Decision:
    """The next probes, at most `room` of them, or the answer.

    `seen` holds every probe that was begun, also those that still run. With room for several, the interval is cut into
    more parts at once, and the next start is tried before it is known whether this one will do.
    """
    for number, start in enumerate(space.starts):
        calm = seen.get(Pacing(start, space.first_duration), ProbeSeen()).calm_at_first(space)
        if calm is None:
            ahead = [Pacing(other, space.first_duration) for other in space.starts[number:]]
            wanted = [p for p in ahead if seen.get(p, ProbeSeen()).calm_at_first(space) is None]
            return Decision(probes=tuple(wanted[:room]), reason=f"does it begin calmly from {start}?")
        if not calm:
            continue
        low, high = bracket(space, seen, start)
        if high - low > 1:
            wanted = _cuts(space, seen, start, room)
            return Decision(probes=tuple(wanted), reason=_question(space, start, low, high))
        if low >= 0:
            return Decision(chosen=Pacing(start, space.durations[low]), over=True, reason=_answer(space, low, high))
    return Decision(over=True, reason="every start and duration that was tried fluctuates before the horizon")


def bracket(space: Space, seen: Mapping[Pacing, ProbeSeen], start: int) -> tuple[int, int]:
    """(place of the longest duration known to be calm, or -1; place of the shortest that fluctuates, or one past all).

    Where a longer one is calm although a shorter one fluctuates, only what lies below the shorter one counts.
    """
    told = [seen.get(Pacing(start, duration), ProbeSeen()).calm(space) for duration in space.durations]
    high = told.index(False) if False in told else len(told)
    low = max((place for place in range(high) if told[place]), default=-1)
    return low, high


def _cuts(space: Space, seen: Mapping[Pacing, ProbeSeen], start: int, room: int) -> list[Pacing]:
    """Durations inside the bracket: those that run first, then again and again the middle of the widest gap."""
    low, high = bracket(space, seen, start)
    inside = range(low + 1, high)
    places = [place for place in inside if Pacing(start, space.durations[place]) in seen][:room]
    while len(places) < min(room, len(inside)):
        edges = sorted({low, high, *places})
        wide, left = max((b - a, -a) for a, b in pairwise(edges))
        places.append(-left + wide // 2)
    return [Pacing(start, space.durations[place]) for place in places]


def _question(space: Space, start: int, low: int, high: int) -> str:
    calm = f"calm over {space.durations[low]} steps" if low >= 0 else "no duration known without a fluctuation"
    ill = f"not over {space.durations[high]}" if high < len(space.durations) else "none known to fluctuate"
    return f"from {start}: {calm}, {ill}"


def _answer(space: Space, low: int, high: int) -> str:
    longest = space.durations[low]
    if high == len(space.durations):
        return f"no fluctuation up to the longest duration tried, {longest} steps: longer ones may be as well"
    return f"calm over {longest} steps; over {space.durations[high]} the validation perplexity fluctuates"


def answer_of_the_grid(space: Space, grid: Mapping[Pacing, ProbeSeen]) -> Pacing | None:
    """The answer when every start was tried with every duration: what the search is held against.

    The smallest start whose beginning is calm at the first duration and that has a calm duration at all, with the
    longest of its calm durations. ConfigError where the grid is not whole.
    """
    for start in space.starts:
        told = {
            pacing: grid.get(pacing, ProbeSeen()).calm(space) for pacing in (Pacing(start, t) for t in space.durations)
        }
        if (open_one := next((pacing for pacing, calm in told.items() if calm is None), None)) is not None:
            raise ConfigError(f"{open_one}: the grid has no answer for it")
        first = grid[Pacing(start, space.first_duration)]
        calm = [pacing.total_steps for pacing, is_calm in told.items() if is_calm]
        if first.calm_at_first(space) and calm:
            return Pacing(start, calm[-1])
    return None


def is_monotone(space: Space, seen: Mapping[Pacing, ProbeSeen]) -> bool:
    """Whether no duration is known to be calm that is longer than one known to fluctuate at the same start."""
    for start in space.starts:
        told = [seen.get(Pacing(start, duration), ProbeSeen()).calm(space) for duration in space.durations]
        if False in told and True in told[told.index(False) :]:
            return False
    return True
