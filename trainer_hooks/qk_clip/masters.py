"""Where the elements of a parameter stand that an optimizer updates: the fp32 partitions of ZeRO and of half precision,
or the parameter itself. A wrapping optimizer makes its 16-bit copies of them after the inner optimizer's step."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import Tensor

from trainer_hooks.sample.own import has_own, own
from trainer_hooks.sample.owners import Owner, inner_optimizers, owners_of

__all__ = ["parts_of", "rectangles", "why_not"]


def why_not(engine: Any) -> str | None:
    """Why weights can't be changed right after this engine's optimizer step, as a phrase; None where they can."""
    optimizer = engine.optimizer
    mpu = own(engine, "mpu")
    tensor = ("get_tensor_model_parallel_world_size", "get_model_parallel_world_size")
    size = next((getattr(mpu, name)() for name in tensor if hasattr(mpu, name)), 1)
    if size > 1 or own(engine, "autotp_size", lambda: 0)() > 1:
        return "tensor parallelism deals the heads over the ranks"
    if has_own(engine, "train_batch"):
        return "a pipeline's stages have layers of their own"
    if own(engine, "sequence_parallel_size", 1) > 1:
        return "sequence parallelism deals the heads over the ranks"
    if not own(engine, "has_whole_gradients", True) or any(
        hasattr(parameter, "device_mesh") for parameter in engine.module.parameters()
    ):
        return "FSDP deals the weights over the ranks"
    if getattr(optimizer, "swap_optimizer", False):
        return "the optimizer's state is offloaded to NVMe"
    if getattr(optimizer, "zenflow", False):
        return "ZenFlow updates the weights at other times"
    if any(getattr(optimizer, f"fused_{name}_legacy", False) for name in ("adam", "lamb")):
        return "apex's fused optimizer writes the 16-bit weights itself"
    if not all(hasattr(inner, "register_step_post_hook") for inner in inner_optimizers(optimizer)):
        return "its optimizer is not one of torch.optim's kind"
    return None


def parts_of(engine: Any) -> dict[int, list[Owner]]:
    """{id of what the inner optimizer updates: whose its elements are}, on this rank."""
    parts = dict(owners_of(engine.optimizer))
    for inner in inner_optimizers(engine.optimizer):
        for group in inner.param_groups:
            for p in group["params"]:
                parts.setdefault(id(p), [Owner(start=0, size=p.numel(), parameter=p)])
    return parts


def rectangles(run: Tensor, offset: int, columns: int) -> Iterator[tuple[Tensor, int, int]]:
    """(view, its first row, its first column) of a run of a row-major matrix's elements, which begins at `offset`: the
    rest of a row that was begun, whole rows, the beginning of a row. Each view is 2-D; none is a copy."""
    at = 0
    while at < len(run):
        row, column = divmod(offset + at, columns)
        left = len(run) - at
        whole = left // columns if column == 0 else 0
        size = whole * columns or min(left, columns - column)
        yield run[at : at + size].view(max(whole, 1), -1), row, column
        at += size
