"""Jobs that runs name by id: one query for all of a daemon's runs, and unknown is never absent."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from threading import Barrier, Thread

import pytest

from sentinel.adapters.slurm.client import Answer, SlurmClient
from sentinel.adapters.slurm.named_jobs import NamedJobs
from sentinel.adapters.slurm.queue import Queues
from sentinel.vocabulary.errors import SlurmUnavailable

NO_SUCH_JOB = "slurm_load_jobs error: Invalid job id specified\n"  # Slurm 22.05: one id, which it does not know
NO_ID = "squeue: error: Invalid job id: {}\n"  # … and an id that is none, among any number of them
AWAY = "slurm_load_jobs error: Unable to contact slurm controller (connect failure)\n"


class Controller:
    """squeue as Slurm 22.05 answers it: `known` are the jobs' ids; `asked` is what each query asked for, and when."""

    def __init__(self, known: Sequence[str]) -> None:
        self.known, self.now_s, self.away = list(known), 0.0, False
        self.asked: list[tuple[float, list[str]]] = []

    def __call__(self, command: Sequence[str], *_: object) -> Answer:
        ids = next(word for word in command if word.startswith("--jobs=")).removeprefix("--jobs=").split(",")
        self.asked.append((self.now_s, ids))
        if self.away:
            return Answer(1, "", AWAY)
        if (none := next((one for one in ids if not one.isdigit()), None)) is not None:
            return Answer(1, "", NO_ID.format(none))
        if len(ids) == 1 and ids[0] not in self.known:
            return Answer(1, "", NO_SUCH_JOB)
        fields = ("{0}", "{0}", "(null)", "RUNNING", "gpt", "ana", "(null)", "(null)", "n1", "/runs")
        lines = ("\x1f".join(fields).format(one) + "\x1e\n" for one in ids if one in self.known)
        return Answer(0, "".join(lines), "")

    def jobs(self) -> NamedJobs:
        return NamedJobs(SlurmClient(run=self), lambda: self.now_s)


def shown(named: NamedJobs, ids: Sequence[str], age_s: float = 15.0) -> list[str]:
    return sorted(job.id for job in named.within(age_s, ids))


def test_twenty_runs_that_begin_at_different_times_come_to_be_one_query_per_interval() -> None:
    ids = [str(100 + number) for number in range(20)]
    controller = Controller(ids)
    named = controller.jobs()
    for second in range(300):
        controller.now_s = second
        for number, one in enumerate(ids):
            if second >= number:  # a run begins at each second
                assert shown(named, [one]) == [one]
    later = [ids for at, ids in controller.asked if at >= 60]
    assert len(later) == (300 - 60) / 15
    assert all(sorted(together) == ids for together in later)


def test_an_answer_is_never_older_than_the_run_allows() -> None:
    controller = Controller(["1", "2"])
    named = controller.jobs()
    for second in range(0, 200, 3):
        controller.now_s = second
        shown(named, ["1"], 60.0)
        shown(named, ["2"], 10.0)
        assert second - max(at for at, ids in controller.asked if "2" in ids) < 10.0
        assert second - max(at for at, ids in controller.asked if "1" in ids) < 60.0


def test_one_failed_query_makes_every_run_unknown_and_none_gone() -> None:
    controller = Controller(["1", "2", "3"])
    named = controller.jobs()
    for one in controller.known:
        shown(named, [one])
    controller.away, controller.now_s = True, 20.0
    for one in controller.known:
        with pytest.raises(SlurmUnavailable, match="Unable to contact slurm controller"):
            named.within(15.0, [one])
    assert len(controller.asked) == 4  # the runs share the failure, too
    controller.away, controller.now_s = False, 60.0
    assert [shown(named, [one]) for one in controller.known] == [["1"], ["2"], ["3"]]
    assert len(controller.asked) == 5


def test_a_controller_that_does_not_answer_is_asked_ever_more_rarely() -> None:
    controller = Controller(["1"])
    controller.away = True
    named = controller.jobs()
    for second in range(0, 1000, 5):
        controller.now_s = second
        with pytest.raises(SlurmUnavailable):
            named.within(15.0, ["1"])
    assert [at for at, _ in controller.asked] == [0, 30, 90, 210, 450, 750]


@pytest.mark.parametrize("odd", ["abc", "0", "4294967295", "99999999999", "4_2", ""])
def test_what_is_no_job_id_hides_no_other_runs_job(odd: str) -> None:
    controller = Controller(["7"])
    assert shown(controller.jobs(), [odd, "7"]) == ["7"]
    assert controller.asked == [(0.0, ["7"])]


def test_an_error_for_several_ids_says_nothing_about_any_of_them() -> None:
    """Only of one single id it is the controller's answer that the job is not there."""
    refusing = SlurmClient(run=lambda *_: Answer(1, "", NO_SUCH_JOB))
    assert refusing.jobs_by_id(["7"]) == ()
    with pytest.raises(SlurmUnavailable):
        refusing.jobs_by_id(["7", "8"])


def test_ten_thousand_ids_fit_the_command_line() -> None:
    ids = [str(1_000_000_000 + number) for number in range(10_000)]
    controller = Controller(ids)
    assert len(controller.jobs().within(15.0, ids)) == 10_000
    assert len(controller.asked) == 5
    assert max(len(",".join(asked)) for _, asked in controller.asked) < 128 * 1024 - len("--jobs=")


def test_an_id_that_slurm_does_not_know_is_asked_for_rarely() -> None:
    controller = Controller([])
    named = controller.jobs()
    for second in range(0, 600, 5):
        controller.now_s = second
        assert shown(named, ["1"]) == []
    assert [at for at, _ in controller.asked] == [0, 300]


def test_what_no_run_names_any_more_is_neither_asked_for_nor_kept() -> None:
    controller = Controller(["1", "2"])
    named = controller.jobs()
    shown(named, ["1", "2"])
    for second in range(5, 8000, 5):
        controller.now_s = second
        shown(named, ["2"])
    assert all(ids == ["2"] for at, ids in controller.asked if at > 320)
    assert named.groups() == {"2"}


def test_afresh_asks_at_once_and_for_nothing_else() -> None:
    controller = Controller(["1", "2"])
    named = controller.jobs()
    shown(named, ["1", "2"])
    assert [job.id for job in named.afresh(["1"])] == ["1"]
    assert named.afresh([]) == ()
    assert [ids for _, ids in controller.asked] == [["1", "2"], ["1"]]
    controller.away = True
    with pytest.raises(SlurmUnavailable):
        named.afresh(["1"])


def test_who_comes_while_it_is_asked_takes_the_last_answer() -> None:
    controller, slow, asked, answer = Controller(["1", "2"]), [False], Barrier(2, timeout=30), Barrier(2, timeout=30)

    def asking(command: Sequence[str], environment: Mapping[str, str], timeout_s: float) -> Answer:
        if slow[0]:
            asked.wait()
            answer.wait()
        return controller(command, environment, timeout_s)

    named = NamedJobs(SlurmClient(run=asking), lambda: controller.now_s)
    shown(named, ["1", "2"])
    slow[0], controller.now_s = True, 20.0
    other = Thread(target=shown, args=(named, ["1"]), daemon=True)
    other.start()
    asked.wait()
    assert shown(named, ["2"]) == ["2"]  # does not wait
    answer.wait()
    other.join(30)
    assert len(controller.asked) == 2


def test_the_accounts_of_one_daemon_share_the_jobs_that_are_named() -> None:
    queues = Queues()
    assert queues.of(SlurmClient(user="ana")).named is queues.of(SlurmClient(user="ben")).named
    assert queues.of(SlurmClient(user="ana")) is not queues.of(SlurmClient(user="ben"))
