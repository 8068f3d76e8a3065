"""The digest of a batch: the same samples, dealt out in any way, and no others."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tests.hooks.alone import Training
from trainer_hooks.sample import batch_digest as module
from trainer_hooks.sample import replicas
from trainer_hooks.sample.batch_digest import _made, batch_digest

TOKENS = torch.randint(50304, (16, 65), generator=torch.Generator().manual_seed(1))


def test_it_does_not_depend_on_ranks_micro_batches_and_order() -> None:
    whole = batch_digest(TOKENS)
    assert whole == sum(batch_digest(part) for part in TOKENS[torch.randperm(16)].split([1, 5, 10]))
    assert whole == batch_digest(TOKENS.int())
    assert 0 < float(whole) < 2**35
    assert float(whole).is_integer()


@pytest.mark.parametrize("changed", ["token", "position", "sample twice"])
def test_it_is_another_one_for_other_samples(changed: str) -> None:
    other = TOKENS.clone()
    if changed == "token":
        other[7, 64] += 1
    elif changed == "position":
        other[7] = other[7].roll(1)
    else:
        other[7] = other[8]
    assert batch_digest(other) != batch_digest(TOKENS)


def test_one_table_serves_every_length_and_does_not_change_the_digest(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[int] = []

    def counted(length: int, device: torch.device) -> torch.Tensor:
        made.append(length)
        return _made(length, device)

    monkeypatch.setattr(module, "_made", counted)
    monkeypatch.setattr(module, "_tables", {})
    tokens = torch.randint(50304, (2, 20_000), generator=torch.Generator().manual_seed(2))
    short = {length: batch_digest(tokens[:, :length]) for length in range(1, 500)}  # dynamic padding
    assert made == [8192]
    batch_digest(tokens)
    assert made == [8192, 32768]
    assert all(batch_digest(tokens[:, :length]) == digest for length, digest in short.items())
    assert made == [8192, 32768]


def test_a_sample_that_is_longer_than_the_table_may_be_is_hashed_without_one(monkeypatch: pytest.MonkeyPatch) -> None:
    tokens = torch.randint(50304, (2, 20_000), generator=torch.Generator().manual_seed(2))
    digest = batch_digest(tokens)
    monkeypatch.setattr(module, "_tables", {})
    monkeypatch.setattr(module, "LONGEST", 16_384)
    assert batch_digest(tokens) == digest
    assert module._tables == {}


class Mpu:
    """Of a rank in a grid of tensor-parallel ranks and stages, as Megatron's module of groups tells it."""

    def __init__(self, tensor: tuple[int, int] = (0, 1), stage: tuple[int, int] = (0, 1), context: int = 1) -> None:
        self.get_tensor_model_parallel_rank, self.get_tensor_model_parallel_world_size = map(_giving, tensor)
        self.get_pipeline_model_parallel_rank, self.get_pipeline_model_parallel_world_size = map(_giving, stage)
        self.get_context_parallel_world_size = _giving(context)


def _giving(number: int) -> Callable[[], int]:
    return lambda: number


@pytest.mark.parametrize(
    ("mpu", "data_parallel", "world", "counts"),
    [
        (None, 1, 1, True),
        (None, 4, 4, True),
        (None, 2, 4, None),  # two ranks for each batch, and nobody tells which
        (Mpu((0, 2)), 2, 4, True),
        (Mpu((1, 2)), 2, 4, False),
        (Mpu((0, 2), (0, 2)), 2, 8, True),
        (Mpu((0, 2), (1, 2)), 2, 8, False),
        (Mpu((0, 2), context=2), 2, 8, None),
    ],
)
def test_a_batch_that_several_ranks_hold_counts_once(
    mpu: Any, data_parallel: int, world: int, counts: bool | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replicas, "_size", lambda _: world)
    assert replicas.counts_batches(SimpleNamespace(dp_world_size=data_parallel), mpu) is counts


@pytest.mark.parametrize(("counts", "told"), [(True, True), (False, 0), (None, None)])
def test_a_rank_that_does_not_count_its_batches_adds_nothing(counts: bool | None, told: Any) -> None:
    training = Training()
    training.meter._counts_batches = counts
    training.meter.batch_seen(TOKENS)
    digest = training.of_all_ranks(training.step())["batch_digest"]
    assert digest == (int(batch_digest(TOKENS)) if told is True else told)
