"""A batch made shorter: whatever it is nested in, whatever its tensors are, nothing else of it changes."""

from __future__ import annotations

import dataclasses
import json
import logging
from typing import Any, NamedTuple

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from transformers import BatchEncoding

from sentinel.vocabulary.errors import CheckpointError, ConfigError
from sentinel.vocabulary.pacing import FixedLinear
from tests.support.warmups import At, B, T, begun
from trainer_hooks.seqlen_warmup import SHORTENINGS, SeqlenWarmup


def rows(extra: int = 0) -> Tensor:
    """(B, T + extra) tokens that are all different."""
    return torch.arange(B * (T + extra)).view(B, T + extra)


class Megatron(NamedTuple):
    tokens: Tensor
    labels: Tensor


@dataclasses.dataclass(frozen=True)
class Collated:
    tokens: Tensor
    name: str


CAUSAL = torch.ones(T, T).tril().bool()


def test_every_nesting_keeps_its_type_and_what_is_no_tensor() -> None:
    warmup = begun(8)
    short = rows()[:, :8]
    named = warmup(Megatron(rows(), rows()))
    assert isinstance(named, Megatron)
    assert named.labels.equal(short)
    data = warmup(Collated(rows(), "shard 3"))
    assert isinstance(data, Collated)
    assert (data.tokens.shape, data.name) == ((B, 8), "shard 3")
    encoded = warmup(BatchEncoding({"input_ids": rows(), "attention_mask": torch.ones(B, T)}))
    assert isinstance(encoded, BatchEncoding)
    assert encoded["input_ids"].equal(short)
    assert encoded.attention_mask.shape == (B, 8)
    nested = warmup({"a": [rows(), (rows(1), None)], "epoch": 3})
    assert nested["a"][0].equal(short)
    assert nested["a"][1][0].equal(rows(1)[:, :9])
    assert (nested["a"][1][1], nested["epoch"]) == (None, 3)
    assert warmup(rows(1)).equal(rows(1)[:, :9])


def test_the_callers_batch_is_not_changed() -> None:
    batch = {"input_ids": rows(), "more": [rows()]}
    begun(8)(batch)
    assert batch["input_ids"].equal(rows())
    assert batch["more"][0].equal(rows())  # type: ignore[attr-defined]


def test_truncation_cuts_the_sequence_axes_and_leaves_the_others() -> None:
    batch = {
        "tokens": rows(1),
        "labels": rows(),
        "loss_mask": torch.rand(B, T),
        "token_type_ids": torch.zeros(B, T, dtype=torch.long),
        "position_ids": torch.arange(T).expand(1, T),
        "mask": CAUSAL.expand(B, 1, T, T),
        "shared_mask": CAUSAL.expand(1, 1, T, T),
        "plain_mask": CAUSAL,
        "block_mask": CAUSAL.expand(B, T, T),
        "key_mask": torch.ones(B, 1, 1, T),
        "embeddings": torch.rand(B, T, 5),
        "positions_of_all": torch.arange(T),
        "weight": torch.rand(B),
        "image": torch.rand(B, 3, 7, 7),
        "rotary_table": torch.rand(T, 6),
        "count": torch.tensor(3),
    }
    short = begun(8)(batch)
    assert {name: tuple(leaf.shape) for name, leaf in short.items()} == {
        "tokens": (B, 9),
        "labels": (B, 8),
        "loss_mask": (B, 8),
        "token_type_ids": (B, 8),
        "position_ids": (1, 8),
        "mask": (B, 1, 8, 8),
        "shared_mask": (1, 1, 8, 8),
        "plain_mask": (8, 8),
        "block_mask": (B, 8, 8),
        "key_mask": (B, 1, 1, 8),
        "embeddings": (B, 8, 5),
        "positions_of_all": (8,),
        "weight": (B,),
        "image": (B, 3, 7, 7),
        "rotary_table": (T, 6),
        "count": (),
    }
    assert all(leaf.is_contiguous() for leaf in short.values())
    assert short["mask"].equal(batch["mask"][:, :, :8, :8])
    assert short["loss_mask"].equal(batch["loss_mask"][:, :8])


def test_an_axis_that_could_be_something_else_is_refused_and_can_be_said() -> None:
    several = torch.rand(B, T, T)  # a mask, or T-dimensional embeddings
    with pytest.raises(ConfigError, match=r"batch.x of shape \(3, 32, 32\).*axes=\{'batch.x': \(1, 2\)\}"):
        begun(8)({"batch": {"x": several, "tokens": rows()}})
    assert begun(8, axes={"x": (1,)})({"x": several, "tokens": rows()})["x"].shape == (B, 8, T)
    assert begun(8, axes={"batch.x": (1, 2)})({"batch": {"x": several}})["batch"]["x"].shape == (B, 8, 8)
    square = {"tokens": torch.zeros(T, T + 1), "weight": torch.rand(T)}  # as many samples as tokens
    with pytest.raises(ConfigError, match="weight"):
        begun(8)(square)
    told = begun(8, axes={"weight": ()})(square)
    assert (told["tokens"].shape, told["weight"].shape) == ((T, 9), (T,))
    sequence_first = begun(8, axes={"": (0,)})(rows().t())
    assert sequence_first.equal(rows().t()[:8])


def test_a_batch_without_a_full_axis_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"no axis of 32 or 33 tokens in the batch \(tokens \(3, 24\)\)"):
        begun(8)({"tokens": torch.zeros(B, 24)})
    padded = begun(8, axes={"tokens": (1,)})  # to its longest sample
    assert padded({"tokens": torch.zeros(B, 24)})["tokens"].shape == (B, 8)
    assert padded({"tokens": torch.zeros(B, 5)})["tokens"].shape == (B, 5)


def test_reshape_makes_neighbouring_samples_of_each_sample() -> None:
    warmup = begun(8, "reshape")
    assert warmup(rows()).equal(rows().view(B * 4, 8))
    pieces = warmup(rows(1))
    assert pieces[:, :-1].equal(rows(1)[:, :-1].reshape(B * 4, 8))
    assert pieces[:, 1:].equal(rows(1)[:, 1:].reshape(B * 4, 8)), "every target is still one"


@pytest.mark.parametrize("length", [1, 5, 8, 24, 31])
def test_what_does_not_divide_is_left_over_at_the_end_of_each_sample(length: int) -> None:
    warmup, count = begun(length, "reshape"), T // length
    pieces = warmup((rows(1), rows()))
    assert pieces[0][:, 1:].equal(rows(1)[:, 1 : count * length + 1].reshape(-1, length))
    assert pieces[1].equal(rows()[:, : count * length].reshape(-1, length))
    assert warmup.consumed_tokens == B * count * length
    assert warmup.dropped_tokens == B * (T % length)


def test_reshape_cuts_masks_along_the_diagonal() -> None:
    mask = torch.rand(B, 1, T, T)
    heads = torch.rand(1, 2, T, T)  # a bias per head that all samples share
    batch = begun(8, "reshape")(
        {"tokens": rows(), "mask": mask, "bias": heads, "causal": CAUSAL, "keys": mask[..., :1, :]}
    )
    for sample in range(B):
        for piece in range(4):
            at = slice(8 * piece, 8 * piece + 8)
            assert batch["mask"][4 * sample + piece].equal(mask[sample, :, at, at])
            assert batch["bias"][4 * sample + piece].equal(heads[0, :, at, at])
            assert batch["keys"][4 * sample + piece].equal(mask[sample, :, :1, at])
    assert batch["causal"].equal(CAUSAL[:8, :8])
    assert begun(8, "reshape")({"tokens": rows(), "mask": CAUSAL[None, None]})["mask"].equal(CAUSAL[None, None, :8, :8])


def test_a_mask_without_a_batch_axis_that_differs_from_piece_to_piece_is_refused() -> None:
    documents = CAUSAL.clone()
    documents[20:, :20] = False
    with pytest.raises(ConfigError, match="mask differs from piece to piece"):
        begun(8, "reshape")({"tokens": rows(), "mask": documents})


def test_positions_are_counted_anew_in_each_piece_and_documents_stay() -> None:
    documents = torch.cat([torch.arange(20), torch.arange(12)]).expand(B, T)
    batch = begun(8, "reshape")(
        {"tokens": rows(), "position_ids": torch.arange(T)[None], "inner": {"positions": documents}}
    )
    assert batch["position_ids"].equal(torch.arange(8)[None])  # shared as it was
    first = batch["inner"]["positions"][:4].tolist()
    count = list(range(8))
    assert first == [count, count, [0, 1, 2, 3, 0, 1, 2, 3], count]
    by_path = begun(8, "reshape", positions=["1"])((rows(), torch.arange(T).expand(B, T)))
    assert by_path[1].equal(torch.arange(8).expand(B * 4, 8))


def test_reshape_finds_the_batch_axis_behind_the_sequence() -> None:
    warmup = begun(8, "reshape", axes={"": (0,)})
    assert warmup(rows().t()).equal(rows().view(B * 4, 8).t())


def test_rows_of_a_model_that_shifts_inside_have_one_target_less() -> None:
    """T tokens, T - 1 of them predicted: pieces overlap by a token, so that every one of them still is."""
    warmup = SeqlenWarmup(At(8), "reshape", full=29, global_batch_samples=B, shifts_inside=True)
    assert warmup.begin(1) == 8
    row = torch.arange(29).expand(B, 29)
    pieces = warmup({"input_ids": row, "labels": row})["labels"]
    assert pieces.shape == (B * 4, 8)
    assert pieces[:4, 1:].flatten().tolist() == list(range(1, 29))
    assert warmup.consumed_tokens == B * 28


def test_validation_stays_at_full_length() -> None:
    warmup, batch = begun(8), rows(1)
    with torch.no_grad():
        assert warmup(batch) is batch
    with warmup.validation():
        assert warmup(batch) is batch
    assert warmup(batch).shape == (B, 9)


def test_at_full_length_the_batch_is_handed_through() -> None:
    batch = {"anything": torch.zeros(2, 5)}
    assert begun(T)(batch) is batch


def test_a_step_that_shortens_nothing_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    warmup = begun(8)
    with caplog.at_level(logging.WARNING):
        warmup.begin(2)
        warmup.begin(3)
    assert [r.getMessage() for r in caplog.records] == [
        "no batch of step 1 was given to SeqlenWarmup: it has not shortened any"
    ]


@given(st.lists(st.integers(1, 40), min_size=1, max_size=30), st.sampled_from(["truncate", "reshape"]))
def test_the_tokens_are_counted_as_the_model_sees_them(lengths: list[int], shorten: str) -> None:
    warmup = SeqlenWarmup(At(lambda step: lengths[step]), shorten, full=T)
    seen = cut = 0
    for step, length in enumerate(lengths):
        assert warmup.begin(step, samples=B) == warmup.begin(step) == min(length, T)
        targets = warmup(rows(1))[:, 1:].numel()
        seen += targets
        cut += B * T - targets
        state = json.loads(json.dumps(warmup.state()))
        warmup = SeqlenWarmup(At(lambda step: lengths[step]), shorten, full=T)
        warmup.load(state)
    assert (warmup.consumed_tokens, warmup.dropped_tokens) == (seen, cut)


def test_the_global_batch_is_asked_of_whoever_knows_it() -> None:
    with pytest.raises(ConfigError, match="how many samples"):
        SeqlenWarmup(At(8), full=T).begin(1)


def test_a_step_before_the_last_needs_the_state_of_its_checkpoint() -> None:
    warmup = begun(8)
    saved = warmup.state()
    warmup.begin(2)
    with pytest.raises(ConfigError, match="load"):
        warmup.begin(1)
    warmup.load(saved)
    warmup.begin(2)
    assert warmup.consumed_tokens == 2 * B * 8


class Waiting:
    """A schedule that lengthens with every validation."""

    full = T

    def __init__(self) -> None:
        self.length = 8

    def seqlen(self, _: int) -> int:
        return self.length

    def validated(self, *_: object) -> None:
        self.length += 8

    def state(self) -> dict[str, int]:
        return {"length": self.length}

    def load(self, state: dict[str, int]) -> None:
        self.length = state["length"]


def test_a_schedule_that_follows_the_validation_is_told_and_saved() -> None:
    warmup = SeqlenWarmup(Waiting(), global_batch_samples=B)
    assert warmup.begin(1) == 8
    warmup.validated(20.0, 1)
    assert warmup.begin(2) == 16
    again = SeqlenWarmup(Waiting(), global_batch_samples=B)
    again.load(json.loads(json.dumps(warmup.state())))
    assert again.begin(3) == 16
    SeqlenWarmup(FixedLinear(start=8, full=T, total_steps=9)).validated(20.0, 1)  # which does not listen


@dataclasses.dataclass(frozen=True)
class Reached:
    """The state of a pure schedule."""

    length: int

    def to_json(self) -> dict[str, int]:
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, data: dict[str, int]) -> Reached:
        return cls(**data)


class Deciding:
    """A pure schedule: longer after each validation below 30."""

    full = T

    def begin(self) -> Reached:
        return Reached(8)

    def after_validation(self, state: Reached, perplexity: float, _: int) -> Reached:
        return Reached(state.length + 8) if perplexity < 30 else state

    def seqlen(self, _: int, state: Reached) -> int:
        return state.length


def test_the_state_of_a_pure_schedule_is_held_and_saved() -> None:
    warmup = SeqlenWarmup(Deciding(), global_batch_samples=B)
    lengths = []
    for step, perplexity in enumerate([20.0, 40.0, 10.0, 50.0]):
        lengths.append(warmup.begin(step))
        warmup.validated(perplexity, step)
        saved = json.loads(json.dumps(warmup.state()))
        warmup = SeqlenWarmup(Deciding(), global_batch_samples=B)
        warmup.load(saved)
    assert lengths == [8, 16, 16, 24]


@pytest.mark.parametrize("state", [{}, {"step": 1, "full": T, "kept": {"runs": [[3, 2, 0, 1]], "used": 0}}])
def test_a_state_of_something_else_is_refused(state: dict[str, Any]) -> None:
    with pytest.raises(CheckpointError):
        begun(8).load(state)


def test_wrong_words_are_refused() -> None:
    with pytest.raises(ConfigError, match=", ".join(SHORTENINGS)):
        SeqlenWarmup(At(8), "shuffle", full=T)
    with pytest.raises(ConfigError, match="full sequence length"):
        SeqlenWarmup(At(8))
