"""One point of a command, struck on a copy of the run; then what a person may type next, and what is left of it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from sentinel.adapters.lock import RunLock
from sentinel.cli import commands, main, rollback, watch  # noqa: F401 - here, so that no child has to import them
from sentinel.daemon import supervisor, wiring  # noqa: F401 - the same
from tests.e2e.kill_points import Point, copy_run, events, incidents, inventory, line, live, overrides, strike

BY_HAND = ("rollback", "--to", "global_step20", "--yes", "--no-start")
SCRATCH = ("rollback", "--to", "scratch", "--yes", "--no-start")
WATCH = ("watch",)
UNDO = ("undo", "--yes")

Follow = Callable[[Path, Sequence[str]], tuple[int, str]]
"""Runs a command to its end; returns its exit code and its stderr."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """A run, the command that is struck, and what may follow."""

    name: str
    start: Path
    """The run as it stands when the command begins."""

    words: tuple[str, ...]
    """The command that is struck."""

    ends: dict[str, dict[str, str]]
    """The states that the run may be found in: `live` of a run where nothing was struck."""

    whole: Path
    """The run before any rollback; what undo gives back."""

    routes: dict[tuple[str, ...], tuple[str, ...]]
    """What may be typed next, and the ends that it may lead to."""


def step(scenario: Scenario, point: Point, how: str, routes: Sequence[tuple[str, ...]], follow: Follow) -> list[str]:
    """Strikes the command at the point and goes on along each of the routes; returns what was wrong, in sentences."""
    with tempfile.TemporaryDirectory(prefix="struck-") as name:
        for again in range(3):  # a job that takes a moment longer to die may shift the calls of a watch by one
            struck = Path(name).resolve() / f"struck{again}"
            copy_run(scenario.start, struck)
            ran = strike(struck, scenario.words, point, how)
            if ran.struck:
                break
        wrong = [*_orderly(ran.code, ran.said, killed=how == "KILL"), *_nothing_lost(scenario, struck)]
        if ran.code == 2:
            wrong.append(f"it was no wrong usage: {ran.said[-300:]}")
        if not ran.struck:
            wrong.append(f"the point was not met, {ran.instead} was struck: exit {ran.code}")
        if ran.code == 0:
            wrong += _stands(scenario, struck, scenario.routes[scenario.words])
        for number, words in enumerate(routes):
            folder = struck
            if number < len(routes) - 1:
                folder = Path(name).resolve() / f"run{number}"
                copy_run(struck, folder)
            wrong += [f"then {words[0]}: {problem}" for problem in _goes_on(scenario, folder, words, follow)]
    return [f"{scenario.name}, {how} at {point}: {problem}" for problem in wrong]


def _goes_on(scenario: Scenario, folder: Path, words: tuple[str, ...], follow: Follow) -> list[str]:
    code, said = follow(folder, words)
    wrong = _orderly(code, said, killed=False)
    if code == 2 and words != UNDO:
        wrong.append(f"exit 2: {said[-300:]}")
    wrong += _nothing_lost(scenario, folder)
    wrong += _stands(scenario, folder, scenario.routes[words])
    for _ in range(2):  # of a rollback typed again, and of the one before it where that had been carried out
        if _stands(scenario, folder, ("before",)):
            code, said = follow(folder, UNDO)
            wrong += _orderly(code, said, killed=False)
    wrong += [f"then undo: {p}" for p in _stands(scenario, folder, ("before",)) + _nothing_lost(scenario, folder)]
    for left_over in (folder / "state").glob(".lock.*"):
        os.utime(left_over, (0, 0))  # as it is once the lease is over
    with RunLock(folder / "state"):
        pass
    left = [p.name for p in (folder / "state").iterdir() if "lock" in p.name]
    if left:
        wrong.append(f"left in the state folder: {left}")
    return wrong


def _orderly(code: int, said: str, *, killed: bool) -> list[str]:
    if killed:
        return [] if code == 137 else [f"it was not killed: exit {code}: {said[-300:]}"]
    wrong = []
    if "Traceback" in said:
        wrong.append(f"a traceback: {said.strip().splitlines()[-1][:300]}")
    if code not in (0, 1, 2, 3, 4):
        wrong.append(f"exit {code}: {said[-300:]}")
    lines = [line for line in said.strip().splitlines() if not line.startswith("what to do: ")]
    last = (lines or [""])[-1]
    if code in (2, 3, 4) and not (last.startswith("sentinel: ") or "person" in last):
        wrong.append(f"exit {code} without a sentence: {said[-300:]}")
    return wrong


def _nothing_lost(scenario: Scenario, folder: Path) -> list[str]:
    """Whatever was there when the command began is there still: names, sizes, digests."""
    lost = inventory(scenario.start) - inventory(folder)
    return [f"lost: {name}" for name, _ in lost]


def _stands(scenario: Scenario, folder: Path, ends: Sequence[str]) -> list[str]:
    """What of the run is not as one of these ends has it."""
    now = live(folder)
    files = _but_overrides(now)
    end = next((name for name in ends if _but_overrides(scenario.ends[name]) == files), None)
    if end is None:
        odd = set(files.items()) ^ set(_but_overrides(scenario.ends[ends[0]]).items())
        return [f"it stands between: not {' or '.join(ends)}, by {sorted({name for name, _ in odd})}"]
    wrong = []
    said = overrides(folder)
    if end == "before" and now != scenario.ends["before"]:
        wrong.append("overrides.json is not as it was")
    if end != "before" and (said is None or said["rollback"] not in _rollbacks(folder)):
        wrong.append(f"overrides.json is not of this rollback: {said}")
    readable = events(folder, "tensorboard*")
    of_the_run = events(scenario.whole, "tensorboard*")
    with_the_new_attempt = of_the_run | events(scenario.start, "tensorboard*")
    if readable not in (of_the_run, with_the_new_attempt):
        lost, twice = of_the_run - readable, readable - with_the_new_attempt
        wrong.append(f"TensorBoard lacks {len(lost)} events, and has {len(twice)} too many")
    try:
        incidents(folder)
    except Exception as error:  # noqa: BLE001 - whatever it is, it is what is asked here
        wrong.append(f"the incident log can't be read: {error}")
    return wrong


def _rollbacks(folder: Path) -> set[str]:
    return {r.id for i in incidents(folder) for r in i.rollbacks}


def _but_overrides(files: dict[str, str]) -> dict[str, str]:
    return {name: digest for name, digest in files.items() if name != "state/overrides.json"}


def as_a_process(folder: Path, words: Sequence[str]) -> tuple[int, str]:
    """A command as a process of its own, from the start."""
    ran = subprocess.run(
        line(folder, words), capture_output=True, text=True, timeout=120, check=False, stdin=subprocess.DEVNULL
    )
    return ran.returncode, ran.stderr


def as_a_fork(folder: Path, words: Sequence[str]) -> tuple[int, str]:
    """A command as a child of this process, which has imported everything: a tenth of the time."""
    with tempfile.TemporaryFile() as said:
        child = os.fork()
        if child == 0:
            _become(line(folder, words)[2:], said.fileno())
        _, status = os.waitpid(child, 0)
        said.seek(0)
        return os.waitstatus_to_exitcode(status) % 256, said.read().decode(errors="replace")


def _become(argv: list[str], stderr: int) -> None:
    code: object = 70
    try:
        signal.alarm(120)
        quiet = os.open(os.devnull, os.O_RDWR)
        os.dup2(quiet, 0)
        os.dup2(quiet, 1)
        os.dup2(stderr, 2)
        sys.argv = argv
        main()
        code = 0
    except SystemExit as error:
        code = error.code
    except BaseException:  # noqa: BLE001 - a child must not come back into the caller's frames
        import traceback

        traceback.print_exc()
        code = 1
    finally:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        os._exit(code if isinstance(code, int) else 0 if code is None else 1)
