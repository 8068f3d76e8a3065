"""What a search has decided and seen, on the disk: one event per line, so that a killed one is taken up again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from sentinel.adapters.incident_log import IncidentLog
from sentinel.tune.reading import Reading
from sentinel.tune.search import Pacing
from sentinel.tune.task import Task
from sentinel.vocabulary.errors import ConfigError

# Why a life has ended: its answer is known (fluctuates, calm); another probe's answer makes it idle (not needed); the
# search was stopped or killed, and its trainer with it (lost); its trainer ended by itself, early (failed).
Why = Literal["fluctuates", "calm", "not needed", "lost", "failed"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Life:
    """One training of one probe."""

    pacing: Pacing
    number: int  # 1 is the probe's first life; a probe whose trainer was lost begins anew, in a folder of its own
    began_unix_s: float
    ended_unix_s: float | None = None  # None while it runs, and where a killed search could not say
    why: Why | None = None  # None while it runs
    reading: Reading | None = None  # What it has shown, once it has ended

    @property
    def name(self) -> str:
        """Of its folder, and of its jobs."""
        again = f"-life{self.number}" if self.number > 1 else ""
        return f"start{self.pacing.start}-T{self.pacing.total_steps}{again}"


class Record:
    """OUTPUT/probes.jsonl: the lives of all probes, each when it begins (before anything is started) and ends."""

    def __init__(self, log: IncidentLog, task: Task) -> None:
        self._log = log
        self.lives: list[Life] = []
        events = log.read()
        if not events:
            log.append({"event": "searched", **task.to_json()})
        elif (before := {k: v for k, v in events[0].items() if k != "event"}) != task.to_json():
            raise ConfigError(
                f"the folder holds another search, of {before}: give another --output, or ask for the same again"
            )
        for event in events[1:]:
            self._take(event)

    def begin(self, pacing: Pacing, *, now: float) -> Life:
        """Notes that a life begins; returns when that is on the disk."""
        number = 1 + sum(life.pacing == pacing for life in self.lives)
        self._write({"event": "began", **_named(pacing, number), "time_unix_s": now})
        return self.lives[-1]

    def end(self, life: Life, why: Why, reading: Reading, *, now: float | None) -> Life:
        """Notes how a life has ended."""
        self._write(
            {"event": "ended", **_named(life.pacing, life.number), "time_unix_s": now, "why": why, **reading.to_json()}
        )
        return next(known for known in self.lives if known.name == life.name)

    def running(self) -> list[Life]:
        """Those that have begun and not ended."""
        return [life for life in self.lives if life.why is None]

    def newest(self, pacing: Pacing) -> Life | None:
        """The probe's last life."""
        return next((life for life in reversed(self.lives) if life.pacing == pacing), None)

    def failures(self, pacing: Pacing) -> int:
        """How often its trainer has ended by itself, early."""
        return sum(life.pacing == pacing and life.why == "failed" for life in self.lives)

    def _write(self, event: dict[str, Any]) -> None:
        self._log.append(event)
        self._take(event)

    def _take(self, event: Mapping[str, Any]) -> None:
        pacing, number = Pacing(event["start"], event["total_steps"]), event["life"]
        if event["event"] == "began":
            self.lives.append(Life(pacing=pacing, number=number, began_unix_s=event["time_unix_s"]))
            return
        ended = {"ended_unix_s": event["time_unix_s"], "why": event["why"], "reading": Reading.from_json(event)}
        for place, life in enumerate(self.lives):
            if (life.pacing, life.number) == (pacing, number):
                self.lives[place] = replace(life, **ended)


def _named(pacing: Pacing, life: int) -> dict[str, Any]:
    return {"start": pacing.start, "total_steps": pacing.total_steps, "life": life}
