"""Recoveries in place under SIGKILL of the trainer, the watch, the command, from the decision to the first new steps.

Each run has a trainer that parks (tests/support/parking_trainer.py: no torch; checkpoints, event files). It is rolled
back by a person's command or, where its loss is nan, by a watch. One to three kills in a row are drawn: whom, and after
how many events of the incident log, or how long after RESUME, or after what time. After a kill of the command a watch
goes on, or the person types it again. 300 kills, in two processes; SIGTERM ends the campaign after the runs under way.

Wrong is: a byte of journals, logs, checkpoints or event files that is lost; two attempts that write at once; a run that
within ten minutes neither trains on from the target, by an attempt of the rollback, nor was stopped with a page; an
undo after which the old checkpoints, `latest`, event files or overrides.json are not as before. The commands are forked
from a process that has imported them: a kill in the midst of Python's imports shows nothing.
"""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.campaigns.table import Row, campaign
from tests.support.forked_commands import Command, imported, until
from tests.support.killed_in_place import Record, attempts, decided, events, overlaps, recovered, taken_back

KILLS, SHORT_KILLS, WORKERS = 300, 6, 2
PROGRAM = Path(__file__).parents[2] / "tests" / "support" / "parking_trainer.py"
LOAD_S, STEP_S = 0.2, 0.1
PATIENCE_S, LOOKS_S = 600.0, 0.3
WATCH, ROLLBACK, UNDO = ("watch",), ("rollback", "--to", "global_step10", "--yes"), ("undo", "--all", "--yes")
PERSON_NEEDED = 4
_TEMPLATE = "from pathlib import Path; from tests.e2e.live_trainer import build; build(Path({!r}))"
_TOML = """\
[run]
name = "live"
checkpoints = "checkpoints"
state_dir = "state"
tensorboard = "tensorboard"
[launcher]
command = {command}
[watch]
poll_interval_s = 0.2
[judge]
quiet_s = 1
[policy]
mode = "act"
restart_on_crash = true
restart_on_hang = true
"""


def alive(folder: Path) -> list[int]:
    """The trainers of the run."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                words = (entry / "cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            found += [int(entry.name)] if words[1:2] == [bytes(PROGRAM)] and bytes(folder) in words else []
    return found


@dataclass(kw_only=True)
class Moment:
    """When a kill comes, and whom it meets."""

    whom: str
    kind: str  # events, resume or time
    number: float  # Events since the command began or the decision; seconds
    pause_s: float

    @classmethod
    def drawn(cls, chance: random.Random) -> Moment:
        whom, kind = chance.choice(("trainer", "command", "both")), chance.choice(("events",) * 4 + ("resume", "time"))
        number = {"events": float(chance.randint(0, 11)), "resume": 0.0, "time": chance.uniform(0.0, 2.0)}[kind]
        pause_s = chance.uniform(0.0, 2 * LOAD_S if kind == "resume" else 0.1) * chance.choice((0, 1, 1))
        return cls(whom=whom, kind=kind, number=number, pause_s=pause_s)


@dataclass(kw_only=True)
class Run:
    """One run, its kills, and what was wrong."""

    folder: Path
    chance: random.Random
    kills: list[list[str]] = field(default_factory=list)  # [whom, in the midst of what, moment]
    wrong: list[str] = field(default_factory=list)
    record: Record = field(init=False)
    trainer: subprocess.Popen[bytes] = field(init=False)
    _looked_s: float = 0.0

    def made(self) -> str:
        """How it ended, in words."""
        self.record = Record(folder=self.folder)
        by_hand = self.chance.random() < 0.65
        with self._training():
            if not by_hand:
                (self.folder / "nan1").touch()
            command = self._killed(Command(self.folder / "live.toml", ROLLBACK if by_hand else WATCH))
            end = self._to_the_end(command)
            self.record.look()
            self.wrong += [*self.record.lost(), *overlaps(self.folder)]
            self._undone()
        return end

    @contextmanager
    def _training(self) -> Iterator[None]:
        command = [sys.executable, str(PROGRAM), str(self.folder)]
        (self.folder / "live.toml").write_text(_TOML.format(command=json.dumps(command)))
        (self.folder / "tensorboard").mkdir()
        (self.folder / "pace").write_text(json.dumps({"load_s": LOAD_S, "step_s": STEP_S}))
        with (self.folder / "state" / "job.log").open("ab") as log:
            self.trainer = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
        try:
            if not until((self.folder / "checkpoints" / "global_step40").exists, PATIENCE_S):
                raise SystemExit(f"no trainer: {(self.folder / 'state' / 'job.log').read_text()[-500:]}")
            yield
        finally:
            (self.folder / "end").touch()
            for pid in alive(self.folder):
                os.kill(pid, signal.SIGKILL)
            self.trainer.wait()

    def _look(self) -> None:
        """Several times a second, and not at each of the waits' polls."""
        if time.monotonic() < self._looked_s + LOOKS_S:
            return
        self._looked_s = time.monotonic()
        self.trainer.poll()
        self.record.look()
        if len(both := alive(self.folder)) > 1:
            self.wrong.append(f"two trainers are alive: {both}")

    def _killed(self, command: Command) -> Command:
        """The last command, after the kills; it may still run."""
        until(lambda: decided(self.folder) is not None or command.poll() is not None or self._look(), PATIENCE_S)
        for _ in range(self.chance.choice((1, 2, 3, 3))):
            moment = Moment.drawn(self.chance)
            self._await(moment, command)
            time.sleep(moment.pause_s)
            if recovered(self.folder):
                break
            command = self._strike(moment, command)
        return command

    def _await(self, moment: Moment, command: Command) -> None:
        before, known, began_s = len(events(self.folder)), len(attempts(self.folder)), time.monotonic()

        def came() -> bool:
            if moment.kind == "events":
                return len(events(self.folder)) >= before + moment.number
            if moment.kind == "time":
                return time.monotonic() >= began_s + moment.number
            return (self.folder / "state" / "RESUME").exists() or len(attempts(self.folder)) > known

        until(lambda: came() or recovered(self.folder) or command.poll() is not None or self._look(), 60.0)

    def _strike(self, moment: Moment, command: Command) -> Command:
        doing = (events(self.folder) or [{}])[-1]
        doing_what = f"{doing.get('event')} {doing.get('action', {}).get('kind', '')}".strip()
        hit = []
        if moment.whom in ("command", "both") and command.poll() is None:
            hit.append(command.words[0])
            command.end(signal.SIGKILL)
        if moment.whom in ("trainer", "both"):
            there = alive(self.folder)
            hit += ["trainer"] if there else []
            for pid in there:
                os.kill(pid, signal.SIGKILL)
        self.trainer.poll()
        self.kills += [[" and ".join(hit), doing_what, moment.kind]] if hit else []
        if command.poll() is None:
            return command
        again = command.words == ROLLBACK and self.chance.random() < 0.2
        return Command(self.folder / "live.toml", ROLLBACK if again else WATCH)

    def _to_the_end(self, command: Command) -> str:
        began_s = time.monotonic()
        while time.monotonic() < began_s + PATIENCE_S:
            self._await_end(command)
            if command.poll() is None or (self._trains() and command.words != WATCH):
                break
            if command.words == WATCH:
                return self._ended(command)
            command = Command(self.folder / "live.toml", WATCH)
        if command.end(signal.SIGTERM) is None:
            command.end(signal.SIGKILL)
            self.wrong.append(f"{command.words[0]} does not end by SIGTERM: {command.said()}")
        if (end := self._trains()) is not None:
            return end
        self.wrong.append(f"neither recovered nor stopped: {command.said()}")
        return "neither"

    def _await_end(self, command: Command) -> None:
        until(lambda: command.poll() is not None or self._trains() or self._look(), PATIENCE_S)

    def _trains(self) -> str | None:
        """How the run has come to train on; None where it does not yet."""
        if recovered(self.folder):
            return "recovered"
        return "taken back, and trains on its old line" if taken_back(self.folder) else None

    def _ended(self, command: Command) -> str:
        stops = [e for e in events(self.folder) if e["event"] in ("stopped", "closed")]
        if command.code == PERSON_NEEDED and stops:
            why = str(stops[-1].get("reason", ""))
            return f"stopped with a page: {re.sub(r'[0-9]+(?: times)?', 'N', why)[:90]}"
        self.wrong.append(f"the watch ended with {command.code}: {command.said()}")
        return "neither"

    def _undone(self) -> None:
        if self.chance.random() < 0.5:  # the person ends the training, or leaves that to the undo
            (self.folder / "end").touch()
            until(lambda: not alive(self.folder), 30.0)
        undo = Command(self.folder / "live.toml", UNDO)
        until(lambda: undo.poll() is not None or self.trainer.poll() == -1, PATIENCE_S)
        nothing = "there is no rollback to undo" in undo.said() and taken_back(self.folder)
        if undo.poll() != 0 and not nothing:
            undo.end(signal.SIGKILL)
            self.wrong.append(f"undo ended with {undo.code}: {undo.said()}")
        if alive(self.folder):
            self.wrong.append("a trainer is alive after the undo")
        self.record.look()
        self.wrong += [f"after the undo {one}" for one in (*self.record.lost(), *self.record.not_back())]


def worker(root: Path, first: int, wanted: int) -> None:
    """Every WORKERS-th run, numbered from `first`, until there are as many kills as wanted of it."""
    kills, number = 0, first
    while kills < wanted and not (root / "stop").exists():
        folder = root / f"run{number}"
        shutil.copytree(root / "template", folder)
        run = Run(folder=folder, chance=random.Random(number))  # noqa: S311 - the same draws each time
        began_s = time.monotonic()
        end = run.made()
        kills += len(run.kills)
        told = {"run": number, "kills": run.kills, "end": end, "wrong": run.wrong, "s": time.monotonic() - began_s}
        with (root / f"told{first}.jsonl").open("a") as file:
            file.write(json.dumps(told) + "\n")
        if not run.wrong:
            shutil.rmtree(folder)
        number += WORKERS


def rows(short: bool) -> tuple[list[Row], list[str]]:
    """Kills by whom and in the midst of what, and how the runs ended."""
    imported()
    wanted = SHORT_KILLS if short else KILLS
    with tempfile.TemporaryDirectory(prefix="parked-") as name:
        root = Path(name).resolve()
        signal.signal(signal.SIGTERM, lambda *_: (root / "stop").touch())
        subprocess.run([sys.executable, "-c", _TEMPLATE.format(str(root / "template"))], check=True, timeout=300)
        pids = []
        for first in range(WORKERS):
            if (pid := os.fork()) == 0:
                signal.signal(signal.SIGTERM, signal.SIG_IGN)
                try:
                    worker(root, first, wanted // WORKERS)
                except BaseException:  # noqa: BLE001 - this process is a copy of the campaign's, and may not go on as it
                    traceback.print_exc()
                    os._exit(1)
                os._exit(0)
            pids.append(pid)
        lost = [pid for pid in pids if os.waitpid(pid, 0)[1] != 0]
        told = [json.loads(line) for path in root.glob("told*.jsonl") for line in path.read_text().splitlines()]
        return table_of(told, wanted, [f"worker {pid} has failed" for pid in lost])


def table_of(told: list[dict[str, Any]], wanted: int, failed: list[str]) -> tuple[list[Row], list[str]]:
    kills = [kill for run in told for kill in run["kills"]]
    by = Counter((whom, doing) for whom, doing, _ in kills)
    wrong = [f"run {run['run']}: {sentence}" for run in told for sentence in run["wrong"]] + failed
    table: list[Row] = [(whom, doing, count) for (whom, doing), count in sorted(by.items())]
    table += [("all", f"in {len(told)} runs; wanted {wanted}", len(kills))]
    table += [("ended", end, count) for end, count in Counter(run["end"] for run in told).most_common()]
    return [*table, ("wrong", "", len(wrong))], wrong


if __name__ == "__main__":
    campaign(__doc__, ("killed", "after the event", "kills"), rows)
