"""Run under torchrun: what a step looks like that overflowed, whose loss was nan, and whose nan reached the weights.

One JSON line per case: {"case", "sample": the ill step's, "after": the one after it, "weights_intact"}.
"""

from __future__ import annotations

import dataclasses
import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import deepspeed
import torch
import torch.distributed as dist
from deepspeed.accelerator import get_accelerator
from torch import nn

from sentinel.vocabulary.numbers import to_json
from tests.hooks.matrix import DTYPES, Case, batch, config, model, optimizer
from tests.hooks.patient import patient
from trainer_hooks import attach
from trainer_hooks.gpt.__main__ import leave
from trainer_hooks.gpt.train import leave_out_unused_ops

HEALTHY = 3


def ill_loss(kind: str, engine: Any, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    loss = nn.functional.mse_loss(engine(x).float(), y)
    if kind == "nan loss":
        return loss * float("nan")
    if kind == "overflow":  # a gradient beyond fp16, from a loss that is a number
        output = engine(x).float()
        return loss + 1e6 * (output - output.detach()).sum()
    return loss


def run_case(zero: str, precision: str, kind: str, folder: Path) -> Iterator[dict[str, Any]]:
    case = Case(zero=zero, precision=precision, adam="torch AdamW", accumulation=1)
    net = model()
    engine, *_ = deepspeed.initialize(
        model=net, optimizer=optimizer(case, list(net.parameters())), config=config(case, dist.get_world_size())
    )
    hook = attach(engine, state_dir=folder)
    samples: list[Any] = []
    for step in range(HEALTHY + 2):
        x, y = batch(step, 0, dist.get_rank())
        loss = ill_loss(kind if step == HEALTHY else "", engine, x.to(DTYPES[precision]), y)
        engine.backward(loss)
        engine.step()
        samples.append(hook.latest)
    intact = all(bool(p.isfinite().all()) for p in engine.module.parameters())
    hook.close("finished")
    if dist.get_rank() == 0:
        ill, after = (dataclasses.asdict(s) for s in samples[-2:])
        yield {
            "case": f"ZeRO {zero}, {precision}, {kind}",
            "sample": to_json(ill),
            "after": to_json(after),
            "weights_intact": intact,
        }


def main() -> None:
    leave_out_unused_ops()
    patient()
    dist.init_process_group("gloo")
    type(get_accelerator()).is_fp16_supported = lambda _: True  # type: ignore[method-assign]
    folder: list[Any] = [tempfile.mkdtemp() if dist.get_rank() == 0 else None]
    dist.broadcast_object_list(folder)
    cases = [("0", "fp32", "nan loss"), ("1", "fp16", "nan loss"), ("3", "fp16", "nan loss"), ("2", "fp16", "overflow")]
    for number, (zero, precision, kind) in enumerate(cases):
        for answer in run_case(zero, precision, kind, Path(folder[0]) / str(number)):
            print(json.dumps(answer), flush=True)
        dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
    leave(0)
