"""Whose jobs they are, and what stands in for them once they are cancelled."""

from __future__ import annotations

from dataclasses import fields

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sentinel.adapters.slurm.jobs import (
    UNLIMITED,
    JobProperties,
    Mark,
    SlurmJob,
    Submission,
    mark_in,
    marked,
    resubmission,
    with_own_head,
)
from sentinel.adapters.slurm.whose_jobs import JobEvidence, JobStart, jobs_of_run

RUNNING_TASK = SlurmJob(id="10", array="7", tasks="1", state="RUNNING")
WAITING_TASKS = SlurmJob(id="7", array="7", tasks="2-4%1", state="PENDING")


def seen(*jobs: SlurmJob, known: tuple[str, ...] = (), job_name: str | None = None) -> list[str]:
    here = JobEvidence(configured=JobStart("[launcher] working_directory", "", None))
    found = jobs_of_run(jobs, run="tr8", known=known, job_name=job_name, but={"99"}, evidence=here)
    assert found.unclear is None
    return [j.shown for j in found.jobs]


@pytest.mark.parametrize("known", ["10", "7_1", "7_3"])
def test_a_journal_names_one_task_and_the_whole_array_is_the_runs(known: str) -> None:
    stranger = SlurmJob(id="11", name="other")
    assert seen(RUNNING_TASK, WAITING_TASKS, stranger, known=(known,)) == ["7_[2-4%1]", "7_1"]


def test_a_chain_is_the_runs_to_its_last_link() -> None:
    chain = (
        SlurmJob(id="20"),
        SlurmJob(id="21", state="PENDING", dependency="afterany:20(unfulfilled)"),
        SlurmJob(id="22", state="PENDING", dependency="afterok:99(unfulfilled),afternotok:21(unfulfilled)"),
        SlurmJob(id="23", state="PENDING", dependency="afterok:99(unfulfilled)"),
        SlurmJob(id="99", state="RUNNING"),
    )
    assert seen(*chain, known=("20",)) == ["20", "21", "22"]


def test_a_configured_name_finds_what_no_journal_has_named_yet() -> None:
    assert seen(
        SlurmJob(id="5", name="tr8", state="CONFIGURING"), SlurmJob(id="6", name="tr8-eval"), job_name="tr8"
    ) == ["5"]


def test_another_runs_mark_is_another_runs_job() -> None:
    ours = SlurmJob(id="5", comment=marked("", Mark(run="tr8", label="incident-1-r1", number=0)))
    theirs = SlurmJob(id="6", comment=marked("", Mark(run="tr8-13B", label="incident-1-r1", number=0)))
    assert seen(ours, theirs) == ["5"]


def test_the_job_that_sentinel_runs_in_is_not_the_runs() -> None:
    assert seen(SlurmJob(id="99", name="tr8"), job_name="tr8") == []


@pytest.mark.parametrize("state", ["RUNNING", "COMPLETING", "SUSPENDED", "CONFIGURING", "STAGE_OUT", "NEWS_TO_US"])
def test_whatever_has_not_ended_may_write(state: str) -> None:
    job = SlurmJob(id="5", state=state)
    assert seen(job, known=("5",)) == ["5"]
    assert not job.waits


@pytest.mark.parametrize("state", ["CANCELLED", "COMPLETED", "FAILED", "TIMEOUT", "NODE_FAIL", "OUT_OF_MEMORY"])
def test_what_has_ended_is_no_writer(state: str) -> None:
    assert seen(SlurmJob(id="5", state=state), known=("5",)) == []


@pytest.mark.parametrize("others", [(), (SlurmJob(id="9", array="7", tasks="5", state="PENDING"),)])
def test_a_throttle_that_squeue_no_longer_shows_is_kept(others: tuple[SlurmJob, ...]) -> None:
    """Once each waiting task stands for itself, squeue lists it as if it were alone."""
    last = SlurmJob(id="7", array="7", tasks="4", state="PENDING")
    indices = ",".join(["1", "4", *(job.tasks for job in others)])
    (again,) = resubmission((last, RUNNING_TASK, *others), {"7": 1})
    assert again == Submission(group="7", array=f"{indices}%1")
    assert again.throttle == 1
    (unlimited,) = resubmission((last, RUNNING_TASK, *others), {"7": None})
    assert (unlimited.array, unlimited.throttle) == (indices, None)


def test_what_the_queue_shows_of_a_throttle_is_newer_than_what_is_recorded() -> None:
    assert resubmission((WAITING_TASKS, RUNNING_TASK), {"7": 3})[0].throttle == 1


def test_a_throttle_that_slurm_has_not_taken_is_a_difference() -> None:
    asked, came = JobProperties(array_throttle=1), JobProperties()
    assert asked.differences(came) == ("array_throttle is None, not 1",)
    assert asked.differences(came, asked=["--array=1-4"]) == ()
    assert not [word for word in asked.arguments() if "array" in word]  # --array has it beside the indices


WORDS = st.sampled_from(("", "long", "gres:gpu:8", "gres/gpu:a100:4,cpu:3"))
NUMBERS = st.none() | st.integers(0, 9)
PROPERTIES = st.builds(
    JobProperties,
    **dict.fromkeys(
        (
            *("name", "partition", "account", "qos", "reservation", "features", "tres_per_node", "required_nodes"),
            *("excluded_nodes", "licenses", "working_directory"),
        ),
        WORDS,
    ),
    **dict.fromkeys(("nodes", "tasks", "cpus_per_task", "memory_per_node_mb", "memory_per_cpu_mb"), NUMBERS),
    time_limit_min=st.sampled_from((None, UNLIMITED, 30)),
    requeue=st.booleans(),
    array_throttle=NUMBERS,
)


@given(PROPERTIES)
def test_a_stand_in_is_asked_to_be_what_the_job_was(job: JobProperties) -> None:
    asked = dict(word.partition("=")[::2] for word in job.arguments())
    same = {"job-name": job.name, "partition": job.partition, "account": job.account, "qos": job.qos}
    same |= {"reservation": job.reservation, "constraint": job.features, "licenses": job.licenses}
    same |= {"nodelist": job.required_nodes, "exclude": job.excluded_nodes, "chdir": job.working_directory}
    numbers = {"nodes": job.nodes, "ntasks": job.tasks, "cpus-per-task": job.cpus_per_task}
    numbers |= {"time": "UNLIMITED" if job.time_limit_min == UNLIMITED else job.time_limit_min}
    memory = {"mem": job.memory_per_node_mb, "mem-per-cpu": job.memory_per_cpu_mb}
    gres = {"": "", "long": "", "gres:gpu:8": "gpu:8", "gres/gpu:a100:4,cpu:3": "gpu:a100:4"}[job.tres_per_node]
    wanted = {option: word for option, word in same.items() if word}
    wanted |= {option: str(number) for option, number in numbers.items() if number is not None}
    wanted |= {option: f"{number}M" for option, number in memory.items() if number is not None}
    wanted |= {"gres": gres} if gres else {}
    assert asked == {f"--{o}": v for o, v in wanted.items()} | {"--requeue" if job.requeue else "--no-requeue": ""}


@given(PROPERTIES, PROPERTIES)
def test_every_property_that_came_out_otherwise_is_named(asked: JobProperties, came: JobProperties) -> None:
    named = {said.partition(" is ")[0] for said in asked.differences(came)}
    other = {f.name for f in fields(asked) if getattr(asked, f.name) != getattr(came, f.name)}
    assert named == other - ({"time_limit_min"} if asked.time_limit_min is None else set())
    by_hand = asked.differences(came, asked=["--partition=long", "--mem-per-cpu=3G", "--no-requeue"])
    assert {said.partition(" is ")[0] for said in by_hand} == named - {"partition", "memory_per_cpu_mb", "requeue"}


def test_a_chain_is_submitted_again_in_its_order_with_its_conditions() -> None:
    jobs = (
        SlurmJob(id="30", state="PENDING", dependency="afterany:31(unfulfilled)"),
        SlurmJob(id="31", state="PENDING", dependency="afterok:29_*(unfulfilled),afterany:12+5(unfulfilled)"),
        SlurmJob(id="29", array="29", tasks="1-3%1", state="PENDING"),
        SlurmJob(id="32", array="29", tasks="0"),
        SlurmJob(id="33", state="PENDING", dependency="singleton(unfulfilled)"),
        SlurmJob(id="34", state="PENDING", dependency="afterok:29_2(unfulfilled)?afterany:33(unfulfilled)"),
    )
    assert resubmission(jobs, {}) == (
        Submission(group="29", array="0,1-3%1"),
        Submission(group="31", dependency="afterok:{0},afterany:12+5"),
        Submission(group="30", dependency="afterany:{1}"),
        Submission(group="33", dependency="singleton"),
        Submission(group="34", dependency="afterok:{0}_2?afterany:{3}"),
    )


def test_nothing_waits_for_ever_on_a_circle() -> None:
    circle = (
        SlurmJob(id="1", state="PENDING", dependency="afterany:2(unfulfilled)"),
        SlurmJob(id="2", state="PENDING", dependency="afterany:1(unfulfilled)"),
    )
    assert [s.group for s in resubmission(circle, {})] == ["1", "2"]


@given(
    run=st.text(min_size=1), label=st.text(min_size=1), number=st.integers(0, 99), words=st.text(alphabet="ab 1\"';-")
)
def test_a_mark_is_read_as_it_was_written_whatever_the_names(run: str, label: str, number: int, words: str) -> None:
    mark = Mark(run=run, label=label, number=number)
    comment = marked(words, mark)
    assert mark_in(comment) == mark
    assert marked(comment, mark) == comment
    assert comment.startswith(words.strip())


@pytest.mark.parametrize("state", ["TIMEOUT", "NODE_FAIL", "OUT_OF_MEMORY", "FAILED", "PREEMPTED"])
def test_a_walltime_end_and_a_failed_node_are_no_persons_doing(state: str) -> None:
    assert SlurmJob(id="5", state=state).broken_off


@pytest.mark.parametrize("state", ["COMPLETED", "CANCELLED", "RUNNING", "COMPLETING"])
def test_who_cancelled_a_job_will_know_why(state: str) -> None:
    assert not SlurmJob(id="5", state=state).broken_off


def test_the_task_at_the_anchor_becomes_a_job_of_its_own_before_the_rest() -> None:
    submissions = (
        Submission(group="7", array="1,3-5,8-12:2%2"),
        Submission(group="9", dependency="afterok:{0}"),
        Submission(group="10", dependency="afterany:{1},afterany:{0}"),
    )
    assert with_own_head(submissions) == (
        Submission(group="7", array="1"),
        Submission(group="7", array="3,4,5,8,10,12%2", dependency="afterany:{0}"),
        Submission(group="9", dependency="afterok:{0}:{1}"),
        Submission(group="10", dependency="afterany:{2},afterany:{0}:{1}"),
    )


@pytest.mark.parametrize("array", ["", "4", "4%1"])
def test_what_is_a_single_job_stays_one(array: str) -> None:
    alone = (Submission(group="7", array=array), Submission(group="9", dependency="afterok:{0}"))
    assert with_own_head(alone) == alone
