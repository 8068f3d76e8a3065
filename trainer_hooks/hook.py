"""After each optimizer step one Sample, to the metrics journal and to /metrics. A hook may lose a sample; it may never
lose a step: every error is caught by a Guard, counted, and logged once."""

from __future__ import annotations

import atexit
import logging
import os
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any, TypeVar

from torch.compiler import is_compiling

from sentinel.vocabulary.loss_ratio import LossMinimum
from sentinel.vocabulary.parking import ResumeRequest
from sentinel.vocabulary.sample import (
    CheckpointSaved,
    LayerVariance,
    MemoryTarget,
    Parked,
    Record,
    Released,
    RunFinished,
    RunStarted,
    Sample,
    StateLoaded,
    StateSaved,
    Validation,
)
from trainer_hooks.control.boundaries import Boundaries, Boundary
from trainer_hooks.errors import Guard, exit_reason
from trainer_hooks.export.exporter import ExporterSettings
from trainer_hooks.export.heartbeats import Heartbeats
from trainer_hooks.export.outputs import Outputs
from trainer_hooks.ranks import Ranks, ranks_of_world
from trainer_hooks.ranks.signs import Signs, record_of
from trainer_hooks.sample import adam_settings
from trainer_hooks.sample.arrivals import Arrivals
from trainer_hooks.sample.engine_calls import wrap_engine
from trainer_hooks.sample.gathering import Gathering
from trainer_hooks.sample.logits import Logits
from trainer_hooks.sample.meter import READINGS, Meter
from trainer_hooks.sample.process_facts import process_facts
from trainer_hooks.sample.reading import Reading, StepFacts, make_sample, state_record
from trainer_hooks.sample.torch_engine import whole

__all__ = ["Hook"]

log = logging.getLogger(__name__)
T = TypeVar("T")
_STARTED = frozenset(field.name for field in fields(RunStarted))


class Hook:
    """What `attach` returns. All its methods may be called on every rank; only rank 0 writes."""

    def __init__(
        self,
        engine: Any,
        state_dir: Path,
        *,
        run: str,
        mpu: Any,
        exporter: ExporterSettings,
        facts: StepFacts,
        loss_minimum: LossMinimum,
        on_sample: Callable[[Sample], None] | None,
        interval_steps: int,
        measure: Iterable[str] = READINGS,
        declared: Mapping[str, Any],
        ranks: Ranks | None,
        at_start: Callable[[], Mapping[str, Any]] = dict,
    ) -> None:
        self._engine, self._mpu = engine, mpu
        self._state_dir, self._run, self._exporter = state_dir, run, exporter
        self._declared, self._at_start = {**declared, "run": run}, at_start
        self._facts = facts
        self._on_sample = on_sample
        self._interval_steps = max(0, interval_steps)
        self._measured = measure
        self.loss_minimum = loss_minimum  # Its state() belongs in the checkpoint's client state
        self.latest: Sample | None = None  # The last sample that was made, on rank 0
        self.latest_layers: LayerVariance | None = None  # The last reading of the layers, on rank 0
        self._process = os.getpid()
        self.boundaries: Boundaries | None = None  # Where the loop gives them over: `boundary`
        self.ranks = ranks_of_world() if ranks is None else ranks
        """All ranks of the training, for those who have to agree beside its own collectives."""
        self._rank = self.ranks.rank
        self.begin()

    def begin(self) -> None:
        """Called where an attempt begins: again, after `close`, where the next one begins in this process."""
        self.guard = Guard()
        self.closed = False  # Whether the end has been reported
        self._at_exit = lambda: self.close(exit_reason())
        self._unwrap: Callable[[], None] = lambda: None
        self._started = self._load_measured = False
        self._saved_step: int | None = None  # whose state was measured at a save
        self._meter: Meter | None = None
        self._arrivals: Arrivals | None = None
        self._outputs: Outputs | None = None
        with self.guard("look at the model"):
            self._meter = Meter(self._engine, self._mpu, self.guard, self._interval_steps, self._measured)
        self._metered("look at Adam's state", Meter.look)
        self._join()
        self._metered("listen to the gradients", Meter.listen_to_gradients)
        with self.guard("open the journal"):
            if self._rank == 0:
                shown = (self._state_dir, self._run, self._exporter, self.guard, lambda: self.latest_layers)
                self._outputs = Outputs(*shown)
        self._heartbeats: Heartbeats | None = None
        self._saves_known = False  # whether the trainer itself has said where its checkpoints are
        with self.guard("begin its heartbeat"):
            self._heartbeats = Heartbeats(self._state_dir, self, self.ranks.world)

    def _join(self) -> None:
        """Takes part with this rank, or says to the others that it does not: then nobody measures."""
        names = None
        with self.guard("take its place in the engine"):
            self._unwrap = wrap_engine(self._engine, self)
            names = self._meter.layers if self._meter is not None else []
        with self.guard("join the ranks"):
            gathering = Gathering(self.ranks, self.ranks.union(names), self._report, self.guard)
            signs = Signs(self.ranks, lambda still: self._put(record_of(still, self._now())))
            self._arrivals = Arrivals(gathering, self.guard, signs)

    @property
    def rank(self) -> int:
        """Of this process, over all ranks of the training."""
        return self._rank

    @property
    def attempt(self) -> int:
        """Of the training process group; 0 on other ranks, and where none could be minted, or not yet."""
        return 0 if self._outputs is None else self._outputs.attempt

    @property
    def layers(self) -> tuple[str, ...]:
        """Of the model, over all ranks, as `latest_layers` has them; none before the ranks have told one another."""
        return () if self._arrivals is None else self._arrivals.layers

    @property
    def errors(self) -> int:
        """Errors that were caught and kept from the training loop."""
        return self.guard.errors

    def run_started(self, **facts: Any) -> None:
        """Reports what the attempt runs with: any fields of RunStarted, once, after load_checkpoint. What is none
        is left out, and logged."""
        if unknown := sorted(facts.keys() - _STARTED):
            facts = {name: value for name, value in facts.items() if name in _STARTED}
            with self.guard("report all of the start"):
                raise TypeError(f"RunStarted has no field {', '.join(unknown)}")
        with self.guard("report the start"):
            self._started = True
            known = {"applied_once": (), **process_facts(), **self._declared, "attempt": self.attempt}
            known["variance_pass"] = self._metered("choose what reads Adam's state", Meter.pass_names)
            with self.guard("read what the optimizer runs with"):
                known = {**adam_settings.facts(self._engine), **known}
            self._put(RunStarted(**{**known, **self._at_start(), **facts}))

    def validation(self, loss: float, seqlen: int | None = None) -> None:
        """Reports a validation loss (nats, mean over tokens and ranks) at full length."""
        self.await_readings()
        with self.guard("report the validation"):
            self._put(Validation(**self._now(), loss=float(loss), seqlen=seqlen))

    def checkpoint_saved(self, tag: str, **facts: Any) -> None:
        """Reports a whole checkpoint: fields of CheckpointSaved; `next_batch_digests` are of the next steps,
        `global_step` is that of the state where a save has ended steps later."""
        self.await_readings()
        with self.guard("report the checkpoint"):
            self._put(CheckpointSaved(**{**self._now(), **facts}, tag=tag))

    def boundary(self) -> Boundary:
        """The last line of a step of a loop that was attached with `reload`, on every rank: what all ranks do after
        this step, as people and sentinel ask by files. Where the training parks it returns once that is over."""
        return self.boundaries.pass_on() if self.boundaries is not None else Boundary()

    def await_readings(self) -> None:
        """Called before what follows the samples on their way: reports them, as far as they arrive soon."""
        if self._arrivals is not None:
            self._arrivals.await_all()

    def report_park(self, kind: type[Parked | Released], rollback: str) -> None:
        """Called where the training parks, by what waits: the attempt's last record while it is parked, and the end of
        that where the attempt goes on."""
        with self.guard("report the park"):
            self._put(kind(**self._now(), rollback=rollback))

    def report_memory(self, *, global_step: int, **facts: Any) -> None:
        """Called by what keeps states in memory: fields of MemoryTarget, once all ranks have that state."""
        self.await_readings()
        with self.guard("report the state in memory"):
            self._put(MemoryTarget(**{**self._now(), "global_step": global_step}, **facts))

    def from_memory(self, resume: ResumeRequest) -> Mapping[str, Any] | None:
        """For `reload`, on every rank: where `resume` is to a state in memory (`attach` with memory_targets), puts that
        back into the engine, generators included, and returns what `client_state` gave then. None where the target is a
        checkpoint, or scratch. CheckpointError, on every rank, where a rank's state is not what it kept."""
        return None if self.boundaries is None else self.boundaries.from_memory(resume)

    def saves_to(self, folder: str | os.PathLike[str]) -> None:
        """Says where the checkpoints are, so that a heartbeat lies beside them. What the trainer says holds: the folder
        of the engine's saves counts where it says nothing."""
        self._saves_known = True
        self._beat_beside(folder)

    def engine_saves_to(self, folder: str | os.PathLike[str]) -> None:
        """Called by the engine at a save. Hugging Face's Trainer has it save into the folder of each checkpoint: a
        heartbeat there would be a file of the checkpoint that is written while nothing trains."""
        if not self._saves_known:
            self._beat_beside(folder)

    def _beat_beside(self, folder: str | os.PathLike[str]) -> None:
        with self.guard("begin its heartbeat beside the checkpoints"):
            if self._heartbeats is not None:
                self._heartbeats.beside(Path(folder))

    def close(self, reason: str) -> None:
        """Reports the end and frees everything; the second call does nothing."""
        if self.closed or os.getpid() != self._process:  # a fork's end is not the training's
            return
        with self.guard("leave the training as it was"):  # first: an update that was made may not be reported yet
            self._unwrap()
        self.closed = True
        atexit.unregister(self._at_exit)
        if self.boundaries is not None:
            self.boundaries.close()
        if self._arrivals is not None:
            self._arrivals.await_last(finished=reason == "finished")
        with self.guard("report the end"):
            self._put(RunFinished(**self._now(), reason=reason))
        if self._outputs is not None:
            self._outputs.close()
        if self._heartbeats is not None:
            self._heartbeats.close()
        self._metered("leave the gradients", Meter.stop)
        self._meter = None  # what still calls from the engine measures nothing, and its memory is free

    def close_at_exit(self) -> None:
        """Called by the integrations: reports the end of the process where that of the training was not: an uncaught
        error's as a rule, or one of Megatron's own ways out (a signal, a duration, the kill switch)."""
        atexit.register(self._at_exit)

    def loss_seen(self, loss: Any, *, of_many: bool) -> None:
        """Called by the engine: a micro-batch's loss is about to be differentiated. The step's loss is their mean, or
        without `of_many` (divided by the caller already; a pipeline's, of the whole step) their sum."""
        if self._arrivals is not None:
            self._arrivals.micro_batch_seen()
        self._metered("take the loss", lambda meter: meter.loss_seen(loss, of_many=of_many))

    def batch_seen(self, tokens: Any) -> None:
        """A micro-batch of the step under way, (samples, tokens), on every rank its own: for `batch_digest`."""
        self._metered("take the batch", lambda meter: meter.batch_seen(tokens))

    def report_logits(self, *, attention: Logits | None = None, output: Logits | None = None) -> None:
        """Reports logits of the forward pass under way, without those that a mask hides: tensors, or functions that
        give one. Read, and the functions called, in the first micro-batch of every `interval_steps`-th step alone; of
        several calls, as of each layer, the largest counts. Nothing is read in what torch.compile traces."""
        if is_compiling():  # a trace that depends on the step would be compiled anew at each one
            return
        given = {"attention_logit": attention, "output_logit": output}
        self._metered("take the logits", lambda meter: meter.logits_seen(**given))

    def gradients_whole(self) -> None:
        """The step's gradients are whole on every rank, and not clipped yet. Called by the engine; by a loop only where
        it averages them over the ranks itself, without DDP and FSDP."""
        self._metered("take the gradient's norm", Meter.gradients_whole)

    def grad_norm(self, norm: Any) -> None:
        """The gradient's global L2 norm before clipping, where the loop has it: a number or () tensor, the same on
        every rank, before the optimizer's step. It stands in place of the hook's own."""
        self._metered("take the gradient's norm", lambda meter: meter.norm_given(whole(norm)))

    def loss(self, loss: Any) -> None:
        """A plain loop's call, for each micro-batch before its backward pass: the loss that `backward` is called on, or
        that it is made of by a factor. The step's loss is the one that its gradient is of."""
        with self.guard("take the loss"):
            if self._arrivals is not None:
                self._arrivals.micro_batch_seen()
            self._engine.loss(loss)

    def update_coming(self) -> None:
        """Called by the engine: the optimizer's step begins."""
        if self.closed:
            return
        step = self._engine.global_steps
        if step and not self._load_measured:
            self._measure_state(StateLoaded)
        self._load_measured = True
        with self.guard("look before the step"):
            self._facts.update_coming()
        self._metered("look before the step", Meter.update_coming)

    def save_coming(self) -> None:
        """A checkpoint is about to be made of the state: called by DeepSpeed's engine, and by a plain loop, on every
        rank. A second save of the same step reports nothing more."""
        if not self.closed and self._saved_step != self._engine.global_steps:
            self._saved_step = self._engine.global_steps
            self._measure_state(StateSaved)

    def _measure_state(self, kind: type[StateLoaded | StateSaved]) -> None:
        measurement = self._metered("measure the state", Meter.state)
        step = self._engine.global_steps
        if self._arrivals is not None:
            self._arrivals.add(step, (kind, step) if self._rank == 0 else None, measurement, layered=True, state=True)

    def load_coming(self) -> None:
        """Called by the engine: a load is about to replace Adam's state."""
        self._saved_step = None  # the same step may be saved again, of another state
        self._metered("leave Adam's state alone", Meter.settle)

    def step_made(self) -> None:
        """Called by the engine: it has counted a step, whether its update was applied or skipped."""
        if self.closed:
            return
        step = self._engine.global_steps
        extra = self._interval_steps > 0 and step % self._interval_steps == 0
        measurement, facts = self._metered("measure the step", lambda meter: meter.measure(with_moments=extra)), None
        with self.guard("read the step's position"):
            facts = self._facts.read() if self._rank == 0 else None
        if self._arrivals is not None:
            self._arrivals.add(step, facts, measurement, layered=extra)
            self._arrivals.step_ends(step, waits=self._rank == 0 and not str(self._engine.device).startswith("cuda"))
        self._metered("listen to the gradients", Meter.listen_to_gradients)

    def _metered(self, action: str, call: Callable[[Meter], T]) -> T | None:
        """The meter's answer; None where there is no meter, or it fails, or the hook is closed."""
        with self.guard(action):
            if self._meter is not None:
                return call(self._meter)
        return None

    def _report(
        self,
        facts: Mapping[str, Any] | tuple[type[StateLoaded | StateSaved], int],
        reading: Reading | None,
        layers: Mapping[str, Any] | None,
    ) -> None:
        if isinstance(facts, tuple):
            if reading is not None:
                self._put(state_record(*facts, self.attempt, reading, self.layers, layers))
            return
        if not self._started:
            resumed = facts["global_step"] - 1 or None
            parent = self.attempt - 1 if resumed and self.attempt > 1 else None
            self.run_started(**{"resumed_from": resumed, "parent_attempt": parent, **self._at_start()})
        if reading is None:  # this rank's alone are no reading of the training
            return
        self.latest = sample = make_sample(self.attempt, facts, reading, self.loss_minimum)
        self._put(sample)
        if layers is not None:
            of_step = {name: getattr(sample, name) for name in ("attempt", "global_step", "time_unix_s")}
            self.latest_layers = LayerVariance(**of_step, layers=self.layers, **layers)
            self._put(self.latest_layers)
        if self._on_sample is not None:
            with self.guard("hand the sample on"):
                self._on_sample(sample)

    def _now(self) -> dict[str, Any]:
        return {"attempt": self.attempt, "global_step": self._engine.global_steps, "time_unix_s": time.time()}

    def _put(self, record: Record) -> None:
        if self._outputs is not None:
            self._outputs.put(record)
