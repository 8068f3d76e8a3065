"""What fewer tokens save by the clock: random-LTD by DeepSpeed's op and by ours, and sequence length warmup."""

from __future__ import annotations

import statistics
import time
from typing import Any

from .case import Row, Setting

__all__ = ["lengths", "random_ltd"]


def random_ltd(setting: Setting, by_the_op: bool) -> Row:
    """By each way of moving tokens: a step's time by the share of tokens that is kept."""
    from dataclasses import replace

    import torch

    from benchmarks.random_ltd import COST, ON_CUDA, costs
    from trainer_hooks.random_ltd import PlainTorch
    from trainer_hooks.random_ltd.routing import DeepSpeedOp, moves_as_torch_does

    device = torch.device(setting.device)
    shape = replace(COST, layers=4, width=64) if setting.quick else ON_CUDA
    routing = DeepSpeedOp() if by_the_op else PlainTorch()
    repetitions, samples = (1, 2) if setting.quick else (20, 16)
    right = moves_as_torch_does(routing, device)
    return {
        "shape": f"{shape.layers} layers, width {shape.width}, {samples} x {shape.seqlen} tokens",
        "moves_as_torch_does": right,
        "shares": costs(shape, repetitions, device, routing=routing, samples=samples),
        "wrong": [] if right else ["outputs or gradients are not those of plain torch"],
    }


def lengths(setting: Setting) -> Row:
    """A step of GPT-3 125M's shape at each length."""
    import torch

    from trainer_hooks.gpt.model import GPT, PRESETS

    device = torch.device(setting.device)
    preset, batch, vocabulary = ("tiny", 2, 256) if setting.quick else ("gpt3-125M", 32, 50_304)
    torch.manual_seed(0)
    model = GPT(PRESETS[preset], vocabulary).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    full, start = (128, 8) if setting.quick else (1024, 64)

    def step(length: int) -> None:
        tokens = torch.randint(vocabulary, (batch, length + 1), device=device)
        with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
            loss = model(tokens)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad()

    lengths = [start * 2**power for power in range((full // start).bit_length())]
    ms = {length: _timed(lambda length=length: step(length), 2 if setting.quick else 10) for length in lengths}  # type: ignore[misc]
    return {"shape": preset, "batch": batch, "step ms by length": {str(length): took for length, took in ms.items()}}


def _timed(what: Any, repetitions: int) -> float:
    """The median, ms, with the host's part in it: short sequences are where the host limits."""
    import torch

    took = []
    for _ in range(repetitions + 2):
        began = time.perf_counter()
        what()
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        took.append((time.perf_counter() - began) * 1e3)
    return statistics.median(took[2:])
