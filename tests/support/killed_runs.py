"""One run whose trainer and whose commands are killed at drawn moments, up to its end and its undo."""

from __future__ import annotations

import json
import os
import random
import re
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from tests.support.forked_commands import Command, until
from tests.support.killed_in_place import Record, attempts, decided, events, overlaps, recovered, taken_back

PATIENCE_S, LOOKS_S = 600.0, 0.3
WATCH, UNDO = ("watch",), ("undo", "--all", "--yes")
PERSON_NEEDED = 4
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


@dataclass(frozen=True, kw_only=True)
class Trainer:
    """A kind of trainer, in a folder with checkpoints/, state/ and tensorboard/."""

    command: Callable[[Path], list[str]]
    alive: Callable[[Path], dict[int, str]]  # {process: what it is, in one word}
    at_once: int  # So many processes does it have
    trained_to: str  # The checkpoint that is waited for before the rollback
    rollback: tuple[str, ...]  # The person's command
    diverges: Callable[[Path], None] | None  # Makes its loss nan; None: it is rolled back by a person alone
    ends: Callable[[Path], None]  # As a person ends it
    victims: tuple[str, ...]  # Of a kill: trainer, one rank, one launcher, command, and what of them together
    load_s: float  # A start takes about so long


@dataclass(kw_only=True)
class Moment:
    """When a kill comes, and whom it meets."""

    whom: str  # words of `Trainer.victims`
    kind: str  # events, resume or time
    number: float  # Events since the command began or the decision; seconds
    pause_s: float

    @classmethod
    def drawn(cls, chance: random.Random, victims: tuple[str, ...], load_s: float) -> Moment:
        whom, kind = chance.choice(victims), chance.choice(("events",) * 4 + ("resume", "time"))
        number = {"events": float(chance.randint(0, 11)), "resume": 0.0, "time": chance.uniform(0.0, 2.0)}[kind]
        pause_s = chance.uniform(0.0, 2 * load_s if kind == "resume" else 0.1) * chance.choice((0, 1, 1))
        return cls(whom=whom, kind=kind, number=number, pause_s=pause_s)


@dataclass(kw_only=True)
class Run:
    """One run, its kills, and what was wrong."""

    folder: Path
    of: Trainer
    chance: random.Random
    kills: list[list[str]] = field(default_factory=list)  # [whom, in the midst of what, moment]
    wrong: list[str] = field(default_factory=list)
    record: Record = field(init=False)
    trainer: subprocess.Popen[bytes] = field(init=False)
    _looked_s: float = 0.0

    def made(self) -> str:
        """How it ended, in words."""
        self.record = Record(folder=self.folder)
        by_hand = self.of.diverges is None or self.chance.random() < 0.65
        with self._training():
            if not by_hand and self.of.diverges is not None:
                self.of.diverges(self.folder)
            command = self._killed(self._command(self.of.rollback if by_hand else WATCH))
            end = self._to_the_end(command)
            self.record.look()
            self.wrong += [*self.record.lost(), *overlaps(self.folder)]
            self._undone()
        return end

    def _command(self, words: tuple[str, ...]) -> Command:
        return Command(self.folder / "live.toml", words)

    def _alive(self) -> dict[int, str]:
        """{process: what it is}."""
        return self.of.alive(self.folder)

    @contextmanager
    def _training(self) -> Iterator[None]:
        command = self.of.command(self.folder)
        (self.folder / "live.toml").write_text(_TOML.format(command=json.dumps(command)))
        (self.folder / "tensorboard").mkdir()
        environment = {k: v for k, v in os.environ.items() if not k.startswith("SENTINEL_")}
        with (self.folder / "state" / "job.log").open("ab") as log:
            self.trainer = subprocess.Popen(
                command, cwd=self.folder, env=environment, stdout=log, stderr=log, start_new_session=True
            )
        try:
            if not until((self.folder / "checkpoints" / self.of.trained_to).exists, PATIENCE_S):
                raise SystemExit(f"no trainer: {(self.folder / 'state' / 'job.log').read_text()[-500:]}")
            yield
        finally:
            for pid in self._alive():
                os.kill(pid, signal.SIGKILL)
            self.trainer.wait()

    def _look(self) -> None:
        """Several times a second, and not at each of the waits' polls."""
        if time.monotonic() < self._looked_s + LOOKS_S:
            return
        self._looked_s = time.monotonic()
        self.trainer.poll()
        self.record.look()
        if len(there := self._alive()) > self.of.at_once:
            self.wrong.append(f"two trainers are alive: {there}")

    def _killed(self, command: Command) -> Command:
        """The last command, after the kills; it may still run."""
        until(lambda: decided(self.folder) is not None or command.poll() is not None or self._look(), PATIENCE_S)
        for _ in range(self.chance.choice((1, 2, 3, 3))):
            moment = Moment.drawn(self.chance, self.of.victims, self.of.load_s)
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
        if "command" in moment.whom and command.poll() is None:
            hit.append(command.words[0])
            command.end(signal.SIGKILL)
        hit += self._strike_trainer(moment.whom)
        self.trainer.poll()
        self.kills += [[" and ".join(hit), doing_what, moment.kind]] if hit else []
        if command.poll() is None:
            return command
        again = command.words == self.of.rollback and self.chance.random() < 0.2
        return self._command(self.of.rollback if again else WATCH)

    def _strike_trainer(self, whom: str) -> list[str]:
        """What of the trainer was there, and is not any more: all of it, or one drawn process of that name."""
        there = self._alive()
        for name in ("rank", "launcher"):
            if f"one {name}" in whom:
                named = sorted(pid for pid, what in there.items() if what == name)
                there = {pid: there[pid] for pid in ([self.chance.choice(named)] if named else [])}
        if "trainer" not in whom and "one " not in whom:
            return []
        for pid in there:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return ["trainer" if "trainer" in whom else next(iter(there.values()))] if there else []

    def _to_the_end(self, command: Command) -> str:
        began_s = time.monotonic()
        while time.monotonic() < began_s + PATIENCE_S:
            self._await_end(command)
            if command.poll() is None or (self._trains() and command.words != WATCH):
                break
            if command.words == WATCH:
                return self._ended(command)
            command = self._command(WATCH)
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
            self.of.ends(self.folder)
            self._await_reaped(lambda: not self._alive())
        undo = self._command(UNDO)
        self._await_reaped(lambda: undo.poll() is not None)
        nothing = "there is no rollback to undo" in undo.said() and taken_back(self.folder)
        if undo.poll() != 0 and not nothing:
            undo.end(signal.SIGKILL)
            self.wrong.append(f"undo ended with {undo.code}: {undo.said()}")
        if not nothing:
            self._see_ended()
        self.record.look()
        self.wrong += [f"after the undo {one}" for one in (*self.record.lost(), *self.record.not_back())]

    def _see_ended(self) -> None:
        """No writer is there after an undo; a launcher, which writes nothing, ends once it sees that its ranks have."""
        if writers := {pid: what for pid, what in self._alive().items() if what != "launcher"}:
            self.wrong.append(f"alive after the undo: {writers}")
        if not until(lambda: not self._alive(), 30.0):
            self.wrong.append(f"alive half a minute after the undo: {self._alive()}")

    def _await_reaped(self, what: Callable[[], bool]) -> None:
        """With the trainer's end taken note of: a zombie is no trainer."""
        until(lambda: (self.trainer.poll(), what())[1], PATIENCE_S)
