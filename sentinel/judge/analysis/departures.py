"""What moved first before an onset, as `first_mover` finds it once: the incident log records it, and all that is shown
of it (status, pages, chronicle, triage) is this record."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sentinel.judge.analysis.instability import InstabilitySeen
from sentinel.vocabulary.codec import kept, read
from sentinel.vocabulary.numbers import to_number


@dataclass(frozen=True, slots=True, kw_only=True)
class Departure:
    """A signal that left its noise before the onset, or at it."""

    signal: str
    first_step: int
    steps_before_onset: int
    deviations: float  # How far it got until the onset, in deviations of its noise, below 0 downwards; inf for nan


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstMoved:
    departures: tuple[Departure, ...]  # The earliest first; of the same step, the farthest
    stayed: tuple[str, ...]  # Signals that did not leave their bands up to the onset
    unjudged: tuple[str, ...]  # Signals with too few quiet readings to have a band, or none near the onset
    instability: InstabilitySeen | None = None  # That the readings show; None too in the logs of older versions

    @property
    def leading(self) -> tuple[Departure, ...]:
        """Those that left their noise before the loss did; before the onset, where the loss did not leave its own."""
        of_loss = next((d.steps_before_onset for d in self.departures if d.signal == "loss"), 0)
        return tuple(d for d in self.departures if d.signal != "loss" and d.steps_before_onset > of_loss)

    @property
    def led_by(self) -> tuple[str, ...]:
        return tuple(departure.signal for departure in self.leading)

    @property
    def sentence(self) -> str:
        """What led, and how sure that is: by how much each left its noise, and what could not be judged."""
        shown = f"; {self.instability.sentence}" if self.instability is not None else ""
        return self._led + shown

    @property
    def _led(self) -> str:
        unjudged = f"; too few readings to judge {', '.join(self.unjudged)}" if self.unjudged else ""
        if self.leading:
            named = [
                f"{d.signal} {d.steps_before_onset} steps before ({abs(d.deviations):.3g} deviations of its own noise)"
                for d in self.leading
            ]
            return f"led by {', '.join(named)}{unjudged}"
        if {*(d.signal for d in self.departures), *self.stayed} - {"loss"}:
            return f"no signal left its noise before the loss{unjudged}"
        if unjudged:
            return "what moved first is unknown: too few readings before the onset"
        if self.departures or self.stayed:
            return "what moved first is unknown: no signal but the loss was measured"
        return "what moved first is not known"

    def to_json(self) -> dict[str, Any]:
        """As the incident log has it: without an instability where none shows."""
        own = {name: kept(getattr(self, name)) for name in ("departures", "stayed", "unjudged")}
        return own | ({} if self.instability is None else {"instability": kept(self.instability)})

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> FirstMoved:
        """What the incident log has recorded. KeyError, TypeError or ValueError where it makes no sense."""
        departures = [{**d, "deviations": to_number(d["deviations"], "deviations")} for d in data["departures"]]
        return cls(
            departures=tuple(Departure(**departure) for departure in departures),
            stayed=tuple(data["stayed"]),
            unjudged=tuple(data["unjudged"]),
            instability=None if (shown := data.get("instability")) is None else read(InstabilitySeen, shown),
        )


NOTHING_KNOWN = FirstMoved(departures=(), stayed=(), unjudged=())
