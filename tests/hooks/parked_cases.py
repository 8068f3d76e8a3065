"""Run under torchrun with 2 ranks: a loop that is asked to park, case by case. One JSON line per case and rank.

torchrun --nproc_per_node 2 parked_cases.py
"""

from __future__ import annotations

import json
import logging
import os
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch.distributed as dist

from sentinel.vocabulary.parking import FILES, ParkRequest, ReleaseRequest, ResumeRequest, encode_request
from tests.hooks import own_collectives
from tests.hooks.patient import patient
from trainer_hooks.control import parking, watched_files
from trainer_hooks.control.parking import Parking
from trainer_hooks.control.step_requests import SIGTERM, StepRequests
from trainer_hooks.errors import Guard
from trainer_hooks.gpt.__main__ import leave

ATTEMPT, ROLLBACK = 3, "incident-1-r1"
ASKED = {5: ROLLBACK, 20: ROLLBACK, 30: "incident-1-r2"}  # step: for which rollback PARK is written after it
RANK_0, RANK_1 = (0,), (1,)
sentences: list[str] = []


class Sentences(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        sentences.append(record.getMessage())


def put(folder: Path, request: ParkRequest | ResumeRequest | ReleaseRequest) -> None:
    beside = folder / f".{FILES[type(request)]}.new"
    beside.write_text(encode_request(request))
    beside.replace(folder / FILES[type(request)])


def resume(rollback: str = ROLLBACK, attempt: int = ATTEMPT) -> ResumeRequest:
    return ResumeRequest(rollback=rollback, attempt=attempt, target="global_step40", global_step=40)


class Loop:
    """One rank's: 60 boundaries at most, at each of which it is told what to do."""

    def __init__(self, folder: Path, deadline_s: float) -> None:
        self.folder, self.deadline_s = folder, deadline_s
        self.stop, self.releases_of = 0, list[str]()
        self.found: dict[str, Any] = {"parked_at": [], "closed_at": 0.0, "records": [], "after": []}

    def run(self, closes: Callable[[], None], parked: Callable[[Loop], None]) -> dict[str, Any]:
        place = Parking(self.folder, Guard(), lambda: ATTEMPT)
        requests = StepRequests.of_training(self.folder, Guard(), {}, place.file.accepts)
        for step in range(1, 60):
            dist.barrier()
            if step in ASKED and dist.get_rank() == 0:
                self.asks(ASKED[step])
            time.sleep(0.02)
            if not requests.at_boundary().park:
                continue
            threading.Timer(0.7, parked, [self]).start()
            after = place.park(close=lambda: self._close(closes), report=self._report, stop=lambda: self.stop)
            self.found["parked_at"].append(step)
            self.found["after"].append([after.ends, None if after.resume is None else after.resume.target])
            if after.ends is not None:
                break
        requests.close()
        return self.found | {"steps": step}

    def asks(self, rollback: str) -> None:
        deadline = time.time() + self.deadline_s
        put(self.folder, ParkRequest(rollback=rollback, attempt=ATTEMPT, deadline_unix_s=deadline))

    def releases(self) -> None:
        """By whatever rollback it is parked for."""
        self.releases_of.append(ASKED[5 if not self.releases_of else 30])
        put(self.folder, ReleaseRequest(rollback=self.releases_of[-1], attempt=ATTEMPT))

    def _close(self, closes: Callable[[], None]) -> None:
        closes()
        self.found["closed_at"] = time.time()

    def _report(self, kind: type[Any], rollback: str, *, not_parked: str | None = None) -> None:
        told = kind.__name__ if not_parked is None else not_parked
        self.found["records"].append([told, rollback, time.time()])


def case(
    name: str,
    parked: Callable[[Loop], None] = lambda _: None,
    closes: Callable[[], None] = lambda: None,
    *,
    deadline_s: float = 60.0,
) -> None:
    """`parked` is called on each rank soon after it has parked, in a thread; `closes` closes its files."""
    shared: list[Any] = [tempfile.mkdtemp() if dist.get_rank() == 0 else None]
    dist.broadcast_object_list(shared)
    sentences.clear()
    os.environ.pop("SENTINEL_ROLLBACK", None)
    found = Loop(Path(shared[0]), deadline_s).run(closes, parked)
    told = {"said": list(sentences), "rollback": os.environ.get("SENTINEL_ROLLBACK")}
    dist.barrier()
    line = {"case": name, "rank": dist.get_rank(), "refused": own_collectives.refused}
    os.write(1, (json.dumps(line | found | told) + "\n").encode())


def on(ranks: tuple[int, ...], what: Callable[[Loop], Any]) -> Callable[[Loop], None]:
    return lambda loop: what(loop) if dist.get_rank() in ranks else None


def no_disk() -> None:
    raise OSError(28, "No space left on device")


def late() -> None:
    if dist.get_rank() == 1:
        time.sleep(2.0)


def fails() -> None:
    if dist.get_rank() == 1:
        no_disk()


def resumed_at_last(loop: Loop) -> None:
    """Files of another rollback and of another attempt come first."""
    put(loop.folder, resume(rollback="incident-1-r9"))
    put(loop.folder, ReleaseRequest(rollback=ROLLBACK, attempt=ATTEMPT - 1))
    time.sleep(0.6)
    put(loop.folder, resume())


def stops(loop: Loop) -> None:
    loop.stop = SIGTERM


def main() -> None:
    patient()
    watched_files.PERIOD_S, parking.POLL_S = 0.01, 0.05
    dist.init_process_group("gloo")
    own_collectives.forbid()
    logging.getLogger("trainer_hooks").addHandler(Sentences())
    logging.getLogger("trainer_hooks").setLevel(logging.INFO)
    case("released", on(RANK_0, Loop.releases))
    case("resumed", on(RANK_0, resumed_at_last))
    case("killed", on(RANK_0, lambda loop: (loop.folder / "KILL").touch()))
    case("SIGTERM of rank 1", on(RANK_1, stops))
    case("the deadline", deadline_s=1.5)
    case("rank 1 is slow", on(RANK_0, lambda loop: put(loop.folder, resume())), late)
    case("rank 1 can't close", closes=fails)
    case("rank 1 is late for the deadline", closes=late, deadline_s=1.0)
    dist.barrier()


if __name__ == "__main__":
    main()
    leave(0)
