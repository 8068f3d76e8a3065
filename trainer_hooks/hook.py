"""attach(engine, …): after each optimizer step one Sample, to the metrics journal and to /metrics. A hook may lose a
sample; it may never lose a step: every error is caught by a Guard, counted, and logged once."""

from __future__ import annotations

import atexit
import logging
import os
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

import torch.distributed as dist

from sentinel.vocabulary.loss_ratio import LossMinimum
from sentinel.vocabulary.sample import (
    CheckpointSaved,
    LayerVariance,
    Record,
    RunFinished,
    RunStarted,
    Sample,
    Validation,
)
from trainer_hooks.errors import Guard, exit_reason
from trainer_hooks.export.exporter import ExporterSettings
from trainer_hooks.export.outputs import Outputs, state_folder
from trainer_hooks.sample import adam_settings
from trainer_hooks.sample.engine_calls import wrap_engine
from trainer_hooks.sample.gathering import AllRanks, Gathering
from trainer_hooks.sample.logits import Logits
from trainer_hooks.sample.meter import Meter
from trainer_hooks.sample.process_facts import process_facts
from trainer_hooks.sample.reading import Measurement, Position, Reading, StepFacts, make_sample, state_loaded

__all__ = ["Hook", "Position", "attach", "state_folder"]

log = logging.getLogger(__name__)
T = TypeVar("T")

# How long rank 0 waits at a step's end for the other ranks' readings of it, on a CPU: they have just made the same
# step. After a wait in vain it waits for none; the sample is made when the readings arrive.
_PATIENCE_S = 1.0
_LAST_PATIENCE_S = 10.0  # Once training is finished: what has not arrived by then is lost

_ATTACHED = "_sentinel_hook"  # the engine's attribute that holds its hook

# Every how many steps the layers, the moments and the local gradients are measured: m, the parameters and the gradients
INTERVAL_STEPS = 10


def attach(
    engine: Any,
    *,
    state_dir: str | os.PathLike[str] | None = None,
    run: str = "run",
    position: Callable[[], Position] | None = None,
    loss_minimum: LossMinimum | None = None,
    on_sample: Callable[[Sample], None] | None = None,
    mpu: Any = None,
    interval_steps: int = INTERVAL_STEPS,
    address: str = "127.0.0.1",
    port: int = 0,
    announce: str | None = None,
    exporter: ExporterSettings | None = None,
    applies: Iterable[str] | None = None,
    trainer: str | None = None,
) -> Hook:
    """Attaches a hook to a DeepSpeed engine, on every rank, right after deepspeed.initialize. Never raises.

    The loss is taken where engine.backward(loss) gets it (with a pipeline, from train_batch), the step is measured
    inside engine.step(); `position` is called then. `on_sample` gets each sample on rank 0: at the step's end on a CPU,
    one or two steps later with CUDA. `mpu` is Megatron's model-parallel unit, where deepspeed.initialize was not given
    it. `applies` names the keys of overrides.json (`standing` and `once`) that this trainer applies at a start, () for
    none: sentinel then refuses a change that would be ignored; None: not known. `trainer` is the trainer's name in
    sentences. state_dir defaults to SENTINEL_STATE_DIR, else ./.sentinel/RUN. /metrics listens at `address` and `port`
    and is announced to Prometheus as `announce`; `exporter` replaces the three, and has TLS and the rest
    (docs/EXPORTER.md). An engine that has an open hook keeps it: that one is returned, with a warning.
    """
    attached = getattr(engine, _ATTACHED, None)
    if isinstance(attached, Hook) and not attached.closed:
        why = "the second call changes nothing; close the first hook before you attach another"
        log.warning("attach was called twice on one engine: attempt %s goes on, %s", attached.attempt, why)
        return attached
    hook = Hook(
        engine,
        state_folder(state_dir, run),
        run=run,
        mpu=mpu,
        exporter=exporter or ExporterSettings(address=address, port=port, announce=announce),
        facts=StepFacts(engine, position),
        loss_minimum=loss_minimum or LossMinimum(),
        on_sample=on_sample,
        interval_steps=interval_steps,
        declared={"trainer": trainer, "applies": None if applies is None else tuple(applies)},
    )
    with suppress(Exception):  # an engine that takes no attribute can only be attached to twice
        setattr(engine, _ATTACHED, hook)
    return hook


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
        declared: Mapping[str, Any],
    ) -> None:
        self._engine = engine
        self._declared = {**declared, "run": run}
        self._facts = facts
        self._on_sample = on_sample
        self._interval_steps = max(1, interval_steps)
        self._rank = dist.get_rank() if dist.is_initialized() else 0
        self.guard = Guard()
        self.loss_minimum = loss_minimum  # Its state() belongs in the checkpoint's client state
        self.attempt = 0  # Of the training process group; 0 on other ranks, and where none could be minted
        self.latest: Sample | None = None  # The last sample that was made, on rank 0
        self.layers: tuple[str, ...] = ()  # Of the model, over all ranks, as `latest_layers` has them
        self.latest_layers: LayerVariance | None = None  # The last reading of the layers, on rank 0
        self.closed = False  # Whether the end has been reported
        self._at_exit = lambda: self.close(exit_reason())
        self._started = self._load_measured = False
        self._meter: Meter | None = None
        self._gathering: Gathering | None = None
        self._patience_s = _PATIENCE_S
        self._outputs = None
        if self._rank == 0:
            self._outputs = Outputs(state_dir, run, exporter, self.guard, lambda: self.latest_layers)
            self.attempt = self._outputs.attempt
        with self.guard("look at the model"):
            self._meter = Meter(engine, mpu, self.guard, self._interval_steps)
        self._metered("look at Adam's state", Meter.look)
        with self.guard("join the ranks"):
            ranks = AllRanks()
            self.layers = tuple(ranks.union(self._meter.layers if self._meter is not None else []))
            self._gathering = Gathering(ranks, self.layers, self._report)
        with self.guard("take its place in the engine"):
            wrap_engine(engine, self)
        self._metered("listen to the gradients", Meter.listen_to_gradients)

    @property
    def errors(self) -> int:
        """Errors that were caught and kept from the training loop."""
        return self.guard.errors

    def run_started(self, **facts: Any) -> None:
        """Reports what the attempt runs with: any fields of RunStarted, once, after load_checkpoint."""
        with self.guard("report the start"):
            self._started = True
            engine_facts: dict[str, Any] = {}
            with self.guard("read what the optimizer runs with"):
                engine_facts = adam_settings.facts(self._engine)
            known = {**engine_facts, **process_facts(), **self._declared, "attempt": self.attempt}
            self._put(RunStarted(**(known | facts)))

    def validation(self, loss: float, seqlen: int | None = None) -> None:
        """Reports a validation loss (nats, mean over tokens and ranks) at full length."""
        self._await_samples()
        with self.guard("report the validation"):
            self._put(Validation(**self._now(), loss=float(loss), seqlen=seqlen))

    def checkpoint_saved(self, tag: str, **facts: Any) -> None:
        """Reports a whole checkpoint: fields of CheckpointSaved; `next_batch_digests` are of the next steps."""
        self._await_samples()
        with self.guard("report the checkpoint"):
            self._put(CheckpointSaved(**self._now(), tag=tag, **facts))

    def close(self, reason: str) -> None:
        """Reports the end and frees everything; the second call does nothing."""
        if self.closed:
            return
        self.closed = True
        atexit.unregister(self._at_exit)
        self._patience_s = _LAST_PATIENCE_S if reason == "finished" else _PATIENCE_S  # also after a wait in vain
        self._await_samples()
        with self.guard("report the end"):
            self._put(RunFinished(**self._now(), reason=reason))
        if self._outputs is not None:
            self._outputs.close()
        with self.guard("leave the hook's own groups of ranks"):
            if self._gathering is not None:
                self._gathering.close()

    def close_at_exit(self) -> None:
        """Called by the integrations: reports the end of the process where that of the training was not. It is an
        uncaught error's as a rule; Megatron's own ways out (a signal, a duration, the kill switch) are sys.exit."""
        atexit.register(self._at_exit)

    def loss_seen(self, loss: Any, *, of_many: bool) -> None:
        """Called by the engine: a micro-batch's loss is about to be differentiated. `of_many`: DeepSpeed takes the mean
        over the micro-batches. Otherwise the caller has divided the loss already, or it is a pipeline's, of the whole
        step: the step's loss is the sum."""
        self._metered("take the loss", lambda meter: meter.loss_seen(loss, of_many=of_many))

    def batch_seen(self, tokens: Any) -> None:
        """A micro-batch of the step under way, (samples, tokens), on every rank its own: for `batch_digest`."""
        self._metered("take the batch", lambda meter: meter.batch_seen(tokens))

    def report_logits(self, *, attention: Logits | None = None, output: Logits | None = None) -> None:
        """Reports logits of the forward pass under way, without those that a mask hides: tensors, or functions that
        give one. Read, and the functions called, in the first micro-batch of every `interval_steps`-th step alone; of
        several calls, as of each layer, the largest counts."""
        given = {"attention_logit": attention, "output_logit": output}
        self._metered("take the logits", lambda meter: meter.logits_seen(**given))

    def update_coming(self) -> None:
        """Called by the engine: all gradients are there and reduced over the ranks, not yet clipped."""
        step = self._engine.global_steps
        if step and not self._load_measured:
            measurement = self._metered("measure what was loaded", Meter.loaded)
            self._gather(step, step if self._rank == 0 else None, measurement, layered=True)
        self._load_measured = True
        with self.guard("look before the step"):
            self._facts.update_coming()
        self._metered("look before the step", Meter.update_coming)

    def step_made(self) -> None:
        """Called by the engine: it has counted a step, whether its update was applied or skipped."""
        step = self._engine.global_steps
        extra = step % self._interval_steps == 0
        measurement, facts = self._metered("measure the step", lambda meter: meter.measure(with_moments=extra)), None
        with self.guard("read the step's position"):
            facts = self._facts.read() if self._rank == 0 else None
        self._gather(step, facts, measurement, layered=extra)
        waits = self._rank == 0 and not str(self._engine.device).startswith("cuda")
        self._advance(self._patience_s if waits else 0.0)
        self._metered("listen to the gradients", Meter.listen_to_gradients)

    def _metered(self, action: str, call: Callable[[Meter], T]) -> T | None:
        """The meter's answer; None where there is no meter, or it fails."""
        with self.guard(action):
            if self._meter is not None:
                return call(self._meter)
        return None

    def _gather(self, step: int, facts: Any, measurement: Measurement | None, *, layered: bool) -> None:
        with self.guard("gather the ranks' readings"):
            if self._gathering is not None:
                self._gathering.add(step, facts, measurement, layered=layered)

    def _advance(self, wait_s: float) -> None:
        if self._gathering is None:
            return
        with self.guard("make the sample"):
            self._gathering.advance(wait_s)
        if not len(self._gathering):
            self._patience_s = _PATIENCE_S
        elif wait_s:
            self._patience_s = 0.0
            with self.guard("get the other ranks' readings in time"):
                raise TimeoutError(f"those of {len(self._gathering)} step(s) have not come within {wait_s:g} s")

    def _await_samples(self) -> None:
        """Samples on their way are reported before what follows them, as far as they arrive soon."""
        while self._gathering is not None and (before := len(self._gathering)):
            self._advance(self._patience_s)
            if len(self._gathering) == before:
                return

    def _report(self, facts: Mapping[str, Any] | int, reading: Reading, layers: Mapping[str, Any] | None) -> None:
        if isinstance(facts, int):  # the step whose checkpoint was loaded
            self._put(state_loaded(self.attempt, facts, reading, self.layers, layers))
            return
        if not self._started:
            resumed = facts["global_step"] - 1 or None
            parent = self.attempt - 1 if resumed and self.attempt > 1 else None
            self.run_started(resumed_from=resumed, parent_attempt=parent)
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
