"""Run under torchrun: Adam's settings changed after a resume, for each ZeRO stage, against plain torch in float64.

Prints one JSON line per case: {"case", "brought_back", "facts", "zero", "losses", "reference"}.
"""

from __future__ import annotations

import itertools
import json
import tempfile
from pathlib import Path
from typing import Any

import deepspeed
import torch
import torch.distributed as dist
from deepspeed.accelerator import get_accelerator
from torch import nn

from sentinel.vocabulary.training_settings import TrainingSettings
from tests.hooks.matrix import batch, model
from trainer_hooks.gpt.__main__ import leave
from trainer_hooks.gpt.train import leave_out_unused_ops
from trainer_hooks.sample import adam_settings
from trainer_hooks.sample.adam_settings import AdamSettings

BEFORE, AFTER = 3, 3
FIRST = {"beta2": 0.999, "weight_decay": 0.01, "clip": 0.1}
SECOND = {"beta2": 0.9, "weight_decay": 0.3, "clip": 0.5}
"""What the run is configured with before and after the restart; the checkpoint brings the first back."""

CHANGES: dict[str, dict[str, Any]] = {
    "configured": {},
    "changed": {"adam_beta1": 0.5, "adam_beta2": 0.95, "weight_decay": 0.1, "clip_grad": 0.02},
    "reset": {},
}
TYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


def engine_of(stage: int, precision: str, settings: dict[str, float]) -> Any:
    config: dict[str, Any] = {
        "train_batch_size": 4 * dist.get_world_size(),
        "train_micro_batch_size_per_gpu": 4,
        "gradient_clipping": settings["clip"],
        "steps_per_print": 10**9,
        "optimizer": {
            "type": "AdamW",
            "params": {
                "lr": 1e-2,
                "betas": [0.9, settings["beta2"]],
                "weight_decay": settings["weight_decay"],
                "torch_adam": True,
            },
        },
        "zero_optimization": {"stage": stage},
    }
    if precision != "fp32":
        config[precision] = {"enabled": True}
    net = model()
    return deepspeed.initialize(model=net, model_parameters=net.parameters(), config=config)[0]


def steps(engine: Any, numbers: range, dtype: torch.dtype) -> list[float]:
    """The loss of each step, mean over ranks."""
    losses = []
    for step in numbers:
        x, y = batch(step, 0, dist.get_rank())
        loss = nn.functional.mse_loss(engine(x.to(dtype)).float(), y)
        engine.backward(loss)
        engine.step()
        mean = loss.detach().double() / dist.get_world_size()
        dist.all_reduce(mean)
        losses.append(float(mean))
    return losses


def reference(change: str) -> list[float]:
    """The same by plain torch on one process, in float64: the settings changed in place, or a new optimizer."""
    net = model().double()
    optimizer = torch.optim.AdamW(
        net.parameters(), lr=1e-2, betas=(0.9, FIRST["beta2"]), weight_decay=FIRST["weight_decay"]
    )
    clip, losses = FIRST["clip"], []
    for step in range(BEFORE + AFTER):
        if step == BEFORE:
            if change == "reset":
                optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2)
            wanted = CHANGES[change]
            for group in optimizer.param_groups:
                group["betas"] = (wanted.get("adam_beta1", 0.9), wanted.get("adam_beta2", SECOND["beta2"]))
                group["weight_decay"] = wanted.get("weight_decay", SECOND["weight_decay"])
            clip = wanted.get("clip_grad", SECOND["clip"])
        optimizer.zero_grad()
        total = 0.0
        for rank in range(dist.get_world_size()):
            x, y = batch(step, 0, rank)
            loss = nn.functional.mse_loss(net(x.double()), y.double()) / dist.get_world_size()
            loss.backward()
            total += float(loss)
        torch.nn.utils.clip_grad_norm_(net.parameters(), clip)
        optimizer.step()
        losses.append(total)
    return losses[BEFORE:]


def run_case(stage: int, precision: str, change: str, folder: str) -> dict[str, Any]:
    dtype = TYPES[precision]
    first = engine_of(stage, precision, FIRST)
    steps(first, range(BEFORE), dtype)
    first.save_checkpoint(folder, tag="saved")
    engine = engine_of(stage, precision, SECOND)
    configured = AdamSettings.of(engine)
    engine.load_checkpoint(folder, tag="saved")
    brought_back = adam_settings.facts(engine)
    configured.impose(engine, TrainingSettings(**CHANGES[change]))
    full = adam_settings.moments_are_zero(engine)
    if change == "reset":
        adam_settings.reset_moments(engine)
    if precision == "fp16":
        engine.optimizer.loss_scale = 512.0
    told: dict[str, Any] = {
        "brought_back": brought_back,
        "facts": adam_settings.facts(engine),
        "zero": [full, adam_settings.moments_are_zero(engine)],
        "losses": steps(engine, range(BEFORE, BEFORE + AFTER), dtype),
        "reference": reference(change),
        "after": adam_settings.facts(engine),
    }
    if precision == "fp16":
        engine.save_checkpoint(folder, tag="again")
        engine.load_checkpoint(folder, tag="again")
        told["resumed"] = adam_settings.facts(engine)
    dist.barrier()
    return told


def main() -> None:
    dist.init_process_group("gloo")
    leave_out_unused_ops()
    type(get_accelerator()).is_fp16_supported = lambda _: True  # a CPU can, slowly; DeepSpeed says no
    cases = list(itertools.product(range(4), ("fp32", "bf16"), CHANGES))
    cases = [c for c in cases if c[1] == "fp32" or c[2] != "configured"]
    cases += [(stage, "fp16", "changed") for stage in range(4)]
    for stage, precision, change in cases:
        folder: list[Any] = [tempfile.mkdtemp() if dist.get_rank() == 0 else None]
        dist.broadcast_object_list(folder)
        told = run_case(stage, precision, change, str(Path(folder[0])))
        if dist.get_rank() == 0:
            name = f"ZeRO {stage}, {precision}, {change}"
            print(json.dumps({"case": name, "change": change, "precision": precision, **told}), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
    leave(0)
