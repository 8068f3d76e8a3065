"""attach(engine, …): after each optimizer step one Sample, to the metrics journal and to /metrics.

A hook may lose a sample; it may never lose a step. Whatever goes wrong in here is caught at `_kept_from_training`,
counted, and logged once.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch.distributed as dist

from sentinel.vocabulary.loss_ratio import LossMinimum
from sentinel.vocabulary.names import why_not_a_name
from sentinel.vocabulary.sample import (
    CheckpointSaved,
    LayerVariance,
    Record,
    RunFinished,
    RunStarted,
    Sample,
    Validation,
    encode,
)
from trainer_hooks.export.exporter import Exporter, ExporterSettings, announce
from trainer_hooks.export.journal_writer import JournalWriter, create_attempt, journal_path
from trainer_hooks.export.step_collector import StepCollector
from trainer_hooks.sample import adam_settings
from trainer_hooks.sample.all_ranks import AllRanks
from trainer_hooks.sample.engine_calls import take_place
from trainer_hooks.sample.gathering import Gathering, Layers
from trainer_hooks.sample.meter import Meter
from trainer_hooks.sample.process_facts import job_id, process_facts
from trainer_hooks.sample.reading import Reading
from trainer_hooks.sample.samples import Position, Samples, StepFacts

__all__ = ["Hook", "Position", "attach"]

log = logging.getLogger(__name__)

_PATIENCE_S = 1.0
"""How long rank 0 waits at a step's end for the other ranks' readings of it, on a CPU: they have just made the same
step. One that takes longer is not waited for again; its sample is made when it has come."""

_LAST_PATIENCE_S = 10.0
"""The same once training is finished: no step is held up any more, and what has not come by then is lost."""

_ATTACHED = "_sentinel_hook"
"""The engine's attribute that holds its hook."""

INTERVAL_STEPS = 10
"""Every how many steps the layers, the moments and the local gradients are measured: they read m, the parameters and
the gradients as well, or send a number per block."""


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
    """Attaches a hook to a DeepSpeed engine, right after deepspeed.initialize; nothing else in the loop changes.

    To be called on every rank. The loss is taken where engine.backward(loss) gets it (with a pipeline, where
    train_batch has it), the step is measured inside engine.step(). `position` is asked then, for the step just made.
    `on_sample` is given each sample on rank 0, once it is there: at the step's end on a CPU, one or two steps later
    with CUDA, whose results nothing waits for. `mpu` is Megatron's model-parallel unit, where deepspeed.initialize was
    not given it. `applies` names the keys of overrides.json (`standing` and `once`) that this trainer applies at a
    start, () for a trainer that applies none: sentinel then refuses a change that would be ignored; None does not say.
    `trainer` is what its sentences call the trainer. state_dir defaults to SENTINEL_STATE_DIR, else ./.sentinel/RUN.
    /metrics listens at `address` and `port`, and Prometheus is told `announce` as its name; `exporter` replaces the
    three, and has TLS and the rest (docs/EXPORTER.md). Never raises. An engine that has an open hook keeps it: that one
    is returned, with a warning.
    """
    attached = getattr(engine, _ATTACHED, None)
    if isinstance(attached, Hook) and not attached.closed:
        log.warning(
            "attach was called twice on one engine: attempt %s goes on, the second call changes nothing; close the "
            "first hook before you attach another",
            attached.attempt,
        )
        return attached
    where = state_dir or os.environ.get("SENTINEL_STATE_DIR")
    if where is None and (why := why_not_a_name(run)) is not None:
        log.error("sentinel: run=%s %s: the run's state folder is .sentinel/run in its place", ascii(run)[:60], why)
    hook = Hook(
        engine,
        Path(where or Path(".sentinel") / ("run" if why_not_a_name(run) else run)),
        run=run,
        position=position,
        loss_minimum=loss_minimum or LossMinimum(),
        on_sample=on_sample,
        interval_steps=interval_steps,
        declared={"trainer": trainer, "applies": None if applies is None else tuple(applies)},
    )
    hook.open(exporter or ExporterSettings(address=address, port=port, announce=announce))
    hook.wrap(mpu)
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
        position: Callable[[], Position] | None,
        loss_minimum: LossMinimum,
        on_sample: Callable[[Sample], None] | None,
        interval_steps: int,
        declared: Mapping[str, Any],
    ) -> None:
        self._declared = declared
        self._engine = engine
        self._state_dir = state_dir
        self._run = run
        self._samples = Samples(engine, position)
        self._on_sample = on_sample
        self._interval_steps = max(1, interval_steps)
        self._rank = dist.get_rank() if dist.is_initialized() else 0
        self.loss_minimum = loss_minimum
        """Smallest loss per sequence length; its state() belongs in the checkpoint's client state."""
        self.attempt = 0
        """Number of this life of the training process group; 0 on other ranks, and where none could be minted."""
        self.errors = 0
        """What was caught and kept from the training loop."""
        self._said: set[str] = set()
        self._journal: JournalWriter | None = None
        self._collector: StepCollector | None = None
        self._exporter: Exporter | None = None
        self._meter: Meter | None = None
        self._gathering: Gathering | None = None
        self.layers: tuple[str, ...] = ()
        """The layers of the model, over all ranks, as `latest_layers` has them."""
        self.latest: Sample | None = None
        """The last sample that was made, on rank 0."""
        self.latest_layers: LayerVariance | None = None
        """The last reading of the layers, on rank 0."""
        self._started = False
        self._closed = False
        self._patience_s = _PATIENCE_S

    @property
    def closed(self) -> bool:
        """Whether the end has been reported."""
        return self._closed

    def open(self, settings: ExporterSettings) -> None:
        """Mints the attempt and starts the exporter, on rank 0."""
        if self._rank != 0:
            return
        with self._kept_from_training("open the journal"):
            self.attempt, descriptor = create_attempt(self._state_dir)
            self._journal = JournalWriter(descriptor, journal_path(self._state_dir, self.attempt))
        with self._kept_from_training("start the exporter"):
            self._collector = StepCollector(
                self._run,
                self.attempt,
                errors=lambda: self.errors + self._lost(),
                layers=lambda: self.latest_layers,
                window_s=settings.window_s,
            )
            self._exporter = Exporter(self._collector, settings, failed=self._exporter_failed)
        with self._kept_from_training("announce the exporter"):
            labels = {"run": self._run, "attempt": str(self.attempt), "job": job_id() or ""}
            announce(self._exporter, self._state_dir / "scrape.json", labels)

    def _exporter_failed(self, error: Exception) -> None:
        with self._kept_from_training("answer every scrape"):
            raise error

    def wrap(self, mpu: Any = None) -> None:
        """Puts the hook around the engine's own methods; on every rank."""
        names: list[str] = []
        with self._kept_from_training("look at the model"):
            self._meter = Meter(self._engine, mpu, self._kept_from_training)
            names = self._meter.layers
        with self._kept_from_training("look at Adam's state"):
            if self._meter is not None:
                self._meter.look()
        with self._kept_from_training("join the ranks"):
            ranks = AllRanks()
            self.layers = tuple(ranks.union(names))
            self._gathering = Gathering(ranks, self.layers, self._report)
        with self._kept_from_training("take its place in the engine"):
            take_place(self._engine, self)
            self._listen_to_gradients()

    def run_started(self, **facts: Any) -> None:
        """Reports what the attempt runs with: any fields of RunStarted, once, after load_checkpoint."""
        with self._kept_from_training("report the start"):
            self._started = True
            engine_facts: dict[str, Any] = {}
            with self._kept_from_training("read what the optimizer runs with"):
                engine_facts = adam_settings.facts(self._engine)
            known = {**engine_facts, **process_facts(), **self._declared, "attempt": self.attempt, "run": self._run}
            self._put(RunStarted(**(known | facts)))

    def validation(self, loss: float, seqlen: int | None = None) -> None:
        """Reports a validation loss (nats, mean over tokens and ranks) at full length."""
        self._await_samples()
        with self._kept_from_training("report the validation"):
            self._put(Validation(**self._now(), loss=float(loss), seqlen=seqlen))

    def checkpoint_saved(
        self, tag: str, *, consumed_samples: int | None = None, consumed_tokens: int | None = None
    ) -> None:
        """Reports a checkpoint that is written whole."""
        self._await_samples()
        with self._kept_from_training("report the checkpoint"):
            saved = CheckpointSaved(
                **self._now(), tag=tag, consumed_samples=consumed_samples, consumed_tokens=consumed_tokens
            )
            self._put(saved)

    def close(self, reason: str) -> None:
        """Reports the end and frees everything; the second call does nothing."""
        if self._closed:
            return
        self._closed = True
        self._patience_s = _LAST_PATIENCE_S if reason == "finished" else _PATIENCE_S  # once more, if it was in vain
        self._await_samples()
        with self._kept_from_training("report the end"):
            self._put(RunFinished(**self._now(), reason=reason))
        with self._kept_from_training("close the journal"):
            if self._journal is not None:
                self._journal.close()
        with self._kept_from_training("close the exporter"):
            if self._exporter is not None:
                self._exporter.close()
        with self._kept_from_training("leave the hook's own groups of ranks"):
            if self._gathering is not None and len(self._gathering):
                raise RuntimeError(f"the readings of {len(self._gathering)} step(s) have never come")
            if self._gathering is not None:
                self._gathering.close()

    def loss_seen(self, loss: Any, *, of_many: bool) -> None:
        """For the engine's seams: see `seams.Listener`."""
        with self._kept_from_training("take the loss"):
            if self._meter is not None:
                self._meter.loss_seen(loss, of_many=of_many)

    def update_coming(self) -> None:
        """For the engine's seams."""
        with self._kept_from_training("look before the step"):
            self._samples.update_coming()
            if self._meter is not None:
                self._meter.update_coming()

    def step_made(self) -> None:
        """For the engine's seams."""
        step = self._engine.global_steps
        extra = step % self._interval_steps == 0
        measurement, facts = None, None
        with self._kept_from_training("measure the step"):
            if self._meter is not None:
                measurement = self._meter.measure(with_moments=extra)
        with self._kept_from_training("tell where the step stands"):
            facts = self._samples.facts() if self._rank == 0 else None
        with self._kept_from_training("gather the ranks' readings"):
            if self._gathering is not None:
                self._gathering.add(step, facts, measurement, layered=extra)
        self._advance(self._patience_s if self._rank == 0 and not _on_cuda(self._engine) else 0.0)
        with self._kept_from_training("listen to the gradients"):
            self._listen_to_gradients()

    def _listen_to_gradients(self) -> None:
        if self._meter is not None and (self._engine.global_steps + 1) % self._interval_steps == 0:
            self._meter.listen_to_gradients()

    def _advance(self, wait_s: float) -> None:
        if self._gathering is None:
            return
        with self._kept_from_training("make the sample"):
            self._gathering.advance(wait_s)
        on_their_way = len(self._gathering)
        if not on_their_way:
            self._patience_s = _PATIENCE_S
        elif wait_s:
            self._patience_s = 0.0
        with self._kept_from_training("get the other ranks' readings in time"):
            if on_their_way and wait_s:
                raise TimeoutError(f"those of {on_their_way} step(s) have not come within {wait_s:g} s")

    def _await_samples(self) -> None:
        """What is on its way comes before what is reported now, as far as it comes soon."""
        while self._gathering is not None and (before := len(self._gathering)):
            self._advance(self._patience_s)
            if len(self._gathering) == before:
                return

    def _report(self, facts: StepFacts, reading: Reading, layers: Layers | None) -> None:
        if not self._started:
            self._report_start_by_itself(facts.global_step)
        self.latest = sample = self._samples.sample(self.attempt, facts, reading, self.loss_minimum)
        if self._collector is not None:
            self._collector.push(sample)
        self._put(sample)
        if layers is not None:
            self.latest_layers = self._samples.layer_variance(self.attempt, facts, self.layers, layers)
            self._put(self.latest_layers)
        if self._on_sample is not None:
            with self._kept_from_training("hand the sample on"):
                self._on_sample(sample)

    def _report_start_by_itself(self, first_step: int) -> None:
        resumed = first_step - 1 or None
        parent = self.attempt - 1 if resumed and self.attempt > 1 else None
        self.run_started(resumed_from=resumed, parent_attempt=parent)

    def _now(self) -> dict[str, Any]:
        return {"attempt": self.attempt, "global_step": self._engine.global_steps, "time_unix_s": time.time()}

    def _put(self, record: Record) -> None:
        if self._journal is not None:
            self._journal.put(encode(record))

    def _lost(self) -> int:
        return self._journal.lost if self._journal is not None else 0

    @contextmanager
    def _kept_from_training(self, what: str) -> Iterator[None]:
        """The hook's outer edge: no error of ours reaches the training loop."""
        try:
            yield
        except Exception as error:  # noqa: BLE001 - a hook may lose a sample; it may never lose a step
            self.errors += 1
            if what not in self._said:  # once: the next thousand times are counted
                self._said.add(what)
                log.warning("sentinel could not %s (%s: %s); training goes on", what, type(error).__name__, error)


def _on_cuda(engine: Any) -> bool:
    return str(engine.device).startswith("cuda")
