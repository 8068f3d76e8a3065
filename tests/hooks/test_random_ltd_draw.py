"""Which tokens are kept: a uniform subset, and a function of the place alone."""

from __future__ import annotations

from types import SimpleNamespace

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from trainer_hooks.random_ltd.draw import kept_indices, layer_key
from trainer_hooks.random_ltd.layer import DataRank

CPU = torch.device("cpu")
MASK = (1 << 64) - 1


def splitmix64(state: int) -> int:
    """The published algorithm, once more: the output for a state that has been stepped."""
    z = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
    return z ^ (z >> 31)


@given(
    key=st.integers(0, MASK),
    first=st.integers(0, 10**6),
    samples=st.integers(1, 5),
    seqlen=st.integers(1, 70),
    data=st.data(),
)
@settings(deadline=None)
def test_each_row_has_as_many_different_ascending_positions_as_asked(
    key: int, first: int, samples: int, seqlen: int, data: st.DataObject
) -> None:
    kept = data.draw(st.integers(1, seqlen))
    indices = kept_indices(key, first, samples, seqlen, kept, CPU)
    assert indices.shape == (samples, kept)
    assert indices.dtype == torch.int64
    assert int(indices.min()) >= 0
    assert int(indices.max()) < seqlen
    assert (indices.diff(dim=1) > 0).all()


def test_the_scores_are_splitmix64s_numbers() -> None:
    key, gamma = layer_key(3, 50, 2), 0x9E3779B97F4A7C15
    for sample, row in enumerate(kept_indices(key, 7, 3, 40, 11, CPU).tolist(), start=7):
        own = splitmix64((key + (sample + 1) * gamma) & MASK)
        scores = [splitmix64((own + (token + 1) * gamma) & MASK) for token in range(40)]
        signed = [s - (1 << 64) if s >> 63 else s for s in scores]
        assert row == sorted(sorted(range(40), key=lambda t: signed[t])[:11])


def test_the_first_numbers_are_those_that_the_generator_is_known_for() -> None:
    gamma = 0x9E3779B97F4A7C15
    assert [splitmix64((1234567 + n * gamma) & MASK) for n in (1, 2, 3)] == [
        6457827717110365317,
        3203168211198807973,
        9817491932198370423,
    ]


def test_a_sample_keeps_the_same_tokens_in_whatever_batch_it_stands() -> None:
    key = layer_key(0, 1, 1)
    whole = kept_indices(key, 0, 12, 64, 16, CPU)
    parts = [kept_indices(key, 0, 5, 64, 16, CPU), kept_indices(key, 5, 7, 64, 16, CPU)]
    assert torch.equal(whole, torch.cat(parts))


def test_ranks_and_micro_batches_share_the_global_batch_out() -> None:
    def numbers(size: int, micro: int) -> list[int]:
        accumulation = 24 // (size * micro)
        return [
            DataRank(rank=rank, size=size).first_sample(number, micro) + row
            for number in range(accumulation)
            for rank in range(size)
            for row in range(micro)
        ]

    assert numbers(1, 24) == numbers(2, 12) == numbers(2, 3) == numbers(3, 4) == numbers(1, 1) == list(range(24))


def test_any_of_seed_step_layer_and_sample_makes_another_draw() -> None:
    places = [(0, 1, 1, 0), (1, 1, 1, 0), (0, 2, 1, 0), (0, 1, 2, 0), (0, 1, 1, 1), (1, 0, 1, 0), (1, 1, 0, 0)]
    drawn = {tuple(kept_indices(layer_key(*p[:3]), p[3], 1, 64, 32, CPU)[0].tolist()) for p in places}
    assert len(drawn) == len(places)


def test_every_token_is_kept_equally_often_and_every_pair_of_layers_draws_by_itself() -> None:
    samples, seqlen, kept = 20_000, 16, 4
    masks = []
    for layer in (1, 2):
        indices = kept_indices(layer_key(0, 1, layer), 0, samples, seqlen, kept, CPU)
        masks.append(torch.zeros(samples, seqlen).scatter_(1, indices, 1.0))
    expected, deviation = samples * kept / seqlen, (samples * (kept / seqlen) * (1 - kept / seqlen)) ** 0.5
    for mask in masks:
        assert float((mask.sum(0) - expected).abs().max()) < 5 * deviation
        together = mask.t() @ mask  # of each pair of tokens
        pair = samples * kept * (kept - 1) / (seqlen * (seqlen - 1))
        together.fill_diagonal_(pair)
        assert float((together - pair).abs().max()) < 5 * pair**0.5
    overlap = float((masks[0] * masks[1]).sum(1).mean())  # of two independent subsets: kept² / seqlen
    assert abs(overlap - kept**2 / seqlen) < 0.03


def test_no_generator_is_moved() -> None:
    before = torch.get_rng_state()
    kept_indices(layer_key(0, 1, 1), 0, 4, 64, 16, CPU)
    assert torch.equal(torch.get_rng_state(), before)


class Mpu:
    """Two by two ranks, as Megatron's unit tells: this is the second data-parallel rank, whichever tensor's."""

    def get_data_parallel_rank(self) -> int:
        return 1

    def get_data_parallel_world_size(self) -> int:
        return 2


def test_the_ranks_of_a_tensor_parallel_group_have_one_place_and_those_of_data_parallelism_each_their_own() -> None:
    assert DataRank.of(object(), Mpu()) == DataRank(rank=1, size=2)
    assert DataRank.of(SimpleNamespace(mpu=Mpu())) == DataRank(rank=1, size=2)
    assert DataRank.of(SimpleNamespace(mpu=None, grid=Mpu())) == DataRank(rank=1, size=2)
    assert DataRank.of(SimpleNamespace(mpu=None, grid="a user's own")) == DataRank(rank=0, size=1)
