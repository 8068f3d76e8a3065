"""The DeepSpeed configuration that the arguments make, and what of the user's own JSON this trainer performs itself."""

from __future__ import annotations

import argparse
import json
import math
from dataclasses import replace
from typing import Any

from sentinel.vocabulary.errors import ConfigError, LineError
from sentinel.vocabulary.numbers import load_object
from sentinel.vocabulary.pacing import BatchSizeSchedule
from sentinel.vocabulary.pacing.deepspeed import DataEfficiency, curriculum_learning, data_efficiency


def users_own(settings: argparse.Namespace) -> tuple[dict[str, Any], DataEfficiency]:
    """--deepspeed-config without `curriculum_learning` and `data_efficiency`; and what these two ask of the trainer.
    Newer versions of DeepSpeed raise on the first of them. ConfigError names the file, and the key that can't be
    performed."""
    path = settings.deepspeed_config
    if path is None:
        return {}, DataEfficiency()
    try:
        config = load_object(path.read_text(encoding="utf-8"))
        seqlen, told = curriculum_learning(config), data_efficiency(config) or DataEfficiency()
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from error
    except (LineError, ConfigError) as error:
        raise ConfigError(f"{path}: {error}") from error
    if seqlen is not None and told.seqlen is not None:
        raise ConfigError(f"{path}: curriculum_learning and data_efficiency both pace the sequence length; leave one")
    if seqlen is not None:
        told = replace(told, seqlen=seqlen)
    performed = ("curriculum_learning", "data_efficiency")
    return {key: value for key, value in config.items() if key not in performed}, told


def deepspeed_config(
    settings: argparse.Namespace, own: dict[str, Any], batch_size: BatchSizeSchedule, world_size: int
) -> dict[str, Any]:
    """The JSON for deepspeed.initialize, the user's own laid over it. ConfigError when the batch does not divide."""
    least = math.gcd(batch_size.start, batch_size.increment) if batch_size.warms_up else batch_size.full
    micro = settings.micro_batch or least // world_size
    if not micro or settings.global_batch % (micro * world_size):
        raise ConfigError(
            f"--global-batch {settings.global_batch} should be a multiple of {world_size} ranks x {micro} samples"
        )
    if batch_size.start < micro * world_size:
        raise ConfigError(
            f"a batch that begins with {batch_size.start} samples does not fill {world_size} ranks x {micro} samples"
        )
    config: dict[str, Any] = {
        "train_batch_size": settings.global_batch,
        "train_micro_batch_size_per_gpu": micro,
        "gradient_clipping": settings.clip,
        "steps_per_print": 10**9,
        "optimizer": {
            "type": "AdamW",
            "params": {
                "lr": settings.lr,
                "betas": [settings.beta1, settings.beta2],
                "eps": settings.eps,
                "weight_decay": settings.weight_decay,
                "torch_adam": not settings.fused_adam,
            },
        },
        "zero_optimization": {"stage": settings.zero},
    }
    if settings.precision != "fp32":
        config[settings.precision] = {"enabled": True}
    config |= own
    json.dumps(config)  # what can't be JSON is no DeepSpeed configuration
    return config
