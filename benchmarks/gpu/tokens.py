"""What fewer tokens save by the clock: random-LTD by DeepSpeed's op and by ours, and sequence length warmup."""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping
from functools import partial
from typing import Any

from .setting import Case, Row, Setting

__all__ = ["TITLE", "cases", "faults", "table"]

TITLE = "random-LTD and sequence length warmup by the clock"


def cases(setting: Setting) -> Mapping[str, Case]:
    """random-LTD by each way of moving tokens; then the length of the sequences."""
    ltd = {"random-LTD, plain torch": partial(_random_ltd, setting, False)}
    if setting.device == "cuda":
        ltd["random-LTD, DeepSpeed's op"] = partial(_random_ltd, setting, True)
    return {**ltd, "sequence length warmup": partial(_lengths, setting)}


def _random_ltd(setting: Setting, by_the_op: bool) -> Row:
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
    }


def _lengths(setting: Setting) -> Row:
    """A step of GPT-3 125M's shape at each length, and with that the time of a schedule's tokens."""
    import torch

    from sentinel.vocabulary.pacing import FixedLinear
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
    schedule = FixedLinear(start=start, full=full, total_steps=120)
    without = 300
    tokens, slw, slw_ms = without * full, 0, 0.0
    steps = 0
    while slw < tokens:
        steps += 1
        length = min(schedule.seqlen(steps), full)
        slw += length
        slw_ms += _between(ms, length)
    return {
        "shape": preset,
        "batch": batch,
        "step_ms": {str(length): took for length, took in ms.items()},
        "start": start,
        "full": full,
        "warmup_steps": 120,
        "steps_without": without,
        "steps_with": steps,
        "times_of_the_same_tokens": slw_ms / (without * ms[full]),
    }


def _between(ms: Mapping[int, float], length: int) -> float:
    """Of a length that was not measured: on the line between its neighbours."""
    below = max(known for known in ms if known <= length)
    above = min(known for known in ms if known >= length)
    share = (length - below) / (above - below) if above > below else 0.0
    return ms[below] + share * (ms[above] - ms[below])


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


def table(rows: Mapping[str, Row]) -> str:
    """A line for each share of tokens kept, and one for each length."""
    lines: list[str] = []
    for case, row in rows.items():
        if "shares" in row:
            lines += ["", f"{case}: {row['shape']}"]
            lines.append("  kept share   step ms  of full   bound   draw ms   move ms")
            lines += [
                "  {kept_share:10.3f} {step_ms:9.2f} {of_full:8.3f} {bound:7.3f} {draw_ms:9.3f} {move_ms:9.3f}".format(
                    **of
                )
                for of in row["shares"]
            ]
            continue
        lines += ["", f"{case}: {row['shape']}, batch {row['batch']}"]
        lines.append("  length     " + " ".join(f"{length:>8}" for length in row["step_ms"]))
        lines.append("  step ms    " + " ".join(f"{ms:8.2f}" for ms in row["step_ms"].values()))
        per_token = [1e3 * ms / (int(length) * row["batch"]) for length, ms in row["step_ms"].items()]
        lines.append("  µs / token " + " ".join(f"{us:8.3f}" for us in per_token))
        lines.append(
            f"  the tokens of {row['steps_without']} steps of {row['full']}, from {row['start']} over "
            f"{row['warmup_steps']} steps: {row['steps_with']} steps, {row['times_of_the_same_tokens']:.3f} x the time"
        )
    return "\n".join(lines[1:])


def faults(rows: Mapping[str, Row]) -> list[str]:
    """An op that does not move tokens as torch does."""
    return [
        f"{case}: outputs or gradients are not those of plain torch"
        for case, row in rows.items()
        if row.get("moves_as_torch_does") is False
    ]
