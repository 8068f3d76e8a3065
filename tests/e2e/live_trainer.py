"""A trainer that does nothing but live: it reports its start as the hook does, makes steps, and saves."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.adapters.checkpoint_files import deepspeed
from tests.adapters.pagers import until

__all__ = ["NAMES", "attempts", "build", "configure", "events", "files", "local", "sentinel", "training"]

TRAINER = """
import json, os, shutil, socket, sys, time
from pathlib import Path

folder, names = Path(sys.argv[1]), sys.argv[2:]
number = len(list((folder / "state" / "attempts").iterdir())) + 1
journal = (folder / "state" / "attempts" / f"{number:04d}.jsonl").open("x")
stat = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
boot = next(int(line.split()[1]) for line in Path("/proc/stat").read_text().splitlines() if line.startswith("btime"))
facts = {
    "host": socket.gethostname(),
    "pid": os.getpid(),
    "process_start_unix_s": boot + int(stat[19]) / os.sysconf("SC_CLK_TCK"),
    "process_start_ticks": int(stat[19]),
    "boot_id": Path("/proc/sys/kernel/random/boot_id").read_text().strip(),
    "pid_namespace": os.readlink("/proc/self/ns/pid"),
    "job_id": os.environ.get("SLURM_JOB_ID"),
}
facts = {name: value for name, value in facts.items() if name in names}

def tell(kind, **values):
    journal.write(json.dumps({"kind": kind, "attempt": number, "time_unix_s": time.time(), **values}) + "\\n")
    journal.flush()

tell("run_started", run="live", rollback=os.environ.get("SENTINEL_ROLLBACK"), **facts)
saves = folder / "checkpoints"
step, every = map(int, (folder / "begins").read_text().split()) if (folder / "begins").exists() else (20, 20)
while not (folder / "end").exists():
    step += 1
    tell("sample", global_step=step, loss="nan" if (folder / f"nan{number}").exists() else 3.0 + 0.01 * (step % 7))
    if step % every == 0:
        save = saves / f"global_step{step}"
        shutil.copytree(saves / "global_step10", save, copy_function=shutil.copyfile, dirs_exist_ok=True)
        (saves / "latest").write_text(f"global_step{step}")
        tell("checkpoint_saved", global_step=step, tag=f"global_step{step}")
    time.sleep(0.05)
"""

NAMES = ("host", "pid", "process_start_unix_s", "process_start_ticks", "boot_id", "pid_namespace", "job_id")
"""What the hook reports of its process."""


def build(folder: Path) -> Path:
    """A run's folder that any account may write to."""
    for step in (10, 20):
        deepspeed(folder / "checkpoints", step)
    (folder / "checkpoints" / "latest").write_text("global_step20")
    (folder / "state" / "attempts").mkdir(parents=True)
    (folder / "trainer.py").write_text(TRAINER)
    for path in (folder, *folder.rglob("*")):
        path.chmod(0o777)
    return folder


def configure(folder: Path, launcher: str, *, mode: str = "act", judge: str = "", policy: str = "") -> None:
    (folder / "live.toml").write_text(
        '[run]\nname = "live"\ncheckpoints = "checkpoints"\nstate_dir = "state"\n'
        f"[launcher]\n{launcher}\n[watch]\npoll_interval_s = 0.2\n[judge]\n{judge}\n"
        f'[policy]\nmode = "{mode}"\nrestart_on_crash = true\nrestart_on_hang = true\n{policy}\n'
    )


def local(folder: Path) -> str:
    """A launcher that would start the trainer once more."""
    return f"command = {json.dumps([sys.executable, str(folder / 'trainer.py'), str(folder), *NAMES])}"


@contextmanager
def training(folder: Path, names: Sequence[str] = NAMES) -> Iterator[subprocess.Popen[bytes]]:
    """The trainer, started by a person: nothing in its environment says whose it is."""
    line = [sys.executable, str(folder / "trainer.py"), str(folder), *names]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("SENTINEL_")}
    with subprocess.Popen(line, env=environment) as process:
        try:
            until(lambda: len(list((folder / "checkpoints").glob("global_step*"))) > 2)
            yield process
        finally:
            (folder / "end").touch()
            process.kill()


def sentinel(
    folder: Path,
    verb: str,
    *words: str,
    before: Sequence[str] = (),
    over: Callable[[], object] = lambda: False,
    within_s: float = 120.0,
) -> subprocess.CompletedProcess[str]:
    """The command, as typed; one that goes on is ended once it is `over`, and after `within_s` at the latest."""
    line = [*before, sys.executable, "-m", "sentinel", verb, "--run", str(folder / "live.toml"), *words]
    process = subprocess.Popen(
        line, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    end = time.monotonic() + within_s
    while True:
        try:
            out, err = process.communicate(timeout=0.1)
            break
        except subprocess.TimeoutExpired:
            if over() or time.monotonic() > end:
                process.terminate()
                out, err = process.communicate(timeout=60)
                break
    return subprocess.CompletedProcess(line, process.returncode, out, err)


def files(folder: Path) -> set[str]:
    """What was there of checkpoints: none of it may be missing afterwards."""
    return {str(path.relative_to(folder)) for path in (folder / "checkpoints").glob("global_step*/*")}


def attempts(folder: Path) -> int:
    """How many there have been."""
    return len(list((folder / "state" / "attempts").iterdir()))


def events(folder: Path) -> list[dict[str, Any]]:
    """The incident log."""
    log = folder / "state" / "incidents.jsonl"
    return [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []
