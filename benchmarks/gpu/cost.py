"""What the hook costs: one pass over v beside one read of it, and the whole hook in DeepSpeed's steps."""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable
from typing import Any

import torch

from benchmarks.hook_cost import CONSTANTS, SHAPES
from trainer_hooks import attach
from trainer_hooks.gpt.model import GPT
from trainer_hooks.sample.one_pass import Piece, one_pass

from .case import Row, Setting
from .timing import by_the_clock, launched, on_the_device
from .watched import around, as_it_was, logits_to, waits_by_profiler, waits_by_torch

__all__ = ["hook_faults", "measured_pass", "pass_faults", "whole_hook"]

MOST_TIMES_A_READ = 1.3
MOST_PERCENT_OF_A_STEP = 0.2
MOST_BESIDE_MB = 64.0
"""Of the device's memory, while the pass or a call of the hook lasts."""

INTERVAL = 10
"""Steps, between two readings of the moments and layers."""

SAMPLES = 4
"""Per step, on CUDA."""


def measured_pass(setting: Setting, size: str) -> Row:
    """A piece for each parameter of a GPT of that size. Where there is room, the moments too, with m and the parameters
    in float32 or else in bfloat16."""
    with torch.device("meta"):
        sizes = [p.numel() for p in GPT(*SHAPES[size]).parameters()]
    total, device = sum(sizes), torch.device(setting.device)
    v = torch.rand(total, device=device).mul_(1e-6)
    beside = next((dtype for dtype in (torch.float32, torch.bfloat16) if _has_room(dtype, total, setting)), None)
    split = [v.split(sizes)]
    if beside is not None:
        split += [torch.randn(total, device=device, dtype=beside).split(sizes) for _ in range(2)]
    else:
        split += [[None] * len(sizes)] * 2  # type: ignore[list-item]
    pieces = [Piece(exp_avg_sq=v, exp_avg=m, parameter=p) for v, m, p in zip(*split, strict=True)]
    chosen = one_pass(pieces)
    timed: dict[str, Callable[[], object]] = {"one read of v": v.sum, "variance": chosen.variance}
    if beside is not None:
        timed["moments"] = lambda: chosen.moments(CONSTANTS)
    once = on_the_device if setting.on_cuda else by_the_clock
    for call in timed.values():
        call()
    took: dict[str, list[float]] = {name: [] for name in timed}
    for _ in range(3 if setting.quick else 30):  # by turns
        for name, call in timed.items():
            took[name].append(once(call))
    row: Row = {
        "parameters": total,
        "pieces": len(sizes),
        "kernel": chosen.name,
        "m and parameters": "no room" if beside is None else str(beside).removeprefix("torch."),
        "ms": {name: statistics.median(times) for name, times in took.items()},
        "host ms": launched(chosen.variance, 10) if setting.on_cuda else None,
        "MB beside, at most": {name: _peak_mb(call) for name, call in timed.items()} if setting.on_cuda else None,
    }
    row["times a read"] = row["ms"]["variance"] / row["ms"]["one read of v"]
    return {**row, "wrong": pass_faults(row) if setting.on_cuda else []}


def pass_faults(row: Row) -> list[str]:
    """The goals of the pass on a GPU."""
    found = []
    if row["times a read"] > MOST_TIMES_A_READ:
        found.append(f"{row['times a read']:.2f} times one read of v; the goal is at most {MOST_TIMES_A_READ}")
    if row["kernel"] != "triton":
        found.append("the pass goes by torch's operations, not by Triton's kernel; the log says why")
    if (most := max(row["MB beside, at most"].values())) > MOST_BESIDE_MB:
        found.append(f"{most:.0f} MB beside the state while it lasts; at most {MOST_BESIDE_MB:.0f} are allowed")
    return found


def _has_room(dtype: torch.dtype, total: int, setting: Setting) -> bool:
    free = torch.cuda.mem_get_info()[0] if setting.on_cuda else 1 << 33
    return 2.2 * total * dtype.itemsize < free


def _peak_mb(call: Callable[[], object]) -> float:
    """What a call allocates at most beside what there is."""
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    call()
    return (torch.cuda.max_memory_allocated() - before) / 1e6


def whole_hook(setting: Setting, size: str) -> Row:
    """ZeRO 1, bf16 on CUDA; blocks of steps with the hook and without it by turns."""
    import deepspeed

    from .process import join

    join(setting.device)
    samples = SAMPLES if setting.on_cuda else 1
    shape, vocabulary = SHAPES[size]
    torch.manual_seed(0)
    with torch.device(setting.device):
        net = GPT(shape, vocabulary)
    config: dict[str, Any] = {
        "train_batch_size": samples,
        "steps_per_print": 10**9,
        "gradient_clipping": 1.0,
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-4, "torch_adam": True}},
        "zero_optimization": {"stage": 1},
        "bf16": {"enabled": setting.on_cuda},
    }
    engine, *_ = deepspeed.initialize(model=net, model_parameters=net.parameters(), config=config)
    tokens = torch.randint(vocabulary, (samples, shape.seqlen + 1), device=engine.device)
    watched: list[Any] = []

    def steps(count: int) -> None:
        for _ in range(count):
            for hook in watched:
                hook.batch_seen(tokens)
            engine.backward(engine(tokens))
            engine.step()

    steps(2)
    memory, before = _allocated(), dict(vars(engine))
    heard: list[int] = []
    hook = attach(
        engine,
        state_dir=tempfile.mkdtemp(dir=setting.folder),
        interval_steps=INTERVAL,
        on_sample=lambda sample: heard.append(sample.global_step),
    )
    watched.append(hook)
    net.report_logits_to(logits_to(hook))
    steps(INTERVAL + 2)  # what is found, compiled and read once is not what a step pays
    first, added = engine.global_steps + 1, _allocated() - memory
    with_hook, without = _beside(net, engine, before, watched, steps, blocks=2 if setting.quick else 3)
    host, device = _of_the_hook(hook, engine, steps, on_cuda=setting.on_cuda)
    row: Row = {
        "parameters": sum(p.numel() for p in net.parameters()),
        "tokens": samples * shape.seqlen,
        "step ms": with_hook,
        "step ms without": without,
        "host ms": host,
        "device ms": device,
        "waits by torch": waits_by_torch(hook, lambda: steps(INTERVAL)) if setting.on_cuda else None,
        "waits by profiler": waits_by_profiler(hook, lambda: steps(INTERVAL)),
        "MB added": added / 1e6,
        "MB beside, at most": _beside_mb(hook, steps) if setting.on_cuda else None,
    }
    steps_made = engine.global_steps - first + 1
    hook.close("finished")
    spent = device if setting.on_cuda else host
    row["% of a step"] = 100 * ((INTERVAL - 1) * spent["each"] + spent["interval"]) / INTERVAL / without
    blocks_without = INTERVAL * (2 if setting.quick else 3)
    row |= {"errors": hook.errors, "samples": sum(step >= first for step in heard)}
    row["samples expected"] = steps_made - blocks_without
    return {**row, "wrong": hook_faults(row, on_cuda=setting.on_cuda)}


def hook_faults(row: Row, *, on_cuda: bool) -> list[str]:
    """Errors and missing samples anywhere; the goals, which are of a GPU."""
    found = [f"the hook counted {row['errors']} errors"] if row["errors"] else []
    if row["samples"] != row["samples expected"]:
        found.append(f"{row['samples']} samples of {row['samples expected']} steps")
    if not on_cuda:
        return found
    if row["% of a step"] > MOST_PERCENT_OF_A_STEP:
        found.append(f"{row['% of a step']:.2f} % of a step; the goal is under {MOST_PERCENT_OF_A_STEP} %")
    if waits := max(row["waits by torch"], row["waits by profiler"]):
        found.append(f"{waits} host synchronisations in {INTERVAL} steps; the goal is none")
    if row["MB beside, at most"] > MOST_BESIDE_MB:
        found.append(f"{row['MB beside, at most']:.0f} MB within a call; at most {MOST_BESIDE_MB:.0f} are allowed")
    return found


def _allocated() -> int:
    if not torch.cuda.is_available():
        return 0
    torch.cuda.synchronize()
    return torch.cuda.memory_allocated()


def _beside(
    net: GPT, engine: Any, before: dict[str, Any], watched: list[Any], steps: Callable[[int], None], *, blocks: int
) -> tuple[float, float]:
    """A step with the hook and one without it, ms: the medians of blocks of INTERVAL steps that take turns."""

    def block() -> float:
        _allocated()
        began = time.perf_counter()
        steps(INTERVAL)
        _allocated()
        return (time.perf_counter() - began) * 1e3 / INTERVAL

    took: tuple[list[float], list[float]] = ([], [])
    for _ in range(blocks):
        took[0].append(block())
        hooks = watched.copy()
        watched.clear()
        with as_it_was(engine, before):
            net.report_logits_to(lambda **_: None)
            took[1].append(block())
        watched += hooks
        net.report_logits_to(logits_to(hooks[0]))
    return statistics.median(took[0]), statistics.median(took[1])


def _of_the_hook(
    hook: Any, engine: Any, steps: Callable[[int], None], *, on_cuda: bool
) -> tuple[dict[str, float], dict[str, float]]:
    """What its calls take of a step, ms: of the host, and of CUDA between the events at their two ends; medians of each
    step, and of each at the interval. The device's part is of `step_made`, which has nearly all of it."""
    host: dict[int, float] = {}
    events: dict[int, tuple[Any, Any]] = {}

    def enter(name: str) -> Callable[[], None]:
        step = engine.global_steps + (name != "step_made")
        marks: tuple[Any, ...] = ()
        if on_cuda and name == "step_made":
            marks = tuple(torch.cuda.Event(enable_timing=True) for _ in range(2))
            events[step] = (marks[0], marks[1])
            marks[0].record()
        began = time.perf_counter()

        def leave() -> None:
            host[step] = host.get(step, 0.0) + (time.perf_counter() - began) * 1e3
            if marks:
                marks[1].record()

        return leave

    with around(hook, enter):
        steps(4 * INTERVAL)
    _allocated()
    return _medians(host), _medians({step: start.elapsed_time(end) for step, (start, end) in events.items()})


def _medians(of_step: dict[int, float]) -> dict[str, float]:
    if not of_step:
        return {}
    return {
        "each": statistics.median(ms for step, ms in of_step.items() if step % INTERVAL),
        "interval": statistics.median(ms for step, ms in of_step.items() if step % INTERVAL == 0),
    }


def _beside_mb(hook: Any, steps: Callable[[int], None]) -> float:
    """What a call of the hook's allocates at most beside what there is, for as long as it lasts."""
    most = [0]

    def enter(_: str) -> Callable[[], None]:
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        return lambda: most.append(torch.cuda.max_memory_allocated() - before)

    with around(hook, enter):
        steps(INTERVAL)
    return max(most) / 1e6
