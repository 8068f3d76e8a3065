"""What the hook costs: one pass over v beside one read of it, and the whole hook in DeepSpeed's steps."""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from .setting import Case, Row, Setting

__all__ = ["TITLE", "cases", "faults", "table"]

TITLE = "What the hook costs"

MOST_TIMES_A_READ = 1.3
MOST_PERCENT_OF_A_STEP = 0.2

INTERVAL = 10
SAMPLES = 8
"""Per step, on CUDA."""


def cases(setting: Setting) -> Mapping[str, Case]:
    """The pass and the hook at GPT's sizes."""
    sizes = ["0.4M"] if setting.quick else ["124M", "1.3B"]
    passes = {f"one pass, {size}": partial(_pass, setting, size) for size in sizes}
    hooks = {f"whole hook, {size}": partial(_hook, setting, size) for size in sizes}
    return passes | hooks


def _pass(setting: Setting, size: str) -> Row:
    import torch

    from benchmarks.hook_cost import row

    found = row(size, torch.device(setting.device), 3 if setting.quick else 40)
    if found is None:
        raise RuntimeError(f"there is not enough memory for the variance of {size} parameters")
    return {**found, "judged": setting.device == "cuda"}


def _hook(setting: Setting, size: str) -> Row:
    import deepspeed
    import torch

    from benchmarks.hook_cost import SHAPES
    from trainer_hooks import attach
    from trainer_hooks.gpt.model import GPT

    from .process import join
    from .watched import waits_by_profiler, waits_by_torch

    join(setting.device)
    on_cuda = setting.device == "cuda"
    samples = SAMPLES if on_cuda else 1
    shape, vocabulary = SHAPES[size]
    torch.manual_seed(0)
    net = GPT(shape, vocabulary)
    config: dict[str, Any] = {
        "train_batch_size": samples,
        "steps_per_print": 10**9,
        "gradient_clipping": 1.0,
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-4, "torch_adam": True}},
        "zero_optimization": {"stage": 1},
        "bf16": {"enabled": on_cuda},
    }
    engine, *_ = deepspeed.initialize(model=net, model_parameters=net.parameters(), config=config)
    tokens = torch.randint(vocabulary, (samples, shape.seqlen + 1), device=engine.device)

    def steps(count: int) -> None:
        for _ in range(count):
            engine.backward(engine(tokens))
            engine.step()

    steps(2)
    before = _allocated(setting.device)
    heard: list[int] = []
    hook = attach(
        engine,
        state_dir=tempfile.mkdtemp(dir=setting.folder),
        interval_steps=INTERVAL,
        on_sample=lambda sample: heard.append(sample.global_step),
    )
    steps(INTERVAL + 2)  # what is found, compiled and read once is not what a step pays
    first = engine.global_steps + 1
    added = _allocated(setting.device) - before
    with_hook, without = _beside(engine, steps, blocks=2 if setting.quick else 6)
    host, device = _of_the_hook(hook, engine, steps, setting.device)
    found = {
        "params": sum(p.numel() for p in net.parameters()),
        "tokens": samples * shape.seqlen,
        "step_ms": with_hook,
        "step_without_ms": without,
        "host_ms": host,
        "device_ms": device,
        "waits_by_torch": waits_by_torch(hook, lambda: steps(INTERVAL)) if on_cuda else None,
        "waits_by_profiler": waits_by_profiler(hook, lambda: steps(INTERVAL)),
        "memory_added_mb": added / 1e6,
        "memory_beside_mb": _beside_mb(hook, steps) if on_cuda else None,
        "judged": on_cuda,
    }
    hook.close("finished")
    spent = device if on_cuda else host
    percent = 100 * ((INTERVAL - 1) * spent["each"] + spent["interval"]) / INTERVAL / without
    return {**found, "percent": percent, "errors": hook.errors, "samples": sum(step >= first for step in heard)}


def _allocated(device: str) -> int:
    import torch

    if device != "cuda":
        return 0
    torch.cuda.synchronize()
    return torch.cuda.memory_allocated()


def _beside(engine: Any, steps: Callable[[int], None], *, blocks: int) -> tuple[float, float]:
    """A step with the hook and one without it, ms: the medians of blocks of INTERVAL steps that take turns."""
    from .watched import taken_out

    def block() -> float:
        _wait()
        began = time.perf_counter()
        steps(INTERVAL)
        _wait()
        return (time.perf_counter() - began) * 1e3 / INTERVAL

    took: tuple[list[float], list[float]] = ([], [])
    for _ in range(blocks):
        took[0].append(block())
        with taken_out(engine):
            took[1].append(block())
    return statistics.median(took[0]), statistics.median(took[1])


def _wait() -> None:
    import torch

    if torch.cuda.is_available():
        torch.cuda.synchronize()


def _of_the_hook(
    hook: Any, engine: Any, steps: Callable[[int], None], device: str
) -> tuple[dict[str, float], dict[str, float]]:
    """What its calls take of a step, ms: of the host, and of CUDA between the events at their two ends.

    Of each step, and of each at the interval: medians. The device's part is of `step_made`, which has nearly all of it;
    the other two calls start next to nothing.
    """
    import torch

    from .watched import around

    host: dict[int, float] = {}
    events: dict[int, tuple[Any, Any]] = {}

    def enter(name: str) -> Callable[[], None]:
        step = engine.global_steps + (name != "step_made")
        marks = (
            tuple(torch.cuda.Event(enable_timing=True) for _ in range(2))
            if device == "cuda" and name == "step_made"
            else None
        )
        if marks:
            events[step] = marks
            marks[0].record()
        began = time.perf_counter()

        def leave() -> None:
            host[step] = host.get(step, 0.0) + (time.perf_counter() - began) * 1e3
            if marks:
                marks[1].record()

        return leave

    with around(hook, enter):
        steps(4 * INTERVAL)
    _wait()
    on_device = {step: start.elapsed_time(end) for step, (start, end) in events.items()}
    return _medians(host), _medians(on_device)


def _medians(of_step: dict[int, float]) -> dict[str, float]:
    if not of_step:
        return {}
    return {
        "each": statistics.median(ms for step, ms in of_step.items() if step % INTERVAL),
        "interval": statistics.median(ms for step, ms in of_step.items() if step % INTERVAL == 0),
    }


def _beside_mb(hook: Any, steps: Callable[[int], None]) -> float:
    """What a call of the hook's allocates at most beside what there is, for as long as it lasts."""
    import torch

    from .watched import around

    most = [0]

    def enter(_: str) -> Callable[[], None]:
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        return lambda: most.append(torch.cuda.max_memory_allocated() - before)

    with around(hook, enter):
        steps(INTERVAL)
    return max(most) / 1e6


def table(rows: Mapping[str, Row]) -> str:
    """One pass beside the read, then the whole hook."""
    lines = []
    passes = {case: row for case, row in rows.items() if "floor_ms" in row}
    if passes:
        lines.append(f"{'':22} {'read of v':>10} {'ours':>8} {'x read':>7} {'kernel':>8} {'peer ms':>9} {'step ms':>9}")
    for case, row in passes.items():
        step = f"{row['step_ms']:9.1f}" if row["step_ms"] else f"{'no room':>9}"
        lines.append(
            f"{case:22} {row['floor_ms']:7.3f} ms {row['ours_ms']:8.3f} {row['ours_ms'] / row['floor_ms']:7.2f} "
            f"{row['kernel']:>8} {row['peer_ms']:9.2f} {step}"
        )
        more = ", ".join(f"{what} {ms:.3f}" for what, ms in row["more_ms"].items())
        launching = "" if row["host_ms"] is None else f"launching it {row['host_ms']:.3f} ms of the host; "
        lines.append(f"{'':22} {launching}with further norms, ms: {more or 'no room'}")
    for case, row in rows.items():
        if "percent" in row:
            lines += ["", *_of_hook(case, row)]
    return "\n".join(lines)


def _of_hook(case: str, row: Row) -> list[str]:
    each = [f"{where} {ms['each']:.3f} ms, each {INTERVAL}th {ms['interval']:.3f}" for where, ms in _spent(row)]
    waits = (
        "no device to wait for" if row["waits_by_torch"] is None else f"{row['waits_by_torch']} by torch's own count"
    )
    steps = (
        f"a step of {row['tokens']} tokens {row['step_ms']:.2f} ms, without the hook {row['step_without_ms']:.2f} ms"
    )
    lines = [
        f"{case}: {steps}",
        f"  the hook's calls: {'; '.join(each)}: {row['percent']:.3f} % of a step",
        f"  host synchronisations in {INTERVAL} steps: {waits}, {row['waits_by_profiler']} by the profiler",
    ]
    if row["memory_beside_mb"] is not None:
        within = f"within its calls {row['memory_beside_mb']:.2f} MB more"
        lines.append(f"  memory on the device: {row['memory_added_mb']:.2f} MB, {within}")
    return lines


def _spent(row: Row) -> list[tuple[str, dict[str, float]]]:
    return [(where, row[f"{where}_ms"]) for where in ("device", "host") if row[f"{where}_ms"]]


def faults(rows: Mapping[str, Row]) -> list[str]:
    """The goals, which are of a GPU; and errors of the hook's anywhere."""
    found = [f"{case}: the hook counted {row['errors']} errors" for case, row in rows.items() if row.get("errors")]
    for case, row in rows.items():
        if not row["judged"]:
            continue
        if "floor_ms" in row:
            times = row["ours_ms"] / row["floor_ms"]
            if times > MOST_TIMES_A_READ:
                found.append(f"{case}: {times:.2f} times one read of v; the goal is at most {MOST_TIMES_A_READ}")
            if row["kernel"] != "triton":
                found.append(f"{case}: the pass went by torch's operations, not by Triton's kernel; see the log")
            continue
        if row["percent"] > MOST_PERCENT_OF_A_STEP:
            found.append(f"{case}: {row['percent']:.2f} % of a step; the goal is under {MOST_PERCENT_OF_A_STEP} %")
        if waits := max(row["waits_by_torch"], row["waits_by_profiler"]):
            found.append(f"{case}: {waits} host synchronisations in {INTERVAL} steps; the goal is none")
    return found
