"""How many calls sentinel makes to the filesystem: a poll of a healthy run, `checkpoints`, `doctor` and a dry run.

    python benchmarks/file_calls.py [--shapes 40x4097,5000x8] [--polls 10] [--program .venv/bin/sentinel]

Makes N checkpoints of M files (hard links to a few small archives) and a journal that grows, runs each command under
strace, and counts the system calls that name or hold something below the run's folder, by kind. Beside each stands what
a command must read at least, counted by the same rule from what it says: each folder that is listed is opened, listed
and closed, each file whose size decides is asked for once, each byte of a verified target is read once.

`--program` names another checkout's `sentinel`, for a comparison. Needs strace and the right to trace.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

from benchmarks.simulated.checkpoints import STEPS_BETWEEN, make
from benchmarks.simulated.runs import FIRST_STEP, SimulatedRun
from sentinel.vocabulary.sample import RunStarted, encode

COMMANDS = ("checkpoints", "doctor", "rollback")
_POLL_S = 1.0
_SKIPPED_POLLS = 4  # the first look asks for everything, and one after it what was too new to be remembered
_BEGUN_BEFORE_S = 300
_LISTED_FILES = 20_000  # names that a look at all checkpoints lists; older ones are looked at by two of their files
_LISTING = 4  # open, two calls to list a short folder, close
_NAME_BYTES = 72  # of an entry in a listing, which comes in pieces of 32 KiB
_CONFIG = """\
[run]
name = "counted"
checkpoints = "{root}/checkpoints"
state_dir = "{root}/state"
[source]
kind = "journal"
[launcher]
kind = "{launcher}"
{command}
[watch]
poll_interval_s = {poll_s}
[metrics]
port = 0
"""
_CALL = re.compile(r"^\d+\s+(?:<\.\.\. )?(\w+)[( ]")


def configure(root: Path, checkpoints: int, files: int, launcher: str) -> None:
    """A healthy run: its checkpoints, its journal, its configuration."""
    folder = root / "checkpoints"
    folder.mkdir(parents=True)
    make(folder, checkpoints, files)
    (folder / ".source").rename(root / "source")
    for number in range(1, checkpoints + 1):  # saved a minute apart
        at_s = time.time() - 60.0 * (checkpoints - number)
        os.utime(folder / f"global_step{number * STEPS_BETWEEN}", (at_s, at_s))
    (root / "state" / "attempts").mkdir(parents=True)
    run, begun_s, last = SimulatedRun(number=0, diverges_at=None), time.time() - _BEGUN_BEFORE_S, checkpoints * 100
    process = psutil.Process()
    started = RunStarted(
        attempt=1, time_unix_s=begun_s, run="counted", resumed_from=last - 2 * STEPS_BETWEEN, host=os.uname().nodename,
        pid=process.pid, process_start_unix_s=process.create_time(),
    )  # fmt: skip
    with journal(root).open("w") as file:
        file.write(encode(started) + "\n")
        for n in range(_BEGUN_BEFORE_S):
            file.write(sample(run, n, last - 2 * STEPS_BETWEEN + 1 + n, begun_s + n))
    command = 'command = ["true"]' if launcher == "local" else ""
    text = _CONFIG.format(root=root, launcher=launcher, command=command, poll_s=_POLL_S)
    (root / "counted.toml").write_text(text)


def journal(root: Path) -> Path:
    return root / "state" / "attempts" / "0001.jsonl"


def sample(run: SimulatedRun, number: int, step: int, time_unix_s: float) -> str:
    simulated = FIRST_STEP + number
    text = encode(run.sample(simulated, time_unix_s))
    return text.replace(f'"global_step": {simulated}', f'"global_step": {step}', 1) + "\n"


@contextmanager
def training(root: Path) -> Iterator[None]:
    """A sample each second, as a trainer appends them."""
    lines, stop = journal(root).read_text().splitlines(), threading.Event()
    last = json.loads(lines[-1])["global_step"]

    def write() -> None:
        run, number = SimulatedRun(number=0, diverges_at=None), 0
        while not stop.wait(1.0):
            number += 1
            with journal(root).open("a") as file:
                file.write(sample(run, _BEGUN_BEFORE_S + number, last + number, time.time()))

    writing = threading.Thread(target=write)
    writing.start()
    try:
        yield
    finally:
        stop.set()
        writing.join()


def traced(program: list[str], trace: Path) -> list[str]:
    return ["strace", "-f", "-y", "-s", "256", "-e", "trace=%file,%desc", "-o", str(trace), *program]


def calls(line: str, root: Path) -> str | None:
    """The call's name, where the line is of one below the folder."""
    found = _CALL.match(line)
    return found[1] if found is not None and f"{root}/" in line and "resumed>" not in line else None


def of_polls(program: list[str], root: Path, polls: int) -> tuple[Counter[str], float]:
    """Calls per poll once all is remembered; and the daemon's CPU seconds per poll, counted without strace."""
    trace = root / "trace"
    with training(root), subprocess.Popen(
        traced([*program, "watch", "--observe", "--run", "counted", "--config-dir", str(root)], trace),
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    ) as process:  # fmt: skip
        try:
            while len(turns(trace, root)) < polls + _SKIPPED_POLLS + 1:
                time.sleep(_POLL_S)
                if process.poll() is not None:
                    raise SystemExit(f"the watch ended with exit code {process.returncode}")
        finally:
            for child in psutil.Process(process.pid).children():
                child.terminate()
            process.wait(30)
    counted: Counter[str] = Counter()
    for turn in turns(trace, root)[_SKIPPED_POLLS : _SKIPPED_POLLS + polls]:
        counted.update(turn)
    return counted, of_cpu(program, root, polls)


def turns(trace: Path, root: Path) -> list[list[str]]:
    """The calls of each turn: each looks once whether the run is paused."""
    found: list[list[str]] = []
    if trace.exists():
        for line in trace.read_text(errors="replace").splitlines():
            name = calls(line, root)
            if name is not None and "/state/PAUSED" in line:
                found.append([])
            if name is not None and found:
                found[-1].append(name)
    return found


def of_cpu(program: list[str], root: Path, polls: int) -> float:
    with training(root), subprocess.Popen(
        [*program, "watch", "--observe", "--run", "counted", "--config-dir", str(root)],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    ) as process:  # fmt: skip
        try:
            watched = psutil.Process(process.pid)
            until_quiet(watched)
            before, began_s = sum(watched.cpu_times()[:2]), time.monotonic()
            time.sleep(polls * _POLL_S)
            return (sum(watched.cpu_times()[:2]) - before) / (time.monotonic() - began_s) * _POLL_S
        finally:
            process.terminate()


def until_quiet(process: psutil.Process) -> None:
    """Its first look reads everything: waits until it takes no less from one window to the next."""
    deadline_s, last_s, used_s = time.monotonic() + 120, float("inf"), 0.0
    while time.monotonic() < deadline_s:
        before_s = sum(process.cpu_times()[:2])
        time.sleep(_SKIPPED_POLLS * _POLL_S)
        used_s = sum(process.cpu_times()[:2]) - before_s
        if used_s > 0.8 * last_s:
            return
        last_s = used_s


def of_command(program: list[str], root: Path, command: list[str]) -> Counter[str]:
    trace = root / "trace"
    subprocess.run(
        traced([*program, *command, "--run", "counted", "--config-dir", str(root)], trace),
        check=False, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=1800,
    )  # fmt: skip
    lines = trace.read_text(errors="replace").splitlines()
    return Counter(name for line in lines if (name := calls(line, root)) is not None)


def least(command: str, checkpoints: int, files: int) -> int:
    """Calls that a command must make below the run's folder, about: see the module."""
    listing = _LISTING + files * _NAME_BYTES // 32_768
    listed = min(checkpoints, -(-_LISTED_FILES // files))
    sizes = files if files <= 512 else 0
    look = checkpoints + listed * (listing + sizes) + 2 * (checkpoints - listed)
    if command != "rollback":
        return look + (files if command == "doctor" else 0)  # a save's size, for the room that more saves take
    of_target = files * (1 + 5)  # its size; opened, its directory found and read, its bytes read, closed
    return look + of_target + 2 * files  # the sibling's sizes, and the newest save's


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", default="40x4097,5000x8", help="checkpoints x files of each, by commas")
    parser.add_argument("--polls", type=int, default=10)
    parser.add_argument("--launcher", choices=("elsewhere", "local"), default="elsewhere")
    parser.add_argument("--program", default="", help="another checkout's sentinel")
    options = parser.parse_args(arguments)
    if shutil.which("strace") is None:
        parser.error("strace is not installed")
    program = [options.program] if options.program else [sys.executable, "-m", "sentinel"]
    print(f"{'command':<12}{'checkpoints x files':>21}{'calls':>10}{'at least':>10}{'CPU ms':>8}  most frequent")
    for checkpoints, files in (map(int, shape.split("x")) for shape in options.shapes.split(",")):
        with tempfile.TemporaryDirectory() as name:
            root = Path(name)
            configure(root, checkpoints, files, options.launcher)
            shape = f"{checkpoints} x {files}"
            polled, cpu_s = of_polls(program, root, options.polls)
            show("poll", shape, polled, options.polls, "", f"{1000 * cpu_s:.1f}")
            target = f"global_step{STEPS_BETWEEN * (checkpoints - 1)}"
            for command in COMMANDS:
                more = ["--to", target, "--dry-run"] if command == "rollback" else []
                counted = of_command(program, root, [command, *more])
                show(command, shape, counted, 1, str(least(command, checkpoints, files)), "")
    return 0


def show(command: str, shape: str, counted: Counter[str], polls: int, at_least: str, cpu_ms: str) -> None:
    most = ", ".join(f"{name} {count / polls:.0f}" for name, count in counted.most_common(5))
    print(f"{command:<12}{shape:>21}{counted.total() / polls:>10.0f}{at_least:>10}{cpu_ms:>8}  {most}", flush=True)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
