"""Beside DeepSpeed's own random-LTD: the same tokens give the same outputs and gradients. Its op runs on CUDA alone; on
a CPU its functions are torch's."""

from __future__ import annotations

import pytest
import torch
from deepspeed.ops.random_ltd import dropping_utils
from deepspeed.runtime.data_pipeline.data_routing.basic_layer import RandomLayerTokenDrop
from deepspeed.runtime.data_pipeline.data_routing.scheduler import RandomLTDScheduler
from torch import Tensor, nn

from tests.hooks.random_ltd_cases import KEPT, ROUTING, Block, Keeps, StandInOp, gradients, small_gpt, tokens
from trainer_hooks.random_ltd import PlainTorch, RandomLtd
from trainer_hooks.random_ltd.draw import kept_indices, layer_key
from trainer_hooks.random_ltd.routing import DeepSpeedOp, fastest, moves_as_torch_does

pytestmark = pytest.mark.full

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def op_in_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dropping_utils, "random_ltd_module", StandInOp())


def deepspeeds(layer: nn.Module, number: int, indices: Tensor) -> RandomLayerTokenDrop:
    """DeepSpeed's wrapper of the layer, given these (layers, B, r) to draw."""
    config = ROUTING | {"micro_batch_size": 3, "global_batch_size": 3, "layer_token_lr_schedule": {"enabled": False}}
    wrapper = RandomLayerTokenDrop(layer)
    wrapper.init_config(config, RandomLTDScheduler(config), number)
    wrapper.index_generator = lambda *_: (indices.int(), None)
    return wrapper


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_same_tokens_give_the_same_output_and_gradients_as_deepspeeds_layer(dtype: torch.dtype) -> None:
    ours, theirs = small_gpt().to(dtype), small_gpt().to(dtype)
    ltd = RandomLtd(ours, Block, Keeps(KEPT), seed=1)
    ltd.begin(5, 0)
    drawn = torch.stack([kept_indices(layer_key(1, 5, n), 0, 3, 24, KEPT, CPU) for n in (1, 2)])
    schedulers = []
    for number in (1, 2):
        wrapper = deepspeeds(theirs.blocks[number], number - 1, drawn)
        schedulers.append(wrapper.random_ltd_scheduler)
        wrapper.random_ltd_scheduler = schedulers[0]  # one for all layers, as in an engine
        theirs.blocks[number] = wrapper
    losses = [model(tokens(3)) for model in (ours, theirs)]
    assert torch.equal(*losses)
    for mine, their in zip(gradients(ours, losses[0]), gradients(theirs, losses[1]), strict=True):
        assert torch.equal(mine, their)
    plain = small_gpt().to(dtype)
    assert not torch.equal(losses[0], plain(tokens(3)))


def test_deepspeeds_op_moves_tokens_as_plain_torch_does() -> None:
    assert moves_as_torch_does(DeepSpeedOp(), CPU)


class TooFar(StandInOp):
    def token_gather(self, x: Tensor, indices: Tensor, batch_first: bool) -> Tensor:
        return super().token_gather(x, (indices + 1).clamp(max=6), batch_first)


class LeavesSomeBehind(StandInOp):
    def token_scatter_(self, x: Tensor, part: Tensor, indices: Tensor, batch_first: bool) -> Tensor:
        return x if part.dtype == torch.bfloat16 else super().token_scatter_(x, part, indices, batch_first)


@pytest.mark.parametrize("wrong", [TooFar(), LeavesSomeBehind()])
def test_an_op_that_moves_them_otherwise_is_found_out(wrong: StandInOp, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dropping_utils, "random_ltd_module", wrong)
    assert not moves_as_torch_does(DeepSpeedOp(), CPU)


def test_on_a_cpu_tokens_go_by_plain_torch() -> None:
    assert isinstance(fastest(CPU), PlainTorch)


@pytest.mark.parametrize("x", [torch.randn(3, 24, 16, dtype=torch.float64), torch.randn(3, 24, 3)])
def test_what_the_op_can_not_take_goes_by_plain_torch(x: Tensor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dropping_utils, "random_ltd_module", None)  # it would have to be loaded
    indices = kept_indices(0, 0, 3, 24, KEPT, CPU)
    bypass, kept = DeepSpeedOp().gather(x, indices, True)
    whole = DeepSpeedOp().scatter(bypass, -kept, indices, True)
    assert torch.equal(whole, x.scatter(1, indices[:, :, None].expand(-1, -1, x.shape[2]), -kept))
