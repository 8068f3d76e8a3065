"""Witnesses of an attempt's life: its process, where this machine can see it, and the exporter that it announced."""

from __future__ import annotations

import json
import os
import pwd
import socket
import ssl
import time
import urllib.request
from pathlib import Path
from threading import Thread

import psutil
from prometheus_client.parser import text_string_to_metric_families

from sentinel import bounded
from sentinel.adapters.http_client import Refused, TooLong, Unreachable, answer, body_of
from sentinel.plan.observation import Life, ProcessState
from sentinel.vocabulary.sample import RunStarted

_SAME_START_S = 2.0  # two clocks' readings of one process's start differ by less than this
_PIDS_END = 1 << 31
_WITHIN_S = 1.5  # that a name server, a node that is gone and a slow answer may take together
_NOT_AGAIN_S = 60.0  # for which an address that has not answered in time is not asked again: each action of a plan asks
_LONGEST_ANSWER_BYTES = 8 << 20
_STEPS = "sentinel_steps_total"


def state_of_process(started: RunStarted) -> ProcessState | None:
    """Whether rank 0's process lives; None where the attempt does not name one."""
    if started.host is None or started.pid is None or not 0 < started.pid < _PIDS_END:
        return None
    named = f"process {started.pid} of attempt {started.attempt} on {started.host}"
    if (why := elsewhere(started)) is not None:
        return ProcessState(life=Life.UNKNOWN, sentence=f"{named} can't be seen: {why}")
    certain = started.boot_id is not None
    try:
        os.kill(started.pid, 0)
    except ProcessLookupError:
        return ProcessState(life=Life.GONE, sentence=f"{named} is not there any more", certain=certain)
    except PermissionError:
        pass  # another account's, and it is there
    try:
        process = psutil.Process(started.pid)
        if not _is_started(process, started):
            again = f"{named} is not there any more; its number is another process's"
            return ProcessState(
                life=Life.GONE, sentence=again, certain=certain and started.process_start_ticks is not None
            )
        if _is_dead(process):
            return ProcessState(life=Life.GONE, sentence=f"{named} is a zombie", certain=certain)
    except (psutil.Error, OSError):  # /proc hides the processes of other accounts
        hidden = f"{named} may be alive: a process of that number is there, and this account can't see whose"
        return ProcessState(life=Life.UNKNOWN, sentence=hidden)
    return ProcessState(life=Life.ALIVE, sentence=f"{named} is alive")


def elsewhere(started: RunStarted) -> str | None:
    """Why this process can't see the attempt's, as a sentence; None where it can."""
    here = socket.gethostname()
    if started.host is not None and _first(started.host) != _first(here):
        return f"this is host {here}"
    if started.boot_id is not None and started.boot_id != _boot_id():
        return f"{here} was booted since, or is another machine of that name"
    if started.pid_namespace is not None and started.pid_namespace != _pid_namespace():
        return "it is in another pid namespace, as in a container"
    return None


def foreign_process(pid: int) -> str | None:
    """Whose process it is, where it is not of the account that sentinel runs as."""
    try:
        owner = psutil.Process(pid).uids().effective
    except psutil.Error:
        return None
    if owner == os.geteuid():
        return None
    theirs, mine = user_name(owner), user_name(os.geteuid())
    return f"process {pid} belongs to {theirs}, and sentinel runs as {mine}: run sentinel as {theirs}"


def _is_started(process: psutil.Process, started: RunStarted) -> bool:
    if started.process_start_ticks is not None and started.boot_id == _boot_id():
        stat = Path(f"/proc/{process.pid}/stat").read_bytes()
        return int(stat.rpartition(b")")[2].split()[19]) == started.process_start_ticks
    if started.process_start_unix_s is None:
        return True
    return abs(process.create_time() - started.process_start_unix_s) < _SAME_START_S


def _is_dead(process: psutil.Process) -> bool:
    """A process is a zombie as soon as its first thread has ended; the others may hang in a write for minutes."""
    if process.status() != psutil.STATUS_ZOMBIE:
        return False
    try:
        return len(list(Path(f"/proc/{process.pid}/task").iterdir())) <= 1
    except OSError:
        return True


def _first(host: str) -> str:
    return host.partition(".")[0].lower()


def _boot_id() -> str | None:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return None


def _pid_namespace() -> str | None:
    try:
        return os.readlink("/proc/self/ns/pid")  # noqa: PTH115 - what it leads to is no path
    except OSError:
        return None


def user_name(number: int) -> str:
    """The account of a user's number."""
    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:
        return f"user {number}"


class Announced:
    """Asks the exporter that an attempt has announced in STATE_DIR/scrape.json whether it answers as that attempt, now.
    An exporter on loopback, the default, is not announced: then nothing is asked. No answer says nothing."""

    def __init__(self, state_dir: Path, *, within_s: float = _WITHIN_S) -> None:
        self._path = state_dir / "scrape.json"
        self._within_s = within_s
        self._late: tuple[str, float] | None = None

    def answers_as(self, attempt: int) -> str | None:
        """The sentence that says so; None where nothing is announced of the attempt, or nothing answers as it."""
        if (target := self._target(attempt)) is None:
            return None
        url, run = target
        if self._late is not None and self._late[0] == url and time.monotonic() - self._late[1] < _NOT_AGAIN_S:
            return None
        found: list[float] = []
        asking = Thread(target=self._ask, args=(url, run, attempt, found), name="sentinel-exporter", daemon=True)
        began_s = time.monotonic()
        asking.start()
        asking.join(self._within_s)  # a name server keeps to nobody's timeout
        if asking.is_alive() or time.monotonic() - began_s >= self._within_s:
            self._late = (url, time.monotonic())
        return f"the exporter of attempt {attempt} answers at {url}, after {found[0]:.0f} steps" if found else None

    def _target(self, attempt: int) -> tuple[str, str] | None:
        try:
            (group,) = json.loads(bounded.read_text(self._path, bounded.SECRET_BYTES))
            labels, (where,) = group["labels"], group["targets"]
            if labels["attempt"] != str(attempt):
                return None
            scheme = "https" if labels.get("__scheme__") == "https" else "http"
            return f"{scheme}://{where}/metrics", str(labels["run"])
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
            return None

    def _ask(self, url: str, run: str, attempt: int, found: list[float]) -> None:
        """Its certificate is not looked at: an answer can only keep sentinel from acting."""
        request = urllib.request.Request(url, headers={"Accept": "text/plain"})  # noqa: S310 - http(s): `_target`
        unverified = ssl._create_unverified_context()  # noqa: S323
        try:
            with answer(request, unverified, self._within_s, direct=True) as response:
                text = body_of(response, _LONGEST_ANSWER_BYTES).decode("utf-8")
            for family in text_string_to_metric_families(text):
                known = {"run": run, "attempt": str(attempt)}
                found.extend(one.value for one in family.samples if one.name == _STEPS and one.labels == known)
        except (Refused, TooLong, Unreachable, ValueError, LookupError, TypeError):  # what is no exposition
            return
