"""What a training shows of itself: the lines that rank 0 prints, and TensorBoard's scalars."""
# ruff: noqa: T201 - a trainer's log is what it prints

from __future__ import annotations

from pathlib import Path

from sentinel.vocabulary.sample import Sample
from trainer_hooks.data.order import CurriculumOrder
from trainer_hooks.gpt.order import DataOrder
from trainer_hooks.gpt.scalars import Scalars

_PRINTS_EVERY_STEPS = 10


class TrainingLog:
    """Of one attempt; only rank 0 prints and writes. `tensorboard`: the folder of the event files; None writes none."""

    def __init__(self, tensorboard: Path | None, *, rank: int) -> None:
        self._folder, self._rank = tensorboard, rank
        self._scalars: Scalars | None = None

    def open(self) -> None:
        """Begins an event file: at the start, and again after `close` where the attempt goes on."""
        self._scalars = Scalars(self._folder) if self._folder and self._rank == 0 else None

    def close(self) -> None:
        """Ends the event file, if one is open."""
        if self._scalars is not None:
            self._scalars.close()
            self._scalars = None

    def started(
        self, attempt: int, resumed_tag: str | None, order: DataOrder | CurriculumOrder, *, in_place: bool
    ) -> None:
        """`resumed_tag`: of the checkpoint, or of the state in memory, that was loaded; None from scratch."""
        if self._rank == 0:
            whence = "from scratch" if resumed_tag is None else f"from {resumed_tag}"
            whence = f"in place, {whence}" if in_place else whence
            skipped = f", {order.skipped_samples} samples skipped" if order.skipped else ""
            print(f"attempt {attempt}, {whence}, seed {order.seed}{skipped}", flush=True)

    def sample(self, sample: Sample) -> None:
        """For the hook, which has samples on rank 0 alone."""
        if self._scalars is not None:
            self._scalars.step(sample)
        if sample.global_step % _PRINTS_EVERY_STEPS == 0 or sample.global_step == 1:
            took = f"{sample.step_time_s:.3f} s" if sample.step_time_s is not None else "first step"
            where = f"step {sample.global_step}  loss {sample.loss:.4f}  lr {sample.lr:.3e}"
            print(f"{where}  seqlen {sample.seqlen}  {took}", flush=True)

    def validation(self, loss: float, step: int, latest: Sample | None) -> None:
        """A validation loss, nats; `latest` is the sample whose position it stands at."""
        if self._scalars is not None and latest is not None:
            self._scalars.validation(loss, latest)
        if self._rank == 0:
            print(f"validation at step {step}: loss {loss:.4f}", flush=True)
