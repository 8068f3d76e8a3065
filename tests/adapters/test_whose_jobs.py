"""A job is the run's by evidence; a name that two runs share is none."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sentinel.adapters.slurm.jobs import Mark, SlurmJob, marked
from sentinel.adapters.slurm.whose_jobs import Evidence, Found, Start, jobs_of_run

OURS = SlurmJob(id="5", name="train", directory="/a")
NEXT = SlurmJob(id="6", name="train", directory="/a", state="PENDING")
BEHIND = replace(NEXT, dependency="afterany:5(unfulfilled)")
MARK = marked("", Mark(run="other", label="incident-1-r1", number=0))
CONFIGURED = Start("[launcher] working_directory", "/a", None)
SEEN = Start("job 3", "/a", "train.sh")


def found(
    *jobs: SlurmJob,
    known: tuple[str, ...] = (),
    scripts: dict[str, str] | None = None,
    configured: Start | None = CONFIGURED,
    recorded: tuple[Start, ...] = (),
) -> Found:
    runs = (scripts or {}).get
    evidence = Evidence(configured=configured, recorded=lambda: recorded, runs=lambda job: runs(job.group))
    return jobs_of_run(jobs, run="tr8", known=known, job_name="train", but=(), evidence=evidence)


def ids(answer: Found) -> list[str]:
    assert answer.unclear is None
    return [job.id for job in answer.jobs]


@pytest.mark.parametrize("recorded", [(), (SEEN,)])
def test_another_runs_mark_outweighs_name_and_work_directory(recorded: tuple[Start, ...]) -> None:
    assert ids(found(replace(OURS, comment=MARK), recorded=recorded)) == []
    assert ids(found(OURS, replace(BEHIND, comment=MARK), known=("5",), recorded=recorded)) == ["5"]


def test_a_job_of_another_runs_mark_that_the_journal_names_is_unknown() -> None:
    answer = found(replace(OURS, comment=MARK), known=("5",))
    assert answer.jobs == ()
    assert "names job 5, which is marked as a job of run other" in str(answer.unclear)
    assert ids(found(replace(OURS, comment=MARK, state="COMPLETED"), known=("5",))) == []


def test_a_name_in_another_work_directory_is_another_runs_once_a_job_of_the_run_is_known() -> None:
    theirs = replace(NEXT, directory="/b")
    assert ids(found(OURS, theirs, known=("5",))) == ["5"]
    assert ids(found(theirs, recorded=(SEEN,))) == []
    answer = found(theirs)  # before that, the configured folder may be wrong
    assert answer.jobs == ()
    assert "job 6 has this run's job name, and works in /b, not in /a ([launcher] working_directory)" in str(
        answer.unclear
    )
    assert found(theirs, configured=None).unclear is not None


@pytest.mark.parametrize(("runs", "is_ours"), [("train.sh", True), (None, True), ("other.sh", False)])
def test_the_same_name_and_work_directory_with_another_script_is_unknown(runs: str | None, is_ours: bool) -> None:
    answer = found(NEXT, recorded=(SEEN,), scripts={"6": runs} if runs else {})
    assert [job.id for job in answer.jobs] == (["6"] if is_ours else [])
    assert (answer.unclear is None) == is_ours
    assert is_ours or "job 6 has the name and the work directory of job 3, and another script" in str(answer.unclear)


def test_two_jobs_that_run_at_once_under_one_name_are_unknown() -> None:
    second = replace(OURS, id="7")
    for known in ((), ("5",)):
        assert "job 5 and job 7 run at once under one name" in str(found(OURS, second, known=known).unclear)
    assert ids(found(OURS, second, known=("5", "7"))) == ["5", "7"]
    assert ids(found(replace(OURS, state="COMPLETING"), second, known=("5",))) == ["5", "7"]


def test_two_scripts_under_one_name_before_the_first_report_are_unknown() -> None:
    waiting = replace(NEXT, id="7")
    one_script = {"6": "train.sh", "7": "train.sh"}
    assert ids(found(NEXT, waiting, scripts=one_script)) == ["6", "7"]
    answer = found(NEXT, waiting, scripts=one_script | {"7": "other.sh"})
    assert "job 6 and job 7 have one name, and different scripts" in str(answer.unclear)


@pytest.mark.parametrize(
    ("behind", "scripts", "is_ours"),
    [
        (BEHIND, {}, True),
        (BEHIND, {"5": "a", "6": "a"}, True),
        (BEHIND, {"5": "a", "6": "b"}, None),
        (replace(BEHIND, name="train-2"), {"5": "a", "6": "a"}, True),
        (replace(BEHIND, name="eval"), {"5": "a", "6": "b"}, False),
        (replace(BEHIND, name="eval"), {}, False),
        (replace(BEHIND, directory="/b"), {"5": "a", "6": "a"}, False),
    ],
)
def test_what_waits_for_a_job_of_the_run_is_the_runs_where_it_was_submitted_alike(
    behind: SlurmJob, scripts: dict[str, str], is_ours: bool | None
) -> None:
    answer = found(OURS, behind, known=("5",), scripts=scripts)
    assert [job.id for job in answer.jobs] == (["5", "6"] if is_ours else ["5"])
    assert (answer.unclear is None) == (is_ours is not None)


def test_scripts_are_asked_for_only_where_name_or_dependency_speaks_for_a_job() -> None:
    asked: list[str] = []

    def runs(job: SlurmJob) -> None:
        asked.append(job.id)

    stranger = SlurmJob(id="9", name="other", directory="/a")
    known = replace(OURS, name="other")
    jobs_of_run((known, stranger), run="tr8", known=("5",), job_name="train", but=(), evidence=Evidence(runs=runs))
    assert asked == []
