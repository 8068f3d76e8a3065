"""Run under torchrun: plain PyTorch loops with the hook, one sharding after the other, against the optimizers' state.

The references are made from the whole of each parameter's state (`full_tensor()` of a DTensor), in float64.
Prints one JSON line per case: {"case", "samples": [of the hook], "wanted": [of each step], "errors", "same": whether
the weights are bit for bit those of the same training without the hook}.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import asdict
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

from sentinel.vocabulary.sample import Sample
from tests.hooks.patient import patient
from trainer_hooks import attach
from trainer_hooks.gpt.__main__ import leave

STEPS, OVERFLOWS = 4, 2
WIDTH = 12  # no world size but 2 divides all of a model's sizes
Make = Callable[[nn.Module], tuple[nn.Module, list[torch.optim.Optimizer]]]


class Block(nn.Module):
    def __init__(self, *, again: bool) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)
        self.again = again

    def _out(self, x: Tensor) -> Tensor:
        return self.down(torch.tanh(self.up(self.norm(x))))  # type: ignore[no-any-return]

    def forward(self, x: Tensor) -> Tensor:
        return x + (checkpoint(self._out, x, use_reentrant=False) if self.again else self._out(x))


class Net(nn.Module):
    """Embedding, two blocks, head: (B, T) of numbers to (B, T, 7)."""

    def __init__(self, *, again: bool = False) -> None:
        super().__init__()
        self.emb = nn.Embedding(7, WIDTH)
        self.layers = nn.ModuleList(Block(again=again) for _ in range(2))
        self.head = nn.Linear(WIDTH, 7, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.emb(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.head(x)  # type: ignore[no-any-return]


def adamw(net: nn.Module) -> list[torch.optim.Optimizer]:
    return [torch.optim.AdamW(net.parameters(), lr=1e-2, weight_decay=0.1)]


def alone(net: nn.Module) -> tuple[nn.Module, list[torch.optim.Optimizer]]:
    return net, adamw(net)


def ddp(net: nn.Module) -> tuple[nn.Module, list[torch.optim.Optimizer]]:
    return DistributedDataParallel(net), adamw(net)


def fsdp2(net: nn.Module) -> tuple[nn.Module, list[torch.optim.Optimizer]]:
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for layer in net.layers:  # type: ignore[union-attr]
        fully_shard(layer, mesh=mesh)
    fully_shard(net, mesh=mesh)
    return net, adamw(net)


def tensor_parallel(net: nn.Module) -> tuple[nn.Module, list[torch.optim.Optimizer]]:
    """Norms, embedding and head lie on both ranks; the embedding and the head as plain tensors."""
    mesh = init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("tp",))
    for layer in net.layers:  # type: ignore[union-attr]
        parallelize_module(layer, mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})
    return net, [torch.optim.AdamW(net.parameters(), lr=1e-2, foreach=False)]  # which takes no mixture


def muon_beside(net: nn.Module) -> tuple[nn.Module, list[torch.optim.Optimizer]]:
    matrices = [p for layer in net.layers for p in layer.parameters() if p.ndim == 2]  # type: ignore[union-attr]
    others = [p for p in net.parameters() if not any(p is m for m in matrices)]
    return net, [torch.optim.Muon(matrices, lr=1e-3), torch.optim.AdamW(others, lr=1e-2)]


def two_adams(net: nn.Module) -> tuple[nn.Module, list[torch.optim.Optimizer]]:
    halves = list(net.layers.parameters()), [*net.emb.parameters(), *net.head.parameters()]  # type: ignore[union-attr]
    first = torch.optim.Adam(halves[0], lr=1e-2, fused=True)
    return net, [first, torch.optim.AdamW(halves[1], lr=3e-3, foreach=True)]


def compiled(net: nn.Module) -> tuple[nn.Module, list[torch.optim.Optimizer]]:
    return torch.compile(net, backend="aot_eager"), adamw(net)  # type: ignore[return-value]


CASES: dict[str, tuple[Make, dict[str, Any]]] = {
    "one process": (alone, {}),
    "accumulation, divided before the hook": (alone, {"accumulation": 3, "divided": True}),
    "accumulation, divided after the hook": (alone, {"accumulation": 3}),
    "two Adams, fused and foreach": (two_adams, {}),
    "Muon beside AdamW": (muon_beside, {}),
    "GradScaler": (alone, {"scaler": True, "accumulation": 2}),
    "GradScaler, fused and foreach": (two_adams, {"scaler": True}),
    "activation checkpointing": (alone, {"again": True}),
    "compiled": (compiled, {"accumulation": 2}),
    "ddp": (ddp, {"accumulation": 2}),
    "fsdp2": (fsdp2, {"accumulation": 2}),
    "tensor parallel": (tensor_parallel, {"same_batches": True, "clips": False}),
}


def batch(step: int, micro: int, rank: int) -> Tensor:
    return torch.randint(7, (3, 9), generator=torch.Generator().manual_seed(1000 * step + 10 * micro + rank))


def full(tensor: Tensor) -> Tensor:
    return (tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor).detach()


def train(case: str, *, hooked: bool) -> dict[str, Any]:
    make, options = CASES[case]
    rank = 0 if options.get("same_batches") else dist.get_rank()
    accumulation = options.get("accumulation", 1)
    torch.manual_seed(1)
    model, optimizers = make(Net(again=options.get("again", False)))
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**16, growth_interval=1) if options.get("scaler") else None
    samples: list[Sample] = []
    hook = None
    if hooked:
        one = optimizers[0] if len(optimizers) == 1 else optimizers
        hook = attach(
            model=model,
            optimizer=one,
            scaler=scaler,
            state_dir=tempfile.mkdtemp(),
            interval_steps=1,
            on_sample=samples.append,
        )
    wanted = [one_step(n, model, optimizers, scaler, hook, rank, accumulation, options) for n in range(STEPS)]
    if hook is not None:
        hook.close("finished")
    weights = torch.cat([full(p).reshape(-1) for p in model.parameters()])
    return {
        "samples": [asdict(s) for s in samples],
        "wanted": wanted,
        "errors": hook.errors if hook is not None else 0,
        "weights": weights,
    }


def one_step(
    number: int,
    model: nn.Module,
    optimizers: list[torch.optim.Optimizer],
    scaler: Any,
    hook: Any,
    rank: int,
    accumulation: int,
    options: dict[str, Any],
) -> dict[str, Any]:
    losses = []
    for micro in range(accumulation):
        tokens = batch(number, micro, rank)
        last = micro == accumulation - 1
        held = isinstance(model, DistributedDataParallel) and not last
        with model.no_sync() if held else nullcontext():  # type: ignore[operator, attr-defined]
            loss = nn.functional.cross_entropy(model(tokens).flatten(0, 1), tokens.roll(1, 1).flatten())
            if scaler is not None and number == OVERFLOWS:
                loss = loss * 2.0**120
            losses.append(float(loss.detach()))
            if options.get("divided"):
                loss = loss / accumulation
            if hook is not None:
                hook.loss(loss)
            if not options.get("divided"):
                loss = loss / accumulation
            (loss if scaler is None else scaler.scale(loss)).backward()
    scale = 1.0 if scaler is None else scaler.get_scale()
    gradients = [full(p.grad) / scale for p in model.parameters() if p.grad is not None]
    norm = float(torch.cat([g.double().reshape(-1) for g in gradients]).norm())
    for optimizer in optimizers:
        if scaler is not None:
            scaler.unscale_(optimizer)
    if options.get("clips", True):
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
    for optimizer in optimizers:
        optimizer.step() if scaler is None else scaler.step(optimizer)
    if scaler is not None:
        scaler.update()
    for optimizer in optimizers:
        optimizer.zero_grad()
    means: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(means, sum(losses) / accumulation)
    roots = [full(v).double().sqrt() for v in states_of(optimizers)]
    return {
        "loss": sum(means) / len(means),
        "grad_norm": norm,
        "adam_variance_l1": float(sum(r.sum() for r in roots)),
        "adam_variance_max": max((float(r.max()) for r in roots), default=0.0),
        "param_norm": float(torch.cat([full(p).double().reshape(-1) for p in model.parameters()]).norm()),
        "loss_scale": scale if scaler is not None else None,
    }


def states_of(optimizers: list[torch.optim.Optimizer]) -> Iterator[Tensor]:
    for optimizer in optimizers:
        for state in optimizer.state.values():
            if "exp_avg_sq" in state:
                yield state["exp_avg_sq"]


def main() -> None:
    import sys

    patient()
    dist.init_process_group("gloo")
    for case in sys.argv[1:] or CASES:
        with_hook, without = train(case, hooked=True), train(case, hooked=False)
        same = bool(torch.equal(with_hook.pop("weights"), without.pop("weights")))
        if dist.get_rank() == 0:
            print(json.dumps({"case": case, "same": same, **with_hook}), flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
    leave(0)
