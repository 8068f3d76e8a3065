"""DeepSpeed's two JSON blocks as schedules."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from sentinel.vocabulary.errors import ConfigError
from sentinel.vocabulary.pacing.data_efficiency import DifficultySchedule, RandomLtdSchedule
from sentinel.vocabulary.pacing.seqlen import SeqlenSchedule
from sentinel.vocabulary.pacing.track import Shortening

Block = Mapping[str, Any]


def block(parent: Block, key: str, known: Collection[str], *, where: str = "") -> Block:
    """The object under this key, which has none but the known keys; an empty one where there is none."""
    value, name = parent.get(key, {}), f"{where}.{key}" if where else key
    if not isinstance(value, Mapping):
        raise ConfigError(f"{name} should be an object, not {value!r}")
    if unknown := value.keys() - set(known):
        raise ConfigError(f"{name} has no key {min(unknown)!r}; the right ones are {', '.join(sorted(known))}")
    return value


def switched_on(data: Block, where: str) -> bool:
    """Its `enabled`; off where it is left out, as in DeepSpeed."""
    value = data.get("enabled", False)
    if not isinstance(value, bool):
        raise ConfigError(f"{where}.enabled should be true or false, not {value!r}")
    return value


def whole(data: Block, key: str, where: str) -> int:
    """The whole number under this key, which has to be there."""
    value = data.get(key)
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if not isinstance(value, int) or isinstance(value, bool):
        said = f"not {value!r}" if key in data else "and is missing"
        raise ConfigError(f"{where}.{key} should be a whole number, {said}")
    return value


def wholes(data: Block, key: str, where: str) -> tuple[int, ...]:
    """The list of whole numbers under this key, which has to be there."""
    value = data.get(key)
    if not isinstance(value, list) or not all(type(item) is int for item in value):
        raise ConfigError(f"{where}.{key} should be a list of whole numbers, not {value!r}")
    return tuple(value)


def text(data: Block, key: str, where: str, known: Collection[str] = ()) -> str:
    """The string under this key, one of the known ones where there are any."""
    value = data.get(key)
    if not isinstance(value, str) or not value or (known and value not in known):
        wanted = f"one of {', '.join(known)}" if known else "a string"
        raise ConfigError(f"{where}.{key} should be {wanted}, not {value!r}")
    return value


# Metrics that are the sequence length and need no index -> how a batch gets shorter.
_SEQLEN_METRICS: Mapping[str, Shortening] = {
    "seqlen": "truncate",
    "seqlen_truncate": "truncate",
    "seqlen_reshape": "reshape",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexedMetric:
    difficulty: DifficultySchedule
    index_to_sample_path: str | None  # DeepSpeed's index value -> samples; None for a single cluster, which needs none
    # DeepSpeed's index of the values themselves; None where percentiles alone are asked for.
    index_to_metric_path: str | None
    clustering_type: str  # schedule_based, or single_cluster: all samples, whatever their difficulty


@dataclass(frozen=True, slots=True, kw_only=True)
class DataEfficiency:
    seed: int = 1234  # Orders the samples that are easy enough
    num_epochs: int = 1000
    seqlen: SeqlenSchedule | None = None
    # How a batch gets shorter: truncate, reshape where the metric is seqlen_reshape; None without a seqlen metric.
    shorten: Shortening | None = None
    # All metrics but the sequence length, by name; a sample is drawn where it is easy enough by each.
    metrics: Mapping[str, IndexedMetric] = field(default_factory=dict)
    data_cluster_path: str | None = None  # Where DeepSpeed's sampler keeps its clusters
    random_ltd: RandomLtdSchedule | None = None


def curriculum_learning(config: Block) -> SeqlenSchedule | None:
    """The schedule of the top-level block `curriculum_learning`; None where it is off or not there.

    `config` is the whole DeepSpeed JSON. ConfigError names a key that is wrong, and the right ones.
    """
    where = "curriculum_learning"
    told = block(config, where, {"enabled", "curriculum_type", *_PACED})
    if not switched_on(told, where):
        return None
    if "curriculum_type" in told:
        text(told, "curriculum_type", where, ("seqlen",))
    return _seqlen(told, where)


def data_efficiency(config: Block) -> DataEfficiency | None:
    """What the block `data_efficiency` switches on; None where it is off or not there.

    `config` is the whole DeepSpeed JSON. ConfigError names a key that is wrong, and the right ones.
    """
    where = "data_efficiency"
    told = block(config, where, ("enabled", "seed", "data_sampling", "data_routing"))
    if not switched_on(told, where):
        return None
    seed = whole(told, "seed", where) if "seed" in told else 1234
    sampled = _data_sampling(told, where)
    return DataEfficiency(seed=seed, random_ltd=_random_ltd(told, where), **sampled)


def _data_sampling(told: Block, where: str) -> dict[str, Any]:
    sampling = block(told, "data_sampling", _SAMPLING, where=where)
    where = f"{where}.data_sampling"
    if not switched_on(sampling, where):
        return {}
    batching = sampling.get("dynamic_batching", {})
    if not isinstance(batching, Mapping) or batching.get("enabled"):
        raise ConfigError(f"{where}.dynamic_batching is another way to size batches, and is not performed here")
    epochs = {"num_epochs": whole(sampling, "num_epochs", where)} if "num_epochs" in sampling else {}
    learning = block(sampling, "curriculum_learning", _LEARNING, where=where)
    where = f"{where}.curriculum_learning"
    if not switched_on(learning, where):
        return epochs
    metrics = learning.get("curriculum_metrics")
    if not isinstance(metrics, Mapping) or not metrics:
        raise ConfigError(f"{where}.curriculum_metrics should name at least one metric, not {metrics!r}")
    where = f"{where}.curriculum_metrics"
    lengths = [name for name in metrics if name in _SEQLEN_METRICS]
    if len(lengths) > 1:
        raise ConfigError(f"{where} paces the sequence length twice: {' and '.join(lengths)}")
    found = {name: _metric(metrics, name, where) for name in metrics if name not in lengths}
    cluster = text(learning, "data_cluster_path", where) if "data_cluster_path" in learning else None
    if not lengths:
        return epochs | {"metrics": found, "data_cluster_path": cluster}
    seqlen = _seqlen(block(metrics, lengths[0], _METRIC, where=where), f"{where}.{lengths[0]}")
    paced = {"seqlen": seqlen, "shorten": _SEQLEN_METRICS[lengths[0]]}
    return epochs | paced | {"metrics": found, "data_cluster_path": cluster}


_SAMPLING = ("enabled", "num_epochs", "num_workers", "pin_memory", "curriculum_learning", "dynamic_batching")
_LEARNING = ("enabled", "data_cluster_path", "curriculum_metrics")
_PACED = ("min_difficulty", "max_difficulty", "schedule_type", "schedule_config")
_METRIC = ("index_to_sample_path", "index_to_metric_path", "difficulty_type", "clustering_type", *_PACED)


def _metric(metrics: Block, name: str, where: str) -> IndexedMetric:
    told, where = block(metrics, name, _METRIC, where=where), f"{where}.{name}"
    kind = text(told, "difficulty_type", where, ("value", "percentile"))
    clustering = text(told, "clustering_type", where, ("schedule_based", "single_cluster"))
    indexed = clustering != "single_cluster"
    by_value = indexed and kind == "value"
    return IndexedMetric(
        difficulty=_difficulty(told, kind, where),
        index_to_sample_path=text(told, "index_to_sample_path", where) if indexed else None,
        index_to_metric_path=text(told, "index_to_metric_path", where) if by_value else None,
        clustering_type=clustering,
    )


def _difficulty(told: Block, kind: str, where: str) -> DifficultySchedule:
    schedule = text(told, "schedule_type", where, ("fixed_linear", "fixed_root", "fixed_discrete"))
    start, full = whole(told, "min_difficulty", where), whole(told, "max_difficulty", where)
    try:
        return DifficultySchedule(kind=kind, start=start, full=full, **_pace(told, schedule, where))
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from error


def _seqlen(told: Block, where: str) -> SeqlenSchedule:
    schedule = text(told, "schedule_type", where, ("fixed_linear", "fixed_root", "fixed_discrete", "custom"))
    start, full = whole(told, "min_difficulty", where), whole(told, "max_difficulty", where)
    paced = {"pacing": schedule, "start": start, "full": full} | _pace(told, schedule, where)
    try:
        return SeqlenSchedule.from_json(paced)
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from error


# schedule_type -> the keys of its schedule_config; `function` is our own: DeepSpeed is handed the callable.
_SCHEDULE_KEYS = {
    "fixed_linear": ("total_curriculum_step", "difficulty_step"),
    "fixed_root": ("total_curriculum_step", "difficulty_step", "root_degree"),
    "fixed_discrete": ("difficulty", "max_step"),
    "custom": ("function", "difficulty_step"),
}


def _pace(told: Block, schedule: str, where: str) -> dict[str, Any]:
    config = block(told, "schedule_config", _SCHEDULE_KEYS[schedule], where=where)
    where = f"{where}.schedule_config"
    if schedule == "fixed_discrete":
        return {
            "difficulties": wholes(config, "difficulty", where),
            "max_steps": wholes(config, "max_step", where),
        }
    paced: dict[str, Any] = {}
    if schedule == "custom":
        paced["function"] = text(config, "function", where)
    else:
        paced["total_steps"] = whole(config, "total_curriculum_step", where)
    if schedule == "fixed_root":
        paced["root_degree"] = _degree(config, where)
    if schedule != "custom" or "difficulty_step" in config:
        paced["multiple"] = whole(config, "difficulty_step", where)
    return paced


def _degree(config: Block, where: str) -> float:
    value = config.get("root_degree")
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise ConfigError(f"{where}.root_degree should be a number, not {value!r}")
    return float(value)


_RANDOM_LTD = (
    "enabled",
    "total_layer_num",
    "random_ltd_layer_num",
    "random_ltd_layer_id",
    "model_mask_name",
    "model_type",
    "hidden_state_order",
    "random_ltd_schedule",
    "layer_token_lr_schedule",
    "global_batch_size",
    "micro_batch_size",
)
_LAYER_TOKEN_LR = ("enabled", "total_layer_tokens", "warmup_type", "warmup_layer_tokens")


def _random_ltd(told: Block, where: str) -> RandomLtdSchedule | None:
    routing = block(told, "data_routing", ("enabled", "random_ltd"), where=where)
    where = f"{where}.data_routing"
    if not switched_on(routing, where):
        return None
    ltd = block(routing, "random_ltd", _RANDOM_LTD, where=where)
    where = f"{where}.random_ltd"
    if not switched_on(ltd, where):
        return None
    paced_lr = block(ltd, "layer_token_lr_schedule", _LAYER_TOKEN_LR, where=where)
    if switched_on(paced_lr, f"{where}.layer_token_lr_schedule"):
        raise ConfigError(
            f"{where}.layer_token_lr_schedule is not performed: remove it or set its enabled to false. The reference "
            "trainer counts its LR in the tokens that the layers have seen with --lr-unit tokens"
        )
    layers = wholes(ltd, "random_ltd_layer_id", where)
    if whole(ltd, "random_ltd_layer_num", where) != len(layers):
        raise ConfigError(f"{where}.random_ltd_layer_num should be the {len(layers)} of random_ltd_layer_id")
    if layers and max(layers) >= whole(ltd, "total_layer_num", where):
        raise ConfigError(f"{where}.random_ltd_layer_id names layer {max(layers)}, and there are fewer")
    known = ("min_value", "max_value", "schedule_type", "schedule_config")
    schedule = block(ltd, "random_ltd_schedule", known, where=where)
    where = f"{where}.random_ltd_schedule"
    text(schedule, "schedule_type", where, ("fixed_linear",))
    config = block(schedule, "schedule_config", ("require_steps", "seq_per_step"), where=where)
    try:
        return RandomLtdSchedule(
            start=whole(schedule, "min_value", where),
            full=whole(schedule, "max_value", where),
            total_steps=whole(config, "require_steps", f"{where}.schedule_config"),
            multiple=whole(config, "seq_per_step", f"{where}.schedule_config"),
            layers=tuple(sorted(layers)),
        )
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from error
