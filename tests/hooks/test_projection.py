"""The random projection of Adam's state: what moves it, and what does not."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from trainer_hooks.sample.one_pass import Piece, Projection


def piece(m: Tensor, *, key: int = 7) -> Piece:
    return Piece(exp_avg_sq=torch.ones(len(m)), exp_avg=m, parameter=2 * m, key=key)


def of(*pieces: Piece) -> Tensor:
    return Projection(pieces).read()


def test_a_change_of_place_or_sign_moves_it_by_its_own_length() -> None:
    m = torch.randn(3000, generator=torch.Generator().manual_seed(1))
    for other in (m.flip(0), -m, torch.cat([m[64:128], m[:64], m[128:]]), m.bfloat16().float()):
        ratios = []
        for key in range(200):  # other signs
            was, now = of(piece(m, key=97 * key)), of(piece(other, key=97 * key))
            ratios.append(float((now - was)[0] ** 2 / (other - m).double().norm() ** 2))
        assert sum(ratios) / len(ratios) == pytest.approx(1.0, abs=0.4)  # 4 standard errors of a squared normal


def test_it_is_that_of_the_piece_in_whatever_order_and_wherever_it_lies() -> None:
    drawn = torch.Generator().manual_seed(2)
    some = [piece(torch.randn(n, generator=drawn), key=n) for n in (5, 70_001, 300)]
    forward, backward = of(*some), of(*reversed(some))
    assert torch.equal(forward, backward.flip(1))
    moved = [replace(p, exp_avg=torch.cat([torch.zeros(3), p.exp_avg])[3:]) for p in some if p.exp_avg is not None]
    assert torch.equal(of(*moved), forward)
    assert torch.equal(forward[1], 2 * forward[0])


def test_an_exchange_by_a_whole_period_of_the_signs_moves_it() -> None:
    first, second = (torch.full((1 << 20,), value) for value in (1.0, 3.0))
    was, now = of(piece(torch.cat([first, second]))), of(piece(torch.cat([second, first])))
    assert not torch.isclose(was, now, rtol=1e-5).any()


def test_what_is_not_there_is_nan_and_a_nan_stays_one() -> None:
    m = torch.tensor([1.0, math.nan])
    found = of(piece(m), replace(piece(torch.ones(2)), parameter=None), piece(torch.zeros(0)))
    assert found.isnan().tolist() == [[True, False, False], [True, True, False]]
    assert found[:, 2].tolist() == [0.0, 0.0]
