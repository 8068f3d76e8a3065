"""A trainer that does nothing but live and park: `python parking_trainer.py FOLDER [DOES]`.

It reports its start, makes steps, saves, and obeys PARK, RESUME, RELEASE and KILL as docs/IN_PLACE.md says, without
torch. DOES: obeys; deaf (sees no PARK); dies (where it is resumed); hangs (where it is resumed: never reports);
restless (writes its log while it is parked); vanishes (by SIGKILL, where it is to be resumed); ignores (RESUME);
full (its disk has no room for the whole of `parked`). It writes event files where FOLDER has a folder `tensorboard`.
FOLDER's file `pace` may say how many seconds a step takes (`step_s`), and a start before its journal is there and
again before its report (`load_s`). It says that the states of the first three tens which it does not save are in
memory, and stay.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import struct
import sys
import time
from pathlib import Path
from typing import Any, BinaryIO, TextIO

import google_crc32c

from sentinel.vocabulary.parking import (
    EXIT_PARKED_TOO_LONG,
    FILES,
    PARKED_TOO_LONG,
    ParkRequest,
    ReleaseRequest,
    Request,
    ResumeRequest,
    decode_request,
    ended_by_resume,
    step_in_memory,
)

STEP_S, POLL_S, SAVES_EVERY = 0.02, 0.05, 20
KEPT_EVERY, KEPT = 10, 3  # states in memory


def own_process() -> dict[str, Any]:
    """What the hook reports of its process, and of its job in Slurm."""
    stat = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    boot = next(int(line.split()[1]) for line in Path("/proc/stat").read_text().splitlines() if line[:5] == "btime")
    return {
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "process_start_unix_s": boot + int(stat[19]) / os.sysconf("SC_CLK_TCK"),
        "process_start_ticks": int(stat[19]),
        "boot_id": Path("/proc/sys/kernel/random/boot_id").read_text().strip(),
        "pid_namespace": os.readlink("/proc/self/ns/pid"),  # noqa: PTH115 - what it leads to is no path
        **own_job(),
    }


def own_job() -> dict[str, Any]:
    array, task, job = (os.environ.get(f"SLURM_{name}") for name in ("ARRAY_JOB_ID", "ARRAY_TASK_ID", "JOB_ID"))
    if job is None:
        return {}
    return {
        "job_id": f"{array}_{task}" if array else job,
        "restart_count": int(os.environ.get("SLURM_RESTART_COUNT", "0")),
    }


def pace(folder: Path) -> dict[str, float]:
    file = folder / "pace"
    return {"step_s": STEP_S, "load_s": 0.0} | (json.loads(file.read_text()) if file.exists() else {})


def event(step: int) -> bytes:
    """A record of an event file: a loss at the step, by TensorFlow's event.proto."""
    number, rest = b"", step
    while rest > 127:
        number, rest = number + bytes([rest & 127 | 128]), rest >> 7
    value = b"\x0a\x04loss\x15" + struct.pack("<f", step / 10)
    summary = b"\x0a" + bytes([len(value)]) + value
    data = b"\x09" + struct.pack("<d", 1.7e9 + step) + b"\x10" + number + bytes([rest])
    data += b"\x2a" + bytes([len(summary)]) + summary
    length = struct.pack("<Q", len(data))
    return length + masked(length) + data + masked(data)


def masked(data: bytes) -> bytes:
    crc = google_crc32c.value(data)
    return struct.pack("<I", (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF)


class Attempt:
    """One attempt of the process: its journal, and the step that it has come to."""

    def __init__(self, folder: Path, does: str, *, parent: int | None, before: Attempt | None = None) -> None:
        self.folder, self.state, self.does = folder, folder / "state", does
        self.events: BinaryIO | None = None  # opened by the next step
        self.pace = pace(folder)
        time.sleep(self.pace["load_s"])
        self.number = len(list((self.state / "attempts").iterdir())) + 1
        self.journal: TextIO = (self.state / "attempts" / f"{self.number:04d}.jsonl").open("x")
        time.sleep(self.pace["load_s"])
        latest = folder / "checkpoints" / "latest"
        self.step = int(latest.read_text().removeprefix("global_step")) if latest.exists() else 0
        self.held: list[int] = []
        if before is not None and (step := step_in_memory(before.target)) is not None:
            if step not in before.held:
                sys.exit(f"memory:{step} is not kept")
            self.step, self.held = step, [one for one in before.held if one <= step]
        self.target: str | None = None  # of RESUME
        overrides = self.state / "overrides.json"
        rollback = json.loads(overrides.read_text())["rollback"] if overrides.exists() else None
        self.tell(
            "run_started",
            run="live",
            rollback=rollback,
            resumed_from=self.step or None,
            parent_attempt=parent or (self.number - 1 or None),
            can_park=True,
            in_place=parent is not None,
            **own_process(),
        )

    def tell(self, kind: str, **values: Any) -> None:
        record = {"kind": kind, "attempt": self.number, "time_unix_s": time.time(), **values}
        line = json.dumps(record) + "\n"
        self.journal.write(line[:40] if (self.does, kind) == ("full", "parked") else line)
        self.journal.flush()

    def asked(self, kind: type[Request], rollback: str | None = None) -> Request | None:
        """What the file asks of this attempt; of a park only for its rollback."""
        try:
            request = decode_request(kind, (self.state / FILES[kind]).read_text())  # type: ignore[index]
        except OSError:
            return None
        fits = request.attempt == self.number and rollback in (None, request.rollback)
        return request if fits else None

    def train(self) -> str | None:
        """Steps until it is resumed in place: then that rollback; None at any other end."""
        while not (self.folder / "end").exists() and not (self.state / "KILL").exists():
            began_s = time.monotonic()
            self.step += 1
            loss = "nan" if (self.folder / f"nan{self.number}").exists() else 3.0 + 0.01 * (self.step % 7)
            self.log_event()
            time.sleep(self.pace["step_s"])
            self.tell("sample", global_step=self.step, loss=loss, step_time_s=time.monotonic() - began_s)
            if self.step % SAVES_EVERY == 0:
                self.save()
            elif self.step % KEPT_EVERY == 0 and len(self.held) < KEPT:
                self.held.append(self.step)
                self.tell("memory_target", global_step=self.step, held=self.held, digest="0f", size_bytes=9)
            park = None if self.does == "deaf" else self.asked(ParkRequest)
            if park is not None and park.deadline_unix_s > time.time() and (after := self.park(park)) is not None:
                return after
        self.finish("kill_file" if (self.state / "KILL").exists() else "finished")
        return None

    def save(self) -> None:
        """A copy of global_step10 with a file of this attempt beside it; whole or not at all."""
        saves, tag = self.folder / "checkpoints", f"global_step{self.step}"
        beside = saves / f".{tag}.new"
        shutil.rmtree(beside, ignore_errors=True)
        shutil.copytree(saves / "global_step10", beside, copy_function=shutil.copyfile)
        for old in beside.glob("attempt-*"):
            old.unlink()
        (beside / f"attempt-{self.number}").write_text(f"{tag} of attempt {self.number}")
        if (saves / tag).exists():
            shutil.copytree(beside, saves / tag, copy_function=os.replace, dirs_exist_ok=True)
        else:
            beside.rename(saves / tag)
        (saves / ".latest.new").write_text(tag)
        (saves / ".latest.new").replace(saves / "latest")
        self.tell("checkpoint_saved", global_step=self.step, tag=tag)

    def log_event(self) -> None:
        folder = self.folder / "tensorboard"
        if self.events is None and folder.is_dir():
            name = f"events.out.tfevents.{time.time():.0f}.host.{os.getpid()}.{self.number}"
            self.events = (folder / name).open("ab", buffering=0)
        if self.events is not None:
            self.events.write(event(self.step))

    def close_events(self) -> None:
        if self.events is not None:
            self.events.close()
            self.events = None

    def park(self, park: ParkRequest) -> str | None:
        """The rollback that it is resumed for; None where it is released."""
        self.close_events()
        self.tell("parked", global_step=self.step, rollback=park.rollback)
        while time.time() < park.deadline_unix_s:
            if (self.state / "KILL").exists():
                self.finish("kill_file")
                sys.exit(0)
            if self.does != "ignores" and (resume := self.asked(ResumeRequest, park.rollback)) is not None:
                if self.does == "vanishes":
                    os.kill(os.getpid(), signal.SIGKILL)
                self.target = resume.target
                self.finish(ended_by_resume(park.rollback))
                return park.rollback
            if self.asked(ReleaseRequest, park.rollback) is not None:
                self.tell("released", global_step=self.step, rollback=park.rollback)
                return None
            if self.does == "restless":
                with (self.state / "job.log").open("a") as log:
                    log.write("a line of a process that is not still\n")
            time.sleep(POLL_S)
        self.finish(PARKED_TOO_LONG)
        sys.exit(EXIT_PARKED_TOO_LONG)

    def finish(self, reason: str) -> None:
        self.tell("run_finished", global_step=self.step, reason=reason)
        self.journal.close()


def main(folder: Path, does: str) -> int:
    parent: int | None = None
    attempt: Attempt | None = None
    while True:
        attempt = Attempt(folder, does if parent is None else "obeys", parent=parent, before=attempt)
        if attempt.train() is None:
            return 0
        if does == "dies":
            print("the load failed", file=sys.stderr)
            return 1
        while does == "hangs":
            time.sleep(1.0)
        parent = attempt.number


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2] if len(sys.argv) > 2 else "obeys"))
