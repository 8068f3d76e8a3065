"""Run under torchrun: states in memory, in real engines. One JSON line per case and rank.

torchrun --nproc_per_node 2 memory_cases.py 0:fp32 3:bf16 …
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from typing import Any

import deepspeed
import torch
import torch.distributed as dist
from torch import nn

from benchmarks.in_place_trainer import digest_of
from sentinel.vocabulary.errors import SentinelError
from tests.hooks.patient import patient
from trainer_hooks.errors import Guard
from trainer_hooks.gpt.__main__ import leave
from trainer_hooks.gpt.train import leave_out_unused_ops
from trainer_hooks.in_memory import targets
from trainer_hooks.in_memory.engine_state import tensors_of
from trainer_hooks.in_memory.targets import MemoryTargets

MOST, EVERY, WIDTH = 2, 2, 24


def engine_of(stage: int, precision: str, **more: Any) -> Any:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(WIDTH, 40), nn.Dropout(0.2), nn.LayerNorm(40), nn.Linear(40, WIDTH))
    net.register_buffer("scale", torch.full((3,), 0.5))
    config: dict[str, Any] = {
        "train_batch_size": 8,
        "train_micro_batch_size_per_gpu": 2,
        "gradient_clipping": 1.0,
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-2, "torch_adam": True}},
        "scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": 9, "warmup_max_lr": 1e-2}},
        "zero_optimization": {"stage": stage, **more},
    }
    if precision != "fp32":
        config[precision] = {"enabled": True}
    return deepspeed.initialize(model=net, model_parameters=net.parameters(), config=config)[0]


def step(engine: Any) -> None:
    dtype = next(engine.module.parameters()).dtype
    while True:
        batch = torch.randn(2, WIDTH).to(dtype)  # by the generator, which is a part of the state
        engine.backward((engine(batch) - batch).square().float().mean())
        engine.step()
        if engine.micro_steps % engine.gradient_accumulation_steps() == 0:
            return


class Run:
    """A training that keeps states, and the records of them."""

    def __init__(self, engine: Any, most: int = MOST) -> None:
        self.engine, self.records, self.guard = engine, list[dict[str, Any]](), Guard()
        self.targets = MemoryTargets(engine, most=most, every=EVERY)

    def to(self, last: int) -> str:
        while self.engine.global_steps < last:
            step(self.engine)
            number = self.engine.global_steps
            self.targets.at_boundary(self.engine, number, self._client_state, self.report, self.guard)
        self.targets.settle(self.report)
        return digest_of(self.engine) + str(self.engine.lr_scheduler.state_dict())

    def _client_state(self) -> dict[str, Any]:
        return {"at": self.engine.global_steps}

    def report(self, **record: Any) -> None:
        self.records.append(record)


def kept(stage: int, precision: str) -> dict[str, Any]:
    engine = engine_of(stage, precision)
    run = Run(engine)
    at_4 = run.to(4)
    first = run.to(9)
    lie = {name: tensor.data_ptr() for name, tensor in tensors_of(engine) if name.kind != "state"}
    again = run.targets.restore(engine, 8)
    from_8 = run.to(9)
    gone = refusal(lambda: run.targets.restore(engine, 4))
    second = run.to(12)  # the state of 8 is replaced in time
    run.targets.restore(engine, 10)
    third = run.to(12)
    other = engine_of(stage, precision)  # as where a resume makes the engine anew
    run.targets.restore(other, 10)
    run.engine = other
    fourth = run.to(12)
    return {
        "equal": [first == from_8, second == third, third == fourth, at_4 != first],
        "same_place": {n: t.data_ptr() for n, t in tensors_of(engine) if n.kind != "state"} == lie,
        "client": again["at"],
        "gone": gone,
        "held": [[r["global_step"], *r["held"]] for r in run.records],
        "digests": [r["digest"] for r in run.records],
        "bytes": [r["size_bytes"] for r in run.records],
        "errors": run.guard.errors,
    }


def refusal(what: Callable[[], Any]) -> str | None:
    try:
        what()
    except SentinelError as error:
        return f"{type(error).__name__}: {error}"
    return None


def damaged() -> dict[str, Any]:
    """A byte of one rank's state is another one: none of them loads anything."""
    run = Run(engine_of(2, "fp32"))
    before = run.to(5)
    if dist.get_rank() == 1:
        run.targets._taken._kept[0].buffer[7] ^= 1
        run.targets._taken._kept[1].buffer[7] ^= 1
    why = refusal(lambda: run.targets.restore(run.engine, 4))
    return {"why": why, "unchanged": digest_of(run.engine) in before}


def no_room() -> dict[str, Any]:
    """On the host of one rank alone."""
    available = targets.available_bytes
    if dist.get_rank() == 1:
        targets.available_bytes = lambda _: 1000
    try:
        return {"why": refusal(lambda: Run(engine_of(1, "fp32"), most=3))}
    finally:
        targets.available_bytes = available


def unsupported() -> dict[str, Any]:
    offloaded = engine_of(2, "fp32", offload_optimizer={"device": "cpu"})
    return {"why": refusal(lambda: Run(offloaded))}


def main() -> None:
    patient()
    leave_out_unused_ops()
    dist.init_process_group("gloo")
    cases: dict[str, Callable[[], dict[str, Any]]] = {"damaged": damaged, "no room": no_room}
    cases["offloaded"] = unsupported
    for name in sys.argv[1:]:
        stage, _, precision = name.partition(":")
        found = cases[name]() if name in cases else kept(int(stage), precision)
        os.write(1, (json.dumps({"case": name, "rank": dist.get_rank()} | found) + "\n").encode())
        dist.barrier()


if __name__ == "__main__":
    main()
    leave(0)
