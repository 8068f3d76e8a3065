"""The search at work: its probes, what each must run with and has shown, and the loop that decides on the next."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from sentinel.judge.history import Attempt
from sentinel.lab.probes.at_work import LOG, ProbeJob, Probes
from sentinel.lab.probes.probe import Ended, Limits, Outcome, Probe, ProbeResult
from sentinel.lab.probes.record import ProbeLife, ProbeRecord
from sentinel.lab.tune.reading import ProbeReading, reading_of
from sentinel.lab.tune.search import Decision, Pacing, ProbeSeen, decide
from sentinel.lab.tune.task import SETTING, Task
from sentinel.vocabulary.errors import PermanentError
from sentinel.vocabulary.training_settings import settings_of

_OUTCOMES: Mapping[bool | None, Outcome] = {None: "unknown", True: "calm", False: "diverged"}


class Tuner:
    """One search, from where its record stands to its answer. ConfigError where its folder holds another search."""

    def __init__(
        self,
        task: Task,
        folder: Path,
        run_checkpoints: Path,
        probe_of: Callable[[Pacing], Probe],
        job_of: Callable[[Probe, Path], ProbeJob],
        say: Callable[[str], None],
        *,
        parallel: int = 1,
    ) -> None:
        self._task, self._pacings, self._probe_of, self._parallel = task, task.pacings, probe_of, parallel
        self._say, self._question = say, ""
        self._probes = Probes(
            folder,
            run_checkpoints,
            job_of,
            self._over,
            self._result,
            record=ProbeRecord(
                folder, kind=ProbeReading, question={"event": "searched", "record": 2, **task.to_json()}
            ),
            limits=Limits(parallel=parallel, count=3 * len(self._pacings)),
            say=say,
            again=True,
        )

    @property
    def lives(self) -> list[ProbeLife]:
        """Every training of every probe so far."""
        return self._probes.record.lives

    def run(self, *, poll_interval_s: float, sleep: Callable[[float], None] = time.sleep) -> Decision:
        """Searches to the end; returns the answer. Probes whose trainer still runs are followed on, not begun anew."""
        self._probes.run(self._next, poll_interval_s=poll_interval_s, sleep=sleep)
        return self._decision(self._probes.results)

    def _next(self, results: Mapping[str, ProbeResult]) -> tuple[Probe, ...]:
        if (failed := next((life for life in self.lives if _failed(life) and not life.lost), None)) is not None:
            pacing, log = self._pacings[failed.probe.name], self._probes.folder / failed.name / LOG
            raise PermanentError(f"the trainer of the probe of {pacing} has ended twice by itself; see {log}")
        decision = self._decision(results)
        if decision.probes and decision.reason != self._question:
            self._question = decision.reason
            self._say(decision.reason)
        return tuple(map(self._probe_of, decision.probes))

    def _decision(self, results: Mapping[str, ProbeResult]) -> Decision:
        """By what each probe has shown to its end, or so far; of one that was lost or failed, nothing."""
        seen = {
            self._pacings[name]: self._seen(told) for name, told in results.items() if isinstance(told, ProbeReading)
        }
        for life in self._probes.record.running:
            job = self._probes.jobs.get(life.name)
            seen[self._pacings[life.probe.name]] = self._seen(reading_of(job.shown if job is not None else None))
        return decide(self._task.space, seen, room=self._parallel)

    def _seen(self, reading: ProbeReading) -> ProbeSeen:
        return reading.seen(self._task.fluctuation, self._task.space.horizon_steps)

    def _over(self, probe: Probe, attempt: Attempt | None) -> str | None:
        """PermanentError when the trainer runs with another pacing than this one."""
        self.prove(self._pacings[probe.name], attempt)
        return None if self._seen(reading_of(attempt)).calm(self._task.space) is None else "its answer is known"

    def prove(self, pacing: Pacing, attempt: Attempt | None) -> None:
        """A pacing that did not take effect would be an answer about another one."""
        started = attempt.started if attempt is not None else None
        if started is None:
            return
        if started.resumed_from is not None:
            raise PermanentError(
                f"the probe of {pacing} has resumed from step {started.resumed_from} instead of beginning from scratch"
            )
        setting, wanted = settings_of()[SETTING[self._task.what]], self._task.schedule(pacing)
        reported = getattr(started, setting.reported_as)
        if reported is not None and reported != wanted:
            raise PermanentError(
                f"the probe of {pacing} runs with another {setting.words}, {reported}, instead of {wanted}"
            )

    def _result(self, probe: Probe, attempt: Attempt | None, ended: Ended | None, seconds: float) -> ProbeReading:
        reading = replace(reading_of(attempt, probe.name), ended=ended or "verdict", seconds=round(seconds, 3))
        seen = self._seen(reading)
        calm = seen.calm(self._task.space)
        largest = reading.curve.largest_ratio()
        ratio = "nothing validated" if largest is None else f"perplexity at most {largest:.2f} x the best before"
        said = {None: "no answer", True: "calm", False: f"fluctuates at step {seen.fluctuated_at}"}[calm]
        return replace(reading, outcome=_OUTCOMES[calm], why=f"{said}, after {reading.steps} steps; {ratio}")


def _failed(life: ProbeLife) -> bool:
    return life.result is not None and life.result.ended == "failed"
