"""What is on record of probes: each life of each one, with its result; from where a search goes on after a kill."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sentinel.adapters.incident_log import EventLog
from sentinel.lab.probes.probe import Probe, ProbeResult
from sentinel.vocabulary.codec import JSON, document, read
from sentinel.vocabulary.errors import ConfigError, PermanentError

_LIVES = 3  # Times that a probe's trainer may be lost: then it is for a person


@dataclass(kw_only=True)
class ProbeLife:
    """One training of one probe."""

    probe: Probe
    number: int  # A probe that was lost, stopped or failed begins anew, in a folder of its own
    began_unix_s: float
    result: ProbeResult | None = None  # None while it runs; of one that was lost, what it had shown by then
    lost: bool = False  # Its trainer was: the probe begins anew
    stopped: bool = False  # By sentinel itself: it counts as lost, and not against the trainer

    @property
    def name(self) -> str:
        """Of its folder."""
        return self.probe.name if self.number == 1 else f"{self.probe.name}-life{self.number}"


class ProbeRecord:
    """FOLDER/probes.jsonl: each life of each probe when it begins (before anything is started) and ends. `anew`: what
    its trainer failed of begins once more. `kind`: of the results. `question`: what it begins with, where one
    question alone may use the folder; ConfigError where it holds another."""

    def __init__(
        self,
        folder: Path,
        *,
        anew: bool = True,
        kind: type[ProbeResult] = ProbeResult,
        question: Mapping[str, Any] | None = None,
    ) -> None:
        self._log, self._kind = EventLog[Mapping[str, Any]](folder / "probes.jsonl", dict, dict), kind
        self.lives: list[ProbeLife] = []
        events = self._log.read()
        if question is not None and not events:
            self._log.append(question)
        elif question is not None and (before := events.pop(0)) != question:
            raise ConfigError(
                f"the folder holds another search, of {before}: give another --output, or ask for the same again"
            )
        for event in events:
            self._take(event)
        for life in self.lives if anew else ():  # a person who asks again has mended what its trainer failed of
            if life.result is not None and (life.result.ended, life.result.outcome) == ("failed", "unknown"):
                life.lost = life.stopped = True

    def next(self, probe: Probe) -> ProbeLife:
        """The life that the probe would begin now. PermanentError where its trainer was lost too often."""
        lives = [life for life in self.lives if life.probe.name == probe.name]
        if sum(life.lost and not life.stopped for life in lives) >= _LIVES:
            raise PermanentError(f"the trainer of probe {probe.name} was lost {_LIVES} times; see its job.log")
        return ProbeLife(probe=probe, number=1 + len(lives), began_unix_s=0.0)

    def begin(self, probe: Probe, *, now: float) -> ProbeLife:
        """Notes that a life begins; returns when that is on the disk. PermanentError as of `next`."""
        number = self.next(probe).number
        self._write({"event": "began", "life": number, "probe": document(probe), "time_unix_s": now})
        return self.lives[-1]

    def end(
        self, life: ProbeLife, result: ProbeResult, *, now: float, lost: bool = False, stopped: bool = False
    ) -> None:
        """Notes how it has ended: also where its trainer was `lost`, or `stopped` by sentinel, and it begins anew."""
        which = {"event": "ended", "life": life.number, "name": life.probe.name, "result": document(result)}
        self._write({**which, "lost": lost or stopped, "stopped": stopped, "time_unix_s": now})

    @property
    def running(self) -> list[ProbeLife]:
        """Those that have begun and not ended."""
        return [life for life in self.lives if life.result is None and not life.lost]

    def results(self, asked: Callable[[Probe], bool]) -> dict[str, ProbeResult]:
        """Of the probes that are asked for, by name, in the order in which they have begun."""
        return {result.name: result for probe, result in self._ended if asked(probe)}

    @property
    def spent(self) -> tuple[ProbeResult, ...]:
        """Of all probes that have ended, also those that are not asked for any more."""
        return tuple(result for _, result in self._ended)

    def failures(self, probe: Probe) -> int:
        """How often its trainer has ended by itself, early, and was begun anew."""
        own = (life for life in self.lives if life.probe.name == probe.name and life.lost and not life.stopped)
        return sum(life.result is not None and life.result.ended == "failed" for life in own)

    @property
    def _ended(self) -> list[tuple[Probe, ProbeResult]]:
        return [(life.probe, life.result) for life in self.lives if life.result is not None and not life.lost]

    def _write(self, event: dict[str, Any]) -> None:
        self._log.append(event)
        self._take(event)

    def _take(self, event: Mapping[str, Any]) -> None:
        if event["event"] == "began":
            probe = read(Probe, event["probe"], "probe", JSON)
            self.lives.append(ProbeLife(probe=probe, number=event["life"], began_unix_s=event["time_unix_s"]))
            return
        for life in self.lives:
            if (life.probe.name, life.number) == (event["name"], event["life"]):
                told = event["result"]  # None: one that was lost, as older versions wrote it
                life.result = None if told is None else read(self._kind, told, "result", JSON)
                life.lost, life.stopped = bool(event.get("lost", told is None)), bool(event.get("stopped"))
