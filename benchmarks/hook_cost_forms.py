"""What a hook's calls take of a training thread in each form: attached to a plain loop, and to a DeepSpeed engine.

Both train the same GPT (AdamW, float32) by turns in one process; timed are the hook's own calls in a step, in the
processor time of the training thread."""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from trainer_hooks import Hook, attach
from trainer_hooks.gpt.model import GPT, Shape

__all__ = ["FORMS", "form_costs"]

_CALLS = ("loss", "loss_seen", "gradients_whole", "update_coming", "step_made")

Step = Callable[[Tensor], None]


def plain(model: GPT, where: str) -> tuple[Hook, Step]:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    hook = attach(model=model, optimizer=optimizer, state_dir=where, interval_steps=0)
    _timed(hook)

    def step(tokens: Tensor) -> None:
        loss = model(tokens)
        hook.loss(loss)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return hook, step


def deepspeed_engine(model: GPT, where: str) -> tuple[Hook, Step]:
    os.environ.setdefault("DS_ACCELERATOR", "cpu")  # else DeepSpeed says on stdout that it found no other
    import deepspeed

    from trainer_hooks.gpt.__main__ import be_a_launcher
    from trainer_hooks.gpt.train import leave_out_unused_ops

    be_a_launcher()
    leave_out_unused_ops()
    deepspeed.init_distributed("gloo", verbose=False)
    engine, *_ = deepspeed.initialize(
        model=model,
        optimizer=torch.optim.AdamW(model.parameters(), lr=1e-4),
        config={"train_micro_batch_size_per_gpu": 1, "zero_allow_untested_optimizer": True},
    )
    hook = attach(engine, state_dir=where, interval_steps=0)
    _timed(hook)

    def step(tokens: Tensor) -> None:
        engine.backward(engine(tokens))
        engine.step()

    return hook, step


FORMS = {"plain": plain, "deepspeed": deepspeed_engine}

_spent = {"ms": 0.0}


def form_costs(shape: Shape, vocabulary: int, steps: int) -> dict[str, dict[str, float]]:
    """{form: milliseconds of the hook's calls in a step, and of the whole step, as medians}. On one thread of a CPU."""
    trained = {}
    for name, form in FORMS.items():
        torch.manual_seed(0)
        trained[name] = form(GPT(shape, vocabulary), tempfile.mkdtemp())
    took: dict[str, list[tuple[float, float]]] = {name: [] for name in trained}
    for number in range(steps + 2):
        tokens = torch.randint(vocabulary, (1, shape.seqlen + 1), generator=torch.Generator().manual_seed(number))
        for name, (_, step) in trained.items():
            _spent["ms"], began = 0.0, time.thread_time()
            step(tokens)
            took[name].append((_spent["ms"], 1e3 * (time.thread_time() - began)))
    for hook, _ in trained.values():
        hook.close("finished")
    medians = {
        name: [statistics.median(column) for column in zip(*times[2:], strict=True)] for name, times in took.items()
    }
    return {
        name: {"hook_ms": hook_ms, "step_ms": step_ms, "errors": float(trained[name][0].errors)}
        for name, (hook_ms, step_ms) in medians.items()
    }


def _timed(hook: Any) -> None:
    """A call within another counts once."""
    depth = [0]

    def wrapped(call: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*args: Any, **kwargs: Any) -> Any:
            began, depth[0] = time.thread_time(), depth[0] + 1
            try:
                return call(*args, **kwargs)
            finally:
                depth[0] -= 1
                _spent["ms"] += 0.0 if depth[0] else 1e3 * (time.thread_time() - began)

        return timed

    for name in _CALLS:
        setattr(hook, name, wrapped(getattr(hook, name)))
