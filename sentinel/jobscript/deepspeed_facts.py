"""Facts from a DeepSpeed JSON."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sentinel.jobscript.facts import Curriculum, DeepSpeedJson
from sentinel.jobscript.given import Unread
from sentinel.vocabulary.errors import ConfigError


def deepspeed_of(data: Mapping[str, Any], unread: list[Unread]) -> DeepSpeedJson | None:
    """What it says of batches, precision and ZeRO. Values that are no numbers are left out, and said."""
    fp16 = _table(data, "fp16")
    wanted = {
        "train_batch_size": _number(data, "train_batch_size"),
        "micro_batch_size": _number(data, "train_micro_batch_size_per_gpu"),
        "gradient_clipping": _number(data, "gradient_clipping"),
        "fp16": _switch(fp16, "enabled"),
        "bf16": _switch(_table(data, "bf16") or _table(data, "bfloat16"), "enabled"),
        "loss_scale": _number(fp16, "loss_scale"),
        "initial_scale_power": _number(fp16, "initial_scale_power"),
        "zero_stage": _number(_table(data, "zero_optimization"), "stage"),
    }
    try:
        return DeepSpeedJson(**wanted)
    except ConfigError as error:
        unread.append(Unread(what="the DeepSpeed JSON", why=str(error)))
        return None


def precision_facts(said: DeepSpeedJson) -> dict[str, Any]:
    """Precision and loss scale, which DeepSpeed's engine takes from its JSON alone."""
    if said.bf16:
        return {"precision": "bf16"}
    if not said.fp16:
        return {}
    power = 16 if said.initial_scale_power is None else said.initial_scale_power
    return {
        "precision": "fp16",
        "static_loss_scale": said.loss_scale or None,
        "initial_loss_scale": None if said.loss_scale or power > 1000 else 2.0**power,
    }


def curriculum_of(data: Mapping[str, Any], unread: list[Unread]) -> Curriculum | None:
    """SLW, where the JSON switches it on: the top-level block, or the metric `seqlen` of `data_efficiency`."""
    block = _table(data, "curriculum_learning")
    if block.get("enabled") is True and block.get("curriculum_type", "seqlen") == "seqlen":
        return _curriculum(block, unread, old_block=True)
    efficiency = _table(data, "data_efficiency")
    sampling = _table(_table(efficiency, "data_sampling"), "curriculum_learning")
    if efficiency.get("enabled") is False or sampling.get("enabled") is not True:
        return None
    metrics = _table(sampling, "curriculum_metrics")
    named = [name for name in metrics if name.startswith("seqlen")]
    return _curriculum(_table(metrics, named[0]), unread, old_block=False) if named else None


def _curriculum(block: Mapping[str, Any], unread: list[Unread], *, old_block: bool) -> Curriculum | None:
    config = _table(block, "schedule_config")
    schedule = block.get("schedule_type")
    try:
        return Curriculum(
            min_difficulty=_number(block, "min_difficulty"),
            max_difficulty=_number(block, "max_difficulty"),
            schedule=schedule if isinstance(schedule, str) else None,
            total_steps=_number(config, "total_curriculum_step"),
            difficulty_step=_number(config, "difficulty_step"),
            difficulties=_numbers(config, "difficulty"),
            max_steps=_numbers(config, "max_step"),
            old_block=old_block,
        )
    except ConfigError as error:
        unread.append(Unread(what="the DeepSpeed JSON's curriculum", why=str(error)))
        return None


def _table(data: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    value = data.get(key)
    return value if isinstance(value, dict) else {}


def _number(data: Mapping[str, Any], key: str) -> Any:
    """A number; None for null, and for "auto" and its like."""
    value = data.get(key)
    if isinstance(value, float) and value.is_integer():
        return int(value)  # DeepSpeed prints 2048 as 2.048000e+03
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None


def _numbers(data: Mapping[str, Any], key: str) -> tuple[int, ...]:
    value = data.get(key)
    return tuple(item for item in value if type(item) is int) if isinstance(value, list) else ()


def _switch(data: Mapping[str, Any], key: str) -> bool | None:
    value = data.get(key)
    return value if isinstance(value, bool) else None
