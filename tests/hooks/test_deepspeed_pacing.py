"""Our schedules give, at every step, what the installed DeepSpeed's own schedulers give."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from deepspeed.runtime.data_pipeline.curriculum_scheduler import CurriculumScheduler
from deepspeed.runtime.data_pipeline.data_routing.scheduler import RandomLTDScheduler
from hypothesis import given, settings
from hypothesis import strategies as st

from sentinel.jobscript.megatron_options import discrete_curriculum
from sentinel.vocabulary.pacing import (
    DifficultySchedule,
    FixedDiscrete,
    FixedLinear,
    FixedRoot,
    RandomLtdSchedule,
    staircase,
)
from sentinel.vocabulary.pacing.deepspeed import curriculum_learning, data_efficiency

MULTIPLE = st.sampled_from((1, 8, 16))
TOTAL = st.integers(1, 400)
ANCHOR = st.integers(0, 10_000)


@st.composite
def between(draw: st.DrawFn) -> dict[str, int]:
    """Start and full length of which both are multiples: there, DeepSpeed has the same schedule."""
    multiple = draw(MULTIPLE)
    start = draw(st.integers(1, 64))
    full = draw(st.integers(start, start + 200))
    return {"start": start * multiple, "full": full * multiple, "multiple": multiple}


def block(schedule: FixedLinear | FixedRoot | DifficultySchedule, schedule_type: str) -> dict[str, Any]:
    config = {"total_curriculum_step": schedule.total_steps, "difficulty_step": schedule.multiple}
    if schedule_type != "fixed_linear":
        config["root_degree"] = schedule.root_degree
    return {
        "enabled": True,
        "min_difficulty": schedule.start,
        "max_difficulty": schedule.full,
        "schedule_type": schedule_type,
        "schedule_config": config,
    }


@settings(deadline=None)
@given(between(), TOTAL)
def test_fixed_linear_is_deepspeeds_at_the_same_step(lengths: dict[str, int], total: int) -> None:
    ours = FixedLinear(**lengths, total_steps=total)
    theirs = CurriculumScheduler(block(ours, "fixed_linear"))
    for step in range(1, total + 20):
        assert ours.seqlen(step) == theirs.update_difficulty(step), step
    assert curriculum_learning({"curriculum_learning": block(ours, "fixed_linear")}) == ours


@settings(deadline=None)
@given(between(), TOTAL, st.integers(1, 5) | st.floats(0.25, 8))
def test_fixed_root_is_deepspeeds_at_the_same_step(lengths: dict[str, int], total: int, degree: float) -> None:
    ours = FixedRoot(**lengths, total_steps=total, root_degree=degree)
    theirs = CurriculumScheduler(block(ours, "fixed_root"))
    for step in range(1, total + 20):
        assert ours.seqlen(step) == theirs.update_difficulty(step), step
    assert curriculum_learning({"curriculum_learning": block(ours, "fixed_root")}) == ours


@given(
    st.lists(st.integers(1, 4096), min_size=2, max_size=8, unique=True).map(sorted),
    st.lists(st.integers(0, 400), min_size=7, max_size=7, unique=True).map(sorted),
)
def test_fixed_discrete_is_deepspeeds_at_the_same_step(stages: list[int], lasts: list[int]) -> None:
    lasts = lasts[: len(stages) - 1]
    config = {
        "enabled": True,
        "min_difficulty": stages[0],
        "max_difficulty": stages[-1],
        "schedule_type": "fixed_discrete",
        "schedule_config": {"difficulty": stages, "max_step": lasts},
    }
    ours = FixedDiscrete(start=stages[0], full=stages[-1], difficulties=tuple(stages), max_steps=tuple(lasts))
    assert curriculum_learning({"curriculum_learning": config}) == ours
    theirs = CurriculumScheduler(config)
    for step in range(1, lasts[-1] + 20):
        assert ours.seqlen(step) == theirs.get_difficulty(step), step


@settings(deadline=None)
@given(between().filter(lambda b: b["start"] < b["full"]), TOTAL, ANCHOR, st.sampled_from((1.0, 2.0, 3.0)))
def test_a_schedule_that_begins_at_an_anchor_is_deepspeeds_staircase(
    lengths: dict[str, int], total: int, anchor: int, degree: float
) -> None:
    ours = FixedRoot(**lengths, total_steps=total, root_degree=degree, anchor_step=anchor)
    theirs, listed = CurriculumScheduler(discrete_curriculum(ours)), staircase(ours)
    for step in range(anchor + 1, anchor + total + 20):
        assert ours.seqlen(step) == theirs.update_difficulty(step) == listed.seqlen(step), step
    from_zero = CurriculumScheduler(block(replace(ours, anchor_step=0), "fixed_root"))
    assert [ours.seqlen(anchor + t) for t in range(1, total + 9)] == [
        from_zero.get_difficulty(t) for t in range(1, total + 9)
    ]


def test_a_full_length_that_is_no_multiple_is_reached_at_its_step_here_and_later_there() -> None:
    ours = FixedLinear(start=8, full=100, total_steps=10)
    theirs = CurriculumScheduler(block(ours, "fixed_linear"))
    assert (ours.seqlen(10), theirs.get_difficulty(10)) == (100, 96)
    assert ours.seqlen(11) == theirs.get_difficulty(11) == 100


def test_a_start_that_is_no_multiple_is_kept_here_and_rounded_up_there() -> None:
    ours = FixedLinear(start=20, full=104, total_steps=100)
    assert (ours.seqlen(1), CurriculumScheduler(block(ours, "fixed_linear")).get_difficulty(1)) in ((20, 24), (20, 16))


@settings(deadline=None)
@given(between(), TOTAL, st.sampled_from((1.0, 2.0, 3.0)))
def test_a_metrics_difficulty_is_deepspeeds_at_the_same_step(values: dict[str, int], total: int, degree: float) -> None:
    ours = DifficultySchedule(kind="value", **values, total_steps=total, root_degree=degree)
    told = block(ours, "fixed_root")
    theirs = CurriculumScheduler(told)
    for step in range(1, total + 20):
        assert ours.difficulty(step) == theirs.update_difficulty(step), step
    told.pop("enabled")
    told |= {"difficulty_type": "value", "clustering_type": "schedule_based"}
    told |= {"index_to_sample_path": "samples", "index_to_metric_path": "values"}
    curriculum = {"enabled": True, "data_cluster_path": "clusters", "curriculum_metrics": {"voc": told}}
    sampling = {"enabled": True, "curriculum_learning": curriculum}
    read = data_efficiency({"data_efficiency": {"enabled": True, "data_sampling": sampling}})
    assert read is not None
    assert read.metrics["voc"].difficulty == ours


@settings(deadline=None)
@given(between(), TOTAL)
def test_random_ltd_keeps_at_a_step_what_deepspeed_keeps_one_step_later(lengths: dict[str, int], total: int) -> None:
    ours = RandomLtdSchedule(**lengths, total_steps=total)
    theirs = RandomLTDScheduler(
        {
            "total_layer_num": 4,
            "random_ltd_layer_num": 2,
            "global_batch_size": 1,
            "layer_token_lr_schedule": {"enabled": False},
            "random_ltd_schedule": {
                "min_value": ours.start,
                "max_value": ours.full,
                "schedule_type": "fixed_linear",
                "schedule_config": {"require_steps": total, "seq_per_step": ours.multiple},
            },
        }
    )
    for step in range(total + 20):  # DeepSpeed's engine asks with the steps that are completed
        theirs.update_seq(step)
        assert ours.kept_tokens(step) == theirs.get_current_seq(), step


def test_the_engine_counts_completed_steps_for_random_ltd_and_this_one_for_the_curriculum() -> None:
    from inspect import getsource

    from deepspeed.runtime import engine
    from deepspeed.runtime.data_pipeline.data_sampling.data_sampler import DeepSpeedDataSampler

    assert "random_ltd_scheduler.update_seq(self.global_steps)" in getsource(engine)
    sampler = getsource(DeepSpeedDataSampler.get_next_global_batch)
    assert sampler.index("self.curriculum_step += 1") < sampler.index("update_difficulty(self.curriculum_step)")


@pytest.mark.parametrize("multiple", [8, 16])
def test_the_papers_own_setting_is_the_same_in_all_its_steps(multiple: int) -> None:
    ours = FixedLinear(start=80, full=2048, total_steps=110_000, multiple=multiple)
    theirs = CurriculumScheduler(block(ours, "fixed_linear"))
    assert all(ours.seqlen(step) == theirs.get_difficulty(step) for step in range(1, 110_020))
