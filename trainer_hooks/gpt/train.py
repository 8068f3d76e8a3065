"""The training loop. Read it from `Trainer.train` downwards; what it is fed is in data_path.py."""

from __future__ import annotations

import argparse
import gc
import math
from typing import Any

import torch.distributed as dist

from sentinel.vocabulary.loss_ratio import LossMinimum
from sentinel.vocabulary.overrides import CHANGES, TrainingSettings
from sentinel.vocabulary.parking import memory_tag, step_in_memory
from sentinel.vocabulary.sample import Sample
from trainer_hooks.attaching import attach
from trainer_hooks.control.parking import AfterPark, Parking
from trainer_hooks.control.start import agreed_start
from trainer_hooks.control.step_requests import REASONS, SIGTERM, StepRequests
from trainer_hooks.errors import Guard
from trainer_hooks.generators import restore_rng
from trainer_hooks.gpt import checkpoint
from trainer_hooks.gpt.arguments import deepspeed_config, users_own, with_free_options
from trainer_hooks.gpt.attention import override_attention
from trainer_hooks.gpt.data_path import DataPath
from trainer_hooks.gpt.one_shot import apply_one_shot
from trainer_hooks.gpt.process import Process
from trainer_hooks.gpt.process import leave_out_unused_ops as leave_out_unused_ops
from trainer_hooks.gpt.schedules import Schedules
from trainer_hooks.gpt.start_facts import start_facts
from trainer_hooks.gpt.training_log import TrainingLog
from trainer_hooks.gpt.validation import validation_loss
from trainer_hooks.random_ltd import DataRank
from trainer_hooks.sample.adam_settings import AdamSettings
from trainer_hooks.sample.engine_calls import await_saves
from trainer_hooks.sample.reading import Position

FORESEEN = 8  # steps whose batches a save foresees: they are read once more for it


def run(settings: argparse.Namespace, process: Process) -> str:
    """All attempts of this process, each but the first resumed in place; returns why the last one ended."""
    while True:
        trainer = Trainer(settings, process)
        reason = trainer.train()
        if process.resume is None:
            return reason
        del trainer
        gc.collect()  # what it has measured with, before the next one


class Trainer:
    """One attempt at a run."""

    def __init__(self, settings: argparse.Namespace, process: Process | None = None) -> None:
        """`process`: what the attempts of a process share, where one that parks can be followed by another."""
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        self.can_park, self.process = process is not None, process or Process()
        self.resume, self.process.resume = self.process.resume, None
        start = agreed_start(settings.state_dir)
        guard = Guard()
        self.parking = Parking(settings.state_dir, guard, lambda: self.hook.attempt if hasattr(self, "hook") else 0)
        parks = self.parking.file.accepts if self.can_park else None
        self.requests = StepRequests.of_training(settings.state_dir, guard, start.levels, parks)
        self.overrides = start.overrides
        self.standing = self.overrides.standing if self.overrides else TrainingSettings()
        self.settings = settings = argparse.Namespace(**vars(with_free_options(settings, self.standing.free)))
        own_json, told = users_own(settings)
        self.schedules = Schedules.of(settings, told, self.standing)
        if self.standing.total_tokens is not None:  # another end is no reason for another pace
            settings.tokens, settings.steps = self.standing.total_tokens, None

        self.corpus = self.process.corpus(settings)
        config = deepspeed_config(settings, own_json, self.schedules.batch_size, self.world)
        tag = checkpoint.named(settings.save)
        if self.resume is not None:
            checkpoint.check_target(self.resume, tag, self.overrides)
        in_memory = step_in_memory(self.resume.target) if self.resume is not None else None
        made = self.process.engine(settings, config, from_scratch=tag is None and in_memory is None)
        self.engine, self.model = made.engine, made.model
        self.memory = self.process.memory(settings, made.engine)
        self.log = TrainingLog(settings.tensorboard, rank=self.rank)
        self.hook = attach(
            self.engine,
            state_dir=settings.state_dir,
            run=settings.run,
            position=self.position,
            on_sample=self._on_sample,
            address=settings.metrics_address,
            port=settings.metrics_port,
            announce=settings.metrics_announce,
            applies=CHANGES,
            trainer="the reference GPT trainer",
        )
        self.hook.saves_to(settings.save)
        guard.outer = self.hook.guard  # counted in sentinel_hook_errors_total
        try:
            self._load(made.adam, in_memory)
        except BaseException as error:
            if self.resume is not None:  # the process of any other start ends with it, which tells the same
                self.hook.close(f"error: {type(error).__name__}: {error}")
            raise
        self._report_start()
        if self.memory is not None:
            self.memory.held(self.hook.report_memory)

    def _load(self, adam: AdamSettings, in_memory: int | None) -> None:
        """The checkpoint, or that state in memory, and all that goes on from there, with the decided changes."""
        settings = self.settings
        self.model.report_logits_to(self.hook.report_logits)
        self.progress, rng = checkpoint.load(self.engine, settings.save, self.memory, in_memory)
        tag = f"global_step{self.progress.step}" if in_memory is None else memory_tag(in_memory)
        self.resumed_tag = tag if self.progress.step else None
        self.saved_step = self.progress.step if in_memory is None else 0
        adam.impose(self.engine, self.standing)
        self.attention = override_attention(self.engine, self.model, self.standing)
        self.data = DataPath(
            *(self.engine, self.corpus, self.schedules, settings, self.progress),
            skipped=self.standing.skipped or (),
            rank=DataRank(rank=self.rank, size=self.world),
            seen=self.hook.batch_seen,
        )
        self.hook.loss_minimum = LossMinimum.load(self.progress.loss_minimum)
        if rng is not None:
            restore_rng(rng)
        apply_one_shot(self.overrides, self.progress, self.data.order, self.engine, settings.precision)
        self.log.open()

    def train(self) -> str:
        """Trains to the end, or until asked to stop; returns why it ended: finished, sigterm or kill_file; `parked too
        long`, or `resumed in place …`, and then the process has what the next attempt begins from."""
        self.process.obey_sigterm()
        reason = "finished"
        try:
            while not self._at_end():
                self.step()
                due = self.requests.at_boundary(stop=self._stop_level())
                if due.save and self.saved_step != self.number:
                    self.save()
                if due.stop is not None:
                    reason = due.stop
                    break
                if due.park and (after := self._park()).ends is not None:
                    reason, self.process.resume = after.ends, after.resume
                    self.process.ended_parked = after.resume is None
                    break
            if reason in REASONS.values() and self.settings.save_on_stop and not self.process.ended_parked:
                self.save()
        except BaseException as error:
            reason = f"error: {type(error).__name__}: {error}"
            raise
        finally:
            self._close(reason)
        return reason

    def _park(self) -> AfterPark:
        """Waits with all ranks, no file open. An end while parked saves nothing: checkpoints may be on the move."""
        after = self.parking.park(close=self._close_files, report=self.hook.report_park, stop=self._stop_level)
        if after.ends is None:
            self.log.open()
        return after

    def _close_files(self) -> None:
        await_saves(self.engine)
        self.hook.await_readings()
        if self.memory is not None:
            self.memory.settle(self.hook.report_memory)
        self.log.close()

    def _close(self, reason: str) -> None:
        self.requests.close()
        self.hook.close(reason)
        self.log.close()
        self.data.close()
        if self.attention is not None:
            self.attention.remove()

    def step(self) -> None:
        """One optimizer step: as many micro-batches as it takes, then what is due after it."""
        engine = self.engine
        self.number = self.progress.step + 1
        self.step_lr = self.schedules.lr.lr(step=self.number, consumed_tokens=self.data.effective_tokens)
        for group in engine.optimizer.param_groups:
            group["lr"] = self.step_lr
        for batch in self.data.begin(self.number):
            engine.backward(engine(batch))
            engine.step()
        self._after_step()

    def _after_step(self) -> None:
        settings = self.settings
        every = settings.validate_every
        if every and self.data.warmup.length < self.data.warmup.full:  # there the training loss does not tell
            every = settings.validate_every_warming_up or max(1, every // 2)
        if every and (self.number % every == 0 or self._at_end()):
            self.validate()
        unsaved = self.saved_step == 0 and self.resumed_tag is not None  # from memory: `latest` names an earlier one
        if settings.save_interval and (self.number % settings.save_interval == 0 or unsaved):
            self.save()
        if self.memory is not None:
            hook = self.hook
            self.memory.at_boundary(self.engine, self.number, self.client_state, hook.report_memory, hook.guard)

    def _on_sample(self, sample: Sample) -> None:
        self.log.sample(sample)

    def validate(self) -> float:
        """Mean loss at full length over a fixed set of validation samples, nats; the same on any number of ranks."""
        settings = self.settings
        mean = validation_loss(self.engine, self.corpus, settings.validation_batches * settings.global_batch)
        self.data.warmup.validated(math.exp(min(mean, 700.0)), self.number)
        self.hook.validation(mean, self.corpus.seqlen)
        self.log.validation(mean, self.number, self.hook.latest)
        return mean

    def _noted(self) -> checkpoint.Progress:
        """The progress, with where all of it stands now."""
        self.data.note(self.progress)
        self.progress.loss_minimum = tuple(self.hook.loss_minimum.state())
        self.progress.attempt = self.hook.attempt
        return self.progress

    def client_state(self) -> dict[str, Any]:
        """What a save would hold beside the engine's state, as it is now."""
        return checkpoint.client_state_of(self._noted())

    def save(self) -> None:
        progress = self._noted()
        tag = checkpoint.save(self.engine, self.settings.save, progress)
        self.saved_step = progress.step
        self.hook.checkpoint_saved(
            tag,
            consumed_samples=progress.consumed_samples,
            consumed_tokens=progress.consumed_tokens,
            next_batch_digests=self.data.next_digests(FORESEEN) if self.rank == 0 else (),
        )

    def position(self) -> Position:
        """For the hook: where the step that was just made stands."""
        return Position(
            consumed_samples=self.progress.consumed_samples,
            consumed_tokens=self.progress.consumed_tokens,
            seqlen=self.data.warmup.length,
            kept_tokens=self.data.kept_tokens,
            curriculum_share=self.data.curriculum_share,
            lr=self.step_lr,
            lr_warmup_steps=self.schedules.lr.warmup if self.schedules.lr.unit == "steps" else None,
            global_batch_samples=self.data.samples,
        )

    def _report_start(self) -> None:
        self.hook.run_started(
            resumed_from=self.progress.step or None,
            in_place=self.resume is not None,
            can_park=self.can_park,
            **start_facts(
                *(self.settings, self.progress, self.overrides),
                schedules=self.schedules,
                data=self.data,
                full_seqlen=self.corpus.seqlen,
            ),
        )
        self.log.started(self.hook.attempt, self.resumed_tag, self.data.order, in_place=self.resume is not None)

    def _at_end(self) -> bool:
        settings, progress = self.settings, self.progress
        by_steps = settings.steps is not None and progress.step >= settings.steps
        return by_steps or (settings.tokens is not None and self.data.effective_tokens >= settings.tokens)

    def _stop_level(self) -> int:
        return SIGTERM if self.process.stop_asked else 0
