"""Run under torchrun on 4 ranks: pipeline, tensor and expert parallel training, what the hook reads beside references.

A reference counts each parameter once by its name: it is gathered from all ranks with where it lies (pipeline stage,
tensor-parallel rank, expert), in float64. Prints one JSON line per case, as matrix.py does.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import deepspeed
import torch
import torch.distributed as dist
from deepspeed.moe.layer import MoE
from deepspeed.moe.utils import split_params_into_different_moe_groups_for_optimizer
from deepspeed.pipe import LayerSpec, PipelineModule, TiedLayerSpec
from deepspeed.utils import safe_get_full_optimizer_state
from torch import Tensor, nn

from tests.hooks.patient import patient
from trainer_hooks import attach
from trainer_hooks.gpt.__main__ import leave
from trainer_hooks.gpt.train import leave_out_unused_ops

STEPS, WIDTH, VOCABULARY, LENGTH = 4, 10, 17, 6


class Embedding(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(VOCABULARY, WIDTH) * 0.1)

    def forward(self, tokens: Tensor) -> Tensor:
        return nn.functional.embedding(tokens, self.weight)


def to_vocabulary(embedding: Embedding, x: Tensor) -> Tensor:
    return x @ embedding.weight.t()


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(3 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(torch.tanh(self.up(x)))


def cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    return nn.functional.cross_entropy(logits.float().flatten(0, 1), labels.flatten())


def config(stage: int, precision: str, accumulation: int, batch: int) -> dict[str, Any]:
    made: dict[str, Any] = {
        "train_batch_size": batch,
        "train_micro_batch_size_per_gpu": 2,
        "gradient_accumulation_steps": accumulation,
        "gradient_clipping": 0.1,
        "steps_per_print": 10**9,
        "zero_optimization": {"stage": stage},
        "zero_allow_untested_optimizer": True,
    }
    if precision != "fp32":
        made[precision] = {"enabled": True}
    return made


def tokens(step: int, micro: int, data_rank: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1000 * step + 10 * micro + data_rank)
    drawn = torch.randint(VOCABULARY, (2, LENGTH + 1), generator=generator)
    return drawn[:, :-1], drawn[:, 1:]


def states(engine: Any, stage: int) -> dict[str, Tensor]:
    """{parameter's name: v, (n,) float64} of what this rank has parameters of."""
    named = dict(engine.module.named_parameters())
    if stage or hasattr(engine.optimizer, "bf16_groups"):
        return {n: safe_get_full_optimizer_state(p, "exp_avg_sq").double().flatten() for n, p in named.items()}
    inner = getattr(engine.optimizer, "optimizer", engine.optimizer)
    masters = dict(zip(_optimized(engine), (p for g in inner.param_groups for p in g["params"]), strict=True))
    return {name: inner.state[masters[id(p)]]["exp_avg_sq"].double().flatten() for name, p in named.items()}


def _optimized(engine: Any) -> list[int]:
    """ids of the model's parameters in the order of the optimizer's."""
    groups = getattr(engine.optimizer, "fp16_groups", None)
    if groups is None:
        groups = [g["params"] for g in engine.optimizer.param_groups]
    return [id(p) for group in groups for p in group]


def compared(hook: Any, held: dict[str, Tensor], loss: float) -> dict[str, list[float]]:
    """{reading: [ours, reference]}, on rank 0. `held`: what this rank holds, under names that are the same where the
    elements are."""
    all_held: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(all_held, held)
    once = {name: v for some in all_held for name, v in some.items()}
    roots = torch.cat(list(once.values())).sqrt()
    if dist.get_rank():
        return {}
    sample = hook.latest
    return {
        "loss": [sample.loss, loss],
        "adam_variance_l1": [sample.adam_variance_l1, float(roots.sum())],
        "adam_variance_max": [sample.adam_variance_max, float(roots.max())],
        "layers": [sum(hook.latest_layers.adam_variance_l1), float(roots.sum())],
        "steps": [float(sample.global_step), float(STEPS)],
    }


def pipeline(stage: int, precision: str, folder: Path) -> dict[str, list[float]]:
    """Two stages of a GPT-like stack with tied embeddings, twice."""
    torch.manual_seed(1)
    net = PipelineModule(
        layers=[
            TiedLayerSpec("embed", Embedding, tied_weight_attr="weight"),
            *(LayerSpec(Block) for _ in range(4)),
            TiedLayerSpec("embed", Embedding, forward_fn=to_vocabulary, tied_weight_attr="weight"),
        ],
        num_stages=2,
        loss_fn=cross_entropy,
        partition_method="uniform",
    )
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2)
    engine, *_ = deepspeed.initialize(model=net, optimizer=optimizer, config=config(stage, precision, 2, 8))
    hook = attach(engine, state_dir=folder, interval_steps=1)
    data_rank = engine.grid.get_data_parallel_rank()
    loss = 0.0
    for step in range(STEPS):
        loss = float(engine.train_batch(iter([tokens(step, micro, data_rank) for micro in range(2)])))
    hook.close("finished")
    return compared(hook, states(engine, stage), loss) | {"grad_norm there": [float(_has_norm(hook)), 1.0]}


def _has_norm(hook: Any) -> bool:
    return dist.get_rank() != 0 or (hook.latest.grad_norm or 0) > 0


class Mpu:
    """Megatron's model-parallel unit, as far as DeepSpeed and the hook ask it: two by two ranks."""

    def __init__(self) -> None:
        self._rank = dist.get_rank()
        for part in ([0, 1], [2, 3]):
            group = dist.new_group(part)
            if self._rank in part:
                self._tensor = group
        for part in ([0, 2], [1, 3]):
            group = dist.new_group(part)
            if self._rank in part:
                self._data = group

    def get_tensor_model_parallel_world_size(self) -> int:
        return 2

    def get_tensor_model_parallel_rank(self) -> int:
        return self._rank % 2

    def get_tensor_model_parallel_group(self) -> Any:
        return self._tensor

    get_model_parallel_world_size = get_tensor_model_parallel_world_size
    get_model_parallel_rank = get_tensor_model_parallel_rank
    get_model_parallel_group = get_tensor_model_parallel_group

    def get_data_parallel_world_size(self) -> int:
        return 2

    def get_data_parallel_rank(self) -> int:
        return self._rank // 2

    def get_data_parallel_group(self) -> Any:
        return self._data


class _Sum(torch.autograd.Function):
    """Megatron's reduce-from-tensor-parallel-region: a sum forward, nothing backward."""

    @staticmethod
    def forward(_: Any, x: Tensor, group: Any) -> Tensor:
        whole = x.clone()
        dist.all_reduce(whole, group=group)
        return whole

    @staticmethod
    def backward(_: Any, gradient: Tensor) -> Any:
        return gradient, None


class _Copy(torch.autograd.Function):
    """Megatron's copy-to-tensor-parallel-region: nothing forward, a sum backward."""

    @staticmethod
    def forward(context: Any, x: Tensor, group: Any) -> Tensor:
        context.group = group
        return x

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> Any:
        whole = gradient.clone()
        dist.all_reduce(whole, group=context.group)
        return whole, None


class SplitBlock(nn.Module):
    """A block whose inner width is split over the tensor-parallel ranks; its norm and last bias are on both."""

    def __init__(self, mpu: Mpu) -> None:
        super().__init__()
        self.mpu = mpu
        self.norm = nn.LayerNorm(WIDTH)
        whole = torch.randn(2, 2, 3 * WIDTH // 2, WIDTH) * 0.1  # (up or down, part, inner, width)
        mine = whole[:, mpu.get_tensor_model_parallel_rank()]
        self.up, self.down = nn.Parameter(mine[0].clone()), nn.Parameter(mine[1].t().contiguous())
        self.bias = nn.Parameter(torch.zeros(WIDTH))
        for split in (self.up, self.down):
            split.tensor_model_parallel = True  # type: ignore[attr-defined]

    def forward(self, x: Tensor) -> Tensor:
        inner = _Copy.apply(self.norm(x), self.mpu.get_tensor_model_parallel_group())
        out = torch.tanh(inner @ self.up.t()) @ self.down.t()
        return x + _Sum.apply(out, self.mpu.get_tensor_model_parallel_group()) + self.bias


class SplitModel(nn.Module):
    def __init__(self, mpu: Mpu) -> None:
        super().__init__()
        self.embedding = Embedding()
        self.layers = nn.ModuleList(SplitBlock(mpu) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.embedding(x)
        for layer in self.layers:
            hidden = layer(hidden)
        return to_vocabulary(self.embedding, hidden)


def tensor_parallel(stage: int, precision: str, folder: Path) -> dict[str, list[float]]:
    mpu = Mpu()
    torch.manual_seed(1)
    net = SplitModel(mpu)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2)
    engine, *_ = deepspeed.initialize(model=net, optimizer=optimizer, config=config(stage, precision, 1, 4), mpu=mpu)
    hook = attach(engine, state_dir=folder, interval_steps=1, mpu=mpu)
    loss, norm = trained(engine, mpu.get_data_parallel_rank(), mpu)
    hook.close("finished")
    rank = mpu.get_tensor_model_parallel_rank()
    split = {n for n, p in engine.module.named_parameters() if getattr(p, "tensor_model_parallel", False)}
    held = {f"{n} of {rank}" if n in split else n: v for n, v in states(engine, stage).items()}
    found = compared(hook, held, loss)
    if not dist.get_rank() and stage == 0 and precision == "fp32":
        found["grad_norm"] = [hook.latest.grad_norm, norm]
    return found


def trained(engine: Any, data_rank: int, mpu: Mpu | None) -> tuple[float, float]:
    """The last step's loss, mean over ranks; and (stage 0, fp32, tensor parallel) the norm of its whole gradient."""
    loss, norm = torch.zeros(()), 0.0
    for step in range(STEPS):
        x, y = tokens(step, 0, data_rank)
        loss = cross_entropy(engine(x), y)
        engine.backward(loss)
        if mpu is not None:
            squares = torch.zeros(2, dtype=torch.float64)
            for parameter in engine.module.parameters():
                if parameter.grad is not None:
                    split = int(getattr(parameter, "tensor_model_parallel", False))
                    squares[split] += parameter.grad.double().square().sum()
            other = squares[1].clone()
            dist.all_reduce(other, group=mpu.get_tensor_model_parallel_group())
            norm = float((squares[0] + other).sqrt())
        engine.step()
    mean = loss.detach().double().clone()
    dist.all_reduce(mean)
    return float(mean) / dist.get_world_size(), norm


class Routed(nn.Module):
    """Two experts, one on each rank of a pair; a gate and the rest on all."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = Embedding()
        self.layers = nn.ModuleList([nn.Linear(WIDTH, WIDTH)])
        self.moe = MoE(WIDTH, expert=Block(), num_experts=2, ep_size=2, k=1, min_capacity=0, capacity_factor=2.0)

    def forward(self, x: Tensor) -> Tensor:
        hidden = torch.tanh(self.layers[0](self.embedding(x)))
        return to_vocabulary(self.embedding, self.moe(hidden)[0])


def experts(stage: int, precision: str, folder: Path) -> dict[str, list[float]]:
    torch.manual_seed(1)
    net = Routed()
    group = {"params": list(net.parameters()), "name": "all"}
    groups = split_params_into_different_moe_groups_for_optimizer(group)
    optimizer = torch.optim.AdamW(groups, lr=1e-2)
    engine, *_ = deepspeed.initialize(model=net, optimizer=optimizer, config=config(stage, precision, 1, 8))
    hook = attach(engine, state_dir=folder, interval_steps=1)
    loss, _ = trained(engine, dist.get_rank(), None)
    hook.close("finished")
    if stage:  # each rank has a partition of its own, of the dense parameters and of the experts
        parts = enumerate(engine.optimizer.optimizer.state.values())
        held = {f"{i} on {dist.get_rank()}": s["exp_avg_sq"].double().flatten() for i, s in parts}
        return compared(hook, held, loss)
    expert = dist.get_rank() % 2
    own = {n for n, p in engine.module.named_parameters() if not getattr(p, "allreduce", True)}
    held = {f"{n} of {expert}" if n in own else n: v for n, v in states(engine, stage).items()}
    return compared(hook, held, loss)


CASES: dict[str, tuple[Callable[[int, str, Path], dict[str, list[float]]], list[tuple[int, str]]]] = {
    "experts": (experts, [(0, "fp32"), (1, "fp32"), (2, "fp32")]),  # first: DeepSpeed remembers an mpu for good
    "pipeline": (pipeline, [(0, "fp32"), (1, "fp32"), (0, "bf16"), (1, "bf16")]),
    "tensor parallel": (tensor_parallel, [(0, "fp32"), (1, "fp32"), (2, "fp32"), (1, "bf16")]),
}


def main() -> None:
    leave_out_unused_ops()
    patient()
    dist.init_process_group("gloo")
    deepspeed.init_distributed("gloo")
    folder: list[Any] = [tempfile.mkdtemp() if dist.get_rank() == 0 else None]
    dist.broadcast_object_list(folder)
    for name, (run, variants) in CASES.items():
        for stage, precision in variants:
            readings = run(stage, precision, Path(folder[0]) / f"{name}-{stage}-{precision}".replace(" ", "-"))
            dist.barrier()
            if dist.get_rank() == 0:
                print(json.dumps({"case": f"{name}, ZeRO {stage}, {precision}", "readings": readings}), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
    leave(0)
