"""DeepSpeed's JSON blocks: read as they are, and refused where a key would be passed over in silence."""

from __future__ import annotations

import json
from copy import deepcopy
from dataclasses import replace
from typing import Any

import pytest

from sentinel.vocabulary.errors import ConfigError
from sentinel.vocabulary.pacing import (
    Custom,
    DifficultySchedule,
    FixedDiscrete,
    FixedLinear,
    FixedRoot,
    RandomLtdSchedule,
)
from sentinel.vocabulary.pacing.deepspeed import (
    DataEfficiency,
    DeepSpeedBlock,
    IndexedMetric,
    curriculum_learning,
    data_efficiency,
)
from tests.support.there import there

TUTORIAL = {
    "enabled": True,
    "curriculum_type": "seqlen",
    "min_difficulty": 8,
    "max_difficulty": 1024,
    "schedule_type": "fixed_linear",
    "schedule_config": {"total_curriculum_step": 15000, "difficulty_step": 8},
}

VOC = {
    "index_to_sample_path": "/indexes/voc_percentile_to_sample",
    "index_to_metric_path": "/indexes/voc_to_metric",
    "difficulty_type": "percentile",
    "clustering_type": "schedule_based",
    "min_difficulty": 1,
    "max_difficulty": 100,
    "schedule_type": "fixed_root",
    "schedule_config": {"total_curriculum_step": 110000, "difficulty_step": 1, "root_degree": 2},
}

EFFICIENCY: dict[str, Any] = {
    "enabled": True,
    "seed": 7,
    "data_routing": {
        "enabled": True,
        "random_ltd": {
            "enabled": True,
            "total_layer_num": 24,
            "random_ltd_layer_num": 22,
            "random_ltd_layer_id": list(range(1, 23)),
            "model_mask_name": "attention_mask",
            "model_type": "decoder",
            "hidden_state_order": "seq_batch_dim",
            "random_ltd_schedule": {
                "min_value": 128,
                "max_value": 2048,
                "schedule_type": "fixed_linear",
                "schedule_config": {"require_steps": 200000, "seq_per_step": 16},
            },
        },
    },
    "data_sampling": {
        "enabled": True,
        "num_epochs": 1,
        "num_workers": 0,
        "curriculum_learning": {
            "enabled": True,
            "data_cluster_path": "/clusters",
            "curriculum_metrics": {
                "voc": VOC,
                "seqlen_reshape": {
                    "difficulty_type": "value",
                    "clustering_type": "single_cluster",
                    "min_difficulty": 80,
                    "max_difficulty": 2048,
                    "schedule_type": "fixed_linear",
                    "schedule_config": {"total_curriculum_step": 110000, "difficulty_step": 8},
                },
            },
        },
    },
}


def changed(document: dict[str, Any], path: str, value: Any) -> dict[str, Any]:
    """A copy with one value changed, or left out where it is None."""
    copy = deepcopy(document)
    *parents, last = path.split(".")
    at = copy
    for key in parents:
        at = at[key]
    if value is None:
        at.pop(last)
    else:
        at[last] = value
    return copy


def efficiency(path: str = "", value: Any = None) -> DataEfficiency:
    """What is read of the whole block, or of one with a value changed, or left out where it is None."""
    found = data_efficiency({"data_efficiency": changed(EFFICIENCY, path, value) if path else EFFICIENCY})
    return there(found)


@pytest.mark.parametrize(
    ("schedule", "config", "read"),
    [
        ("fixed_linear", TUTORIAL["schedule_config"], FixedLinear(start=8, full=1024, total_steps=15000)),
        (
            "fixed_root",
            {"total_curriculum_step": 15000, "difficulty_step": 16, "root_degree": 2},
            FixedRoot(start=8, full=1024, total_steps=15000, multiple=16),
        ),
        (
            "fixed_discrete",
            {"difficulty": [8, 128, 1024], "max_step": [5, 10]},
            FixedDiscrete(start=8, full=1024, difficulties=(8, 128, 1024), max_steps=(5, 10)),
        ),
        ("custom", {"function": "recipes:by_loss"}, Custom(start=8, full=1024, function="recipes:by_loss")),
        (
            "custom",
            {"function": "a:b", "difficulty_step": 16},
            Custom(start=8, full=1024, function="a:b", multiple=16),
        ),
    ],
)
def test_the_tutorials_block_is_a_schedule(schedule: str, config: dict[str, Any], read: Any) -> None:
    block = TUTORIAL | {"schedule_type": schedule, "schedule_config": config}
    assert curriculum_learning(json.loads(json.dumps({"curriculum_learning": block}))) == read
    del block["curriculum_type"]
    assert curriculum_learning({"curriculum_learning": block}) == read


@pytest.mark.parametrize("config", [{}, {"curriculum_learning": TUTORIAL | {"enabled": False}}])
def test_a_block_that_is_off_or_not_there_is_nothing(config: dict[str, Any]) -> None:
    assert curriculum_learning(config) is None
    assert data_efficiency({"data_efficiency": {"seed": 3}}) is None
    assert data_efficiency(config) is None


def test_the_data_efficiency_block_is_read_whole() -> None:
    assert data_efficiency({"data_efficiency": json.loads(json.dumps(EFFICIENCY))}) == DataEfficiency(
        seed=7,
        num_epochs=1,
        seqlen=FixedLinear(start=80, full=2048, total_steps=110000),
        shorten="reshape",
        metrics={
            "voc": IndexedMetric(
                difficulty=DifficultySchedule(
                    kind="percentile", start=1, full=100, total_steps=110000, root_degree=2.0
                ),
                index_to_sample_path="/indexes/voc_percentile_to_sample",
                index_to_metric_path=None,
                clustering_type="schedule_based",
            )
        },
        data_cluster_path="/clusters",
        random_ltd=RandomLtdSchedule(start=128, full=2048, total_steps=200000, layers=tuple(range(1, 23))),
    )


METRICS = "data_sampling.curriculum_learning.curriculum_metrics"
LTD = "data_routing.random_ltd"


@pytest.mark.parametrize(
    ("path", "value", "says"),
    [
        ("data_samplng", {}, "data_efficiency has no key 'data_samplng'; the right ones are data_routing, data_samp"),
        ("enabled", "yes", "data_efficiency.enabled should be true or false, not 'yes'"),
        ("data_sampling", [], "data_efficiency.data_sampling should be an object, not []"),
        ("data_sampling.workers", 3, "data_sampling has no key 'workers'; the right ones are curriculum_learning"),
        ("data_sampling.dynamic_batching", {"enabled": True}, "dynamic_batching is another way"),
        ("data_sampling.dynamic_batching", True, "dynamic_batching is another way"),
        (METRICS, {}, "should name at least one metric"),
        (METRICS, ["voc"], "should name at least one metric, not ['voc']"),
        (f"{METRICS}.seqlen", {}, "paces the sequence length twice: seqlen_reshape and seqlen"),
        (
            f"{METRICS}.voc.clustering",
            "x",
            f"{METRICS}.voc has no key 'clustering'; the right ones are clustering_type",
        ),
        (f"{METRICS}.voc.difficulty_type", "rank", "voc.difficulty_type should be one of value, percentile"),
        (f"{METRICS}.voc.index_to_sample_path", None, "voc.index_to_sample_path should be a string, not None"),
        (f"{METRICS}.voc.max_difficulty", 101, "voc: percentiles lie between 1 and 100"),
        (f"{METRICS}.voc.min_difficulty", None, "voc.min_difficulty should be a whole number, and is missing"),
        (f"{METRICS}.voc.schedule_config.root_degree", None, "schedule_config.root_degree should be a number"),
        (f"{METRICS}.voc.schedule_config.total_step", 9, "has no key 'total_step'; the right ones are difficulty_step"),
        (f"{METRICS}.voc.schedule_type", "custom", "schedule_type should be one of fixed_linear, fixed_root, fixed_d"),
        (f"{METRICS}.seqlen_reshape.min_difficulty", 4096, "seqlen_reshape: seqlen start should lie between"),
        (f"{LTD}.layers", [1], f"{LTD} has no key 'layers'; the right ones are enabled, global_batch_size"),
        (f"{LTD}.random_ltd_layer_num", 3, "random_ltd_layer_num should be the 22 of random_ltd_layer_id"),
        (f"{LTD}.total_layer_num", 22, "names layer 22, and there are fewer"),
        (f"{LTD}.layer_token_lr_schedule", {"enabled": True}, "layer_token_lr_schedule is not performed: remove it"),
        (f"{LTD}.layer_token_lr_schedule", {"on": True}, "layer_token_lr_schedule has no key 'on'"),
        (f"{LTD}.random_ltd_schedule.min_value", 4096, "random_ltd_schedule: random-LTD start should lie between"),
        (f"{LTD}.random_ltd_schedule.schedule_type", "fixed_root", "schedule_type should be one of fixed_linear"),
    ],
)
def test_a_key_that_is_wrong_is_named_with_the_right_ones(path: str, value: Any, says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        efficiency(path, value)
    assert says in str(caught.value)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"curriculum_type": "voc"}, "curriculum_learning.curriculum_type should be one of seqlen, not 'voc'"),
        ({"min_dificulty": 8}, "curriculum_learning has no key 'min_dificulty'; the right ones are curriculum_type"),
        (
            {"schedule_type": "linear"},
            "schedule_type should be one of fixed_linear, fixed_root, fixed_discrete, custom",
        ),
        ({"max_difficulty": "1024"}, "curriculum_learning.max_difficulty should be a whole number, not '1024'"),
        ({"schedule_config": {"total_curriculum_step": 9}}, "difficulty_step should be a whole number, and is missing"),
        (
            {"schedule_type": "fixed_discrete", "schedule_config": {"difficulty": [8, 1024], "max_step": ["5"]}},
            "max_step should be a list of whole numbers, not ['5']",
        ),
        (
            {"schedule_type": "fixed_discrete", "schedule_config": {"difficulty": [8, 1024], "max_step": []}},
            "curriculum_learning: 2 difficulties need 1 max_steps",
        ),
    ],
)
def test_a_key_of_the_tutorials_block_that_is_wrong_is_named(change: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        curriculum_learning({"curriculum_learning": TUTORIAL | change})
    assert says in str(caught.value)


def test_what_a_block_leaves_out_is_as_deepspeed_has_it() -> None:
    assert data_efficiency({"data_efficiency": {"enabled": True}}) == DataEfficiency(seed=1234, num_epochs=1000)
    whole = efficiency()
    assert efficiency("seed") == replace(whole, seed=1234)
    assert efficiency("data_sampling.num_epochs") == replace(whole, num_epochs=1000)
    cluster_path = "data_sampling.curriculum_learning.data_cluster_path"
    assert efficiency(cluster_path) == replace(whole, data_cluster_path=None)


@pytest.mark.parametrize(
    ("name", "shorten"), [("seqlen", "truncate"), ("seqlen_truncate", "truncate"), ("seqlen_reshape", "reshape")]
)
@pytest.mark.parametrize("voc", [True, False])
def test_the_sequence_length_is_no_metric_of_the_data(name: str, shorten: str, voc: bool) -> None:
    length = EFFICIENCY["data_sampling"]["curriculum_learning"]["curriculum_metrics"]["seqlen_reshape"]
    read = efficiency(METRICS, {name: length} | ({"voc": VOC} if voc else {}))
    assert read.seqlen == FixedLinear(start=80, full=2048, total_steps=110000)
    assert (read.shorten, list(read.metrics)) == (shorten, ["voc"] if voc else [])
    assert read.data_cluster_path == "/clusters"


def test_metrics_without_a_sequence_length_leave_it_as_it_is() -> None:
    read = efficiency(METRICS, {"voc": VOC})
    assert (read.seqlen, read.shorten, list(read.metrics), read.num_epochs) == (None, None, ["voc"], 1)
    assert read.data_cluster_path == "/clusters"


@pytest.mark.parametrize(
    ("kind", "clustering", "paths"),
    [
        ("value", "schedule_based", ("/indexes/voc_percentile_to_sample", "/indexes/voc_to_metric")),
        ("percentile", "schedule_based", ("/indexes/voc_percentile_to_sample", None)),
        ("value", "single_cluster", (None, None)),
        ("percentile", "single_cluster", (None, None)),
    ],
)
def test_a_metric_names_the_indexes_that_it_needs(
    kind: str, clustering: str, paths: tuple[str | None, str | None]
) -> None:
    voc = VOC | {"difficulty_type": kind, "clustering_type": clustering}
    found = efficiency(METRICS, {"voc": voc}).metrics["voc"]
    assert (found.index_to_sample_path, found.index_to_metric_path) == paths
    assert (found.clustering_type, found.difficulty.kind) == (clustering, kind)
    for key, path in zip(("index_to_sample_path", "index_to_metric_path"), paths, strict=True):
        without = {"voc": {k: v for k, v in voc.items() if k != key}}
        if path is None:
            assert efficiency(METRICS, without).metrics
        else:
            with pytest.raises(ConfigError, match=f"{key} should be a string, not None"):
                efficiency(METRICS, without)


@pytest.mark.parametrize(
    ("schedule", "config", "read"),
    [
        ("fixed_linear", {"total_curriculum_step": 9, "difficulty_step": 3}, {"total_steps": 9, "multiple": 3}),
        (
            "fixed_root",
            {"total_curriculum_step": 9, "difficulty_step": 3, "root_degree": 2.5},
            {"total_steps": 9, "multiple": 3, "root_degree": 2.5},
        ),
        ("fixed_discrete", {"difficulty": [1, 50], "max_step": [5]}, {"difficulties": (1, 50), "max_steps": (5,)}),
    ],
)
def test_a_metric_is_paced_as_its_schedule_says(schedule: str, config: dict[str, Any], read: dict[str, Any]) -> None:
    found = efficiency(f"{METRICS}.voc", VOC | {"schedule_type": schedule, "schedule_config": config})
    assert found.metrics["voc"].difficulty == DifficultySchedule(kind="percentile", start=1, full=100, **read)


@pytest.mark.parametrize(
    ("value", "read"),
    [(12, 12), (12.0, 12), (0, 0), (12.5, None), (True, None), (False, None), ("12", None), (None, None)],
)
def test_a_whole_number_may_be_written_as_a_float_and_is_no_bool(value: Any, read: int | None) -> None:
    if read is None:
        with pytest.raises(ConfigError, match=f"where.key should be a whole number, not {value!r}"):
            DeepSpeedBlock({"key": value}, "where").whole("key")
    else:
        found = DeepSpeedBlock({"key": value}, "where").whole("key")
        assert (found, type(found)) == (read, int)


@pytest.mark.parametrize("value", [(1, 2), [1, True], [1, 2.0], ["1"], 1, None])
def test_a_list_of_whole_numbers_holds_nothing_else(value: Any) -> None:
    with pytest.raises(ConfigError, match=r"where\.key should be a list of whole numbers, not"):
        DeepSpeedBlock({"key": value}, "where").wholes("key")
    assert DeepSpeedBlock({"key": [3, 1]}, "where").wholes("key") == (3, 1)
    assert DeepSpeedBlock({"key": []}, "where").wholes("key") == ()


def test_a_word_is_one_of_those_that_there_are() -> None:
    assert DeepSpeedBlock({"key": "a"}, "where").text("key") == "a"
    assert DeepSpeedBlock({"key": "a"}, "where").text("key", ("a", "b")) == "a"
    for value in ("", 3, None):
        with pytest.raises(ConfigError, match=f"where.key should be a string, not {value!r}"):
            DeepSpeedBlock({"key": value}, "where").text("key")
    for value in ("", "c", ["a"]):
        with pytest.raises(ConfigError, match=r"where\.key should be one of a, b, not"):
            DeepSpeedBlock({"key": value}, "where").text("key", ("a", "b"))


@pytest.mark.parametrize(("value", "read"), [(2, 2.0), (0.5, 0.5), (True, None), ("2", None), (None, None)])
def test_a_degree_is_a_number(value: Any, read: float | None) -> None:
    told = f"{METRICS}.voc.schedule_config", VOC["schedule_config"] | {"root_degree": value}
    if read is None:
        with pytest.raises(ConfigError, match="root_degree should be a number, not"):
            efficiency(*told)
    else:
        assert efficiency(*told).metrics["voc"].difficulty.root_degree == read


@pytest.mark.parametrize(
    ("path", "value"),
    [
        *(("data_sampling.dynamic_batching", off) for off in ({}, {"enabled": False}, {"lr_scaling_method": "linear"})),
        (f"{LTD}.layer_token_lr_schedule", {"enabled": False, "total_layer_tokens": 9}),
        (f"{LTD}.random_ltd_layer_id", [*range(22, 0, -1)]),  # in any order
        (f"{LTD}.total_layer_num", 23),
    ],
)
def test_what_is_off_or_told_otherwise_changes_nothing(path: str, value: Any) -> None:
    assert efficiency(path, value) == efficiency()


def test_random_ltd_is_what_its_block_says_or_nothing() -> None:
    eights = {"schedule_config": {"require_steps": 9, "seq_per_step": 8}}
    block = EFFICIENCY["data_routing"]["random_ltd"]
    schedule = block["random_ltd_schedule"] | eights
    no_layer = {"random_ltd_layer_id": [], "random_ltd_layer_num": 0, "random_ltd_schedule": schedule}
    assert efficiency(LTD, block | no_layer).random_ltd == RandomLtdSchedule(
        start=128, full=2048, total_steps=9, multiple=8, layers=()
    )
    for off in ("data_routing.enabled", f"{LTD}.enabled"):
        read = efficiency(off, value=False)
        assert read == efficiency(off) == replace(efficiency(), random_ltd=None)


@pytest.mark.parametrize("off", ["data_sampling.enabled", "data_sampling.curriculum_learning.enabled"])
def test_sampling_that_is_off_paces_nothing(off: str) -> None:
    read = efficiency(off, value=False)
    assert (read.metrics, read.seqlen, read.data_cluster_path) == ({}, None, None)
    assert read.random_ltd is not None
    assert read.num_epochs == (1 if "learning" in off else 1000)
