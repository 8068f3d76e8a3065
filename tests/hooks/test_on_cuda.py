"""The whole hook on a GPU: it never waits for the device within a step, and reads what the state holds."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU that CUDA sees")


def without_waiting(method: Callable[..., Any]) -> Callable[..., Any]:
    def guarded(*args: Any, **kwargs: Any) -> Any:
        torch.cuda.set_sync_debug_mode("error")
        try:
            return method(*args, **kwargs)
        finally:
            torch.cuda.set_sync_debug_mode("default")

    return guarded


@pytest.mark.parametrize(("stage", "precision"), [(0, "fp32"), (1, "bf16"), (2, "fp16"), (3, "bf16")])
def test_no_step_waits_for_the_device(stage: int, precision: str, tmp_path: Path) -> None:
    import deepspeed

    from trainer_hooks import attach

    os.environ.update(RANK="0", LOCAL_RANK="0", WORLD_SIZE="1", MASTER_ADDR="127.0.0.1", MASTER_PORT="29677")
    torch.manual_seed(0)
    net = nn.Sequential(*(nn.Linear(64, 64) for _ in range(4)))
    config: dict[str, Any] = {
        "train_batch_size": 8,
        "steps_per_print": 10**9,
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-3, "torch_adam": True}},
        "zero_optimization": {"stage": stage},
    }
    if precision != "fp32":
        config[precision] = {"enabled": True}
    engine, *_ = deepspeed.initialize(model=net, model_parameters=net.parameters(), config=config)
    samples: list[Any] = []
    hook = attach(engine, state_dir=tmp_path, interval_steps=2, on_sample=samples.append)
    dtype = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}[precision]

    def steps(count: int) -> None:
        for _ in range(count):
            loss = engine(torch.randn(8, 64, device=engine.device, dtype=dtype)).float().square().mean()
            engine.backward(loss)
            engine.step()

    steps(3)  # the first update finds the state and compiles what reads it
    hook.loss_seen = without_waiting(hook.loss_seen)  # type: ignore[method-assign]
    hook.update_coming = without_waiting(hook.update_coming)  # type: ignore[method-assign]
    hook.step_made = without_waiting(hook.step_made)  # type: ignore[method-assign]
    steps(8)
    hook.close("finished")
    assert hook.errors == 0
    assert [s.global_step for s in samples] == list(range(1, 12))
    inner = getattr(engine.optimizer, "optimizer", engine.optimizer)
    v = torch.cat([s["exp_avg_sq"].flatten().double() for s in inner.state.values()])
    assert samples[-1].adam_variance_l1 == pytest.approx(float(v.sqrt().sum()), rel=1e-6)
    assert samples[-1].adam_variance_max == pytest.approx(float(v.max().sqrt()), rel=1e-6)
    assert samples[-2].update_norm > 0
