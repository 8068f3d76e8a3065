"""Clock jumps under a watch, under its trainer, and under both: no second writer, no lost file, no wait without an end.

The wall clock of real processes is set by libfaketime (Debian's package `faketime`): an hour, a day, ten years, forward
and back, to 1 January 1970, and half as fast again. The monotonic clock and the filesystem's clock stay what they are,
as with files on a server. Jumps are timed to the incident log, so they fall between any two phases of an incident.

    gone      the trainer has ended and diverged: a watch rolls back, then an undo takes it back
    both      a live trainer diverges; the watch stops it, rolls back, starts it, and holds: the machine's clock jumps
    trainer   the same, but only the trainer's clock jumps
    silent    a live trainer that names neither a job nor a process, and writes every 12 s; later it is killed
    heart     a live trainer that is known by its heartbeat alone; later it is killed
    approve   mode approve: a proposal that waits for a person
    restarts  a job that ends at once: the pauses between its starts, which double
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, Self

import psutil

from benchmarks.campaigns.kills import UNDO, WATCH, without_overrides
from benchmarks.campaigns.table import NotHereError, Row, campaign
from tests.e2e import live_trainer
from tests.e2e.kill_points import build, copy_run, incidents, inventory, line, live
from tests.e2e.live_trainer import NAMES, TRAINER, attempts, configure, events, files, local

DAY_S = 86400.0
KINDS = ("+1 h", "-1 h", "+1 day", "-1 day", "+10 years", "-10 years", "1970", "drift")
_SET_S = {"+1 h": 3600.0, "-1 h": -3600.0, "+1 day": DAY_S, "-1 day": -DAY_S}
_SET_S |= {"+10 years": 3650 * DAY_S, "-10 years": -3650 * DAY_S}
ROUNDS = {"gone": 6, "both": 3, "trainer": 2, "silent": 3, "heart": 3, "approve": 3, "restarts": 3}
SHORT_ROUNDS = {"gone": 1, "silent": 1}
_AGAIN = '[[policy.ladder]]\nname = "again"\nhypothesis = "it was chance"\noptions = ["--again"]\n'

_BEGUN = 'tell("run_started", run="live"'
_RESUMES = (
    (_BEGUN, f'begins = int((folder / "checkpoints/latest").read_text()[11:])\n{_BEGUN}, resumed_from=begins'),
    ("else (20, 20)", "else (begins, 20)"),
)
_SLEEPS = "import select, time\ntime.sleep = lambda s: select.select([], [], [], s) and None\n"
"""libfaketime takes clock_nanosleep()'s monotonic deadline for one of the clock that it sets."""

_HEART = """
import sys
from pathlib import Path
from sentinel.vocabulary.heartbeat import BESIDE_CHECKPOINTS, Heartbeat
from trainer_hooks.export.heartbeats import Renewal
told = Heartbeat(rank=0, host="node-7", pid=4711, interval_s=2.0, state_dir="/elsewhere", boot_id="other", attempt=1)
renewal = Renewal(Path(sys.argv[1]) / "checkpoints" / BESIDE_CHECKPOINTS / told.file_name, makes=True)
renewal.renew_as(told, lambda: None)
"""


class WallClock:
    """The wall clock of the processes that are started with its `environment`."""

    def __init__(self, file: Path, library: Path) -> None:
        self._file, self._ends = file, threading.Event()
        (python := file.with_name(f"{file.name}.python")).mkdir()
        (python / "sitecustomize.py").write_text(_SLEEPS)
        self.environment = {
            "LD_PRELOAD": str(library),
            "FAKETIME_TIMESTAMP_FILE": str(file),
            "FAKETIME_NO_CACHE": "1",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
            "NO_FAKE_STAT": "1",
            "FAKE_UTIME": "1",  # what utime() sets is the filesystem's time
            "PYTHONPATH": os.pathsep.join([str(python), *filter(None, [os.environ.get("PYTHONPATH")])]),
        }
        self._offset_s = 0.0
        self._drift: threading.Thread | None = None
        self._write()

    def jump(self, kind: str) -> None:
        """Sets it, from what it is now; a drift goes on until the next jump."""
        self.steady()
        if kind == "drift":
            self._ends = threading.Event()
            self._drift = threading.Thread(target=self._drifts, daemon=True)
            self._drift.start()
            return
        self._offset_s = 3600.0 - time.time() if kind == "1970" else self._offset_s + _SET_S[kind]
        self._offset_s = max(self._offset_s, 60.0 - time.time())
        self._write()

    def steady(self) -> None:
        """Ends a drift."""
        self._ends.set()
        if self._drift is not None:
            self._drift.join()
            self._drift = None

    def _drifts(self) -> None:
        while not self._ends.wait(0.2):
            self._offset_s += 0.1
            self._write()

    def _write(self) -> None:
        new = self._file.with_name(f"{self._file.name}.new")
        new.write_text(f"{self._offset_s:+.1f}\n")
        new.replace(self._file)


def library() -> Path:
    """libfaketime, which sets the wall clock and nothing else. NotHereError where it is not installed, or does more."""
    found = [path for base in ("/usr/lib", "/usr/local/lib") for path in Path(base).rglob("libfaketimeMT.so.1")]
    if not found:
        raise NotHereError("libfaketime is not installed: apt install faketime")
    asks = (
        "import os, sys, time; f = sys.argv[1]; time.sleep(0.1); open(f, 'w').close(); os.utime(f); "
        "print(time.time(), time.monotonic(), os.stat(f).st_mtime)"
    )
    with tempfile.TemporaryDirectory(prefix="clock-") as folder:
        clock = WallClock(Path(folder) / "offset", found[0])
        clock.jump("+1 day")
        command = [sys.executable, "-c", asks, f"{folder}/file"]
        environment = {**os.environ, **clock.environment}
        before = time.time(), time.monotonic()
        told = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
    with suppress(ValueError):
        wall_s, monotonic_s, file_s = map(float, told.stdout.split())
        moved = [wall_s - before[0], monotonic_s - before[1], file_s - before[0]]
        if [round(one / DAY_S, 2) for one in moved] == [1.0, 0.0, 0.0]:
            return found[0]
    raise NotHereError(f"libfaketime does not set the wall clock alone: {told.stdout} {told.stderr[-200:]}")


@dataclass
class Round:
    """One run under jumps, and what was seen."""

    name: str
    folder: Path
    clock: WallClock
    chance: random.Random
    made: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    took_s: float = 0.0

    def jump(self, kind: str | None = None) -> None:
        kind = kind or self.chance.choice(KINDS)
        self.made.append(kind)
        self.clock.jump(kind)

    def expect(self, holds: object, sentence: str) -> None:
        if not holds:
            self.wrong.append(f"{self.name} under {', '.join(self.made)}: {sentence}")

    def started(self, words: Sequence[str], *, jumps: bool = True) -> subprocess.Popen[str]:
        """A command, with the clock that jumps or with the real one."""
        environment = {**os.environ, **(self.clock.environment if jumps else {})}
        with (self.folder.parent / f"{self.folder.name}.said").open("a") as said:
            return subprocess.Popen(
                words, env=environment, stdin=subprocess.DEVNULL, stdout=said, stderr=said, text=True
            )

    def said(self) -> str:
        return (self.folder.parent / f"{self.folder.name}.said").read_text()

    def jumps_at(self, process: subprocess.Popen[str], after: Sequence[int], within_s: float) -> int | None:
        """Jumps once so many events are there, each time; waits for the process to end. Its exit code, None for
        none."""
        until_s, left = time.monotonic() + within_s, sorted(after)
        while process.poll() is None and time.monotonic() < until_s:
            if left and count(self.folder) >= left[0]:
                left.pop(0)
                time.sleep(self.chance.choice((0.0, self.chance.uniform(0.0, 0.3))))
                self.jump()
            time.sleep(0.002)
        return process.poll()


def count(folder: Path) -> int:
    """Events of the incident log."""
    with suppress(FileNotFoundError):
        return (folder / "state" / "incidents.jsonl").read_bytes().count(b"\n")
    return 0


def sentinel(folder: Path, verb: str, *words: str, config: str = "live.toml") -> list[str]:
    return [sys.executable, "-m", "sentinel", verb, "--run", str(folder / config), *words]


def until(over: Callable[[], object], within_s: float) -> bool:
    """Whether it was over in time."""
    end_s = time.monotonic() + within_s
    while not (done := bool(over())) and time.monotonic() < end_s:
        time.sleep(0.1)
    return done


def intents(folder: Path) -> list[str]:
    """The kinds of actions that were begun, in order."""
    return [e["action"]["kind"] for e in events(folder) if e["event"] == "intent"]


def has(folder: Path, *kinds: str) -> bool:
    return any(e["event"] in kinds for e in events(folder))


class Writers:
    """Counts, while it lasts, how many trainers of the folder live at the same time."""

    def __init__(self, folder: Path) -> None:
        self._script, self._over = str(folder / "trainer.py"), threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.most = 0

    def now(self) -> list[psutil.Process]:
        found = []
        for process in psutil.process_iter():
            with suppress(psutil.Error):
                if self._script in process.cmdline() and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
        return found

    def _run(self) -> None:
        while not self._over.wait(0.1):
            self.most = max(self.most, len(self.now()))

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()
        for process in self.now():
            with suppress(psutil.Error):
                process.kill()


@contextmanager
def trainer(run: Round, *, names: Sequence[str] = NAMES, pause_s: float = 0.05, jumps: bool) -> Iterator[Any]:
    """A trainer that a person has started, and how many of them live."""
    text = TRAINER.replace("time.sleep(0.05)", f"time.sleep({pause_s})")
    for old, new in _RESUMES:
        text = text.replace(old, new)
    (run.folder / "trainer.py").write_text(text)
    with Writers(run.folder) as writers:
        words = [sys.executable, str(run.folder / "trainer.py"), str(run.folder), *names]
        process = run.started(words, jumps=jumps)
        try:
            until(lambda: list((run.folder / "state" / "attempts").glob("0*.jsonl")), 30)
            yield process, writers
        finally:
            (run.folder / "end").touch()
            process.kill()
            process.wait()


def ended(run: Round, process: subprocess.Popen[str]) -> int:
    """Ends a watch as a person does."""
    process.terminate()
    try:
        return process.wait(60)
    except subprocess.TimeoutExpired:
        process.kill()
        run.expect(False, "the watch did not end within 60 s of SIGTERM")
        return process.wait()


def readable(run: Round) -> None:
    """The incident log, and what a person is shown of it."""
    try:
        incidents(run.folder)
    except Exception as error:  # noqa: BLE001 - whatever it is, it is what is asked here
        run.expect(False, f"the incident log can't be read: {error}")
    run.expect("Traceback" not in run.said(), run.said()[-400:])


def gone(run: Round, start: Path, ends: dict[str, dict[str, str]]) -> None:
    copy_run(start, run.folder)
    for words, most, codes in ((WATCH, 14, (4,)), (UNDO, 8, (0,))):
        process, had = run.started(line(run.folder, words)), count(run.folder)
        after = [had + run.chance.randint(0, most) for _ in range(4)]
        code = run.jumps_at(process, after, 150)
        if code is None:
            process.kill()
            process.wait()
        run.expect(code in codes, f"{words[0]} ended with {code}: {run.said()[-300:]}")
        run.expect(without_overrides(live(run.folder)) == ends[words[0]], f"{words[0]}: not as without a jump")
        lost = inventory(start) - inventory(run.folder)
        run.expect(not lost, f"{words[0]}: lost {sorted(lost)[:3]}")
    readable(run)


def diverging(run: Round, *, machine: bool) -> None:
    live_trainer.build(run.folder)
    command = local(run.folder)
    if not machine:  # the watch's clock is right, the trainer's is not
        given = ["env", *(f"{key}={value}" for key, value in run.clock.environment.items())]
        command = command.replace("[", "[" + "".join(f'"{word}", ' for word in given), 1)
    configure(run.folder, command, judge="quiet_s = 0.5", policy=f"margin_steps = 1\n{_AGAIN}")
    with trainer(run, jumps=True) as (first, writers):
        watch = run.started(sentinel(run.folder, "watch"), jumps=machine)
        until(lambda: len(list((run.folder / "checkpoints").glob("global_step*"))) > 6, 60)
        run.jump()
        time.sleep(3)
        run.expect(
            first.poll() is None and not intents(run.folder), f"it acted on a healthy run: {intents(run.folder)}"
        )
        there = files(run.folder)
        (run.folder / "nan1").touch()
        after, over = sorted(run.chance.sample(range(1, 17), 4)), time.monotonic() + 100
        done = lambda: has(run.folder, "proved", "not_verified", "not_proved", "stopped", "closed")  # noqa: E731
        while time.monotonic() < over and not done():
            if after and count(run.folder) >= after[0]:
                after.pop(0)
                run.jump()
            time.sleep(0.005)
        run.jump()  # while it holds
        time.sleep(4)
        seen = intents(run.folder)
        run.expect(done(), f"it has not come to a proof: {seen}: {run.said()[-300:]}")
        run.expect(not has(run.folder, "stopped"), f"it was stopped: {run.said()[-400:]}")
        run.expect(seen.count("start_job") == 1 and attempts(run.folder) == 2, f"starts: {seen}")
        run.expect(len(writers.now()) == 1, "no trainer lives in the end")
        ended(run, watch)
        left = {path.name for path in (run.folder / "checkpoints").rglob("global_step*")}
        lost = {path.split("/")[1] for path in there} - left
        run.expect(not lost, f"lost: {sorted(lost)}")
        run.expect(writers.most == 1, f"{writers.most} trainers at once")
    readable(run)


def silent(run: Round) -> None:
    live_trainer.build(run.folder)
    configure(run.folder, local(run.folder), judge="gone_after_s = 20\nstalled_after_s = 20\nquiet_s = 0.5")
    with trainer(run, names=(), pause_s=12.0, jumps=False) as (first, writers):
        watch = run.started(sentinel(run.folder, "watch"))
        until(lambda: "attempt 1" in run.said(), 60)  # it has looked
        for number in range(4):  # each between two samples; the first before the watch has seen one come
            run.jump(None if number else run.chance.choice(("+1 h", "+1 day", "+10 years")))
            time.sleep(run.chance.uniform(2.0, 5.0))
        run.expect(first.poll() is None and attempts(run.folder) == 1, "a live trainer was taken for gone")
        first.kill()
        first.wait()
        killed_s = time.monotonic()
        run.jump()
        began = until(lambda: attempts(run.folder) > 1, 60)
        waited_s = time.monotonic() - killed_s
        run.expect(began, f"it was not started again within 60 s: {run.said()[-300:]}")
        run.expect(not began or waited_s > 6, f"it was started again after {waited_s:.0f} s")
        run.expect(writers.most == 1, f"{writers.most} trainers at once")
        ended(run, watch)
    readable(run)


def heart(run: Round) -> None:
    """The watch's clock jumps, or that of the process which renews the heartbeat."""
    live_trainer.build(run.folder)
    configure(run.folder, local(run.folder), judge="gone_after_s = 2\nquiet_s = 0.5")
    of_watch = run.chance.random() < 0.5
    with trainer(run, jumps=False) as (first, writers):
        beats = run.started(
            [sys.executable, "-c", _HEART + "import time\ntime.sleep(600)", str(run.folder)], jumps=not of_watch
        )
        try:
            until(lambda: list((run.folder / "checkpoints").rglob("*heartbeats/*")), 30)
            first.kill()  # rank 0 of another state folder goes on
            first.wait()
            watch = run.started(sentinel(run.folder, "watch"), jumps=of_watch)
            until(lambda: "watching live" in run.said(), 60)
            for _ in range(4):
                run.jump()
                time.sleep(run.chance.uniform(2.0, 4.0))
            run.expect(attempts(run.folder) == 1, "a live trainer was taken for gone")
        finally:
            beats.send_signal(signal.SIGKILL)
            beats.wait()
        run.jump()
        began = until(lambda: attempts(run.folder) > 1, 60)
        run.expect(began, f"it was not started again within 60 s: {run.said()[-300:]}")
        run.expect(writers.most == 1, f"{writers.most} trainers at once")
        ended(run, watch)
    readable(run)


def approve(run: Round, start: Path, ends: dict[str, dict[str, str]]) -> None:
    copy_run(start, run.folder)
    text = (run.folder / "run.toml").read_text()
    (run.folder / "run.toml").write_text(text.replace('"act"', '"approve"\napprove_within_s = 3600'))
    process = run.started(line(run.folder, WATCH))
    until(lambda: has(run.folder, "proposed"), 60)
    for _ in range(3):
        run.jump()
        time.sleep(1.0)
    kinds = set(intents(run.folder))
    run.expect(kinds <= {"verify_checkpoint"}, f"not approved, and it did {kinds}")
    expired = has(run.folder, "expired")
    run.expect(not expired, "the proposal expired after seconds")
    if not expired:
        run.started(sentinel(run.folder, "approve", "incident-1", "--yes", config="run.toml")).wait(60)
        run.jump()
        try:
            code: int | None = process.wait(90)
        except subprocess.TimeoutExpired:
            code = None
        run.expect(code == 4, f"approved, and the watch ended with {code}: {run.said()[-300:]}")
        run.expect(without_overrides(live(run.folder)) == ends["watch"], "approved: not as without a jump")
    if process.poll() is None:
        ended(run, process)
    run.expect(not inventory(start) - inventory(run.folder), "files are lost")
    readable(run)


def restarts(run: Round) -> None:
    """10 s, then 20 s after its last start, half as long to half as long again."""
    live_trainer.build(run.folder)
    configure(run.folder, "command = ['false']", judge="quiet_s = 0.1", policy="start_budget = 3")
    with trainer(run, jumps=False) as (first, _):
        until(lambda: len(list((run.folder / "checkpoints").glob("global_step*"))) > 2, 30)
        first.kill()
        first.wait()
        watch, starts = run.started(sentinel(run.folder, "watch")), list[float]()
        until_s = time.monotonic() + 120
        while len(starts) < 3 and time.monotonic() < until_s and watch.poll() is None:
            if intents(run.folder).count("start_job") > len(starts):
                starts.append(time.monotonic())
                time.sleep(1.0)
                run.jump()
            time.sleep(0.05)
        pauses = [late - early for early, late in pairwise(starts)]
        told = ", ".join(f"{pause:.0f} s" for pause in pauses)
        run.expect(len(starts) == 3, f"{len(starts)} starts within 120 s, {told} apart: {run.said()[-300:]}")
        for pause, least_s, most_s in zip(pauses, (5.0, 10.0), (15.0, 30.0), strict=False):
            run.expect(least_s - 1 < pause < most_s + 15, f"starts are {told} apart")
        if watch.poll() is None:
            ended(run, watch)
    readable(run)


def rows(short: bool) -> tuple[list[Row], list[str]]:
    """Jumps by scenario and kind, and what came of them."""
    lib = library()
    table, wrong, all_kinds = list[Row](), list[str](), Counter[str]()
    with tempfile.TemporaryDirectory(prefix="clock-", ignore_cleanup_errors=True) as name:
        root = Path(name).resolve()
        ill = build(root / "ill", ill=True)
        well = copy_run(ill, root / "recovered")
        done = subprocess.run(line(well, WATCH), capture_output=True, text=True, timeout=300, check=False)
        if done.returncode != 4:
            return [], [f"without a jump the watch ends with {done.returncode}: {done.stderr[-300:]}"]
        ends = {"watch": without_overrides(live(well)), "undo": without_overrides(live(ill))}
        go: dict[str, Callable[[Round], None]] = {
            "gone": lambda run: gone(run, ill, ends),
            "both": lambda run: diverging(run, machine=True),
            "trainer": lambda run: diverging(run, machine=False),
            "silent": silent,
            "heart": heart,
            "approve": lambda run: approve(run, ill, ends),
            "restarts": restarts,
        }
        todo = [
            (scenario, n) for scenario, rounds in (SHORT_ROUNDS if short else ROUNDS).items() for n in range(rounds)
        ]

        def one(scenario: str, number: int) -> Round:
            folder, began_s = root / f"{scenario}{number}", time.monotonic()
            clock = WallClock(root / f"{folder.name}.offset", lib)
            run = Round(f"{scenario} {number}", folder, clock, random.Random(folder.name))  # noqa: S311 - the same jumps each time
            try:
                go[scenario](run)
            finally:
                clock.steady()
            run.took_s = time.monotonic() - began_s
            return run

        with ThreadPoolExecutor(2) as pool:  # most of a round's time is waiting
            runs = list(pool.map(one, *zip(*todo, strict=True)))
        for scenario, rounds in Counter(scenario for scenario, _ in todo).items():
            of_it = [run for run in runs if run.name.split()[0] == scenario]
            made, found = [kind for run in of_it for kind in run.made], [each for run in of_it for each in run.wrong]
            table.append((scenario, rounds, len(made), len(found), f"{sum(run.took_s for run in of_it):.0f}"))
            wrong += found
            all_kinds.update(made)
    table += [(f"jumps, {kind}", "", all_kinds[kind], "", "") for kind in KINDS if all_kinds[kind]]
    table.append(("all", "", all_kinds.total(), len(wrong), ""))
    return table, wrong


if __name__ == "__main__":
    campaign(__doc__, ("run", "rounds", "jumps", "wrong", "s"), rows)
