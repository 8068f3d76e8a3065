"""What of overrides.json Hugging Face's Trainer can be changed by: found out, refused, applied at a start."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from sentinel.vocabulary.errors import ConfigError, OverridesError
from sentinel.vocabulary.overrides import STANDING, Once, Overrides, words_of
from trainer_hooks.integrations.huggingface_order import TrainOrder
from trainer_hooks.integrations.huggingface_progress import Progress
from trainer_hooks.sample.adam_settings import apply_once
from trainer_hooks.state_files import read_overrides

_BY_GROUP = {"betas": ("adam_beta1", "adam_beta2"), "eps": ("adam_eps",), "weight_decay": ("weight_decay",)}


def agreed_overrides(folder: Path) -> Overrides | None:
    """What rank 0 reads, on all ranks. OverridesError on all of them where it can't be read."""
    found: list[Any] = [None, None]
    if not dist.is_initialized() or dist.get_rank() == 0:
        try:
            found[0] = read_overrides(folder)
        except OverridesError as error:
            found[1] = str(error)
    if dist.is_initialized() and dist.get_world_size() > 1:
        dist.broadcast_object_list(found)
    if found[1] is not None:
        raise OverridesError(found[1])
    return found[0]  # type: ignore[no-any-return]


def largest_of_ranks(value: int, device: Any) -> int:
    """The same answer on all ranks."""
    flag = torch.tensor([value], device=device)
    if dist.is_initialized() and dist.get_world_size() > 1:
        dist.all_reduce(flag, dist.ReduceOp.MAX)
    return int(flag)


def what_applies(engine: Any, *, ordered: bool, shortened: bool) -> tuple[str, ...]:
    """The keys of overrides.json that can be applied to this training."""
    groups = engine.optimizer.param_groups
    adam = [key for name, keys in _BY_GROUP.items() if all(name in group for group in groups) for key in keys]
    others = {
        "seqlen": shortened,
        "seed": ordered,
        "skip_samples": ordered,
        "reset_moments": "adam_beta2" in adam,
        "loss_scale": engine.fp16_enabled() and hasattr(engine.optimizer, "loss_scale"),
    }
    return ("lr", "clip_grad", *adam, *(key for key, can in others.items() if can))


def due(overrides: Overrides | None, progress: Progress, global_step: int) -> Once | None:
    """The one-shot changes, where this start resumes exactly at the anchor and the run has not had them yet."""
    once = overrides.once if overrides is not None else None
    if once is None or overrides is None or once.id in progress.applied_once:
        return None
    return once if global_step == overrides.anchor.global_step else None


def refuse(overrides: Overrides, once: Once | None, applies: tuple[str, ...], why: Mapping[str, str | None]) -> None:
    """OverridesError for the first change that this training can't apply: one that is silently ignored costs weeks."""
    standing = overrides.standing
    wanted = {name: value for name in STANDING if (value := getattr(standing, name)) is not None}
    asked = {f.name: getattr(once, f.name) for f in fields(Once) if once is not None and f.name != "id"}
    for key, value in {**wanted, **{k: v for k, v in asked.items() if v not in (None, False)}}.items():
        needs = "skip_samples" if key == "skipped" else key
        if needs in applies or _is_off(key, value):
            continue
        reason = f": {why[needs]}" if why.get(needs) else ""
        raise OverridesError(
            f"overrides.json: {words_of(key)} ({key}) can't be applied to this Trainer{reason}; nothing was trained"
        )


def _is_off(key: str, value: Any) -> bool:
    """Whether the value says that all is as it is without it."""
    off: dict[str, Callable[[], object]] = {
        "seqlen": lambda: not value.warms_up,
        "shorten": lambda: value == "truncate",  # the one way in which batches are shortened here
        "batch_size": lambda: not value.warms_up,
        "random_ltd": lambda: not value.drops,
        "curriculum": lambda: not value.metrics,
        "skipped": lambda: not value,
    }
    return key in off and bool(off[key]())


def apply_all_once(once: Once, engine: Any, order: TrainOrder | None, progress: Progress, global_step: int) -> None:
    """Each of the one-shot changes, and on the record that the run has had them."""
    if order is not None and (once.seed is not None or once.skip_samples is not None):
        try:
            order.change(global_step, seed=once.seed, skip_samples=once.skip_samples)
        except ConfigError as error:
            raise OverridesError(f"overrides.json: {error}") from error
    apply_once(once, engine, progress, global_step)
