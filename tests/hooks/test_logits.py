"""The largest logits: of the reference model against all of them, and what is read of an output that has logits."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._dynamo.testing import CompileCounter

from tests.hooks.alone import Training
from trainer_hooks import attach
from trainer_hooks.errors import Guard
from trainer_hooks.gpt.model import GPT, Shape
from trainer_hooks.sample.logits import Logits, every_few_positions, largest_magnitude, watch_outputs
from trainer_hooks.sample.meter import Meter
from trainer_hooks.sample.step_heard import StepHeard


@pytest.mark.parametrize(
    ("logits", "largest"),
    [
        (torch.tensor([[1.0, -7.0], [3.0, 2.0]]), 7.0),
        (torch.tensor([1.0, math.nan]), math.inf),
        (torch.tensor([-math.inf, 0.0]), math.inf),
        (torch.tensor([3.0, 60_000.0], dtype=torch.float16), 60_000.0),
        (lambda: torch.ones(3, requires_grad=True) * 2, 2.0),
        (5, 5.0),
    ],
)
def test_the_largest_magnitude_is_inf_where_one_is_no_number(logits: Logits, largest: float) -> None:
    found = largest_magnitude(logits)
    assert (found.item(), found.dtype, found.requires_grad) == (largest, torch.float64, False)


@pytest.mark.parametrize("kind", ["whole", "every fourth position", "one row", "transposed"])
def test_no_copy_of_the_logits_is_made(kind: str) -> None:
    whole = torch.zeros(3, 1026, 8_000, dtype=torch.bfloat16)  # 1,026: its fourths can't be seen as one dimension
    whole[2, 1024, 7_999] = -9.0
    given = {
        "whole": whole,
        "every fourth position": every_few_positions(whole),
        "one row": whole[2, 1024:1025].expand(5_000, 8_000),
        "transposed": whole.transpose(0, 2),
    }[kind]
    assert float(largest_magnitude(given)) == 9.0  # and torch is warm
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        largest_magnitude(given)
    largest = max(event.self_cpu_memory_usage for event in profile.events() or [])
    assert largest <= 2 * (1 << 22) < given.numel() * 2 / 1.4


@pytest.mark.parametrize("at", [0, 4_194_303, 4_194_304, 8_400_000, 8_400_015])
def test_no_chunk_of_the_logits_is_left_out(at: int) -> None:
    logits = torch.zeros(16, 525_001)
    logits.view(-1)[at] = math.nan
    assert float(largest_magnitude(logits)) == math.inf
    assert float(largest_magnitude(logits.view(-1))) == math.inf


def test_the_reference_model_reports_the_logits_that_it_computes_with() -> None:
    torch.manual_seed(0)
    model = GPT(Shape(layers=2, width=16, heads=2, seqlen=40), vocabulary=11)
    taken: dict[str, list[float]] = {"attention": [], "output": []}
    model.report_logits_to(lambda **given: [taken[n].append(float(largest_magnitude(x))) for n, x in given.items()])
    projected: list[Tensor] = []
    for block in model.blocks:
        block.get_submodule("qkv").register_forward_hook(lambda _, __, out: projected.append(out))
    model(torch.randint(11, (3, 41)))
    for qkv, reported in zip(projected, taken["attention"], strict=True):
        q, k, _ = qkv.view(3, 40, 3, 2, 8).permute(2, 0, 3, 1, 4)
        logits = (q @ k.transpose(2, 3)).detach() / math.sqrt(8)
        seen = torch.ones(40, 40).tril().bool()
        assert reported == pytest.approx(float(logits[..., seen][..., -sum(range(9, 41)) :].abs().max()), rel=1e-5)
    assert len(taken["output"]) == 1
    model.eval()
    model(torch.randint(11, (1, 41)))
    assert (len(taken["attention"]), len(taken["output"])) == (2, 1)  # a validation is no step


@pytest.mark.parametrize(
    ("output", "training", "told"),
    [
        (SimpleNamespace(logits=torch.arange(16.0).view(1, 8, 2)), True, [9.0]),  # positions 0 and 4 of 8
        (SimpleNamespace(logits=torch.tensor([[-4.0, 1.0]])), True, [4.0]),
        (SimpleNamespace(logits=torch.ones(2, 2)), False, []),
        (SimpleNamespace(logits=None), True, []),
        (torch.ones(()), True, []),
    ],
)
def test_an_output_with_logits_is_read_where_the_model_trains(output: Any, training: bool, told: list[float]) -> None:
    class Model(torch.nn.Module):
        def forward(self) -> Any:
            return output

    seen: list[float] = []
    hook: Any = SimpleNamespace(
        guard=Guard(), report_logits=lambda output: seen.append(float(largest_magnitude(output)))
    )
    model = Model().train(training)
    watch_outputs(model, hook)
    assert model() is output
    assert (seen, hook.guard.errors) == (told, 0)


def test_only_the_first_micro_batch_of_a_step_that_is_due_is_read() -> None:
    meter: Any = object.__new__(Meter)
    meter._interval_steps, meter._step, meter._measured = 10, StepHeard(), {"logits"}
    meter._engine = SimpleNamespace(global_steps=8, module=torch.nn.Module())
    meter.logits_seen(output_logit=lambda: pytest.fail("step 9 is not due"))
    meter._engine.global_steps = 9
    meter.logits_seen(attention_logit=3.0, output_logit=None)
    meter.logits_seen(attention_logit=lambda: torch.tensor([-5.0]), output_logit=1.0)
    assert {name: float(x) for name, x in meter._step.logits.items()} == {"attention_logit": 5.0, "output_logit": 1.0}
    meter._engine.module.eval()
    meter.logits_seen(output_logit=lambda: pytest.fail("a validation between two steps"))
    meter._engine.module.train()
    meter._step.losses.append(torch.ones(()))
    meter.logits_seen(output_logit=lambda: pytest.fail("the second micro-batch, or a recomputation"))


@dataclass
class Output:
    logits: Tensor


class Reports(torch.nn.Module):
    """A model that reports logits in its forward pass, and has them in its output."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = torch.nn.Linear(8, 8)
        self.hook: Any = None

    def forward(self, x: Tensor) -> Any:
        y = self.inner(x)
        self.hook.report_logits(attention=lambda: y @ y.transpose(-2, -1))
        return Output(logits=y)


@pytest.mark.parametrize("fullgraph", [False, True])
def test_a_compiled_model_that_reports_logits_is_compiled_once(fullgraph: bool, tmp_path: Path) -> None:
    model = Reports()
    training = Training(model)
    engine: Any = training.engine
    engine.watched_by = lambda _: None
    model.hook = hook = attach(engine, state_dir=tmp_path, interval_steps=2)
    watch_outputs(model, hook)
    torch._dynamo.reset()
    compiled = CompileCounter()
    model.compile(backend=compiled, fullgraph=fullgraph)  # with its forward hooks
    for _ in range(12):
        loss = model(torch.randn(4, 8)).logits.square().mean()
        hook.loss_seen(loss, of_many=False)
        loss.backward()
        hook.gradients_whole()
        hook.update_coming()
        training.optimizer.step()
        training.optimizer.zero_grad()
        engine.global_steps += 1
        hook.step_made()
    hook.close("finished")
    assert (compiled.frame_count, hook.errors) == (1, 0)
    assert hook.latest is not None
    assert hook.latest.attention_logit_max is None
