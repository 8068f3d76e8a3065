"""The metrics for DeepSpeed's own analyzers: DataAnalyzer, and DistributedDataAnalyzer over nodes.

Their values are whole numbers; `whole_numbers` says which.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from trainer_hooks.data.deepspeed_format import read_deepspeed, whole_numbers
from trainer_hooks.data.index import Index
from trainer_hooks.data.metrics import Metric
from trainer_hooks.data.shards import Rows

__all__ = ["RowsDataset", "analyze_distributed", "metric_function"]


class RowsDataset(Dataset[Tensor]):
    """The rows, one at a time: (width,) tokens, int64."""

    def __init__(self, rows: Rows) -> None:
        self._rows = rows

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, number: int) -> Tensor:
        return torch.from_numpy(self._rows.tokens[number].astype(np.int64))


def metric_function(metric: Metric, scale: float = 1.0) -> Callable[[Tensor], Tensor]:
    """What DeepSpeed's analyzers call: (batch, width) tokens → (batch,) whole numbers, int64."""

    def values(batch: Tensor) -> Tensor:
        return torch.from_numpy(whole_numbers(metric.values(batch.numpy()), scale))

    return values


def analyze_distributed(
    rows: Rows, metric: Metric, folder: Path, *, rank: int, world: int, scale: float = 1.0, batch: int = 1024
) -> Index | None:
    """Has DeepSpeed's DistributedDataAnalyzer make its index of the metric, on the CPU; the first rank's answer is it.

    torch.distributed is initialized by the caller. With more than one rank DeepSpeed 0.19.8 itself raises TypeError: it
    asks torch for a buffer of numpy's type (file_write_ordered).
    """
    from deepspeed.runtime.data_pipeline.data_sampling.data_analyzer import DistributedDataAnalyzer

    name = metric.name.replace(":", ".")
    analyzer: Any = DistributedDataAnalyzer(
        RowsDataset(rows),
        num_workers=world,
        worker_id=rank,
        batch_size=batch,
        metric_names=[name],
        metric_functions=[metric_function(metric, scale)],
        metric_types=["single_value_per_sample"],
        save_path=str(folder),
        device="cpu",
    )
    analyzer.run_map_reduce()
    return read_deepspeed(folder / name / name) if rank == 0 else None
