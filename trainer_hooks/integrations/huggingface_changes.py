"""What of overrides.json Hugging Face's Trainer can be changed by: found out, refused, applied at a start.

lr: set before each update, over any scheduler of Trainer's or DeepSpeed's, which goes on and is saved with its own
values; parameter groups keep their ratios; Trainer logs the LR in force. It needs the run's LR schedule, which is
known for Trainer's `linear`, `constant`, `constant_with_warmup`, `cosine` and `cosine_with_min_lr`, and for
DeepSpeed's `WarmupLR`, `WarmupDecayLR` and `WarmupCosineLR` with `warmup_type: linear` (not the default) and no
minimum.

clip_grad, adam_beta1, adam_beta2, adam_eps, weight_decay: set over what the checkpoint brought back. Refused where
the optimizer has no such value.

reset_moments, loss_scale: once, at the anchor. Refused where it is not Adam; not fp16, or without DeepSpeed.

seed, skip_samples: the sampler is wrapped: a seed permutes what is left of the epoch, skipped samples stay out; kept
in trainer_state.json, so a requeue repeats the order exactly. Refused with iterable data sets, `group_by_length` and
other samplers, `ignore_data_skip`.

seqlen: the first tokens of input_ids, labels and masks are kept (truncate), before Trainer counts the labels;
evaluations stay at full length. It needs `full_seqlen`; the run's end and its LR stay as they are, for Trainer's
number of steps is fixed. Refused with encoder-decoder and multimodal models, packing without padding, sequence
parallelism.

free: by the script, which reads it and passes `applies=("free",)`. shorten (reshape), batch_size, random_ltd,
curriculum, total_tokens: always refused.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Any

from sentinel.vocabulary.errors import OverridesError
from sentinel.vocabulary.overrides import STANDING, Once, Overrides, words_of

_BY_GROUP = {"betas": ("adam_beta1", "adam_beta2"), "eps": ("adam_eps",), "weight_decay": ("weight_decay",)}


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
