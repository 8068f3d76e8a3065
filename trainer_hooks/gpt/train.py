"""The training loop. Read it from `Trainer.train` downwards.

Batches are addressed by consumed_samples, so that the data of a step is the same on any number of ranks, after any
restart, whatever the sequence length was; sequence length warmup truncates samples, it does not move the address.
"""
# ruff: noqa: T201 - a trainer's log is what it prints

from __future__ import annotations

import argparse
import signal
from pathlib import Path
from typing import Any

import deepspeed
import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from sentinel.vocabulary.errors import OverridesError
from sentinel.vocabulary.loss_ratio import LossMinimum
from sentinel.vocabulary.overrides import Free, Overrides, Standing, decode_overrides
from sentinel.vocabulary.skipping import SkippedRange
from trainer_hooks.adam_settings import AdamSettings, moments_are_zero, reset_moments, set_loss_scale
from trainer_hooks.gpt import checkpoint
from trainer_hooks.gpt.data import Corpus, load_corpus
from trainer_hooks.gpt.model import GPT
from trainer_hooks.gpt.order import DataOrder
from trainer_hooks.gpt.scalars import Scalars
from trainer_hooks.gpt.settings import deepspeed_config, lr_schedule, seqlen_schedule, shape, with_free_options
from trainer_hooks.hook import Position, attach

__all__ = ["Trainer", "leave_out_unused_ops"]


def leave_out_unused_ops() -> None:
    """Keeps DeepSpeed from compiling the op that inference on a CPU reduces with; call it before initialize.

    It takes a minute on first use, and a trainer that is killed while it loads leaves a lock that every later start
    would wait for without end (pytorch/pytorch#189245). Training does not use it.
    """
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False


class Trainer:
    """One attempt at a run."""

    def __init__(self, settings: argparse.Namespace) -> None:
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        self.stop_asked = False
        self.overrides = _read_overrides(settings.state_dir)
        self.standing = self.overrides.standing if self.overrides else Standing()
        self.settings = settings = with_free_options(settings, self.standing.free)
        self.lr = self.standing.lr or lr_schedule(settings)
        self.seqlen = self.standing.seqlen or seqlen_schedule(settings)

        self.corpus: Corpus = load_corpus(
            settings.data,
            seqlen=shape(settings).seqlen,
            vocabulary=settings.vocabulary,
            validation_share=settings.validation_share,
        )
        torch.manual_seed(settings.seed)
        model = GPT(shape(settings), self.corpus.vocabulary)
        config = deepspeed_config(settings, self.world)
        leave_out_unused_ops()
        self.engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=config)
        self.hook = attach(
            self.engine,
            state_dir=settings.state_dir,
            run=settings.run,
            position=self.position,
            port=settings.metrics_port,
        )
        adam = AdamSettings.of(self.engine)
        self.progress, rng = checkpoint.load(self.engine, settings.save)
        self.resumed_from = self.progress.step or None
        self._set_adam(adam)
        skipped = [SkippedRange.from_json(r) for r in self.progress.skipped]
        skipped += [r for r in self.standing.skipped if r not in skipped]
        self.order = DataOrder(self.corpus.training_samples, settings.seed, self.progress.reseeds, skipped)
        self.hook.loss_minimum = LossMinimum.load(self.progress.loss_minimum)
        if rng is not None:
            checkpoint.restore_rng(rng)
        self._apply_once()
        self.scalars = Scalars(settings.tensorboard) if settings.tensorboard and self.rank == 0 else None
        self._report_start()

    def train(self) -> str:
        """Trains to the end, or until asked to stop; returns why it ended: finished, sigterm or kill_file."""
        signal.signal(signal.SIGTERM, self._ask_to_stop)
        reason = "finished"
        try:
            while not self._at_end():
                self.step()
                if (asked := self._asked_to_stop()) is not None:
                    reason = asked
                    break
            if reason != "finished" and self.settings.save_on_stop:
                self.save()
        except BaseException as error:
            reason = f"error: {type(error).__name__}: {error}"
            raise
        finally:
            if self.scalars is not None:
                self.scalars.close()
            self.hook.close(reason)
        return reason

    def step(self) -> None:
        """One optimizer step: as many micro-batches as it takes, then what is due after it."""
        self.number = self.progress.step + 1
        self.step_lr = self.lr.lr(step=self.number, consumed_tokens=self.progress.consumed_tokens)
        self.step_seqlen = self.seqlen.seqlen(self.number)
        for group in self.engine.optimizer.param_groups:
            group["lr"] = self.step_lr
        batch = self.settings.global_batch
        samples, after = self.order.take(self.progress.consumed_samples, batch)  # (global batch,)
        micro = self.engine.train_micro_batch_size_per_gpu()
        micro_batches = samples.reshape(-1, self.world, micro)[:, self.rank]  # (accumulation, micro batch)
        self.progress.step = self.number
        self.progress.consumed_samples = after
        self.progress.consumed_tokens += batch * self.step_seqlen
        for indices in micro_batches:
            loss = self.engine(self._tokens(self.corpus.training(indices), self.step_seqlen))
            self.engine.backward(loss)
            self.engine.step()
        self._after_step()

    def _after_step(self) -> None:
        settings, sample = self.settings, self.hook.latest
        if sample is not None and sample.global_step == self.number and self.rank == 0:
            if self.scalars is not None:
                self.scalars.step(sample)
            if self.number % 10 == 0 or self.number == 1:
                took = f"{sample.step_time_s:.3f} s" if sample.step_time_s is not None else "first step"
                print(
                    f"step {self.number}  loss {sample.loss:.4f}  lr {self.step_lr:.3e}  "
                    f"seqlen {self.step_seqlen}  {took}",
                    flush=True,
                )
        if settings.validate_every and (self.number % settings.validate_every == 0 or self._at_end()):
            self.validate()
        if settings.save_interval and self.number % settings.save_interval == 0:
            self.save()

    @torch.no_grad()
    def validate(self) -> float:
        """Mean loss at full length over a fixed set of validation samples, nats; the same on any number of ranks."""
        engine, count = self.engine, self.settings.validation_batches * self.settings.global_batch
        indices = np.arange(min(count, self.corpus.validation_samples))
        engine.eval()
        total = torch.zeros(2, dtype=torch.float64, device=engine.device)  # sum of losses, samples
        for part in np.array_split(indices[self.rank :: self.world], max(1, len(indices) // 16)):
            if len(part):
                loss = engine.module(self._tokens(self.corpus.validation(part), self.corpus.seqlen))
                total += torch.tensor([loss.item() * len(part), len(part)], device=engine.device)
        engine.train()
        dist.all_reduce(total)
        mean = float(total[0] / total[1])
        self.hook.validation(mean, self.corpus.seqlen)
        if self.scalars is not None and self.hook.latest is not None:
            self.scalars.validation(mean, self.hook.latest)
        if self.rank == 0:
            print(f"validation at step {self.number}: loss {mean:.4f}", flush=True)
        return mean

    def save(self) -> None:
        """A checkpoint, and word of it."""
        progress = self.progress
        progress.reseeds = self.order.reseeds
        progress.skipped = tuple(r.to_json() for r in self.order.skipped)
        progress.loss_minimum = self.hook.loss_minimum.state()
        progress.attempt = self.hook.attempt
        tag = checkpoint.save(self.engine, self.settings.save, progress)
        self.hook.checkpoint_saved(
            tag, consumed_samples=progress.consumed_samples, consumed_tokens=progress.consumed_tokens
        )

    def position(self) -> Position:
        """For the hook: where the step that was just made stands."""
        return Position(
            consumed_samples=self.progress.consumed_samples,
            consumed_tokens=self.progress.consumed_tokens,
            seqlen=self.step_seqlen,
            lr=self.step_lr,
            lr_warmup_steps=self.lr.warmup if self.lr.unit == "steps" else None,
            global_batch_samples=self.settings.global_batch,
        )

    def _tokens(self, samples: np.ndarray[Any, Any], seqlen: int) -> Tensor:
        return torch.from_numpy(samples[:, : seqlen + 1]).to(self.engine.device)  # (B, T + 1)

    def _set_adam(self, configured: AdamSettings) -> None:
        """What is configured holds over what the checkpoint has brought back, and what sentinel decided over both."""
        standing = self.standing
        configured.impose(
            self.engine,
            beta1=standing.adam_beta1,
            beta2=standing.adam_beta2,
            weight_decay=standing.weight_decay,
            clip_grad=standing.clip_grad,
        )

    def _apply_once(self) -> None:
        """One-shot changes: only when resuming exactly at the anchor, and never a second time."""
        overrides, progress = self.overrides, self.progress
        if overrides is None or overrides.once is None or overrides.once.id in progress.applied_once:
            return
        if progress.step != overrides.anchor.global_step:
            return
        once = overrides.once
        if once.skip_samples is not None:
            self.order.skip(progress.consumed_samples, once.skip_samples)
        if once.seed is not None:  # of what is left: the samples skipped at this position stay where they are
            at = self.order.first(progress.consumed_samples) if once.skip_samples else progress.consumed_samples
            self.order.reseed(at, once.seed)
        if once.reset_moments and progress.step:
            reset_moments(self.engine)
            if not moments_are_zero(self.engine):
                raise OverridesError("overrides.json: reset_moments: not all of Adam's state could be set to 0")
            progress.moments_reset_steps = (*progress.moments_reset_steps, progress.step)
        if once.loss_scale is not None:
            if self.settings.precision != "fp16":
                raise OverridesError(f"overrides.json: loss_scale: only fp16 has one, not {self.settings.precision}")
            set_loss_scale(self.engine, once.loss_scale)
        progress.applied_once = (*progress.applied_once, once.id)

    def _report_start(self) -> None:
        settings, progress = self.settings, self.progress
        first = progress.step + 1
        self.hook.run_started(
            parent_attempt=progress.attempt,
            resumed_from=self.resumed_from,
            incident=self.overrides.incident if self.overrides else None,
            rollback=self.overrides.rollback if self.overrides else None,
            applied_once=progress.applied_once,
            seed=self.order.seed,
            first_sample_index=self.order.first(progress.consumed_samples),
            skipped_samples=self.order.skipped_samples,
            skipped_ranges=tuple(r.to_json() for r in self.order.skipped),
            moments_reset_steps=progress.moments_reset_steps,
            free=(self.standing.free or Free()).to_json(),
            consumed_tokens=progress.consumed_tokens,
            lr=self.lr.lr(step=first, consumed_tokens=progress.consumed_tokens),
            lr_schedule=self.lr.to_json(),
            seqlen=self.seqlen.seqlen(first),
            seqlen_schedule=self.seqlen.to_json(),
            full_seqlen=self.corpus.seqlen,
            total_steps=settings.steps,
            checkpoint_interval_steps=settings.save_interval or None,
            settings={k: str(v) if isinstance(v, Path) else v for k, v in vars(settings).items() if k != "data"},
        )
        if self.rank == 0:
            whence = f"from global_step{self.resumed_from}" if self.resumed_from else "from scratch"
            skipped = f", {self.order.skipped_samples} samples skipped" if self.order.skipped else ""
            print(f"attempt {self.hook.attempt}, {whence}, seed {self.order.seed}{skipped}", flush=True)

    def _at_end(self) -> bool:
        settings, progress = self.settings, self.progress
        by_steps = settings.steps is not None and progress.step >= settings.steps
        return by_steps or (settings.tokens is not None and progress.consumed_tokens >= settings.tokens)

    def _ask_to_stop(self, *_: object) -> None:
        self.stop_asked = True

    def _asked_to_stop(self) -> str | None:
        """Whether any rank was asked to stop; all ranks get the same answer after the same step."""
        asked = 2 * self.stop_asked or int((self.settings.state_dir / "KILL").exists())
        flag = torch.tensor([asked], device=self.engine.device)
        if self.world > 1:
            dist.all_reduce(flag, dist.ReduceOp.MAX)
        return {0: None, 1: "kill_file", 2: "sigterm"}[int(flag)]


def _read_overrides(state_dir: Path) -> Overrides | None:
    path = state_dir / "overrides.json"
    try:
        return decode_overrides(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except OSError as error:
        raise OverridesError(f"{path}: {error.strerror}") from error
