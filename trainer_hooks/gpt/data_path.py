"""What the model is fed, step by step, and the exact count of it: order → batch → length → dropped tokens. Batches are
addressed by consumed_samples, so the data of a step is the same on any number of ranks, after any restart; sequence
length warmup shortens samples, it does not change their address."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sentinel.vocabulary.errors import ConfigError, DataError
from sentinel.vocabulary.pacing import CurriculumSchedule
from sentinel.vocabulary.training_settings import SkippedRange
from trainer_hooks.data.deepspeed_format import read_deepspeed
from trainer_hooks.data.index import MANIFEST, Index
from trainer_hooks.data.order import CurriculumOrder
from trainer_hooks.data.pool import Pace
from trainer_hooks.data.shards import Rows, open_rows
from trainer_hooks.gpt.arguments import shape
from trainer_hooks.gpt.checkpoint import Progress
from trainer_hooks.gpt.data import Corpus
from trainer_hooks.gpt.model import Block
from trainer_hooks.gpt.order import DataOrder
from trainer_hooks.gpt.schedules import Schedules
from trainer_hooks.random_ltd import DataRank, LayerTokens, RandomLtd
from trainer_hooks.sample.batch_digest import batch_digest
from trainer_hooks.warmup import SeqlenWarmup


class DataPath:
    """Goes on from where `progress` stands, and moves it on."""

    def __init__(
        self,
        engine: Any,
        corpus: Corpus,
        schedules: Schedules,
        settings: argparse.Namespace,
        progress: Progress,
        *,
        skipped: Sequence[SkippedRange],
        rank: DataRank,
        seen: Callable[[Tensor], None] = lambda _: None,
    ) -> None:
        """`skipped`: what sentinel has left out. `seen` gets each micro-batch at full length, on the CPU."""
        self._engine, self._corpus, self._schedules = engine, corpus, schedules
        self._progress, self._rank, self._seen = progress, rank, seen
        self._at_once = rank.size * engine.train_micro_batch_size_per_gpu()
        self.order = self._order_from(settings, progress.left_out(skipped))
        self.warmup = SeqlenWarmup(schedules.seqlen, schedules.shorten, engine=engine)
        if progress.warmup is not None:
            self.warmup.load(progress.warmup)
        else:
            self.warmup.consumed_tokens = progress.consumed_tokens
        self.layer_tokens = LayerTokens(shape(settings).layers, progress.consumed_tokens)
        if progress.layer_tokens is not None:
            self.layer_tokens.load(progress.layer_tokens)
        ltd = schedules.random_ltd
        self._ltd: RandomLtd | None = None
        if ltd.drops and progress.step + 1 < ltd.end_step:
            self._ltd = RandomLtd(engine.module, Block, ltd, seed=settings.seed, data_rank=rank, layers=ltd.layers)
        self.samples = 0  # Of the step that was begun, over all ranks

    def _order_from(
        self, settings: argparse.Namespace, skipped: tuple[SkippedRange, ...]
    ) -> DataOrder | CurriculumOrder:
        """The order from progress.consumed_samples on. DataError where an index is not of this data. A curriculum that
        the checkpoint knows goes on, whatever its pacing is now; another one begins there."""
        curriculum, progress = self._schedules.curriculum, self._progress
        if curriculum is None:
            return DataOrder(self._corpus.training_samples, settings.seed, progress.reseeds, skipped)
        known = progress.curriculum
        return CurriculumOrder(
            _paces(curriculum, settings),
            settings.seed,
            batch=settings.global_batch,
            reseeds=progress.reseeds,
            skipped=skipped,
            state=known["order"] if known is not None and known["indexes"] == _indexes(curriculum) else None,
            position=progress.consumed_samples,
            step=progress.step,
        )

    def begin(self, step: int) -> Iterator[Tensor]:
        """Begins a step, takes note of what it consumes, and returns this rank's micro-batches, (rows, L + 1) tokens.
        Sets the engine's batch size, and before each micro-batch whether it is the last."""
        engine, progress = self._engine, self._progress
        self.samples = self._schedules.batch_size.samples(progress.consumed_samples, multiple_of=self._at_once)
        if self.samples != engine.train_batch_size():
            engine.set_train_batch_size(self.samples)
        self.warmup.begin(step, self.samples)
        kept = self.warmup.kept_samples
        fresh, position = self.order.take(progress.consumed_samples, self.samples - kept, step)
        if self.warmup.cuts:
            self.warmup.took(self.order.runs(progress.consumed_samples, position))
        self._count(step, position)
        return self._micro_batches(step, fresh)

    def _micro_batches(self, step: int, fresh: NDArray[np.int64]) -> Iterator[Tensor]:
        """Samples are dealt to the ranks so that a step's are the same on any number of ranks, at any micro-batch."""
        engine, rank, last = self._engine, self._rank, self.samples // self._at_once - 1
        slots = np.arange(self.samples).reshape(-1, rank.size, self._at_once // rank.size)[:, rank.rank]
        for number, batch in enumerate(self._tokens(fresh, each) for each in slots):
            if self._ltd is not None:
                self._ltd.begin(step, number)
            engine.set_gradient_accumulation_boundary(number == last)  # its own count is off when the batch changes
            self._seen(batch)
            yield self.warmup(batch.to(engine.device))

    def _tokens(self, fresh: NDArray[np.int64], slots: NDArray[Any]) -> Tensor:
        """(micro, F + 1) tokens: of the step's samples the last ones are packed of what the warmup has kept."""
        ordered = torch.from_numpy(self._corpus.training(fresh[slots[slots < len(fresh)]]))
        later = slots[slots >= len(fresh)] - len(fresh)
        return torch.cat([ordered, self.warmup.packed(later.tolist(), self._read)]) if len(later) else ordered

    def _read(self, positions: list[int]) -> Tensor:
        return torch.from_numpy(self._corpus.training(self.order.at(positions)))

    def _count(self, step: int, position: int) -> None:
        progress, length = self._progress, self.warmup.length
        rows = (self.warmup.consumed_tokens - progress.consumed_tokens) // length  # a reshape makes more of them
        if self._ltd is not None:
            self._ltd.begin(step)
            self._ltd.count(self.layer_tokens, samples=rows, seqlen=length)
        else:
            self.layer_tokens.add(samples=rows, seqlen=length)
        progress.step, progress.consumed_samples = step, position
        progress.consumed_tokens = self.warmup.consumed_tokens

    def next_digests(self, steps: int) -> tuple[int, ...]:
        """`batch_digest` of the steps that come next; none where the steps to come decide about their own data."""
        if not isinstance(self.order, DataOrder) or self._schedules.shorten.endswith("_keep"):
            return ()
        position, digests = self._progress.consumed_samples, []
        for _ in range(steps):
            count = self._schedules.batch_size.samples(position, multiple_of=self._at_once)
            fresh, position = self.order.take(position, count)
            digests.append(int(batch_digest(torch.from_numpy(self._corpus.training(fresh)))))
        return tuple(digests)

    @property
    def effective_tokens(self) -> int:
        """Tokens consumed so far, less what random-LTD has dropped, averaged over the layers; what LR and end go by."""
        return int(self.layer_tokens.effective_tokens)

    @property
    def kept_tokens(self) -> int | None:
        """Of a sample of the step, how many the middle layers see; None where all layers see all."""
        length = self.warmup.length
        kept = length if self._ltd is None else self._ltd.kept_tokens(length)
        return kept if kept < length else None

    @property
    def curriculum_share(self) -> float | None:
        """Share of the training samples that the step draws from; None is all of them."""
        return self.order.share(self._progress.step)

    def close(self) -> None:
        """Leaves the model as it was."""
        if self._ltd is not None:
            self._ltd.remove()

    def note(self, progress: Progress) -> None:
        """Puts where all of it stands into what a checkpoint holds."""
        progress.reseeds = self.order.reseeds
        progress.skipped = self.order.skipped
        progress.warmup = self.warmup.state()
        progress.layer_tokens = self.layer_tokens.by_layer
        curriculum, order = self._schedules.curriculum, self.order
        if curriculum is not None and isinstance(order, CurriculumOrder):
            progress.curriculum = {"indexes": _indexes(curriculum), "order": order.state()}
        else:
            progress.curriculum = None


def _indexes(curriculum: CurriculumSchedule) -> dict[str, str]:
    return {name: metric.index for name, metric in curriculum.metrics.items()}


def _paces(curriculum: CurriculumSchedule, settings: argparse.Namespace) -> list[Pace]:
    rows = open_rows(settings.data, seqlen=shape(settings).seqlen, validation_share=settings.validation_share)
    return [
        Pace(
            index=_index(Path(metric.index), name, rows),
            difficulty=metric.difficulty,
            kind="value" if metric.difficulty.kind == "value" else "percentile",
        )
        for name, metric in curriculum.metrics.items()
    ]


def _index(folder: Path, name: str, rows: Rows) -> Index:
    """Ours, which says what data it is of; or DeepSpeed's own files, of which the number of samples is checked."""
    ours = (folder / MANIFEST).exists()
    index = Index.load(folder, rows.fingerprint) if ours else read_deepspeed(folder / name)
    if index.name != name:
        raise ConfigError(f"{folder} is an index of {index.name!r}, and the curriculum paces {name!r} by it")
    if len(index) != len(rows):
        raise DataError(f"{folder} is an index of {len(index)} samples, and there are {len(rows)} training samples")
    return index
