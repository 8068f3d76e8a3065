"""A small run, and a way to step through what a command does to it: from outside, with strace, call by call.

`record` lists the calls that change something under the run's folders. `strike` runs the command again on a copy and
kills it at one of them, or lets that one call fail. Nothing in sentinel takes part.

strace counts the calls of each thread and of each spelling (unlink, unlinkat) by themselves. `record` counts likewise,
and `strike` compares the call that strace struck with the one that was meant: a number that leads to another call is a
point that was not met.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from sentinel.adapters.incident_log import IncidentLog
from sentinel.plan.incident.events import fold
from sentinel.plan.incident.incident import Incident
from sentinel.vocabulary.sample import Record, RunFinished, RunStarted, Sample, encode

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from tensorboard.backend.event_processing.event_file_loader import RawEventFileLoader
    from tensorboard.compat.proto.event_pb2 import Event

ERRORS = ("ENOSPC", "EIO", "EACCES", "EROFS", "ESTALE")
TARGET = 20
"""The step that is rolled back to; an event file begins before it and ends after it."""

_BY_FD = ("write", "pwrite64", "writev", "pwritev2", "fsync", "fdatasync", "ftruncate", "fallocate", "fchmod", "fchown")
_SPELLINGS = {call: (call,) for call in (*_BY_FD, "rmdir", "truncate", "creat", "setxattr", "removexattr")} | {
    "open": ("open", "openat", "openat2"),
    "mkdir": ("mkdir", "mkdirat"),
    "rename": ("rename", "renameat", "renameat2"),
    "link": ("link", "linkat"),
    "symlink": ("symlink", "symlinkat"),
    "unlink": ("unlink", "unlinkat"),
    "utime": ("utime", "utimes", "futimesat", "utimensat"),
    "chmod": ("chmod", "fchmodat", "fchmodat2"),
    "chown": ("chown", "lchown", "fchownat"),
    "mknod": ("mknod", "mknodat"),
}
"""Every call that can change a filesystem, by what it does: each kind of machine has its own spellings."""

_FAMILY = {spelling: call for call, spellings in _SPELLINGS.items() for spelling in spellings}
_LINE = re.compile(r"(\w+)\((.*)")
_RESUMED = re.compile(r"<\.\.\. \w+ resumed>")
_NAMED = re.compile(r'(?:(?:AT_FDCWD|\d+)<([^>]*)>, )?"([^"]*)"')
_OWN_NAME = re.compile(r"(?<=\.lock\.)[0-9a-f]{32}|(?<=\.lock\.stale\.)[0-9a-f]{32}|(?<=\.)[0-9a-f]{16}(?=\.new)")
"""What is another word in each process, so that no recording can tell it."""

_SCRATCH = re.compile(r"\.(sentinel-)?doctor\.\d+|\.sentinel-clock\.\d+")
"""What is tried before a watch begins, and taken away again: nothing of the run."""

_TOML = """\
[run]
name = "small"
checkpoints = "checkpoints"
state_dir = "state"
tensorboard = "tensorboard"

[launcher]
kind = "local"
command = ["false"]
stop_grace_s = 5

[watch]
poll_interval_s = 0.01

[policy]
mode = "act"
start_budget = 1
"""


def build(folder: Path, *, ill: bool) -> Path:
    """A run of 60 steps that has ended; where it is ill, with nan in Adam's variance from step 45 on."""
    import torch  # here, since only the process that builds the run needs it

    for step in (TARGET, 40, 60):
        tag = folder / "checkpoints" / f"global_step{step}"
        tag.mkdir(parents=True)
        torch.save({"module": torch.full((64,), float(step))}, tag / "mp_rank_00_model_states.pt")
        torch.save({"state": torch.full((64,), -float(step))}, tag / "zero_pp_rank_0_mp_rank_00_optim_states.pt")
    (folder / "checkpoints" / "latest").write_text("global_step60")
    (folder / "checkpoints" / "latest_checkpointed_iteration.txt").write_text("60")
    for steps, suffix in ((range(1, 11), ".a"), (range(11, 41), ".b"), (range(41, 61), ".c")):
        write_events(folder / "tensorboard", steps, suffix)
    (folder / "state" / "attempts").mkdir(parents=True)
    lines = "".join(encode(record) + "\n" for record in _journal(ill=ill))
    (folder / "state" / "attempts" / "0001.jsonl").write_text(lines)
    (folder / "run.toml").write_text(_TOML)
    return folder


def write_events(folder: Path, steps: range, suffix: str) -> None:
    """An event file as Megatron's trainer writes it: each scalar on the axis of iterations, and on that of samples."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from torch.utils.tensorboard import SummaryWriter
    writer = SummaryWriter(str(folder), filename_suffix=suffix)
    for step in steps:
        writer.add_scalar("loss", step / 10, step)
        writer.add_scalar("loss vs samples", step / 10, step * 16)
    writer.close()
    (written,) = folder.glob(f"*{suffix}")
    written.rename(folder / f"events.out.tfevents.1700000000.host{suffix}")  # a name without a time and a process in it


def _journal(*, ill: bool) -> list[Record]:
    noise = random.Random(0)
    begin = RunStarted(attempt=1, time_unix_s=1.0, run="small", seed=3, full_seqlen=32, total_steps=60)
    samples = [
        Sample(
            attempt=1,
            global_step=step,
            time_unix_s=float(step),
            loss=2 + 3 * math.exp(-step / 200) + noise.gauss(0, 0.01),
            adam_variance_l1=math.nan if ill and step >= 45 else 1.0,
            consumed_samples=step * 16,
            consumed_tokens=step * 512,
            seqlen=32,
        )
        for step in range(1, 61)
    ]
    return [begin, *samples, RunFinished(attempt=1, global_step=60, time_unix_s=61.0, reason="finished")]


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One call that changes something: the number-th `call` upon `path`."""

    call: str
    """What it does, whatever its spelling."""

    path: str
    """What it changes, relative to the run's folder; a * stands for what is another word in each process."""

    number: int
    """Which of a thread's calls upon the path, from 1; which of all its calls where the path has a *."""

    spelling: str | None = None
    """Its name for the kernel; None: whichever this machine has."""

    def __str__(self) -> str:
        return f"{self.call} {self.number}{' of all, upon' if '*' in self.path else ' of'} {self.path}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Ran:
    """How a command ended."""

    code: int
    """Its exit code; 137 where it was killed."""

    said: str
    """Its stderr."""

    struck: bool
    """Whether the call that was meant was struck, and no other."""

    instead: str
    """What was struck, in words."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Call:
    """A call that strace has seen."""

    thread: str
    spelling: str

    path: str
    """What it changes, from the root; empty where it is no file."""

    rest: str
    """Its arguments, its result, and what strace says of it."""

    def upon(self, folder: Path) -> str:
        """What it changes, as a point has it."""
        return _OWN_NAME.sub("*", self.path.removeprefix(f"{folder}/"))


def line(folder: Path, words: Sequence[str]) -> list[str]:
    """The command, as a person types it."""
    verb, *rest = words
    return [sys.executable, "-m", "sentinel", verb, "--run", str(folder / "run.toml"), *rest]


def why_not() -> str | None:
    """Why nothing can be stepped through here; None where it can."""
    if shutil.which("strace") is None:
        return "strace is not installed"
    tried = ["strace", "-f", "--seccomp-bpf", "-qq", "-o", os.devnull, "-e", "inject=rmdir:error=EIO", "true"]
    ran = subprocess.run(tried, capture_output=True, text=True, timeout=30, check=False)
    return f"strace may not trace here: {ran.stderr.strip()[:200]}" if ran.returncode else None


def record(folder: Path, words: Sequence[str]) -> list[Point]:
    """The calls that change something under the folder when the command runs, in their order. Runs it."""
    with tempfile.NamedTemporaryFile("r", suffix=".strace") as trace:
        every = ",".join(f"?{spelling}" for spelling in _FAMILY)
        _strace(trace.name, ["--seccomp-bpf", "-e", f"trace={every}"], folder, words)
        lines = trace.read().splitlines()
    seen: Counter[tuple[str, str, str | None]] = Counter()
    points = []
    for made in _calls(lines):
        for name in (None, made.path):  # also of a call that fails or only reads
            seen[made.thread, made.spelling, name] += 1
        call, path = _FAMILY[made.spelling], made.upon(folder)
        if not made.path.startswith(f"{folder}/") or _SCRATCH.search(path) or _changes_nothing(call, made.rest):
            continue
        own = "*" in path
        if not (own and call == "open"):  # among all files that a process opens, its number is not the same twice
            number = seen[made.thread, made.spelling, None if own else made.path]
            points.append(Point(call=call, path=path, number=number, spelling=made.spelling))
    return points


def settled(start: Path, folder: Path, words: Sequence[str]) -> list[Point]:
    """What is recorded twice in a row, of copies in the folder: no point is left out because it was there only once."""
    before: list[Point] = []
    for number in range(5):  # a job that takes a moment longer to die may shift the calls of a watch by one
        now = record(copy_run(start, folder / f"recorded{number}"), words)
        if now == before:
            return now
        odd, before = set(now) ^ set(before), now
    raise AssertionError(f"no two recordings in a row are the same: {sorted(map(str, odd))}")


def _calls(lines: Sequence[str]) -> Iterator[_Call]:
    """The calls of a trace; what strace tells in two lines, since another thread's came between, is one."""
    begun: dict[str, str] = {}
    for text in lines:
        thread, _, said = text.partition(" ")
        said = said.strip()
        if said.endswith("<unfinished ...>"):
            begun[thread] = said.removesuffix("<unfinished ...>")
            continue
        if (resumed := _RESUMED.match(said)) is not None:
            said = begun.pop(thread, "") + said[resumed.end() :]
        if (match := _LINE.match(said)) is not None and match[1] in _FAMILY:
            path = _path(_FAMILY[match[1]], match[2])
            yield _Call(thread=thread, spelling=match[1], path=path, rest=match[2])


def _changes_nothing(call: str, rest: str) -> bool:
    """What failed when nobody interfered, and what is opened for reading."""
    opened = call == "open" and not re.search(r"O_WRONLY|O_RDWR|O_CREAT|O_TRUNC", rest)
    return opened or " = -1 E" in rest


def _path(call: str, rest: str) -> str:
    """What the call changes: by its descriptor, or by its name, which may be relative to a folder's descriptor."""
    if call in _BY_FD:
        named = re.findall(r"^\d+<([^>]*)>", rest)
    else:
        named = [os.path.join(folder, name) for folder, name in _NAMED.findall(rest)]  # noqa: PTH118 - strace's words
    if call in ("link", "symlink"):
        named.reverse()
    return [*named, ""][0]


def strike(folder: Path, words: Sequence[str], point: Point, how: str) -> Ran:
    """Runs the command, and kills it at the point (`KILL`), or has that call fail with the error of that name."""
    inject = "signal=KILL" if how == "KILL" else f"error={how}"
    spelt = ",".join(f"?{s}" for s in ([point.spelling] if point.spelling else _SPELLINGS[point.call]))
    options = ["-e", f"trace={spelt}", "-e", f"inject={spelt}:{inject}:when={point.number}"]
    if "*" not in point.path:
        options += ["-P", str(folder / point.path)]
    if how != "KILL":  # with it strace is quick, and sends no signals
        options.append("--seccomp-bpf")
    with tempfile.NamedTemporaryFile("r", suffix=".strace") as trace:
        ran = _strace(trace.name, options, folder, words)
        lines = trace.read().splitlines()
    mark = " = ?" if how == "KILL" else "(INJECTED)"
    struck = [f"{_FAMILY[c.spelling]} of {c.upon(folder)}" for c in _calls(lines) if c.rest.endswith(mark)]
    return Ran(
        code=ran.returncode % 256,
        said=ran.stderr,
        struck=struck == [f"{point.call} of {point.path}"],
        instead=" and ".join(struck) or "nothing",
    )


def _strace(trace: str, options: Sequence[str], folder: Path, words: Sequence[str]) -> subprocess.CompletedProcess[str]:
    """Every process of the command is followed; an exit by SIGKILL comes back as 128 + 9, as a shell tells it."""
    begin = ["strace", "-f", "-qq", "-y", "-s", "0", "-o", trace, *options]
    ran = subprocess.run(
        [*begin, *line(folder, words)],
        env=dict(os.environ, PYTHONDONTWRITEBYTECODE="1", PYTHONHASHSEED="0"),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    ran.returncode = 128 - ran.returncode if ran.returncode < 0 else ran.returncode
    return ran


def copy_run(run: Path, to: Path) -> Path:
    """A copy that acts on its own checkpoints: the record of which state folder acts on them names the original."""
    shutil.copytree(run, to, symlinks=True)
    (to / "checkpoints" / ".sentinel-quarantine" / "state-folder.json").unlink(missing_ok=True)
    log = to / "state" / "incidents.jsonl"
    if log.exists():  # the save folder that its rollbacks were decided for
        log.write_text(log.read_text().replace(str(run / "checkpoints"), str(to / "checkpoints")))
    return to


def live(folder: Path) -> dict[str, str]:
    """Name and digest of everything that a trainer or TensorBoard sees of the run, and of what it starts with."""
    files = [p for part in ("checkpoints", "tensorboard") for p in (folder / part).rglob("*") if p.is_file()]
    files += [p for p in [folder / "state" / "overrides.json"] if p.exists()]
    ours = {".sentinel-quarantine", ".sentinel-pinned"}  # a pin is a second name of what is there
    return {str(p.relative_to(folder)): _digest(p) for p in files if not ours & set(p.parts)}


def inventory(folder: Path) -> Counter[tuple[str, str]]:
    """How often each checkpoint's file (with its tag) and each event file (whole) is there, wherever it lies."""
    shards = [p for p in (folder / "checkpoints").rglob("*.pt") if p.is_file()]
    boards = [p for p in folder.rglob("events.out*") if p.is_file()]
    return Counter([(f"{p.parent.name}/{p.name}", _digest(p)) for p in shards] + [("", _digest(p)) for p in boards])


def events(folder: Path, pattern: str) -> Counter[tuple[str, int]]:
    """How often each (tag, step) can be read in the TensorBoard folders of that name."""
    files = [p for board in folder.glob(pattern) for p in board.rglob("*tfevents*") if p.is_file()]
    seen: Counter[tuple[str, int]] = Counter()
    for path in files:
        for raw in RawEventFileLoader(str(path)).Load():
            event = Event.FromString(raw)
            seen.update((value.tag, event.step) for value in event.summary.value)
    return seen


def incidents(folder: Path) -> tuple[Incident, ...]:
    """What the incident log tells; it has to be readable."""
    return fold(IncidentLog(folder / "state" / "incidents.jsonl").read())


def overrides(folder: Path) -> dict[str, object] | None:
    """overrides.json, or None."""
    path = folder / "state" / "overrides.json"
    return dict(json.loads(path.read_text())) if path.exists() else None


def _digest(path: Path) -> str:
    return f"{path.stat().st_size} {hashlib.sha256(path.read_bytes()).hexdigest()}"
