"""Run under torchrun: DeepSpeed's own analyzers and sampler, on our metrics and files. One JSON line per case."""

from __future__ import annotations

import json
import logging
import sys
from pathlib import Path
from typing import Any

import deepspeed
import torch
import torch.distributed as dist
from deepspeed.runtime.data_pipeline.data_sampling.data_analyzer import DataAnalyzer
from deepspeed.runtime.data_pipeline.data_sampling.data_sampler import DeepSpeedDataSampler
from deepspeed.utils import logger

from tests.hooks.data_made import job, token_file
from tests.hooks.deepspeed_analyzer import RowsDataset, analyze_distributed, metric_function
from trainer_hooks.data.analyze import analyze
from trainer_hooks.data.deepspeed_format import write_deepspeed
from trainer_hooks.data.index import Index
from trainer_hooks.data.metrics import named
from trainer_hooks.gpt.__main__ import leave
from trainer_hooks.gpt.train import leave_out_unused_ops


def curriculum(prefix: Path, clusters: Path, kind: str) -> dict[str, Any]:
    """The data_efficiency block of a user whose metric is in these files."""
    metric = {
        "index_to_sample_path": f"{prefix}_index_to_sample" + ("_percentile_merged" if kind == "percentile" else ""),
        "index_to_metric_path": f"{prefix}_index_to_metric",
        "difficulty_type": kind,
        "clustering_type": "schedule_based",
        "min_difficulty": 20 if kind == "percentile" else 90,
        "max_difficulty": 100,
        "schedule_type": "fixed_root",
        "schedule_config": {"total_curriculum_step": 10, "difficulty_step": 1, "root_degree": 2},
    }
    learning = {"enabled": True, "data_cluster_path": str(clusters), "curriculum_metrics": {"voc": metric}}
    return {"seed": 1, "data_sampling": {"enabled": True, "num_epochs": 1, "curriculum_learning": learning}}


def main(folder: Path) -> None:
    leave_out_unused_ops()
    deepspeed.init_distributed("gloo", verbose=False)
    logger.setLevel(logging.ERROR)
    rank, world = dist.get_rank(), dist.get_world_size()
    asked = job(token_file(folder) if rank == 0 else folder / "tokens.bin", folder / "ours")
    dist.barrier()
    rows = asked.rows()
    if rank == 0:
        analyze(asked)
    dist.barrier()
    index = Index.load(folder / "ours" / "voc", rows.fingerprint)
    counts = torch.from_numpy(rows.tokens.astype("i8")).reshape(-1).bincount().numpy()
    metric = named("voc", width=rows.width, pad=None, counts=counts)
    theirs = analyze_distributed(rows, metric, folder / "distributed", rank=rank, world=world)
    if rank:
        return
    assert theirs is not None
    answer = {"values": theirs.values.tolist(), "order": theirs.order.tolist(), "ours": index.values.tolist()}
    print(json.dumps({"case": "distributed", **answer}))

    DataAnalyzer(
        dataset=RowsDataset(rows),
        batch_size=50,
        metric_names=["voc"],
        metric_functions=[metric_function(metric)],
        metric_types=["single_value_per_sample"],
        metric_dtypes=[torch.int64],
        save_path=str(folder / "analyzer"),
    ).run_map_reduce()
    prefix = write_deepspeed(index, folder / "written")
    names = ("sample_to_metric", "index_to_metric", "index_to_sample", "index_to_sample_percentile_merged")
    same = {
        name: Path(f"{prefix}_{name}.bin").read_bytes() == (folder / f"analyzer/voc/voc_{name}.bin").read_bytes()
        for name in names
    }
    print(json.dumps({"case": "written", "same": same, "prefix": str(folder / "analyzer/voc/voc")}))

    for kind in ("percentile", "value"):
        config = curriculum(prefix, folder / f"clusters-{kind}", kind)
        sampler = DeepSpeedDataSampler(config, len(rows), 8, 0, 1, dist.group.WORLD, 1, 0)
        batches = iter(sampler)
        drawn = [[int(n) for n in next(batches)] for _ in range(10)]
        limits = [sampler.current_difficulties["voc"]]
        print(json.dumps({"case": kind, "drawn": drawn, "limits": limits}))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
    dist.barrier()
    leave(0)
