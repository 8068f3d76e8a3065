"""The norm of the gradients where the hook takes it itself."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from tests.hooks.alone import Training
from trainer_hooks.sample.gradients import sum_of_squares


def _with_gradients(*gradients: torch.Tensor) -> list[nn.Parameter]:
    parameters = []
    for gradient in gradients:
        parameters.append(nn.Parameter(torch.zeros_like(gradient)))
        parameters[-1].grad = gradient
    return parameters


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_a_norm_that_half_precision_can_not_hold_is_right(dtype: torch.dtype) -> None:
    parameters = _with_gradients(torch.full((1_000_000,), 100.0, dtype=dtype), torch.ones(3))
    squares = sum_of_squares(parameters, lambda _: 1.0)
    assert squares is not None
    assert math.sqrt(float(squares)) == pytest.approx(1e5, rel=1e-3)  # torch's float32 sums on a CPU
    assert squares.dtype == torch.float64


def test_gradients_that_can_be_differentiated_again_keep_no_graph() -> None:
    weight = nn.Parameter(torch.ones(3))
    (weight.grad,) = torch.autograd.grad((weight**3).sum(), weight, create_graph=True)
    squares = sum_of_squares([weight, nn.Parameter(torch.ones(1))], lambda _: 0.5)
    assert squares is not None
    assert not squares.requires_grad
    assert float(squares) == pytest.approx(13.5)
    assert sum_of_squares([nn.Parameter(torch.ones(1))], lambda _: 1.0) is None


@pytest.mark.parametrize(
    ("measure", "absent"),
    [
        ((), {"variance_l1", "variance_top", "momentum_squares", "grad_squares", "elements_owned"}),
        (("variance",), {"momentum_squares", "grad_squares"}),
        (("variance", "moments"), {"grad_squares"}),
        (("gradients", "layers", "moments"), {"variance_l1", "momentum_squares"}),
    ],
)
def test_what_is_not_asked_for_is_not_measured(measure: tuple[str, ...], absent: set[str]) -> None:
    names = {"variance_l1", "variance_top", "momentum_squares", "grad_squares", "elements_owned"}
    training = Training(measure=measure)
    read = training.step()
    assert read["loss"] > 0
    assert names - read.keys() >= absent
    assert bool(training.meter.layers) == ({"layers", "variance"} <= {*measure})
    assert training.guard.errors == 0


def test_a_name_that_nothing_has_is_said(caplog: pytest.LogCaptureFixture) -> None:
    Training(measure=("varience",))
    assert "varience" in caplog.text
