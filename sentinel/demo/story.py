"""`sentinel demo`: a real training that diverges, `sentinel watch` in mode act beside it, and what came of it."""

from __future__ import annotations

import importlib.util
import logging
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from sentinel.adapters.incident_log import IncidentLog
from sentinel.adapters.journal import Journals
from sentinel.adapters.local import LocalJobs
from sentinel.demo.configuration import DEMO, Recipe, trainer_command, write_configuration
from sentinel.demo.report import Report, report_of
from sentinel.judge.history import History
from sentinel.plan.sentences import sentence
from sentinel.vocabulary.errors import ConfigError, PermanentError

log = logging.getLogger(__name__)

DEADLINE_S = 1500.0
"""A demo that has not ended by then never will."""

Progress = Callable[[str], None]


SEEDS_TRIED = 3
"""Where a seed does not diverge, the demo goes on with the next one: so many at most."""


def tell(seed: int, output: Path, say: Progress, recipe: Recipe = DEMO) -> Report:
    """Runs the demo in a folder; returns what happened. ConfigError when the folder holds a run already.

    A run that does not diverge is moved to a folder of its own in there, and the next seed is trained.
    """
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
        ended = _train_and_watch(folder, now, say, recipe)
        wall_s = time.monotonic() - started
        report = report_of(seed=now, state_dir=folder / "state", wall_s=wall_s, plot=folder / "demo.png")
        if not report.diverged and ended:
            raise PermanentError(f"`sentinel watch` ended with exit code {ended}: {_last_line(folder / 'state')}")
        if not report.diverged:
            calm.append(now)
        if report.diverged or len(calm) == SEEDS_TRIED:
            return replace(report, calm_seeds=tuple(calm))
        aside = _moved_aside(folder, now)
        say(f"! seed {now} did not diverge on this machine; its run is now in {aside}; next: seed {now + 1}")


def _train_and_watch(folder: Path, seed: int, say: Progress, recipe: Recipe) -> int | None:
    """The watch's exit code; None where it had not ended at the deadline."""
    configuration = write_configuration(folder, seed, recipe)
    state_dir = folder / "state"
    state_dir.mkdir()
    jobs = LocalJobs(state_dir)
    log_path = state_dir / "job.log"
    say(f"training a small GPT on Python's own sources, seed {seed}, {recipe.steps} steps; its log is {log_path}")
    environment = {"OMP_NUM_THREADS": "1"}
    os.environ.update(environment)  # for the restarts too: watch passes its environment on
    jobs.start(trainer_command(folder, seed, recipe), cwd=folder, extra_env=environment, log_path=log_path)
    try:
        return _watch_until_the_end(configuration, state_dir, say)
    finally:
        jobs.stop(grace_s=20)


def _last_line(state_dir: Path) -> str:
    lines = (state_dir / "watch.log").read_text(encoding="utf-8", errors="replace").splitlines()
    return lines[-1] if lines else "its log is empty"


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
    """`sentinel watch`, a process of its own as in real life, with a line of progress while it lasts."""
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
    """Tells what is new in journals and incident log."""

    def __init__(self, state_dir: Path, say: Progress) -> None:
        self._journals = Journals(state_dir)
        self._log = IncidentLog(state_dir / "incidents.jsonl")
        self._history = History()
        self._say = say
        self._told_events = 0
        self._told_step = 0

    def look(self) -> None:
        for record in self._journals.poll():
            self._history.push(record)
        for event in self._log.read()[self._told_events :]:
            self._told_events += 1
            if line := _line(event):
                self._say(line)
        attempt = self._history.latest
        if attempt and attempt.samples and abs(attempt.samples[-1].global_step - self._told_step) >= 20:
            last = attempt.samples[-1]
            self._told_step = last.global_step
            self._say(f"  attempt {attempt.number}  step {last.global_step:3d}  loss {last.loss:.3f}")


def _line(event: dict[str, object]) -> str | None:
    match event["event"]:
        case "opened":
            led = event.get("led_by") or ()
            led_by = f"; led by {', '.join(map(str, led))}" if isinstance(led, list) and led else ""
            return (
                f"! {event['incident']}: diverged, onset {event['onset_range']}, seen at {event['alarm_step']}{led_by}"
            )
        case "decided":
            target = event["target"]
            tag = target["tag"] if isinstance(target, dict) else None
            return f"! {event['rollback']}: {event['rung']}, from {tag or 'scratch'} ({event['hypothesis']}?)"
        case "proved":
            return f"  {event['rollback']}: the trainer confirms every change"
        case "not_verified":
            return f"  {event['rollback']}: {sentence(event)}"
        case "rung_failed":
            return f"! {event['rollback']}: no: {event['reason']}"
        case "closed" | "stopped":
            return f"! {event['incident']}: {event.get('outcome', 'stopped')}: {event['reason']}"
    return None
