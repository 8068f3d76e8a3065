"""attach(engine, …): after each optimizer step one Sample, to the metrics journal and to /metrics.

A hook may lose a sample; it may never lose a step. Whatever goes wrong in here is caught at `_kept_from_training`,
counted, and logged once.
"""

from __future__ import annotations

import logging
import math
import os
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch.distributed as dist
from torch import Tensor

from sentinel.vocabulary.loss_ratio import LossMinimum
from sentinel.vocabulary.sample import CheckpointSaved, Record, RunFinished, RunStarted, Sample, Validation, encode
from trainer_hooks import adam_settings
from trainer_hooks.exporter import Exporter, StepCollector
from trainer_hooks.journal_writer import JournalWriter, create_attempt
from trainer_hooks.reading import Reading, local_reading, loss_scale, reduced, unmeasured_grad_norm

__all__ = ["Hook", "Position", "attach"]

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Position:
    """What the engine does not know of the step that was just made; None is left out of the sample."""

    consumed_samples: int | None = None
    consumed_tokens: int | None = None
    seqlen: int | None = None
    lr: float | None = None
    lr_warmup_steps: int | None = None
    global_batch_samples: int | None = None


def attach(
    engine: Any,
    *,
    state_dir: str | os.PathLike[str] | None = None,
    run: str = "run",
    position: Callable[[], Position] | None = None,
    loss_minimum: LossMinimum | None = None,
    address: str = "127.0.0.1",
    port: int = 0,
) -> Hook:
    """Attaches a hook to a DeepSpeed engine, right after deepspeed.initialize; nothing else in the loop changes.

    The loss is taken where engine.backward(loss) gets it, the sample is made inside engine.step(). `position` is asked
    then, for the step just made. state_dir defaults to SENTINEL_STATE_DIR, else ./.sentinel/RUN. Never raises.
    """
    where = state_dir or os.environ.get("SENTINEL_STATE_DIR") or Path(".sentinel") / run
    hook = Hook(engine, Path(where), run=run, position=position, loss_minimum=loss_minimum or LossMinimum())
    hook.open(address, port)
    hook.wrap()
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
    ) -> None:
        self._engine = engine
        self._state_dir = state_dir
        self._run = run
        self._position = position
        self._rank = dist.get_rank() if dist.is_initialized() else 0
        self.loss_minimum = loss_minimum
        """Smallest loss per sequence length; its state() belongs in the checkpoint's client state."""
        self.attempt = 0
        """Number of this life of the training process group; 0 on other ranks, and where none could be minted."""
        self.errors = 0
        """What was caught and kept from the training loop."""
        self._said: set[str] = set()
        self._journal: JournalWriter | None = None
        self._exporter: Exporter | None = None
        self.latest: Sample | None = None
        """The last step's sample, on rank 0."""
        self._started = False
        self._closed = False
        self._micro_losses: list[Tensor] = []
        self._grad_norm: Tensor | None = None
        self._stepped_at: float | None = None

    def open(self, address: str, port: int) -> None:
        """Mints the attempt and starts the exporter, on rank 0."""
        if self._rank != 0:
            return
        with self._kept_from_training("open the journal"):
            self.attempt, descriptor = create_attempt(self._state_dir)
            self._journal = JournalWriter(descriptor)
        with self._kept_from_training("start the exporter"):
            collector = StepCollector(self._run, lambda: self.latest, lambda: self.errors + self._lost())
            self._exporter = Exporter(collector, address=address, port=port)
            labels = {"run": self._run, "attempt": str(self.attempt), "job": _job_id() or ""}
            self._exporter.announce(self._state_dir / "scrape.json", labels)

    def wrap(self) -> None:
        """Puts the hook around the engine's backward and step."""
        with self._kept_from_training("take its place in the engine"):
            self._wrap()

    def _wrap(self) -> None:
        engine = self._engine
        backward, step = engine.backward, engine.step

        def hooked_backward(loss: Any, *args: Any, **kwargs: Any) -> Any:
            with self._kept_from_training("take the loss"):
                self._micro_losses.append(loss.detach())
            return backward(loss, *args, **kwargs)

        def hooked_step(*args: Any, **kwargs: Any) -> Any:
            with self._kept_from_training("look before the step"):
                self._before_step()
            before = engine.global_steps
            result = step(*args, **kwargs)
            if engine.global_steps != before:
                self._after_step()
            return result

        engine.backward = hooked_backward
        engine.step = hooked_step

    def run_started(self, **facts: Any) -> None:
        """Reports what the attempt runs with: any fields of RunStarted, once, after load_checkpoint."""
        with self._kept_from_training("report the start"):
            self._started = True
            engine_facts: dict[str, Any] = {}
            with self._kept_from_training("read what the optimizer runs with"):
                engine_facts = adam_settings.facts(self._engine)
            known: dict[str, Any] = {
                **engine_facts,
                "attempt": self.attempt,
                "time_unix_s": time.time(),
                "run": self._run,
                "hook_version": _version(),
                "host": socket.gethostname(),
                "pid": os.getpid(),
                "process_start_unix_s": _process_start_unix_s(),
                "job_id": _job_id(),
                "rollback": os.environ.get("SENTINEL_ROLLBACK"),
                "restart_count": int(os.environ.get("SLURM_RESTART_COUNT") or 0),
                "world_size": dist.get_world_size() if dist.is_initialized() else 1,
            }
            self._put(RunStarted(**(known | facts)))

    def validation(self, loss: float, seqlen: int | None = None) -> None:
        """Reports a validation loss (nats, mean over tokens and ranks) at full length."""
        with self._kept_from_training("report the validation"):
            self._put(Validation(**self._now(), loss=float(loss), seqlen=seqlen))

    def checkpoint_saved(
        self, tag: str, *, consumed_samples: int | None = None, consumed_tokens: int | None = None
    ) -> None:
        """Reports a checkpoint that is written whole."""
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
        with self._kept_from_training("report the end"):
            self._put(RunFinished(**self._now(), reason=reason))
        with self._kept_from_training("close the journal"):
            if self._journal is not None:
                self._journal.close()
        with self._kept_from_training("close the exporter"):
            if self._exporter is not None:
                self._exporter.close()

    def _before_step(self) -> None:
        self._grad_norm = None
        if self._engine.is_gradient_accumulation_boundary():
            self._grad_norm = unmeasured_grad_norm(self._engine)

    def _after_step(self) -> None:
        reading = Reading()  # sent even if reading fails: every rank enters the collectives, or none does
        with self._kept_from_training("read Adam's state"):
            reading = local_reading(self._engine, self._micro_losses)
        self._micro_losses.clear()
        with self._kept_from_training("reduce over ranks"):
            reading = reduced(reading, self._engine)
        with self._kept_from_training("make the sample"):
            if self._rank == 0:
                self._report(reading)

    def _report(self, reading: Reading) -> None:
        engine = self._engine
        if not self._started:
            self._report_start_by_itself()
        now = time.time()
        step_time_s = now - self._stepped_at if self._stepped_at is not None else None
        self._stepped_at = now
        if reading.failed:  # nothing is made up for what could not be read: nan would say that the weights are ill
            raise RuntimeError(f"{reading.failed} rank(s) could not read step {engine.global_steps}")
        position = self._position() if self._position is not None else Position()
        skipped = not engine.was_step_applied() if hasattr(engine, "was_step_applied") else False
        sample = Sample(
            attempt=self.attempt,
            global_step=engine.global_steps,
            time_unix_s=now,
            loss=reading.loss,
            loss_ratio=self.loss_minimum.push(reading.loss, position.seqlen),
            adam_variance_l1=reading.l1 if reading.with_state else None,
            adam_variance_max=_root(reading.largest) if reading.with_state else None,
            grad_norm=self._gradient_norm(),
            loss_scale=loss_scale(engine.optimizer),
            lr=position.lr if position.lr is not None else engine.optimizer.param_groups[0]["lr"],
            seqlen=position.seqlen,
            lr_warmup_steps=position.lr_warmup_steps,
            skipped=skipped,
            step_time_s=step_time_s,
            global_batch_samples=position.global_batch_samples or engine.train_batch_size(),
            consumed_samples=position.consumed_samples,
            consumed_tokens=position.consumed_tokens,
        )
        self.latest = sample
        self._put(sample)

    def _gradient_norm(self) -> float | None:
        norm = self._grad_norm
        with self._kept_from_training("read the gradient's norm"):
            norm = self._engine.get_global_grad_norm() if norm is None else norm
        return None if norm is None else float(norm)

    def _report_start_by_itself(self) -> None:
        resumed = self._engine.global_steps - 1 or None
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


def _root(v: float) -> float:
    return math.sqrt(v) if v >= 0 else math.nan


def _version() -> str | None:
    try:
        return version("training-sentinel")
    except PackageNotFoundError:  # run from a checkout
        return None


def _job_id() -> str | None:
    """Slurm's id of the job, as squeue shows it: `7_2` for a task of an array, whose own id would hide the array."""
    array, task = os.environ.get("SLURM_ARRAY_JOB_ID"), os.environ.get("SLURM_ARRAY_TASK_ID")
    return f"{array}_{task}" if array and task else os.environ.get("SLURM_JOB_ID")


def _process_start_unix_s() -> float:
    """When this process was started, Unix seconds, from /proc: with the pid it names the process for good."""
    ticks = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
    boot = next(
        int(line.split()[1]) for line in Path("/proc/stat").read_text().splitlines() if line.startswith("btime")
    )
    return boot + ticks / os.sysconf("SC_CLK_TCK")
