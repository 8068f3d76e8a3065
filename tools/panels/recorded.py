"""A night as Grafana would have been told of it: a real run that diverges and is recovered, scraped while it lives, and
what Prometheus answers to each query of the Spike triage dashboard."""

from __future__ import annotations

import math
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sentinel.adapters.incident_log import IncidentLog
from sentinel.adapters.journal import Journals
from sentinel.adapters.local import LocalJobs
from sentinel.demo.configuration import trainer_command, write_configuration
from sentinel.plan.alerts.annotations import marks
from sentinel.vocabulary.sample import Sample
from tests.adapters.servers import Prometheus, prometheus, quicker_rules, running
from tests.dashboards.boards import board, panels

__all__ = ["dashboard", "recorded"]

NIGHT_S = 500.0
"""A demo that has not ended by then never will."""

STEP_S = 0.5
"""Between two points of a curve: as often as it is scraped."""

CHOSEN = {"$__rate_interval": "4s", "$__range": "10m", "$attempt": ".*", "$run": "demo", "offset 1m": "offset 1s"}
"""What Grafana would put for a variable; and an attempt's beginning, which is a minute, is short in a run of three."""

ANNOUNCE = '"--metrics-announce", "127.0.0.1", "--run"'
DASHBOARD = "spike-triage.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Night:
    """A run that is over, and the Prometheus that saw it."""

    state: Path
    """Its journal and incident log."""

    prometheus: Prometheus
    began: float
    """Unix seconds."""

    ended: float
    """A second before the watch was last seen, unix seconds: with the run it ends too."""

    def ask(self, expr: str, *, instant: bool = False) -> list[dict[str, Any]]:
        """The series that answer it; each has a `metric` and its `values`."""
        for variable, value in CHOSEN.items():
            expr = expr.replace(variable, value)
        when = {"time": self.ended} if instant else {"start": self.began, "end": self.ended, "step": STEP_S}
        return self.prometheus.series(expr, **when)

    def stretches(self, mark: dict[str, Any]) -> list[tuple[float, float]]:
        """Begin and end of each stretch that it marks, unix seconds; a mark without a query is the incident log's."""
        if "expr" in mark:
            return [one for series in self.ask(mark["expr"]) for one in _unbroken([at for at, _ in series["values"]])]
        events = IncidentLog(self.state / "incidents.jsonl").read()
        samples = (one for one in Journals(self.state).poll() if isinstance(one, Sample))
        when = {(one.attempt, one.global_step): one.time_unix_s for one in samples}
        return [(one.time_unix_s, one.end_unix_s) for one in marks(CHOSEN["$run"], events, when)]


def dashboard() -> dict[str, Any]:
    """As it is committed."""
    return board(DASHBOARD)


def recorded() -> dict[str, Any]:
    """The dashboard's time range, step, and what answers the queries of its panels and marks."""
    document = dashboard()
    with _lived() as night:
        answers = {
            panel["title"]: {
                target["refId"]: night.ask(target["expr"], instant=bool(target.get("instant")))
                for target in panel["targets"]
            }
            for panel in panels(document)
        }
        return {
            "from_unix_s": night.began,
            "to_unix_s": night.ended,
            "step_s": STEP_S,
            "answers": answers,
            "marks": {mark["name"]: night.stretches(mark) for mark in document["annotations"]["list"]},
        }


@contextmanager
def _lived() -> Iterator[Night]:
    """The demo, on one rank and with the exporters that it does without, watched in mode act."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="panels-")))
        state = folder / "state"
        state.mkdir()
        configuration = _configured(folder)
        asked = stack.enter_context(prometheus(folder, state=state, rules=quicker_rules(folder / "rules")))
        jobs = LocalJobs(state)
        stack.callback(jobs.stop, grace_s=5)
        began = time.time()
        command = _announced(trainer_command(folder, 0))
        jobs.start(command, cwd=folder, extra_env={"OMP_NUM_THREADS": "1"}, log_path=state / "job.log")
        words = (sys.executable, "-m", "sentinel", "watch", "--run", configuration)
        watch = stack.enter_context(running(*words, folder=folder, name="watch", OMP_NUM_THREADS="1"))
        _outlive(watch, folder)
        yield Night(state=state, prometheus=asked, began=began, ended=_last_seen(asked))


def _unbroken(times: list[float]) -> list[tuple[float, float]]:
    """Points that follow on one another, as Grafana joins them."""
    ends = [at for at, after in zip(times, [*times[1:], math.inf], strict=True) if after - at > 1.5 * STEP_S]
    begins = [at for at, before in zip(times, [-math.inf, *times], strict=False) if at - before > 1.5 * STEP_S]
    return list(zip(begins, ends, strict=True))


def _configured(folder: Path) -> Path:
    path = write_configuration(folder, seed=0)
    text, found = re.subn('"--run"', ANNOUNCE, path.read_text())
    if not found:
        raise RuntimeError("the demo's command has no --run any more")
    path.write_text(text + '\n[metrics]\nannounce = "127.0.0.1"\n')
    return path


def _announced(command: list[str]) -> list[str]:
    """The command, as `_configured` has it: a restart is to differ by its mitigation alone."""
    place = command.index("--run")
    return [*command[:place], "--metrics-announce", "127.0.0.1", *command[place:]]


def _outlive(watch: subprocess.Popen[bytes], folder: Path) -> None:
    code = watch.wait(NIGHT_S)
    if code != 0:
        raise RuntimeError(f"the watch ended with {code}: {(folder / 'watch.log').read_text()[-2000:]}")


def _last_seen(asked: Prometheus) -> float:
    seen = asked.series("max(max_over_time(timestamp(sentinel_verdict)[10m:500ms]))")
    if not seen:
        raise RuntimeError("Prometheus never saw the watch")
    return float(seen[0]["values"][0][1]) - 1
