"""The whole hook on a GPU: none of its five calls waits for the device within a step, and it reads what the state
holds. With REHEARSE_ON_CPU set it runs on a CPU, where nothing waits; `python -m benchmarks.gpu --device cpu` does."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.gpu.kernels import error_when_the_host_waits
from benchmarks.gpu.plain import PlainTraining, small_gpt, tokens_of
from benchmarks.gpu.watched import CALLS, around, logits_to

ON_CUDA = torch.cuda.is_available()
DEVICE = "cuda" if ON_CUDA else "cpu"

pytestmark = pytest.mark.skipif(
    not ON_CUDA and "REHEARSE_ON_CPU" not in os.environ, reason="needs a GPU that CUDA sees"
)

FIRST, WATCHED = 3, 9
"""Steps: the first update finds the state and compiles what reads it."""


@contextmanager
def each_call_without_waiting(hook: Any) -> Iterator[Counter[str]]:
    """Where a call of the hook's waits, torch raises in it: the hook catches that and counts an error."""
    called: Counter[str] = Counter()

    def enter(name: str) -> Callable[[], None]:
        called[name] += 1
        stack = ExitStack()
        stack.enter_context(error_when_the_host_waits(DEVICE))
        return stack.close

    with around(hook, enter):
        yield called


def assert_it_was_heard(called: Counter[str], hook: Any, samples: list[Any], v: torch.Tensor) -> None:
    assert hook.errors == 0
    assert all(called[name] >= WATCHED for name in CALLS), called
    assert [s.global_step for s in samples] == list(range(1, FIRST + WATCHED + 1))
    assert samples[-1].adam_variance_l1 == pytest.approx(float(v.sqrt().sum()), rel=1e-6)
    assert samples[-1].adam_variance_max == pytest.approx(float(v.max().sqrt()), rel=1e-6)
    even = samples[-1] if samples[-1].global_step % 2 == 0 else samples[-2]
    assert even.update_norm > 0
    assert even.attention_logit_max > 0
    assert samples[-1].batch_digest is not None


def test_in_plain_torch_no_call_waits_for_the_device() -> None:
    with PlainTraining(DEVICE) as training:
        training.steps(FIRST)
        with each_call_without_waiting(training.hook) as called:
            training.steps(WATCHED)
    v = torch.cat([s["exp_avg_sq"].flatten().double() for s in training.optimizer.state.values()])
    assert_it_was_heard(called, training.hook, training.samples, v)


@pytest.mark.parametrize(("stage", "precision"), [(0, "fp32"), (1, "bf16"), (2, "fp16"), (3, "bf16")])
def test_in_deepspeed_no_call_waits_for_the_device(stage: int, precision: str, tmp_path: Path) -> None:
    import deepspeed

    from benchmarks.gpu.process import join
    from trainer_hooks import attach

    join(DEVICE)
    net = small_gpt()
    config: dict[str, Any] = {
        "train_batch_size": 4,
        "steps_per_print": 10**9,
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-3, "torch_adam": True}},
        "zero_optimization": {"stage": stage},
    }
    if precision == "fp16":  # a scale at which no step overflows: each has a sample with an update
        config["fp16"] = {"enabled": True, "initial_scale_power": 8}
    elif precision != "fp32":
        config[precision] = {"enabled": True}
    engine, *_ = deepspeed.initialize(model=net, model_parameters=net.parameters(), config=config)
    samples: list[Any] = []
    hook = attach(engine, state_dir=tmp_path, interval_steps=2, on_sample=samples.append)
    net.report_logits_to(logits_to(hook))

    def steps(count: int) -> None:
        for _ in range(count):
            tokens = tokens_of(engine.global_steps + 1, 0, DEVICE)
            hook.batch_seen(tokens)
            engine.backward(engine(tokens))
            engine.step()

    steps(FIRST)
    with each_call_without_waiting(hook) as called:
        steps(WATCHED)
    hook.close("finished")
    inner = getattr(engine.optimizer, "optimizer", engine.optimizer)
    v = torch.cat([s["exp_avg_sq"].flatten().double() for s in inner.state.values()])
    assert_it_was_heard(called, hook, samples, v)
