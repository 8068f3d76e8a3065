"""After each optimizer step one Sample, to the metrics journal and to /metrics. A hook may lose a sample; it may never
lose a step: every error is caught by a Guard, counted, and logged once."""

from __future__ import annotations

import atexit
import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from sentinel.vocabulary.loss_ratio import LossMinimum
from sentinel.vocabulary.parking import ResumeRequest
from sentinel.vocabulary.sample import LayerVariance, Parked, Released, Sample, StateLoaded, StateSaved
from trainer_hooks.control.boundaries import Boundaries, Boundary
from trainer_hooks.errors import Guard, exit_reason
from trainer_hooks.export.exporter import ExporterSettings
from trainer_hooks.export.heartbeats import Heartbeats
from trainer_hooks.export.outputs import Outputs
from trainer_hooks.export.reports import Reports
from trainer_hooks.ranks import Ranks, ranks_of_world
from trainer_hooks.ranks.signs import record_of
from trainer_hooks.sample.engine_calls import wrap_engine
from trainer_hooks.sample.logits import Logits
from trainer_hooks.sample.meter import READINGS
from trainer_hooks.sample.reading import Reading, StepFacts, make_sample, state_record
from trainer_hooks.sample.step_readings import StepReadings

__all__ = ["Hook"]


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
        self._interval_steps, self._measured = interval_steps, measure
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
        self._reports = reports = Reports(self._engine, self.guard)
        self._readings = StepReadings(
            *(self._engine, self._mpu, self.ranks, self.guard),
            facts=self._facts,
            interval_steps=self._interval_steps,
            measured=self._measured,
        )
        self._join()
        self._readings.listen()
        with self.guard("open the journal"):
            if self._rank == 0:
                shown = (self._state_dir, self._run, self._exporter, self.guard, lambda: self.latest_layers)
                reports.outputs = Outputs(*shown)
        self._heartbeats: Heartbeats | None = None
        self._saves_known = False  # whether the trainer itself has said where its checkpoints are
        with self.guard("begin its heartbeat"):
            self._heartbeats = Heartbeats(self._state_dir, self, self.ranks.world)

    def _join(self) -> None:
        """Takes part with this rank, or says to the others that it does not: then nobody measures."""
        layers, reports = None, self._reports
        with self.guard("take its place in the engine"):
            self._unwrap = wrap_engine(self._engine, self)
            layers = self._readings.own_layers
        with self.guard("join the ranks"):
            self._readings.join(layers, self._report, lambda still: reports.put(record_of(still, reports.now())))

    @property
    def rank(self) -> int:
        """Of this process, over all ranks of the training."""
        return self._rank

    @property
    def attempt(self) -> int:
        """Of the training process group; 0 on other ranks, and where none could be minted, or not yet."""
        return self._reports.attempt

    @property
    def layers(self) -> tuple[str, ...]:
        """Of the model, over all ranks, as `latest_layers` has them; none before the ranks have told one another."""
        return self._readings.layers

    @property
    def errors(self) -> int:
        """Errors that were caught and kept from the training loop."""
        return self.guard.errors

    def run_started(self, **facts: Any) -> None:
        """Reports what the attempt runs with: any fields of RunStarted, once, after load_checkpoint. What is none
        is left out, and logged."""
        known = {**self._declared, "variance_pass": self._readings.variance_pass()}
        self._reports.run_started(known, self._at_start, facts)

    def validation(self, loss: float, seqlen: int | None = None) -> None:
        """Reports a validation loss (nats, mean over tokens and ranks) at full length."""
        self.await_readings()
        self._reports.validation(loss, seqlen)

    def checkpoint_saved(self, tag: str, **facts: Any) -> None:
        """Reports a whole checkpoint: fields of CheckpointSaved; `next_batch_digests` are of the next steps,
        `global_step` is that of the state where a save has ended steps later."""
        self.await_readings()
        self._reports.checkpoint_saved(tag, facts)

    def boundary(self) -> Boundary:
        """The last line of a step of a loop that was attached with `reload`, on every rank: what all ranks do after
        this step, as people and sentinel ask by files. Where the training parks it returns once that is over."""
        return self.boundaries.pass_on() if self.boundaries is not None else Boundary()

    def await_readings(self) -> None:
        """Called before what follows the samples on their way: reports them, as far as they arrive soon."""
        self._readings.await_all()

    def report_park(self, kind: type[Parked | Released], rollback: str, *, not_parked: str | None = None) -> None:
        """Called where the training parks, by what waits: the attempt's last record while it is parked, and the end of
        that where the attempt goes on; or why it could not be parked."""
        self._reports.park(kind, rollback, {} if not_parked is None else {"not_parked": not_parked})

    def report_memory(self, *, global_step: int, **facts: Any) -> None:
        """Called by what keeps states in memory: fields of MemoryTarget, once all ranks have that state."""
        self.await_readings()
        self._reports.memory(global_step, facts)

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
        self._readings.await_last(finished=reason == "finished")
        self._reports.close(reason)
        if self._heartbeats is not None:
            self._heartbeats.close()
        self._readings.close()

    def close_at_exit(self) -> None:
        """Called by the integrations: reports the end of the process where that of the training was not: an uncaught
        error's as a rule, or one of Megatron's own ways out (a signal, a duration, the kill switch)."""
        atexit.register(self._at_exit)

    def loss_seen(self, loss: Any, *, of_many: bool) -> None:
        """Called by the engine: a micro-batch's loss is about to be differentiated. The step's loss is their mean, or
        without `of_many` (divided by the caller already; a pipeline's, of the whole step) their sum."""
        self._readings.loss_seen(loss, of_many=of_many)

    def batch_seen(self, tokens: Any) -> None:
        """A micro-batch of the step under way, (samples, tokens), on every rank its own: for `batch_digest`."""
        self._readings.batch_seen(tokens)

    def report_logits(self, *, attention: Logits | None = None, output: Logits | None = None) -> None:
        """Reports logits of the forward pass under way, without those that a mask hides: tensors, or functions that
        give one. Read, and the functions called, in the first micro-batch of every `interval_steps`-th step alone; of
        several calls, as of each layer, the largest counts. Nothing is read in what torch.compile traces."""
        self._readings.logits_seen(attention, output)

    def gradients_whole(self) -> None:
        """The step's gradients are whole on every rank, and not clipped yet. Called by the engine; by a loop only where
        it averages them over the ranks itself, without DDP and FSDP."""
        self._readings.gradients_whole()

    def grad_norm(self, norm: Any) -> None:
        """The gradient's global L2 norm before clipping, where the loop has it: a number or () tensor, the same on
        every rank, before the optimizer's step. It stands in place of the hook's own."""
        self._readings.norm_given(norm)

    def loss(self, loss: Any) -> None:
        """A plain loop's call, for each micro-batch before its backward pass: the loss that `backward` is called on, or
        that it is made of by a factor. The step's loss is the one that its gradient is of."""
        with self.guard("take the loss"):
            self._readings.micro_batch_seen()
            self._engine.loss(loss)

    def update_coming(self) -> None:
        """Called by the engine: the optimizer's step begins."""
        if not self.closed:
            self._readings.update_coming()

    def save_coming(self) -> None:
        """A checkpoint is about to be made of the state: called by DeepSpeed's engine, and by a plain loop, on every
        rank. A second save of the same step reports nothing more."""
        if not self.closed:
            self._readings.save_coming()

    def load_coming(self) -> None:
        """Called by the engine: a load is about to replace Adam's state."""
        self._readings.load_coming()

    def step_made(self) -> None:
        """Called by the engine: it has counted a step, whether its update was applied or skipped."""
        if not self.closed:
            self._readings.step_made()

    def _report(
        self,
        facts: Mapping[str, Any] | tuple[type[StateLoaded | StateSaved], int],
        reading: Reading | None,
        layers: Mapping[str, Any] | None,
    ) -> None:
        if isinstance(facts, tuple):
            if reading is not None:
                self._reports.put(state_record(*facts, self.attempt, reading, self.layers, layers))
            return
        if not self._reports.started:
            resumed = facts["global_step"] - 1 or None
            parent = self.attempt - 1 if resumed and self.attempt > 1 else None
            self.run_started(**{"resumed_from": resumed, "parent_attempt": parent, **self._at_start()})
        if reading is None:  # this rank's alone are no reading of the training
            return
        self.latest = sample = make_sample(self.attempt, facts, reading, self.loss_minimum)
        self._reports.put(sample)
        if layers is not None:
            of_step = {name: getattr(sample, name) for name in ("attempt", "global_step", "time_unix_s")}
            self.latest_layers = LayerVariance(**of_step, layers=self.layers, **layers)
            self._reports.put(self.latest_layers)
        if self._on_sample is not None:
            with self.guard("hand the sample on"):
                self._on_sample(sample)
