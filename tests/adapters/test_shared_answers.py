"""Worker processes of one daemon ask squeue for an account once for all; what is unknown to one is unknown to all."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from sentinel.adapters.slurm.client import Answer, SlurmClient
from sentinel.adapters.slurm.queue import Queue
from sentinel.adapters.slurm.shared_answers import SharedAnswers
from sentinel.vocabulary.errors import SlurmUnavailable

AWAY = "slurm_load_jobs error: Unable to contact slurm controller (connect failure)\n"
LINE = "\x1f".join(("{0}", "{0}", "(null)", "RUNNING", "gpt", "ana", "(null)", "(null)", "n1", "/runs")) + "\x1e\n"


class Controller:
    """squeue, which has one job more at each query."""

    def __init__(self) -> None:
        self.asked, self.away, self.now_s = 0, False, 1000.0

    def __call__(self, *_: object) -> Answer:
        self.asked += 1
        if self.away:
            return Answer(1, "", AWAY)
        return Answer(0, "".join(LINE.format(100 + number) for number in range(self.asked)), "")

    def worker(self, folder: Path) -> Queue:
        return Queue(SlurmClient(user="ana", run=self), lambda: self.now_s, shared=SharedAnswers(folder))


def ids(jobs: Sequence[object]) -> int:
    return len(jobs)


def test_three_workers_are_one_query_per_interval(tmp_path: Path) -> None:
    controller = Controller()
    workers = [controller.worker(tmp_path) for _ in range(3)]
    for second in range(60):
        controller.now_s = 1000.0 + second
        assert len({ids(worker.within(15.0)) for worker in workers}) == 1
    assert controller.asked == 4


def test_a_query_without_an_answer_is_unknown_to_all_and_is_not_asked_again_by_each(tmp_path: Path) -> None:
    controller = Controller()
    first, second = controller.worker(tmp_path), controller.worker(tmp_path)
    controller.away = True
    for worker in (first, second):
        with pytest.raises(SlurmUnavailable, match="Unable to contact"):
            worker.within(15.0)
    assert controller.asked == 1
    controller.away, controller.now_s = False, controller.now_s + 31.0
    assert (ids(first.within(15.0)), ids(second.within(15.0)), controller.asked) == (2, 2, 2)


def test_who_needs_a_fresh_answer_asks_and_what_was_forgotten_is_not_taken_from_another(tmp_path: Path) -> None:
    controller = Controller()
    first, second = controller.worker(tmp_path), controller.worker(tmp_path)
    assert ids(first.within(15.0)) == 1
    assert ids(second.afresh()) == 2
    first.forget()  # it has cancelled a job: an answer that was asked for before may be wrong
    assert ids(first.within(15.0)) == 3
    assert ids(second.within(15.0)) == 2  # its own is not old yet
    controller.now_s += 15.0
    assert (ids(second.within(15.0)), controller.asked) == (4, 4)


@pytest.mark.parametrize("left", ["", "{", '{"began_s": 1e300}', '{"began_s": "x", "jobs": 3}', "[1]"])
def test_an_answer_that_can_not_be_read_is_none(tmp_path: Path, left: str) -> None:
    controller = Controller()
    assert ids(controller.worker(tmp_path).within(15.0)) == 1
    (shared,) = tmp_path.glob("*.json")
    shared.write_text(left)
    assert ids(controller.worker(tmp_path).within(15.0)) == 2


def test_without_its_folder_each_worker_asks_for_itself(tmp_path: Path) -> None:
    controller = Controller()
    first, second = controller.worker(tmp_path / "gone"), controller.worker(tmp_path / "gone")
    assert (ids(first.within(15.0)), ids(second.within(15.0))) == (1, 2)


def test_a_worker_that_is_killed_while_it_asks_holds_nobody_up(tmp_path: Path) -> None:
    answers, (reader, writer) = SharedAnswers(tmp_path), os.pipe()
    child = os.fork()
    if child == 0:
        with answers.asking("ana", waits=True):
            os.write(writer, b"1")
            time.sleep(60)
        os._exit(0)
    assert os.read(reader, 1) == b"1"
    with answers.asking("ana", waits=False) as may_ask:
        assert not may_ask
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    with answers.asking("ana", waits=True) as may_ask:
        assert may_ask
