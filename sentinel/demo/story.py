"""`sentinel demo`: a real training that diverges, `sentinel watch` in mode act beside it, and the outcome."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from sentinel.adapters.incident_log import IncidentLog
from sentinel.adapters.journal import Journals
from sentinel.adapters.local import LocalJobs
from sentinel.demo.configuration import WITH_LAYERNORMS, Recipe, Restarts, trainer_command, write_configuration
from sentinel.demo.restarts import MeasuredRestart, restarts_of
from sentinel.judge.analysis.correlation.columns import correlate_readings
from sentinel.judge.analysis.correlation.table import Correlations
from sentinel.judge.history import History
from sentinel.plan.alerts.sentences import sentence
from sentinel.plan.incident.log_events import IncidentEvent
from sentinel.reports.attempts import AttemptRow, attempt_rows
from sentinel.reports.past import Past, read_past
from sentinel.sources.journals import journals_as_columns
from sentinel.vocabulary.errors import ConfigError, PermanentError
from sentinel.vocabulary.sample import Record, RunStarted, Sample

DEADLINE_S = 1500.0  # a demo that has not ended by then never will
SEEDS_TRIED = 3  # at most: where a seed does not diverge, the demo goes on with the next one

Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoReport:
    seed: int
    recovered: bool
    diverged: bool
    wall_s: float
    final_validation_loss: float | None
    attempts: tuple[AttemptRow, ...]
    correlations: Correlations
    past: Past
    plot: Path
    restarts: tuple[MeasuredRestart, ...] = ()
    calm_seeds: tuple[int, ...] = ()  # that were trained to the end and did not diverge, in their order

    def to_json(self) -> dict[str, Any]:
        return {
            "seed": self.seed,
            "calm_seeds": list(self.calm_seeds),
            "recovered": self.recovered,
            "wall_s": round(self.wall_s, 1),
            "final_validation_loss": self.final_validation_loss,
            "attempts": [asdict(row) for row in self.attempts],
            "plot": str(self.plot),
            "restarts": [asdict(restart) for restart in self.restarts],
        }


def tell(
    seed: int, output: Path, say: Progress, recipe: Recipe = WITH_LAYERNORMS, restart: Restarts = "auto"
) -> DemoReport:
    """Runs the demo in a folder; returns what happened. ConfigError when the folder contains a run already. A run that
    does not diverge is moved to a folder of its own in there, and the next seed is trained."""
    missing = [name for name in ("torch", "deepspeed", "tensorboard") if not _is_installed(name)]
    if missing:
        raise ConfigError(f"{', '.join(missing)} not installed; pip install 'training-sentinel[daemon,trainer]'")
    output.mkdir(parents=True, exist_ok=True)
    folder = output.resolve()
    if (folder / "state").exists():
        raise ConfigError(f"{folder} holds a run already; give another --output, or move it away")
    started = time.monotonic()
    calm: list[int] = []
    while True:
        now = seed + len(calm)
        ended = _train_and_watch(folder, now, say, recipe, restart)
        report = _report(seed=now, folder=folder, wall_s=time.monotonic() - started)
        if not report.diverged and ended:
            lines = (folder / "state" / "watch.log").read_text(encoding="utf-8", errors="replace").splitlines()
            last = lines[-1] if lines else "its log is empty"
            raise PermanentError(f"`sentinel watch` ended with exit code {ended}: {last}")
        if not report.diverged:
            calm.append(now)
        if report.diverged or len(calm) == SEEDS_TRIED:
            return replace(report, calm_seeds=tuple(calm))
        aside = _moved_aside(folder, now)
        say(f"! seed {now} did not diverge on this machine; its run is now in {aside}; next: seed {now + 1}")


def _report(*, seed: int, folder: Path, wall_s: float) -> DemoReport:
    events = IncidentLog(folder / "state" / "incidents.jsonl").read()
    past = read_past(journals_as_columns(folder / "state"), events)
    incidents, rows = past.incidents, attempt_rows(past)
    return DemoReport(
        seed=seed,
        recovered=bool(incidents) and all(i.outcome == "recovered" for i in incidents),
        diverged=bool(incidents),
        wall_s=wall_s,
        final_validation_loss=rows[-1].validation_loss if rows else None,
        attempts=rows,
        correlations=correlate_readings(past.stretches),
        past=past,
        plot=folder / "demo.png",
        restarts=restarts_of(events, Journals(folder / "state").poll()),
    )


def _train_and_watch(folder: Path, seed: int, say: Progress, recipe: Recipe, restart: Restarts) -> int | None:
    """The watch's exit code; None where it had not ended at the deadline."""
    configuration = write_configuration(folder, seed, recipe, restart)
    state_dir = folder / "state"
    state_dir.mkdir()
    jobs, log_path = LocalJobs(state_dir), state_dir / "job.log"
    text = "a made-up language" if recipe.layernorms else "Python's own sources"
    say(f"training a small GPT on {text}, seed {seed}, {recipe.steps} steps; its log is {log_path}")
    environment = {"OMP_NUM_THREADS": "1"}
    os.environ.update(environment)  # for the restarts too: watch passes its environment on
    jobs.start(trainer_command(folder, seed, recipe), cwd=folder, extra_env=environment, log_path=log_path)
    try:
        return _watch_until_the_end(configuration, state_dir, say)
    finally:
        jobs.stop(grace_s=20)


def _moved_aside(folder: Path, seed: int) -> Path:
    """Where the run of that seed is now: nothing is deleted."""
    aside = folder / f"seed-{seed}-did-not-diverge"
    aside.mkdir()
    for name in ("state", "checkpoints", "tensorboard", "demo.toml"):
        if (folder / name).exists():
            (folder / name).rename(aside / name)
    return aside


def _is_installed(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:
        return False


def _watch_until_the_end(configuration: Path, state_dir: Path, say: Progress) -> int | None:
    """`sentinel watch`, a process of its own as in production, with a line of progress while it lasts."""
    command = [sys.executable, "-m", "sentinel", "watch", "--run", str(configuration)]
    end = time.monotonic() + DEADLINE_S
    with (state_dir / "watch.log").open("ab") as watch_log:
        watch = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=watch_log, stderr=watch_log)
        try:
            follower = _Follower(state_dir, say)
            while watch.poll() is None and time.monotonic() < end:
                follower.look()
                time.sleep(0.5)
            follower.look()
            return watch.poll()
        finally:
            watch.terminate()
            watch.wait(30)


class _Follower:
    def __init__(self, state_dir: Path, say: Progress) -> None:
        self._journals = Journals(state_dir)
        self._log = IncidentLog(state_dir / "incidents.jsonl")
        self._history = History()
        self._say = say
        self._begun: dict[tuple[int, str], Record] = {}  # of each attempt its start and its first sample
        self._events = 0
        self._restarts = 0
        self._step = 0

    def look(self) -> None:
        for record in self._journals.poll():
            self._history.push(record)
            if isinstance(record, RunStarted | Sample):
                self._begun.setdefault((record.attempt, type(record).__name__), record)
        events = self._log.read()
        for event in events[self._events :]:
            self._events += 1
            if line := _line(event):
                self._say(line)
        for restart in restarts_of(events, self._begun.values())[self._restarts :]:
            self._restarts += 1
            self._say(f"! {restart.sentence}")
        attempt = self._history.latest
        if attempt and attempt.samples and abs(attempt.samples[-1].global_step - self._step) >= 20:
            last = attempt.samples[-1]
            self._step = last.global_step
            self._say(f"  attempt {attempt.number}  step {last.global_step:3d}  loss {last.loss:.3f}")


_STEPS = ("opened", "decided", "rung_failed", "closed", "stopped")
_SHOWN = {"proved": " ", "not_verified": " "} | dict.fromkeys(_STEPS, "!")


def _line(event: IncidentEvent) -> str | None:
    if (mark := _SHOWN.get(event.name)) is None:
        return None
    what, about = sentence(event) or "", str(getattr(event, "rollback", None) or event.incident)
    return f"{mark} {what}" if about in what else f"{mark} {about}: {what}"
