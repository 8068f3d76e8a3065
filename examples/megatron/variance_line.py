"""Adam's variance in the log of an old trainer, for `sentinel replay` and `sentinel watch`: this one file, torch alone.

For stacks that the hook does not run on (Python 3.8, DeepSpeed 0.5 to 0.12, Megatron-LM). Copy it beside the trainer
and call it on every rank, at log intervals: it sums over ranks where v is partitioned (ZeRO, distributed optimizer).

    from variance_line import variance_fields, variance_line

    # megatron/training.py, training_log, where log_string is made: sentinel reads them as fields of Megatron's line
    log_string += variance_fields(optimizer, partitioned=args.zero_stage > 0)

    # any other loop: a line of its own
    line = variance_line(step, loss, optimizer, grad_norm=norm, lr=lr)
    if rank == 0:
        print(line, flush=True)

Tensor- and pipeline-parallel ranks: pass `groups=[mpu.get_model_parallel_group()]`; what they hold in common
(LayerNorms, tied embeddings) is then counted on each. DeepSpeed's, Megatron's and torch's optimizers are taken.
"""

import math

import torch
import torch.distributed as dist


def variance(optimizer, partitioned=False, groups=()):
    """(sum of sqrt(v), max of sqrt(v)) over Adam's state, v = exp_avg_sq; (nan, nan) before the first step."""
    inner = optimizer
    while hasattr(inner, "optimizer") and not getattr(inner, "state", None):
        inner = inner.optimizer
    inner = getattr(inner, "optimizer", inner)
    total, largest = 0.0, 0.0
    for state in inner.state.values():
        v = state.get("exp_avg_sq") if isinstance(state, dict) else None
        if v is None or not v.numel():
            continue
        flat = v.detach().flatten()
        for start in range(0, flat.numel(), 1 << 24):  # a piece at a time: no second copy of all of v
            root = flat[start : start + (1 << 24)].float().sqrt()
            total += float(root.double().sum())
            piece = float(root.max())
            largest = piece if math.isnan(piece) or piece > largest else largest
    summed = list(groups) + ([None] if partitioned and not groups else [])
    if dist.is_available() and dist.is_initialized():
        on = "cuda" if dist.get_backend() == "nccl" else "cpu"
        for group in summed:
            named = {} if group is None else {"group": group}
            numbers = torch.tensor([total, largest], dtype=torch.float64, device=on)
            sums, most = numbers[:1].clone(), numbers[1:].clone()
            dist.all_reduce(sums, op=dist.ReduceOp.SUM, **named)
            dist.all_reduce(most, op=dist.ReduceOp.MAX, **named)
            total, largest = float(sums), float(most)
    return (total, largest) if total or math.isnan(total) else (math.nan, math.nan)


def variance_fields(optimizer, grad_norm=None, partitioned=False, groups=()):
    """` adam_variance_l1: … | adam_variance_max: … |`, to append to a line of fields between bars."""
    total, largest = variance(optimizer, partitioned, groups)
    fields = f" adam_variance_l1: {total:.6E} | adam_variance_max: {largest:.6E} |"
    return fields if grad_norm is None else f"{fields} grad norm: {_number(grad_norm):.6E} |"


def _number(value):
    return float(value.detach() if hasattr(value, "detach") else value)


def variance_line(step, loss, optimizer, grad_norm=None, lr=None, partitioned=False, groups=()):
    """A line of its own for the step, which counts from 1."""
    line = f"sentinel: step {step} | loss: {_number(loss):.6E} |"
    if lr is not None:
        line += f" lr: {_number(lr):.6E} |"
    return line + variance_fields(optimizer, grad_norm, partitioned, groups)
