"""random-LTD in our GPT: who sees what, nothing else changes, on and off, and the same again when recomputed."""

from __future__ import annotations

import copy
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from sentinel.vocabulary.errors import CheckpointError, ConfigError
from tests.hooks.random_ltd_cases import (
    SHAPE,
    Block,
    Keeps,
    Run,
    gradients,
    run_blocks,
    seen_lengths,
    small_gpt,
    tokens,
)
from trainer_hooks.random_ltd import DataRank, LayerTokens, RandomLtd
from trainer_hooks.random_ltd.draw import kept_indices, layer_key


def test_the_first_and_the_last_layer_see_every_token_and_the_middle_ones_a_subset() -> None:
    model = small_gpt()
    ltd = RandomLtd(model, Block, Keeps(7), seed=1)
    ltd.begin(1, 0)
    with seen_lengths(model) as seen:
        model(tokens(3))
    assert seen == [[24], [7], [7], [24]]
    assert ltd.layers.dropping == (1, 2)


def test_kept_tokens_go_through_the_layer_and_the_others_around_it() -> None:
    model = small_gpt()
    x = torch.randn(3, 24, 16)
    before = [model.blocks[1](x[row : row + 1]) for row in range(3)]
    ltd = RandomLtd(model, Block, Keeps(9), seed=5)
    ltd.begin(4, 2)
    out = model.blocks[1](x)
    ltd.remove()
    indices = kept_indices(layer_key(5, 4, 1), 2 * 3, 3, 24, 9, x.device)
    for row in range(3):
        kept = indices[row]
        alone = model.blocks[1](x[row : row + 1, kept])[0]  # causal among the kept ones, in their order
        torch.testing.assert_close(out[row, kept], alone, rtol=1e-5, atol=1e-6)
        dropped = [t for t in range(24) if t not in kept.tolist()]
        assert torch.equal(out[row, dropped], x[row, dropped])
        assert not torch.allclose(out[row, kept], before[row][0, kept], atol=1e-6)


def test_no_kept_token_looks_at_a_later_one() -> None:
    model = small_gpt()
    ltd = RandomLtd(model, Block, Keeps(9), seed=5)
    ltd.begin(1, 0)
    x = torch.randn(1, 24, 16)
    changed = x.clone()
    changed[:, 12:] += 1.0
    difference = (model.blocks[1](x) - model.blocks[1](changed))[0].abs().sum(1)
    assert (difference[:12] == 0).all()
    assert (difference[12:] > 0).all()


def test_each_layer_draws_its_own_subset() -> None:
    model = small_gpt()
    ltd = RandomLtd(model, Block, Keeps(9), seed=5)
    ltd.begin(1, 0)
    x = torch.randn(2, 24, 16)
    moved = [(model.blocks[n](x) != x).any(2) for n in (1, 2)]
    assert not torch.equal(*moved)
    assert [m.sum(1).tolist() for m in moved] == [[9, 9], [9, 9]]


@pytest.mark.parametrize("kept", [24, 25, 1000])
def test_with_all_tokens_kept_nothing_differs_by_a_bit(kept: int) -> None:
    model = small_gpt()
    loss = model(tokens(3))
    plain = gradients(model, loss)
    ltd = RandomLtd(model, Block, Keeps(kept), seed=1)
    ltd.begin(1, 0)
    again = model(tokens(3))
    assert torch.equal(loss, again)
    assert all(map(torch.equal, plain, gradients(model, again)))
    assert ltd.kept_tokens(24) == 24


def test_evaluation_and_what_comes_before_the_first_step_see_every_token() -> None:
    model = small_gpt()
    loss = model(tokens(3))
    ltd = RandomLtd(model, Block, Keeps(7), seed=1)
    assert torch.equal(model(tokens(3)), loss)
    ltd.begin(1, 0)
    assert not torch.equal(model(tokens(3)), loss)
    model.eval()
    assert torch.equal(model(tokens(3)), loss)


def test_names_stay_and_it_is_switched_on_and_off_in_the_middle() -> None:
    model = small_gpt()
    names, saved = list(model.state_dict()), copy.deepcopy(model.state_dict())
    loss = model(tokens(3))
    for _ in range(2):
        ltd = RandomLtd(model, Block, Keeps(7), seed=1)
        ltd.begin(1, 0)
        assert list(model.state_dict()) == names == [*dict(model.named_parameters())]
        model.load_state_dict(saved, strict=True)
        assert not torch.equal(model(tokens(3)), loss)
        ltd.remove()
        assert torch.equal(model(tokens(3)), loss)
    assert all("forward" not in vars(block) for block in model.blocks)


def test_what_somebody_else_has_put_in_place_of_forward_is_kept_and_put_back() -> None:
    model = small_gpt()
    calls = []
    block = model.blocks[1]
    own = block.forward

    def theirs(x: Tensor) -> Tensor:
        calls.append(x.shape[1])
        return own(x)

    block.forward = theirs  # type: ignore[assignment]
    ltd = RandomLtd(model, Block, Keeps(7), seed=1)
    ltd.begin(1, 0)
    model(tokens(3))
    ltd.remove()
    model(tokens(3))
    assert calls == [7, 24]
    assert block.forward is theirs


def test_a_second_one_on_top_is_refused() -> None:
    model = small_gpt()
    RandomLtd(model, Block, Keeps(7), seed=1)
    with pytest.raises(ConfigError, match="layer 1 has random-LTD already"):
        RandomLtd(model, Block, Keeps(7), seed=1)


def test_a_copy_of_the_model_has_layers_of_its_own() -> None:
    model = small_gpt()
    ltd = RandomLtd(model, Block, Keeps(7), seed=1)
    ltd.begin(1, 0)
    copied = copy.deepcopy(model)
    expected = model(tokens(3))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    assert torch.equal(copied(tokens(3)), expected)


def test_hooks_of_the_layer_see_all_tokens() -> None:
    model = small_gpt()
    seen: list[tuple[int, int]] = []
    model.blocks[1].register_forward_hook(lambda _, inputs, out: seen.append((inputs[0].shape[1], out.shape[1])))
    RandomLtd(model, Block, Keeps(7), seed=1).begin(1, 0)
    model(tokens(3))
    assert seen == [(24, 24)]


def test_the_same_step_draws_the_same_after_a_restart_and_every_other_place_differently() -> None:
    def loss(seed: int, step: int, micro_batch: int, rank: DataRank) -> float:
        model = small_gpt()
        ltd = RandomLtd(model, Block, Keeps(7), seed=seed, data_rank=rank)
        ltd.begin(step, micro_batch)
        return model(tokens(3)).item()

    alone, second = DataRank(), DataRank(rank=1, size=2)
    assert loss(1, 50, 0, alone) == loss(1, 50, 0, alone)
    places = [(1, 50, 0, alone), (2, 50, 0, alone), (1, 51, 0, alone), (1, 50, 1, alone), (1, 50, 1, second)]
    assert len({loss(*place) for place in places}) == len(places)


def test_any_number_of_ranks_and_any_micro_batch_gives_the_same_loss_of_the_global_batch() -> None:
    model = small_gpt()
    whole = tokens(12)

    def loss(size: int, micro: int) -> float:
        losses = []
        for rank in range(size):
            ltd = RandomLtd(model, Block, Keeps(7), seed=1, data_rank=DataRank(rank=rank, size=size))
            for number, batch in enumerate(whole.reshape(-1, size, micro, 25)[:, rank]):
                ltd.begin(9, number)
                losses.append(model(batch).item())
            ltd.remove()
        return sum(losses) / len(losses)

    assert [loss(*split) for split in ((1, 3), (2, 6), (2, 2), (4, 1))] == pytest.approx([loss(1, 12)] * 4, rel=1e-6)


def test_no_generator_is_moved_by_switching_it_on() -> None:
    model = small_gpt()
    before = torch.get_rng_state()
    RandomLtd(model, Block, Keeps(7), seed=1).begin(1, 0)
    gradients(model, model(tokens(3)))
    assert torch.equal(torch.get_rng_state(), before)


# ---- recomputed in the backward pass


def plainly(block: nn.Module, x: Tensor) -> Tensor:
    out: Tensor = block(x)
    return out


def of_torch(reentrant: bool) -> Run:
    return lambda block, x: checkpoint(block, x, use_reentrant=reentrant)  # type: ignore[no-any-return]


@pytest.mark.parametrize("said", [True, False], ids=["the loop says the micro-batch", "each layer counts"])
@pytest.mark.parametrize("reentrant", [True, False])
def test_activation_checkpointing_recomputes_with_the_same_tokens(reentrant: bool, said: bool) -> None:
    run = of_torch(reentrant)
    model = small_gpt(dropout=0.1)
    ltd = RandomLtd(model, Block, Keeps(7), seed=1)

    def summed(run: Run) -> list[Tensor]:
        torch.manual_seed(3)
        model.zero_grad()
        for step in (1, 2):
            for micro_batch in range(3):
                if said or micro_batch == 0:
                    ltd.begin(step, micro_batch if said else None)
                run_blocks(model, tokens(2, micro_batch), run).backward()
        return [p.grad.clone() for p in model.parameters() if p.grad is not None]

    plain, again = summed(plainly), summed(run)
    assert len(plain) == len(again) > 0
    assert all(map(torch.equal, plain, again))


@pytest.mark.parametrize("reentrant", [True, False])
def test_a_pipelines_micro_batches_are_recomputed_with_their_own_tokens(reentrant: bool) -> None:
    """One forward, one backward, with two micro-batches under way: what a stage of a pipeline does."""
    model = small_gpt()
    ltd = RandomLtd(model, Block, Keeps(7), seed=1)

    def summed(run: Run, step: int) -> list[Tensor]:
        model.zero_grad()
        ltd.begin(step)
        first, second = (run_blocks(model, tokens(2, n), run) for n in (0, 1))
        first.backward()
        third = run_blocks(model, tokens(2, 2), run)
        second.backward()
        third.backward()
        return [p.grad.clone() for p in model.parameters() if p.grad is not None]

    ltd.begin(2)  # another step in between: the counts begin anew
    plain = summed(plainly, 1)
    ltd.begin(2)
    model(tokens(2))
    assert all(map(torch.equal, plain, summed(of_torch(reentrant), 1)))


# ---- composed with others, and counted


def test_a_sample_that_sequence_length_warmup_has_made_short_enough_is_left_whole() -> None:
    model = small_gpt()
    short = model(tokens(3, seqlen=7))
    ltd = RandomLtd(model, Block, Keeps(8), seed=1)
    ltd.begin(1, 0)
    assert torch.equal(model(tokens(3, seqlen=7)), short)
    with seen_lengths(model) as seen:
        model(tokens(3, seqlen=16))
    assert seen == [[16], [8], [8], [16]]
    assert (ltd.kept_tokens(7), ltd.kept_tokens(16)) == (7, 8)


def test_every_token_that_a_layer_sees_is_counted_with_a_warmup_of_both_kinds() -> None:
    model = small_gpt()
    ltd = RandomLtd(model, Block, Keeps(4, steps=9).kept_tokens, seed=1)  # the function is as good
    counted = LayerTokens(SHAPE.layers)
    with seen_lengths(model) as seen:
        for step in range(1, 13):
            seqlen = min(24, 8 + 2 * step)
            for micro_batch in range(2):
                ltd.begin(step, micro_batch)
                model(tokens(3, seqlen=seqlen))
            ltd.count(counted, samples=2 * 3, seqlen=seqlen)
    assert counted.by_layer == tuple(3 * sum(lengths) for lengths in seen)
    assert counted.by_layer[0] > counted.by_layer[1] == counted.by_layer[2]
    assert counted.layer_tokens == sum(counted.by_layer)
    assert counted.effective_tokens == Fraction(counted.layer_tokens, 4)


def test_a_count_is_taken_up_where_it_was_saved() -> None:
    whole, first = LayerTokens(3), LayerTokens(3)
    for part in (whole, first):
        part.add(samples=5, seqlen=10, kept=3, dropping=(1,))
    second = LayerTokens(3)
    second.load(first.state())
    for part in (whole, second):
        part.add(samples=5, seqlen=10)
    assert second.by_layer == whole.by_layer == (100, 65, 100)
    assert second.effective_tokens == Fraction(265, 3)
    with pytest.raises(CheckpointError, match="3 layers, the model has 4"):
        LayerTokens(4).load(first.state())


def test_a_count_that_begins_in_the_middle_has_what_every_layer_saw_before() -> None:
    assert LayerTokens(3, consumed_tokens=70).by_layer == (70, 70, 70)


def test_the_count_is_deepspeeds_where_deepspeed_counts() -> None:
    from deepspeed.runtime.data_pipeline.data_routing.scheduler import RandomLTDScheduler

    theirs = RandomLTDScheduler(
        {
            "total_layer_num": 4,
            "random_ltd_layer_num": 2,
            "global_batch_size": 6,
            "layer_token_lr_schedule": {"enabled": False},
            "random_ltd_schedule": {
                "min_value": 8,
                "max_value": 64,
                "schedule_type": "fixed_linear",
                "schedule_config": {"seq_per_step": 8, "require_steps": 10},
            },
        }
    )
    ours = LayerTokens(4)
    for step in range(15):
        theirs.update_seq(step)
        ours.add(samples=6, seqlen=64, kept=theirs.get_current_seq(), dropping=(1, 2))
        assert ours.layer_tokens == theirs.state_dict()["consumed_layer_tokens"]


# ---- refusals


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda: RandomLtd(small_gpt(layers=2), Block, Keeps(7), seed=1), "has 2 of class Block"),
        (lambda: RandomLtd(small_gpt(), nn.Bilinear, Keeps(7), seed=1), "has 0 of class Bilinear"),
        (lambda: RandomLtd(small_gpt(), Block, Keeps(7), seed=1, layers=[4]), "from 0 to 3"),
        (lambda: RandomLtd(small_gpt(), Block, Keeps(0), seed=1).begin(1), "keeps 0 tokens at step 1"),
    ],
)
def test_what_can_not_be_is_refused_with_its_reason(make: Callable[[], Any], reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        make()


def test_other_layers_may_be_chosen() -> None:
    model = small_gpt()
    RandomLtd(model, Block, Keeps(7), seed=1, layers=[3, 0]).begin(1, 0)
    with seen_lengths(model) as seen:
        model(tokens(3))
    assert seen == [[7], [24], [24], [7]]
