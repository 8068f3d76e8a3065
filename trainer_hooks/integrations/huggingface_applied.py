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

qk_clip: right after the optimizer's step (Llama's, Mistral's, Qwen 2's q_proj, k_proj, v_proj; GPT-2's c_attn;
GPT-NeoX's query_key_value). Refused where a layer norms its queries and keys, caps its logits or has other projections;
with torch.compile, tensor parallelism, FSDP, packing without padding. lr_factor_of: any parameter by its name;
attention.qk and attention.qkv of the same models. Refused with tensor parallelism and FSDP.

free: by the script, which reads it and passes `applies=("free",)`. shorten (reshape), batch_size, random_ltd,
curriculum, total_tokens: always refused.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sentinel.vocabulary.codec import Form, fields_of, read
from sentinel.vocabulary.errors import ConfigError, OverridesError
from sentinel.vocabulary.overrides import Free, Once, Overrides, TrainingSettings
from sentinel.vocabulary.pacing import FixedLinear, SeqlenSchedule
from trainer_hooks.control.agreed_count import AgreedCount
from trainer_hooks.errors import Guard
from trainer_hooks.integrations.huggingface_attention import override_attention, why_not_clipped
from trainer_hooks.integrations.huggingface_order import TrainOrder, why_not_ordered
from trainer_hooks.integrations.huggingface_schedules import (
    Lengths,
    TrainersLr,
    schedule_of,
    why_no_schedule,
    why_not_shortened,
)
from trainer_hooks.qk_clip.masters import why_not
from trainer_hooks.restart import Decisions, cannot_be_applied, decision_facts, due, wanted
from trainer_hooks.sample.adam_settings import AdamSettings, apply_once, keys_of_groups, why_no_weight_decay


@dataclass(slots=True, kw_only=True)
class Fed:
    """What the model was trained on, over all ranks: by the batches' shapes, padding included, without a sync.

    Each of the data-parallel `ranks` counts as much as this one. `samples` and `tokens` are of the whole run, None if
    an earlier part was not counted; `step_samples` and `seqlen` (of the longest micro-batch) of the step under way.
    """

    ranks: int
    samples: int | None
    tokens: int | None
    step_samples: int = 0
    seqlen: int | None = None

    def micro_batch(self, samples: int, seqlen: int) -> None:
        """One micro-batch goes into the model on this rank."""
        whole = samples * self.ranks
        self.step_samples += whole
        self.seqlen = max(seqlen, self.seqlen or 0)
        if self.samples is not None:
            self.samples += whole
        if self.tokens is not None:
            self.tokens += whole * seqlen


_FORM = Form(error=ConfigError, name="the callback's state", ignores_unknown=True)


@dataclass(slots=True, kw_only=True)
class Progress(Decisions):
    """What a checkpoint's trainer_state.json holds for the next attempt. None is what was not counted."""

    consumed_samples: int | None = None
    consumed_tokens: int | None = None
    lengths: Mapping[str, Any] | None = None  # Where a schedule stands that follows the validations

    def to_json(self) -> dict[str, Any]:
        """Without what is not there."""
        return {name: value for name, value in fields_of(self, without_none=True).items() if value != []}

    @classmethod
    def of(cls, left: Mapping[str, Any] | None) -> Progress:
        """ConfigError where it can't be read."""
        return cls() if left is None else read(cls, left, "trainer_state.json", _FORM)


class Applied:
    """Made after the checkpoint is loaded, before the first step; on every rank."""

    def __init__(
        self,
        trainer: Any,
        engine: Any,
        loader: Any,
        decided: Overrides | None,
        progress: Progress,
        *,
        by_script: tuple[str, ...],
        full_seqlen: int | None,
        guard: Guard,
    ) -> None:
        """OverridesError where a decided change can't be applied. `by_script`: keys that the script itself applies."""
        self._trainer, self._engine = trainer, engine
        self._decided, self.progress, self._by_script = decided, progress, by_script
        self._standing = standing = decided.standing if decided is not None else TrainingSettings()
        step = int(trainer.state.global_step)
        self.fed = Fed(
            ranks=int(self._engine.dp_world_size),
            samples=progress.consumed_samples if step else 0,
            tokens=progress.consumed_tokens if step else 0,
        )
        why = {"seqlen": why_not_shortened(trainer, self._engine.module), "seed": why_not_ordered(trainer, loader)}
        why["skip_samples"] = why["seed"]
        why["lr_factor_of"] = why_not(engine)
        why["qk_clip"] = why["lr_factor_of"] or why_not_clipped(trainer, engine.module)
        own = what_applies(self._engine, why)
        self.applies = (*own, *(key for key in by_script if key not in own))
        """The keys of overrides.json that are applied at a start, here or by the script."""
        once = due(decided, progress, step)
        if decided is not None:
            refuse(
                decided, once, self.applies, why | {"weight_decay": why_no_weight_decay(engine.optimizer.param_groups)}
            )
            AdamSettings.of(self._engine).impose(self._engine, standing)
        self._restore_attention = override_attention(engine, standing)
        self._order: TrainOrder | None = None
        if why["seed"] is None:
            self._order = TrainOrder(trainer, loader, progress.reseeds, progress.left_out(standing.skipped))
        if once is not None:
            if self._order is not None and (once.seed is not None or once.skip_samples is not None):
                self._order.change(step, seed=once.seed, skip_samples=once.skip_samples)
            apply_once(once, self._engine, progress, step)
        self._lr: TrainersLr | None = None
        self._tokens: AgreedCount | None = None  # where the learning rate goes by them: batches differ in length
        if (lr := standing.lr) is not None:
            if self.fed.tokens is None and "tokens" in (lr.unit, lr.decay_unit):
                raise OverridesError("overrides.json: lr counts tokens, and those of the run so far are not known")
            self._lr = TrainersLr(trainer, engine, lr)
            if "tokens" in (lr.unit, lr.decay_unit):
                self._tokens = AgreedCount.of_training(self.fed.tokens or 0)
        self._lengths: Lengths | None = None
        if (seqlen := standing.seqlen) is not None and "seqlen" in own:
            if full_seqlen not in (None, seqlen.full):
                raise OverridesError(f"overrides.json: seqlen goes to {seqlen.full}, and full_seqlen is {full_seqlen}")
            self._lengths = Lengths(trainer, guard, seqlen, progress.lengths)
        self._full_seqlen = full_seqlen
        self.schedule = self._lr.schedule if self._lr else schedule_of(trainer, self._engine, trainer.state.max_steps)
        """Of the learning rate; None where it is no formula."""

    def close(self) -> None:
        """Takes back what was put into the trainer."""
        self._restore_attention()
        for part in (self._order, self._lr, self._lengths):
            if part is not None:
                part.close()

    def begin_step(self, step: int) -> None:
        """Before the first micro-batch of the update that makes `step`."""
        self.fed.step_samples, self.fed.seqlen = 0, None
        if self._lr is not None:
            self._lr.begin(step=step, **self._counted(step - 1))

    def update_made(self) -> None:
        """After the update, before Trainer's scheduler steps."""
        if self._lr is not None:
            self._lr.made()

    def step_made(self, step: int) -> None:
        """After that step, on every rank."""
        if self._tokens is not None:
            self._tokens.step_made(self.fed.tokens or 0, self._lengths.length(step) if self._lengths is not None else 1)

    def validated(self, loss: float, step: int) -> None:
        """For a schedule of lengths that follows the validations."""
        if self._lengths is not None:
            self._lengths.validated(math.exp(min(loss, 700.0)), step)

    def consumed_samples(self, step: int) -> int | None:
        """After that step: where the order of the data stands, else what the model was fed."""
        return self.fed.samples if self._order is None else self._order.position(step)

    def seqlen(self, step: int) -> int | None:
        """Tokens per sample of the step that was fed: the warmup's length while there is one, where no batch was longer
        (padded to its own longest sample one may be shorter), else what was seen."""
        if self._lengths is None or (length := self._lengths.length(step)) == self._lengths.schedule.full:
            return self.fed.seqlen
        return max(length, self.fed.seqlen or 0)

    def note(self, step: int) -> None:
        """Puts where all of it stands into what a checkpoint holds."""
        progress = self.progress
        progress.consumed_samples, progress.consumed_tokens = self.consumed_samples(step), self.fed.tokens
        if self._order is not None and self._order.decided:
            progress.reseeds, progress.skipped = self._order.order.reseeds, self._order.order.skipped
        progress.lengths = self._lengths.state() if self._lengths is not None else None

    def facts(self) -> dict[str, Any]:
        """{field of RunStarted: value}, of what is applied and what it is applied to."""
        args, state, decided, full = self._trainer.args, self._trainer.state, self._decided, self._full_seqlen
        step = int(state.global_step)
        lengths: SeqlenSchedule | None = FixedLinear(start=full, full=full, total_steps=0) if full else None
        first = full
        if self._lengths is not None:
            lengths, first = self._lengths.schedule, self._lengths.length(step + 1)
        found: dict[str, Any] = {
            **decision_facts(decided, self.progress),
            "seed": int(args.seed if args.data_seed is None else args.data_seed),
            "first_sample_index": None if step and args.ignore_data_skip else self.fed.samples,
            "consumed_tokens": self.fed.tokens,
            "lr": float(self._engine.optimizer.param_groups[0]["lr"]),
            "lr_schedule": self.schedule.to_json() if self.schedule is not None else None,
            "qk_clip": self._standing.qk_clip or 0.0 if "qk_clip" in self.applies else None,
            "lr_factor_of": self._standing.lr_factor_of or {} if "lr_factor_of" in self.applies else None,
            "lr_schedule_unknown": why_no_schedule(self._trainer, self._engine) if self.schedule is None else None,
            "full_seqlen": lengths.full if lengths is not None else None,
            "seqlen": first,
            "seqlen_schedule": lengths.to_json() if lengths is not None else None,
            "seqlen_shortening": "truncate" if lengths is not None else None,
        }
        if self._order is not None:
            found |= self._order.order.facts(self._order.position(step))
        if self._lr is not None:
            found["lr"] = self._lr.schedule.lr(step=step + 1, **self._counted(step))
        if "free" in self._by_script:
            found["free"] = (self._standing.free or Free()).to_json()
        return found

    def _counted(self, step: int) -> Mapping[str, int]:
        """After that step, the same on all ranks."""
        tokens = self._tokens.now() if self._tokens is not None else self.fed.tokens or 0
        return {"consumed_samples": self.consumed_samples(step) or 0, "consumed_tokens": tokens}


def what_applies(engine: Any, why: Mapping[str, str | None]) -> tuple[str, ...]:
    """The keys of overrides.json that can be applied to this training; not those of which `why` says why not."""
    adam = keys_of_groups(engine.optimizer.param_groups)
    others = {
        **{key: reason is None for key, reason in why.items()},
        "reset_moments": "adam_beta2" in adam,
        "loss_scale": engine.fp16_enabled() and hasattr(engine.optimizer, "loss_scale"),
    }
    return ("lr", "clip_grad", *adam, *(key for key, can in others.items() if can))


def refuse(overrides: Overrides, once: Once | None, applies: tuple[str, ...], why: Mapping[str, str | None]) -> None:
    """OverridesError for the first change that this training can't apply: one that is silently ignored costs weeks."""
    for key, value in wanted(overrides, once).items():
        if key not in applies and not (key == "weight_decay" and value == 0):  # what groups have that take none
            raise cannot_be_applied(key, "this Trainer", why.get(key))
