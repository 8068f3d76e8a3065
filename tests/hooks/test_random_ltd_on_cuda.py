"""random-LTD on a GPU: the same tokens as on a CPU, by DeepSpeed's own op, and nothing waits for the device."""

from __future__ import annotations

import pytest
import torch

from tests.hooks.random_ltd_cases import Block, Keeps, gradients, small_gpt, tokens

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU that CUDA sees")

CPU, CUDA = torch.device("cpu"), torch.device("cuda")


def test_the_draw_is_the_same_on_every_device() -> None:
    from trainer_hooks.random_ltd.draw import kept_indices, layer_key

    for kept in (1, 300, 1023):
        on_gpu = kept_indices(layer_key(1, 2, 3), 5, 8, 1024, kept, CUDA)
        assert torch.equal(on_gpu.cpu(), kept_indices(layer_key(1, 2, 3), 5, 8, 1024, kept, CPU))


@pytest.mark.timeout(900)  # the op is compiled on first use
def test_deepspeeds_op_is_used_and_gives_plain_torchs_outputs_and_gradients() -> None:
    from trainer_hooks.random_ltd import PlainTorch, RandomLtd
    from trainer_hooks.random_ltd.routing import DeepSpeedOp, fastest

    assert isinstance(fastest(CUDA), DeepSpeedOp)
    model = small_gpt().to(CUDA)
    batch = tokens(3).to(CUDA)
    answers = []
    for routing in (DeepSpeedOp(), PlainTorch()):
        ltd = RandomLtd(model, Block, Keeps(7), seed=1, routing=routing)
        ltd.begin(1, 0)
        loss = model(batch)
        answers.append([loss, *gradients(model, loss)])
        ltd.remove()
    for ours, theirs in zip(*answers, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-7)


def test_no_step_waits_for_the_device() -> None:
    from trainer_hooks.random_ltd import PlainTorch, RandomLtd

    model = small_gpt().to(CUDA)
    batch = tokens(3).to(CUDA)
    ltd = RandomLtd(model, Block, Keeps(7), seed=1, routing=PlainTorch())
    ltd.begin(1, 0)
    model(batch).backward()
    torch.cuda.set_sync_debug_mode("error")
    try:
        ltd.begin(2, 0)
        model(batch).backward()
    finally:
        torch.cuda.set_sync_debug_mode("default")
