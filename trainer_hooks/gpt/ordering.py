"""The order of a run's data: shuffled whole, or paced by metrics; taken up from where the checkpoint left it."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sentinel.vocabulary.errors import ConfigError, DataError
from sentinel.vocabulary.pacing import CurriculumSchedule
from sentinel.vocabulary.skipping import SkippedRange
from trainer_hooks.data.deepspeed_format import read_deepspeed
from trainer_hooks.data.index import MANIFEST, Index
from trainer_hooks.data.order import CurriculumOrder
from trainer_hooks.data.pool import Pace
from trainer_hooks.data.rows import Rows, open_rows
from trainer_hooks.gpt.arguments import shape
from trainer_hooks.gpt.checkpoint import Progress
from trainer_hooks.gpt.data import Corpus
from trainer_hooks.gpt.order import DataOrder

__all__ = ["curriculum_state", "data_order"]


def data_order(
    curriculum: CurriculumSchedule | None,
    corpus: Corpus,
    settings: argparse.Namespace,
    progress: Progress,
    skipped: Sequence[SkippedRange],
) -> DataOrder | CurriculumOrder:
    """The order from progress.consumed_samples on. DataError where an index is not of this data. A curriculum that the
    checkpoint knows goes on, whatever its pacing is now; another one begins there."""
    if curriculum is None:
        return DataOrder(corpus.training_samples, settings.seed, progress.reseeds, skipped)
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


def curriculum_state(
    order: DataOrder | CurriculumOrder, curriculum: CurriculumSchedule | None
) -> dict[str, Any] | None:
    """For the checkpoint: what `data_order` goes on from."""
    if curriculum is None or isinstance(order, DataOrder):
        return None
    return {"indexes": _indexes(curriculum), "order": order.state()}


def _indexes(curriculum: CurriculumSchedule) -> dict[str, str]:
    return {name: metric.index for name, metric in curriculum.metrics.items()}


def _paces(curriculum: CurriculumSchedule, settings: argparse.Namespace) -> list[Pace]:
    rows = open_rows(settings.data, seqlen=shape(settings).seqlen, validation_share=settings.validation_share)
    paces = []
    for name, metric in curriculum.metrics.items():
        index = _index(Path(metric.index), name, rows)
        difficulty = metric.difficulty
        by_value = difficulty.kind == "value"
        paces.append(Pace(index=index, difficulty=difficulty, kind="value" if by_value else "percentile"))
    return paces


def _index(folder: Path, name: str, rows: Rows) -> Index:
    """Ours, which says what data it is of; or DeepSpeed's own files, of which the number of samples is checked."""
    ours = (folder / MANIFEST).exists()
    index = Index.load(folder, rows.fingerprint) if ours else read_deepspeed(folder / name)
    if index.name != name:
        raise ConfigError(f"{folder} is an index of {index.name!r}, and the curriculum paces {name!r} by it")
    if len(index) != len(rows):
        raise DataError(f"{folder} is an index of {len(index)} samples, and there are {len(rows)} training samples")
    return index
