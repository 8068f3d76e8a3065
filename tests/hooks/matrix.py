"""Run under torchrun: what the hook reads, step by step, on one sharding after the other, against float64 references.

The reference is made from what DeepSpeed itself gives of each whole parameter (its gradient before the step, its Adam
state after it), in float64. Prints one JSON line per case: {"case", "refused": DeepSpeed's own words or null, "worst":
{reading: largest relative error over the steps}, "samples", "errors"}.
"""

from __future__ import annotations

import argparse
import gc
import itertools
import json
import math
import operator
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import deepspeed
import torch
import torch.distributed as dist
from deepspeed.accelerator import get_accelerator
from deepspeed.utils import safe_get_full_fp32_param, safe_get_full_grad, safe_get_full_optimizer_state
from torch import Tensor, nn

from sentinel.vocabulary.sample import LayerVariance, Sample
from tests.hooks.patient import patient
from trainer_hooks import attach
from trainer_hooks.gpt.__main__ import leave
from trainer_hooks.gpt.train import leave_out_unused_ops

STEPS = 5
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
LR, EPS, DECAY, BETAS = 1e-2, 1e-8, 0.01, (0.9, 0.999)

TOLERANCE = 1e-6
LOOSER = {"update_norm": 1e-5, "loss_spread": 1e-5, "grad_norm_spread": 1e-4}
"""Small differences of large numbers: of the parameters before and after a step, of the ranks' losses and norms. A
half-precision gradient is rounded otherwise under a loss scale."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """One combination."""

    zero: str
    """0, 1, 2, 3, or 1, 2, 3 with the optimizer offloaded to the CPU: `2 offload`."""

    precision: str
    adam: str
    accumulation: int

    @property
    def stage(self) -> int:
        return int(self.zero[0])

    @property
    def offloaded(self) -> bool:
        return self.zero.endswith("offload")


ZEROS = ("0", "1", "2", "3", "1 offload", "2 offload", "3 offload")
ADAMS = ("torch Adam", "torch AdamW", "FusedAdam", "DeepSpeedCPUAdam")
ALL = tuple(
    Case(zero=zero, precision=precision, adam=adam, accumulation=accumulation)
    for zero, precision, adam, accumulation in itertools.product(ZEROS, DTYPES, ADAMS, (1, 4))
)


WITHOUT_FUSED = tuple(case for case in ALL if case.adam != "FusedAdam")
"""All but those with FusedAdam: compiling it takes minutes, and on a CPU few train with it."""


def pairwise(cases: Iterable[Case]) -> list[Case]:
    """A few of them that hold every pair of values that any of them holds; the same ones each time."""
    left = {case: {(a, b) for a, b in itertools.combinations(asdict(case).items(), 2)} for case in cases}
    wanted = set().union(*left.values())
    chosen = []
    while wanted:
        best = max(left, key=lambda case: len(left[case] & wanted))
        wanted -= left.pop(best)
        chosen.append(best)
    return chosen


OF_ENGINES = (
    *("gradient_scale", "scale_in_force", "precision", "clip_by", "watched_by", "unwatched", "train_batch"),
    *("mpu", "copies_of_state", "has_whole_gradients", "mp_world_size"),
)
"""Attributes that tell the hook what kind of engine it has."""


def model() -> nn.Module:
    torch.manual_seed(1)
    made = nn.Sequential(nn.Linear(7, 13), nn.Tanh(), nn.Linear(13, 5))  # sizes that no world size divides
    for name in OF_ENGINES:  # DeepSpeed's engine answers for its model's attributes too
        setattr(made, name, "the model's own")
    return made


def config(case: Case, world: int, scale_power: int = 6) -> dict[str, Any]:
    made: dict[str, Any] = {
        "train_batch_size": 4 * world * case.accumulation,
        "train_micro_batch_size_per_gpu": 4,
        "gradient_clipping": 0.1,
        "steps_per_print": 10**9,
        "zero_optimization": {"stage": case.stage},
        "zero_force_ds_cpu_optimizer": False,
        "zero_allow_untested_optimizer": True,
    }
    if case.offloaded:
        made["zero_optimization"]["offload_optimizer"] = {"device": "cpu", "pin_memory": False}
    if case.precision == "bf16":
        made["bf16"] = {"enabled": True}
    if case.precision == "fp16":  # so small a window that the scale doubles within the few steps
        made["fp16"] = {
            "enabled": True,
            "initial_scale_power": scale_power,
            "loss_scale_window": 2,
            "hysteresis": 1,
        }
    return made


def optimizer(case: Case, parameters: list[nn.Parameter]) -> Any:
    settings: dict[str, Any] = {"lr": LR, "eps": EPS, "betas": BETAS, "weight_decay": DECAY}
    if case.adam == "torch Adam":
        return torch.optim.Adam(parameters, **settings)
    if case.adam == "torch AdamW":
        return torch.optim.AdamW(parameters, **settings)
    from deepspeed.ops.adam import DeepSpeedCPUAdam, FusedAdam

    return {"FusedAdam": FusedAdam, "DeepSpeedCPUAdam": DeepSpeedCPUAdam}[case.adam](parameters, **settings)


def batch(step: int, micro: int, rank: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1000 * step + 10 * micro + rank)
    return torch.randn(4, 7, generator=generator), torch.randn(4, 5, generator=generator)


def gathered(value: Tensor) -> Tensor:
    """All ranks' parts, end to end, float64."""
    parts: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(parts, value.detach().double().reshape(-1))
    return torch.cat(parts)


class Whole:
    """The whole of each parameter, whatever the sharding, in float64."""

    def __init__(self, engine: Any, case: Case) -> None:
        self._engine = engine
        self._names = dict(engine.module.named_parameters())
        self._cut_up = case.stage > 0 or hasattr(engine.optimizer, "bf16_groups")
        """Up to 0.17.5 ZeRO 0 in bf16 is DeepSpeed's BF16_Optimizer, which cuts the state up as ZeRO 1 does."""

    def gradients(self) -> dict[str, Tensor]:
        """Before the step: averaged over ranks and micro-batches, still times the loss scale in fp16."""
        of = safe_get_full_grad if self._cut_up else lambda p: p.grad
        if hasattr(self._engine.optimizer, "bf16_groups"):  # p.grad is the last micro-batch's alone
            of = operator.attrgetter("_hp_grad")
        return {name: of(p).double().reshape(-1) for name, p in self._names.items()}

    def states(self, key: str) -> dict[str, Tensor]:
        """exp_avg, exp_avg_sq, or parameter."""
        if self._cut_up:
            of = safe_get_full_fp32_param if key == "parameter" else lambda p: safe_get_full_optimizer_state(p, key)
            return {name: of(p).double().reshape(-1) for name, p in self._names.items()}
        inner = getattr(self._engine.optimizer, "optimizer", self._engine.optimizer)
        held = [(m, inner.state[m]) for group in inner.param_groups for m in group["params"]]
        flat = torch.cat([(m if key == "parameter" else s[key]).detach().double().reshape(-1) for m, s in held])
        sizes = [p.numel() for p in self._names.values()]
        return dict(zip(self._names, flat.split(sizes), strict=True))


class RefusedError(Exception):
    """DeepSpeed does not train this combination; in its own words."""


@contextmanager
def refusals() -> Iterator[None]:
    """Around what is DeepSpeed's alone: the hook never raises."""
    try:
        yield
    except Exception as error:
        raise RefusedError(f"{type(error).__name__}: {error}".splitlines()[0][:200]) from error


def run_case(case: Case, folder: Path, *, steps: int = STEPS, scale_power: int = 6) -> dict[str, Any]:
    """`scale_power`: fp16 begins with a loss scale of 2 to that power; from 16 on it overflows within ten steps."""
    world = dist.get_world_size()
    net = model()
    with refusals():
        engine, *_ = deepspeed.initialize(
            model=net, optimizer=optimizer(case, list(net.parameters())), config=config(case, world, scale_power)
        )
    heard: dict[int, tuple[Sample, LayerVariance]] = {}  # of rank 0; on CUDA a sample comes a step or two later
    hook = attach(
        engine,
        state_dir=folder,
        interval_steps=1,
        on_sample=lambda sample: heard.update({sample.global_step: (sample, hook.latest_layers)}),
    )
    whole = Whole(engine, case)
    expected = [one_step(engine, whole, case, step) for step in range(steps)]
    hook.close("finished")
    worst: dict[str, float] = {}
    for sample, layers in heard.values():
        for kind, error in compared(case, expected[sample.global_step - 1], sample, layers):
            worst[kind] = max(worst.get(kind, 0.0), error)
    return {
        "refused": None,
        "worst": worst,
        "samples": len(heard),
        "skipped": sum(sample.skipped for sample, _ in heard.values()),
        "loss_scales": [sample.loss_scale for sample, _ in heard.values()],
        "errors": int(gathered(torch.tensor([float(hook.errors)], device=engine.device)).sum()),
    }


def one_step(engine: Any, whole: Whole, case: Case, step: int) -> dict[str, float]:
    """Trains one step; the references of its readings, and the loss scale that its gradients had."""
    world, rank, device = dist.get_world_size(), dist.get_rank(), engine.device
    losses, own_squares, norm, before = [], [], math.nan, torch.zeros(0)
    scale = getattr(engine.optimizer, "loss_scale", None) or 1.0
    for micro in range(case.accumulation):
        x, y = (part.to(device) for part in batch(step, micro, rank))
        x = x.to(DTYPES[case.precision])
        if case.stage < 3 and world > 1:
            own_squares.append(squares_of_own_gradient(engine.module, x, y))
        loss = nn.functional.mse_loss(engine(x).float(), y)
        losses.append(float(loss.detach()))
        engine.backward(loss)
        if micro == case.accumulation - 1:
            norm = float(torch.cat(list(whole.gradients().values())).norm())
            before = torch.cat(list(whole.states("parameter").values()))
        with refusals():
            engine.step()
    references = {"loss": float(gathered(torch.tensor(losses, device=device)).mean())}
    each = gathered(torch.tensor([sum(losses) / len(losses)], dtype=torch.float64, device=device))
    if world > 1:
        references["loss_spread"] = float(each.max() - each.min())
    if own_squares:
        own = [sum(own_squares) / len(own_squares)]
        norms = gathered(torch.tensor(own, dtype=torch.float64, device=device)).sqrt()
        references["grad_norm_spread"] = float(norms.max() - norms.min())
    references |= state_references(whole, before) | {"grad_norm": norm, "scale": scale}
    fill_padding(engine)
    return references


def compared(
    case: Case, references: dict[str, float], sample: Sample, layers: LayerVariance
) -> Iterator[tuple[str, float]]:
    """(reading, its relative error); what is not finite has to be so in both."""
    references = dict(references)
    norm, scale = references["grad_norm"], references.pop("scale")
    references["grad_norm"] = norm / scale
    if case.precision == "fp16" and not case.stage:  # here 0.19.8 does not scale; before, it did
        references["grad_norm"] = min(norm, norm / scale, key=lambda n: abs(n - (sample.grad_norm or 0.0)))
    if sample.skipped:  # no update, so there is none to be measured
        del references["update_norm"]
    l1s = dict(zip(layers.layers, layers.adam_variance_l1, strict=True))
    tops = dict(zip(layers.layers, layers.adam_variance_max, strict=True))
    for name, reference in references.items():
        kind, _, layer = name.partition(" of ")
        ours = l1s[layer] if kind == "layer l1" else tops[layer] if kind == "layer max" else getattr(sample, kind)
        if ours is None or math.isfinite(ours) != math.isfinite(reference):
            yield kind, math.inf
        elif math.isfinite(reference):
            yield kind, abs(ours - reference) / max(abs(reference), 1e-30)


def fill_padding(engine: Any) -> None:
    """Puts what no reading may show into what pads ZeRO 3's partitions: it is memory that DeepSpeed does not set."""
    rank, wrapper = dist.get_rank(), engine.optimizer
    if not hasattr(wrapper, "fp32_partitioned_groups_flat"):  # ZeRO 0 to 2 have other partitions
        return
    for master, parameters in zip(wrapper.fp32_partitioned_groups_flat, wrapper.fp16_groups, strict=True):
        v = wrapper.optimizer.state.get(master, {}).get("exp_avg_sq")
        end = 0
        for parameter in parameters if v is not None else ():
            start, end = end, end + parameter.partition_numel()
            owned = max(0, parameter.ds_numel - rank * parameter.partition_numel())
            v[start + owned : end] = 1e6


def squares_of_own_gradient(net: nn.Module, x: Tensor, y: Tensor) -> float:
    """Of this rank's micro-batch alone, made with the same weights in a model that DeepSpeed does not know."""
    twin = model().to(x.device, x.dtype)
    twin.load_state_dict(net.state_dict())
    nn.functional.mse_loss(twin(x).float(), y).backward()
    return float(sum(p.grad.double().square().sum() for p in twin.parameters()))


def state_references(whole: Whole, before: Tensor) -> dict[str, float]:
    v, m, p = (whole.states(key) for key in ("exp_avg_sq", "exp_avg", "parameter"))
    all_v, all_m, all_p = (torch.cat(list(part.values())) for part in (v, m, p))
    found = {
        "adam_variance_l1": float(all_v.sqrt().sum()),
        "adam_variance_max": float(all_v.sqrt().max()),
        "momentum_l2": float(all_m.norm()),
        "param_norm": float(all_p.norm()),
        "update_norm": float((all_p - before).square().mean().sqrt()) / LR,
    }
    for name in ("0", "2"):
        roots = torch.cat([part for key, part in v.items() if key.startswith(name)]).sqrt()
        found[f"layer l1 of {name}"] = float(roots.sum())
        found[f"layer max of {name}"] = float(roots.max())
    return found


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--all", action="store_true", help="every combination, not the pairwise selection")
    parser.add_argument("--only", help="cases whose description has this in it")
    arguments = parser.parse_args()
    patient()
    dist.init_process_group("gloo")
    leave_out_unused_ops()
    type(get_accelerator()).is_fp16_supported = lambda _: True  # type: ignore[method-assign]
    cases = list(ALL) if arguments.all else pairwise(WITHOUT_FUSED)
    folder: list[Any] = [tempfile.mkdtemp() if dist.get_rank() == 0 else None]
    dist.broadcast_object_list(folder)
    for number, case in enumerate(cases):
        if arguments.only and arguments.only not in str(case):
            continue
        try:
            answer = run_case(case, Path(folder[0]) / str(number))
        except RefusedError as refusal:
            answer = {"refused": str(refusal)}
        gc.collect()
        dist.barrier()
        if dist.get_rank() == 0:
            print(json.dumps({"case": asdict(case), **answer}), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
    leave(0)
