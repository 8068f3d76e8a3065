"""Run under torchrun: the hook's readings against a float64 reference over the gathered state, for one world size.

Prints one JSON line per case: {"case", "readings": {name: [ours, reference]}}.
"""

from __future__ import annotations

import itertools
import json
import tempfile
from pathlib import Path
from typing import Any

import deepspeed
import torch
import torch.distributed as dist
from torch import nn

from trainer_hooks import attach
from trainer_hooks.gpt.__main__ import leave
from trainer_hooks.gpt.train import leave_out_unused_ops

STEPS = 3


def model() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(7, 13), nn.Tanh(), nn.Linear(13, 5))  # sizes that no world size divides


def config(stage: int, precision: str, accumulation: int, world: int) -> dict[str, Any]:
    made: dict[str, Any] = {
        "train_batch_size": 4 * world * accumulation,
        "train_micro_batch_size_per_gpu": 4,
        "gradient_clipping": 0.1,
        "steps_per_print": 10**9,
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-2, "torch_adam": True}},
        "zero_optimization": {"stage": stage},
    }
    if precision != "fp32":
        made[precision] = {"enabled": True}
    return made


def batch(step: int, micro: int, rank: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1000 * step + 10 * micro + rank)
    return torch.randn(4, 7, generator=generator), torch.randn(4, 5, generator=generator)


def gathered(value: torch.Tensor) -> torch.Tensor:
    """All ranks' parts, end to end, float64."""
    parts: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(parts, value.double())
    return torch.cat(parts)


def reference_variance(engine: Any, stage: int) -> tuple[float, float]:
    inner = getattr(engine.optimizer, "optimizer", engine.optimizer)
    flat = torch.cat([s["exp_avg_sq"].reshape(-1).double() for s in inner.state.values() if "exp_avg_sq" in s])
    whole = gathered(flat) if stage else flat
    return float(whole.sqrt().sum()), float(whole.sqrt().max())


def run_case(stage: int, precision: str, accumulation: int, folder: Path) -> dict[str, list[float]]:
    world, rank = dist.get_world_size(), dist.get_rank()
    net = model()
    engine, *_ = deepspeed.initialize(
        model=net, model_parameters=net.parameters(), config=config(stage, precision, accumulation, world)
    )
    hook = attach(engine, state_dir=folder)
    dtype = {"fp32": torch.float32, "bf16": torch.bfloat16}[precision]
    losses: list[float] = []
    for step in range(STEPS):
        losses = []
        for micro in range(accumulation):
            x, y = batch(step, micro, rank)
            loss = nn.functional.mse_loss(engine(x.to(dtype)).float(), y)
            losses.append(float(loss))
            engine.backward(loss)
            engine.step()
    l1, largest = reference_variance(engine, stage)
    loss = float(gathered(torch.tensor(losses)).mean())
    sample = hook.latest
    hook.close("finished")
    errors = torch.tensor([hook.errors])
    dist.all_reduce(errors)
    readings = {"errors": [float(errors), 0.0]}
    if rank == 0:
        assert sample is not None
        readings |= {
            "adam_variance_l1": [sample.adam_variance_l1 or 0.0, l1],
            "adam_variance_max": [sample.adam_variance_max or 0.0, largest],
            "loss": [sample.loss, loss],
            "global_step": [float(sample.global_step), float(STEPS)],
            "grad_norm": [sample.grad_norm or 0.0, reference_norm(engine, sample, accumulation, precision)],
        }
    dist.barrier()
    return readings


def reference_norm(engine: Any, sample: Any, accumulation: int, precision: str) -> float:
    """By replaying the same steps in plain torch on one process, in float64 (fp32 cases only; else what was read)."""
    if precision != "fp32":
        return sample.grad_norm or 0.0
    net = model().double()
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2)
    norm = 0.0
    for step in range(STEPS):
        optimizer.zero_grad()
        passes = list(itertools.product(range(accumulation), range(dist.get_world_size())))
        for micro, rank in passes:
            x, y = batch(step, micro, rank)
            (nn.functional.mse_loss(net(x.double()), y.double()) / len(passes)).backward()
        norm = float(torch.nn.utils.clip_grad_norm_(net.parameters(), 0.1))
        optimizer.step()
    return norm


def main() -> None:
    dist.init_process_group("gloo")
    leave_out_unused_ops()
    cases = [(*c, 1) for c in itertools.product(range(4), ("fp32", "bf16"))] + [(0, "fp32", 2), (2, "fp32", 2)]
    folder: list[Any] = [tempfile.mkdtemp() if dist.get_rank() == 0 else None]
    dist.broadcast_object_list(folder)
    for number, (stage, precision, accumulation) in enumerate(cases):
        readings = run_case(stage, precision, accumulation, Path(folder[0]) / str(number))
        if dist.get_rank() == 0:
            case = f"ZeRO {stage}, {precision}, accumulation {accumulation}"
            print(json.dumps({"case": case, "readings": readings}), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
    leave(0)
