"""The digest of a batch: the same samples, dealt out in any way, and no others."""

from __future__ import annotations

import pytest
import torch

from trainer_hooks.sample.batch_digest import batch_digest

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
