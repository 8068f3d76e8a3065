"""DeepSpeed's two JSON blocks as schedules."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from sentinel.vocabulary.errors import ConfigError
from sentinel.vocabulary.pacing.data_efficiency import DifficultySchedule, RandomLtdSchedule
from sentinel.vocabulary.pacing.seqlen import SeqlenSchedule
from sentinel.vocabulary.pacing.track import Shortening


@dataclass(frozen=True, slots=True)
class DeepSpeedBlock:
    """An object of DeepSpeed's JSON. A key that DeepSpeed would ignore is a ConfigError that names the right ones."""

    data: Mapping[str, Any]
    where: str = ""

    def at(self, key: str) -> str:
        return f"{self.where}.{key}" if self.where else key

    def block(self, key: str, known: Collection[str]) -> DeepSpeedBlock:
        """The object under this key, which has none but the known keys; an empty one where there is none."""
        value, name = self.data.get(key, {}), self.at(key)
        if not isinstance(value, Mapping):
            raise ConfigError(f"{name} should be an object, not {value!r}")
        if unknown := value.keys() - set(known):
            raise ConfigError(f"{name} has no key {min(unknown)!r}; the right ones are {', '.join(sorted(known))}")
        return DeepSpeedBlock(value, name)

    @property
    def enabled(self) -> bool:
        """Off where it is left out, as in DeepSpeed."""
        value = self.data.get("enabled", False)
        if not isinstance(value, bool):
            raise ConfigError(f"{self.at('enabled')} should be true or false, not {value!r}")
        return value

    def whole(self, key: str) -> int:
        """The whole number under this key, which has to be there."""
        value = self.data.get(key)
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if not isinstance(value, int) or isinstance(value, bool):
            found = f"not {value!r}" if key in self.data else "and is missing"
            raise ConfigError(f"{self.at(key)} should be a whole number, {found}")
        return value

    def wholes(self, key: str) -> tuple[int, ...]:
        """The list of whole numbers under this key, which has to be there."""
        value = self.data.get(key)
        if not isinstance(value, list) or not all(type(item) is int for item in value):
            raise ConfigError(f"{self.at(key)} should be a list of whole numbers, not {value!r}")
        return tuple(value)

    def text(self, key: str, known: Collection[str] = ()) -> str:
        """The string under this key, one of the known ones where there are any."""
        value = self.data.get(key)
        if not isinstance(value, str) or not value or (known and value not in known):
            wanted = f"one of {', '.join(known)}" if known else "a string"
            raise ConfigError(f"{self.at(key)} should be {wanted}, not {value!r}")
        return value


# Metrics that are the sequence length and need no index -> how a batch gets shorter.
_SEQLEN_METRICS: dict[str, Shortening] = {
    "seqlen": "truncate",
    "seqlen_truncate": "truncate",
    "seqlen_reshape": "reshape",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexedMetric:
    difficulty: DifficultySchedule
    index_to_sample_path: str | None  # DeepSpeed's index value -> samples; None for a single cluster, which needs none
    index_to_metric_path: str | None  # DeepSpeed's index of the values; None where percentiles alone are asked for
    clustering_type: str  # schedule_based, or single_cluster: all samples, whatever their difficulty


@dataclass(frozen=True, slots=True, kw_only=True)
class DataEfficiency:
    seed: int = 1234  # Orders the samples that are easy enough
    num_epochs: int = 1000
    seqlen: SeqlenSchedule | None = None
    shorten: Shortening | None = None  # How a batch gets shorter; None without a seqlen metric
    # All metrics but the sequence length, by name; a sample is drawn where it is easy enough by each.
    metrics: Mapping[str, IndexedMetric] = field(default_factory=dict)
    data_cluster_path: str | None = None  # Where DeepSpeed's sampler keeps its clusters
    random_ltd: RandomLtdSchedule | None = None


def curriculum_learning(config: Mapping[str, Any]) -> SeqlenSchedule | None:
    """The schedule of the top-level block `curriculum_learning` of a DeepSpeed JSON; None where it is off. DeepSpeed
    0.19.8 took the block out and raises on it. ConfigError names a key that is wrong."""
    found = DeepSpeedBlock(config).block("curriculum_learning", ("enabled", "curriculum_type", *_PACED))
    if not found.enabled:
        return None
    if "curriculum_type" in found.data:
        found.text("curriculum_type", ("seqlen",))
    return _seqlen(found)


def data_efficiency(config: Mapping[str, Any]) -> DataEfficiency | None:
    """What the block `data_efficiency` of a DeepSpeed JSON switches on; None where it is off. ConfigError names a key
    that is wrong. Source: deepspeed/runtime/data_pipeline/constants.py and config.py of 0.19.8."""
    found = DeepSpeedBlock(config).block("data_efficiency", ("enabled", "seed", "data_sampling", "data_routing"))
    if not found.enabled:
        return None
    seed = found.whole("seed") if "seed" in found.data else 1234
    sampled = _data_sampling(found.block("data_sampling", _SAMPLING))
    return DataEfficiency(seed=seed, random_ltd=_random_ltd(found), **sampled)


_SAMPLING = ("enabled", "num_epochs", "num_workers", "pin_memory", "curriculum_learning", "dynamic_batching")
_LEARNING = ("enabled", "data_cluster_path", "curriculum_metrics")
_PACED = ("min_difficulty", "max_difficulty", "schedule_type", "schedule_config")
_METRIC = ("index_to_sample_path", "index_to_metric_path", "difficulty_type", "clustering_type", *_PACED)


def _data_sampling(sampling: DeepSpeedBlock) -> dict[str, Any]:
    if not sampling.enabled:
        return {}
    batching = sampling.data.get("dynamic_batching", {})
    if not isinstance(batching, Mapping) or batching.get("enabled"):
        where = sampling.at("dynamic_batching")
        raise ConfigError(f"{where} is another way to size batches, and is not performed here")
    found: dict[str, Any] = {"num_epochs": sampling.whole("num_epochs")} if "num_epochs" in sampling.data else {}
    learning = sampling.block("curriculum_learning", _LEARNING)
    if not learning.enabled:
        return found
    names, where = learning.data.get("curriculum_metrics"), learning.at("curriculum_metrics")
    if not isinstance(names, Mapping) or not names:
        raise ConfigError(f"{where} should name at least one metric, not {names!r}")
    lengths = [name for name in names if name in _SEQLEN_METRICS]
    if len(lengths) > 1:
        raise ConfigError(f"{where} paces the sequence length twice: {' and '.join(lengths)}")
    blocks = {name: DeepSpeedBlock(names, where).block(name, _METRIC) for name in names}
    found["metrics"] = {name: _metric(block) for name, block in blocks.items() if name not in lengths}
    if "data_cluster_path" in learning.data:
        found["data_cluster_path"] = learning.text("data_cluster_path")
    for name in lengths:
        found |= {"seqlen": _seqlen(blocks[name]), "shorten": _SEQLEN_METRICS[name]}
    return found


def _metric(found: DeepSpeedBlock) -> IndexedMetric:
    kind = found.text("difficulty_type", ("value", "percentile"))
    clustering = found.text("clustering_type", ("schedule_based", "single_cluster"))
    indexed = clustering != "single_cluster"
    pace = _pace(found, ("fixed_linear", "fixed_root", "fixed_discrete"))
    with _prefixed(found.where):
        difficulty = DifficultySchedule(kind=kind, **pace)
    return IndexedMetric(
        difficulty=difficulty,
        index_to_sample_path=found.text("index_to_sample_path") if indexed else None,
        index_to_metric_path=found.text("index_to_metric_path") if indexed and kind == "value" else None,
        clustering_type=clustering,
    )


def _seqlen(found: DeepSpeedBlock) -> SeqlenSchedule:
    pace = _pace(found, tuple(_SCHEDULE_KEYS))
    with _prefixed(found.where):
        return SeqlenSchedule.from_json(pace | {"pacing": found.data["schedule_type"]})


@contextmanager
def _prefixed(where: str) -> Iterator[None]:
    try:
        yield
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from error


# schedule_type -> the keys of its schedule_config; `function` is our own: DeepSpeed is handed the callable.
_SCHEDULE_KEYS = {
    "fixed_linear": ("total_curriculum_step", "difficulty_step"),
    "fixed_root": ("total_curriculum_step", "difficulty_step", "root_degree"),
    "fixed_discrete": ("difficulty", "max_step"),
    "custom": ("function", "difficulty_step"),
}


def _pace(found: DeepSpeedBlock, known: Collection[str]) -> dict[str, Any]:
    schedule = found.text("schedule_type", known)
    paced: dict[str, Any] = {"start": found.whole("min_difficulty"), "full": found.whole("max_difficulty")}
    config = found.block("schedule_config", _SCHEDULE_KEYS[schedule])
    if schedule == "fixed_discrete":
        return paced | {"difficulties": config.wholes("difficulty"), "max_steps": config.wholes("max_step")}
    if schedule == "custom":
        paced["function"] = config.text("function")
    else:
        paced["total_steps"] = config.whole("total_curriculum_step")
    if schedule == "fixed_root":
        degree = config.data.get("root_degree")
        if not isinstance(degree, int | float) or isinstance(degree, bool):
            raise ConfigError(f"{config.at('root_degree')} should be a number, not {degree!r}")
        paced["root_degree"] = float(degree)
    if schedule != "custom" or "difficulty_step" in config.data:
        paced["multiple"] = config.whole("difficulty_step")
    return paced


_RANDOM_LTD = (
    *("enabled", "total_layer_num", "random_ltd_layer_num", "random_ltd_layer_id", "model_mask_name", "model_type"),
    *("hidden_state_order", "random_ltd_schedule", "layer_token_lr_schedule", "global_batch_size", "micro_batch_size"),
)
_LAYER_TOKEN_LR = ("enabled", "total_layer_tokens", "warmup_type", "warmup_layer_tokens")


def _random_ltd(efficiency: DeepSpeedBlock) -> RandomLtdSchedule | None:
    routing = efficiency.block("data_routing", ("enabled", "random_ltd"))
    if not routing.enabled or not (ltd := routing.block("random_ltd", _RANDOM_LTD)).enabled:
        return None
    paced_lr = ltd.block("layer_token_lr_schedule", _LAYER_TOKEN_LR)
    if paced_lr.enabled:
        raise ConfigError(
            f"{paced_lr.where} is not performed: remove it or set its enabled to false. The reference "
            "trainer counts its LR in the tokens that the layers have seen with --lr-unit tokens"
        )
    layers = ltd.wholes("random_ltd_layer_id")
    if ltd.whole("random_ltd_layer_num") != len(layers):
        raise ConfigError(f"{ltd.at('random_ltd_layer_num')} should be the {len(layers)} of random_ltd_layer_id")
    if layers and max(layers) >= ltd.whole("total_layer_num"):
        raise ConfigError(f"{ltd.at('random_ltd_layer_id')} names layer {max(layers)}, and there are fewer")
    known = ("min_value", "max_value", "schedule_type", "schedule_config")
    schedule = ltd.block("random_ltd_schedule", known)
    schedule.text("schedule_type", ("fixed_linear",))
    config = schedule.block("schedule_config", ("require_steps", "seq_per_step"))
    with _prefixed(schedule.where):
        return RandomLtdSchedule(
            start=schedule.whole("min_value"),
            full=schedule.whole("max_value"),
            total_steps=config.whole("require_steps"),
            multiple=config.whole("seq_per_step"),
            layers=tuple(sorted(layers)),
        )
