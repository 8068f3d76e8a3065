"""The pass over Adam's state, without DeepSpeed: is it right, does the host wait, what of large and of odd states."""

from __future__ import annotations

import math
import os
import re
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Self

import torch
from torch import Tensor

from trainer_hooks.sample.one_pass import AdamConstants, Piece, one_pass

from .case import Row, Setting
from .running import run_child

__all__ = ["error_when_the_host_waits", "large", "right", "sanitizer", "subclass", "syncs"]

TOLERANCE = 1e-6

CONSTANTS = AdamConstants(beta1=0.9, beta2=0.95, eps=1e-8, weight_decay=0.1, step=3)

_SIZES = (1, 127, 16_384, 16_385, 100_003, 3_000_000)
_ODD = {"nan": math.nan, "inf": math.inf, "negative": -1e-9, "denormal": 1e-39, "zero": 0.0}
_NAMES = ("l1 of sqrt(v)", "max of v", "m squared", "update squared", "parameter squared")


def right(setting: Setting, dtype_name: str) -> Row:
    """v, m and parameters of one type, at odd addresses, with all that v may hold, against float64."""
    state = _state(_SIZES, getattr(torch, dtype_name), setting.device)
    chosen, exact = one_pass(_pieces(state)), _exact(state)
    worst = _worst(chosen.moments([CONSTANTS]).cpu(), exact)
    of_variance = _worst(chosen.variance().cpu(), exact[:2])
    row: Row = {"kernel": chosen.name, "relative errors": worst, "of v alone": of_variance, "wrong": []}
    for name, error in [*worst.items(), *of_variance.items()]:
        if not error <= TOLERANCE:
            row["wrong"].append(f"{name} differs from float64 by {error:.1e}; at most {TOLERANCE:.0e} is allowed")
    if setting.on_cuda and chosen.name != "triton":
        row["wrong"].append("the pass goes by torch's operations, not by Triton's kernel; the log says why")
    return row


def syncs(setting: Setting) -> Row:
    """The pass where any operation that makes the host wait is an error. The first call compiles and may wait."""
    found: dict[str, str] = {}
    for dtype in (torch.float32, torch.bfloat16):
        state = _state(_SIZES, dtype, setting.device)  # the pass itself keeps no storage alive
        chosen = one_pass(_pieces(state))
        for call in (chosen.variance, lambda chosen=chosen: chosen.moments([CONSTANTS])):
            call()
            try:
                with error_when_the_host_waits(setting.device):
                    call()
            except RuntimeError as error:
                found[f"{chosen.name}, {dtype}"] = str(error).splitlines()[0]
    return {"waits": found, "wrong": [f"{what}: the host waits: {why}" for what, why in found.items()]}


@contextmanager
def error_when_the_host_waits(device: str) -> Iterator[None]:
    """RuntimeError of torch's where an operation waits for CUDA; nothing is watched on a CPU."""
    if device != "cuda":
        yield
        return
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


def large(setting: Setting) -> Row:
    """More elements than a 32-bit index counts, in one piece."""
    n = 2_300_000 if setting.quick else 2_300_000_000
    numbers = torch.Generator(setting.device).manual_seed(0)
    v = torch.empty(n, device=setting.device).log_normal_(-20, 4, generator=numbers)
    v[-1] = 2 * v.max()  # the largest is where a 32-bit index would not come
    exact = math.fsum(float(part.double().sqrt().sum()) for part in v.split(1 << 24))
    chosen = one_pass([Piece(exp_avg_sq=v)])
    told = chosen.variance().cpu()
    l1, largest = float(told[0]), float(told[1])
    error = abs(l1 - exact) / exact
    row: Row = {"elements": n, "kernel": chosen.name, "relative error of l1": error, "wrong": []}
    if not error <= TOLERANCE:
        row["wrong"].append(f"l1 differs from float64 by {error:.1e}; at most {TOLERANCE:.0e} is allowed")
    if largest != float(v[-1]):
        row["wrong"].append(f"the max of v is {float(v[-1])!r}, and {largest!r} was read")
    return row


def sanitizer(setting: Setting) -> Row:
    """The kernels under CUDA's memory checker, each tensor an allocation of its own."""
    program = shutil.which("compute-sanitizer")
    if program is None:
        return {"not_run": "compute-sanitizer is not installed"}
    code = f"from benchmarks.gpu.kernels import small_pass; small_pass({setting.device!r})"
    command = [program, "--tool", "memcheck", "--error-exitcode", "99", sys.executable, "-c", code]
    env = os.environ | {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}  # else all lies in one large allocation
    exit_code, printed = run_child(command, env=env)
    summary = re.findall(r"ERROR SUMMARY: (\d+) errors?", printed)
    if not summary or exit_code not in (0, 99):
        return {"not_run": f"compute-sanitizer can't check here, see the log (exit code {exit_code})"}
    errors = int(summary[-1])
    return {"errors": errors, "wrong": [f"compute-sanitizer counts {errors} errors, see the log"] if errors else []}


def small_pass(device: str) -> None:
    """The program that the sanitizer checks."""
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        state = _state((1, 127, 16_385, 70_001), dtype, device)
        chosen = one_pass(_pieces(state))
        print(dtype, chosen.name, chosen.variance().sum().item(), chosen.moments([CONSTANTS]).sum().item())


def subclass(setting: Setting) -> Row:
    """A v that is a tensor subclass without an address of its own, as 8-bit optimizers have: it must end no process."""
    code = f"from benchmarks.gpu.kernels import train_with_a_subclass; train_with_a_subclass({setting.device!r})"
    exit_code, printed = run_child([sys.executable, "-c", code])
    row: Row = {"exit code": exit_code, "wrong": []}
    if exit_code:
        row["wrong"].append(f"the training ended with exit code {exit_code}, see the log")
        return row
    row["read"] = read = printed.strip().splitlines()[-1]
    if read != "loss measured, v not measured":
        row["wrong"].append(f"of a v that can't be read: {read}")
    return row


def train_with_a_subclass(device: str) -> None:
    """The program that `subclass` starts."""
    from .plain import PlainTraining

    class Packed(torch.Tensor):
        """What torch calls a wrapper subclass: it has no storage."""

        @staticmethod
        def __new__(cls, packed: Tensor) -> Self:
            made: Self = torch.Tensor._make_wrapper_subclass(  # type: ignore[attr-defined]
                cls, packed.shape, strides=packed.stride(), dtype=packed.dtype, device=packed.device
            )
            return made

        def __init__(self, packed: Tensor) -> None:
            self.packed = packed

        @classmethod
        def __torch_dispatch__(cls, called: Any, _types: Any, args: Any = (), kwargs: Any = None) -> Any:
            result = called(*[a.packed if isinstance(a, Packed) else a for a in args], **(kwargs or {}))
            return cls(result) if isinstance(result, Tensor) else result

    with PlainTraining(device) as training:
        training.steps(2)
        for state in training.optimizer.state.values():
            state["exp_avg_sq"] = Packed(state["exp_avg_sq"])
        training.steps(3, update=False)
    sample = training.samples[-1]
    loss = "loss measured" if math.isfinite(sample.loss) else "loss not measured"
    print(f"{loss}, v {'not measured' if sample.adam_variance_l1 is None else sample.adam_variance_l1}")


State = tuple[list[Tensor], list[Tensor], list[Tensor]]


def _state(sizes: tuple[int, ...], dtype: torch.dtype, device: str) -> State:
    """v, m and parameters: runs of one tensor each, beginning at its second element; one piece more for each oddity."""
    numbers = torch.Generator().manual_seed(0)
    lengths = [*sizes, *(501 + number for number in range(len(_ODD)))]
    n = 1 + sum(lengths)
    v = torch.exp(3 * torch.randn(n, generator=numbers) - 8)
    m = torch.randn(n, generator=numbers) * v.sqrt()
    p = torch.randn(n, generator=numbers)
    end = 1 + sum(sizes)
    for number, odd in enumerate(_ODD.values()):
        v[end + 250] = odd
        end += 501 + number
    return tuple(list(t.to(dtype).to(device)[1:].split(lengths)) for t in (v, m, p))  # type: ignore[return-value]


def _pieces(state: State) -> list[Piece]:
    return [Piece(exp_avg_sq=v, exp_avg=m, parameter=p) for v, m, p in zip(*state, strict=True)]


def _exact(state: State) -> Tensor:
    """(5, S) float64, on the CPU, by the formulas that OnePass's docstrings give."""
    c, columns = CONSTANTS, []
    for v, m, p in (tuple(t.cpu().double() for t in of) for of in zip(*state, strict=True)):
        root = v.sqrt()
        update = m / (1 - c.beta1**c.step) / ((v / (1 - c.beta2**c.step)).sqrt() + c.eps) + c.weight_decay * p
        odd = bool(root.isnan().any())
        largest = math.nan if odd else float(v.max())
        columns.append([root.sum(), largest, m.square().sum(), update.square().sum(), p.square().sum()])
    return torch.tensor(columns, dtype=torch.float64).t()


def _worst(told: Tensor, exact: Tensor) -> dict[str, float]:
    """{reading: largest relative error}; inf where one of the two is not finite and the other is not the same."""
    worst = {}
    for name, ours, theirs in zip(_NAMES, told.tolist(), exact.tolist(), strict=False):
        pairs = list(zip(ours, theirs, strict=True))
        same = [a == b or (math.isnan(a) and math.isnan(b)) for a, b in pairs]
        errors = [
            abs(a - b) / max(abs(b), 1e-30) if math.isfinite(a) and math.isfinite(b) else math.inf for a, b in pairs
        ]
        worst[name] = max(0.0 if equal else error for equal, error in zip(same, errors, strict=True))
    return worst
