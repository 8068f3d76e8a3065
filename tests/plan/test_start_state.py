"""What is told of a loaded state by its layers and its ranks, in their order, and by Adam's step."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Any

import pytest

from sentinel.plan.starts.audit import Continued, Start
from sentinel.plan.starts.checks import audit
from sentinel.vocabulary.sample import StateLoaded, StateSaved, decode, encode
from tests.support.audited_starts import ANCESTOR, AT, LAYERS, STARTED, start

SAVED = StateSaved(
    attempt=1,
    global_step=AT,
    time_unix_s=0.0,
    adam_variance_l1=100.0,
    adam_variance_max=0.3,
    momentum_l2=0.7,
    param_norm=25.0,
    adam_step=AT,
    adam_step_least=AT,
    layers=LAYERS,
    layer_variance_l1=(40.0, 30.0, 20.0, 10.0),
    layer_variance_max=(0.3, 0.2, 0.11, 0.07),
    layer_momentum_l2=(0.6, 0.3, 0.2, 0.1),
    layer_param_norm=(20.0, 12.0, 8.0, 4.0),
    rank_variance_l1=(60.0, 40.0),
    rank_momentum_l2=(0.5, 0.4),
    rank_param_norm=(20.0, 15.0),
    layer_momentum_projection=(0.2, -0.4, 0.1, 0.05),
    layer_param_projection=(-7.0, 3.0, 0.5, 2.0),
    state_layout=1234,
)
AGAIN = replace(ANCESTOR, saved=SAVED)


def loaded(**changed: Any) -> Start:
    return start(loaded=StateLoaded(**(asdict(SAVED) | {"attempt": 2} | changed)), ancestor=AGAIN)


def bfloat16(root: float) -> float:
    """sqrt of v, where v is rounded to bfloat16."""
    import torch

    return float(torch.tensor(root**2).bfloat16().double().sqrt())


BLOCKS = {"layer_variance_l1": (40.0, 20.0, 30.0, 10.0), "layer_momentum_l2": (0.6, 0.2, 0.3, 0.1)}
MOVED = {"layer_param_norm": (20.0, 8.0, 12.0, 4.0)}
RANKS = {"rank_variance_l1": (40.0, 60.0), "rank_momentum_l2": (0.4, 0.5), "rank_param_norm": (15.0, 20.0)}
FAULTS: list[tuple[str, str, dict[str, Any]]] = [
    ("shards exchanged", "rank 0, rank 1 have one another's weights and moments", RANKS),
    ("shards exchanged", "rank 0, rank 1", RANKS | {"layer_variance_l1": (35.0, 35.0, 20.0, 10.0)}),
    (
        "layers exchanged",
        "h.0, h.1 have one another's moments",
        BLOCKS | {"layer_variance_max": (0.3, 0.11, 0.2, 0.07)},
    ),
    ("layers exchanged", "h.0, h.1 have one another's weights", MOVED),
    (
        "wrong shard of one rank",
        "rank 1 (1 of 2 ranks) is",
        {"adam_variance_l1": 99.0, "rank_variance_l1": (60.0, 39.0)},
    ),
    (
        "wrong shard of one rank",  # of ZeRO 3: a part of every layer
        "rank 1 (1 of 2 ranks) is",
        {"adam_variance_l1": 90.0, "rank_variance_l1": (60.0, 30.0), "layer_variance_l1": (37.0, 27.0, 17.0, 9.0)},
    ),
    (
        "weights partly loaded",
        "h.1 (1 of 4 layers) are",
        {"layer_param_norm": (20.0, 12.0, 7.0, 4.0), "param_norm": 24.7},
    ),
    ("weights partly loaded", "h.1 (1 of 4 layers) are", {"layer_variance_l1": (40.0, 30.0, 0.0, 10.0)}),
    ("first moment not loaded", "first moment is 0", {"momentum_l2": 0.0, "layer_momentum_l2": (0.0,) * 4}),
    (
        "moments rounded",
        "8 bits",
        {"adam_variance_max": bfloat16(0.3), "layer_variance_max": tuple(map(bfloat16, SAVED.layer_variance_max))},
    ),
    ("Adam's step count", "had counted 100 updates", {"adam_step": 0, "adam_step_least": 0}),
    ("Adam's step count", "has counted 200", {"adam_step": 200, "adam_step_least": 200}),
    ("Adam's step count", "has counted 3 ", {"adam_step_least": 3}),
    (
        "state differs within layers",
        "the weights of h.0 (1 of 4 layers): about 0.3 of the norm away",
        {"layer_param_projection": (-7.0, -1.0, 0.5, 2.0)},
    ),
    (
        "state differs within layers",
        "the first moment of embedding, h.0, h.1, head (4 of 4 layers): of the opposite sign",
        {"layer_momentum_projection": (-0.2, 0.4, -0.1, -0.05)},
    ),
    (
        "state differs within layers",  # rounded to bfloat16
        "the first moment of h.0 (1 of 4 layers): about 0.001 of the norm away",
        {"layer_momentum_projection": (0.2, -0.3997, 0.1, 0.05)},
    ),
    (
        "wrong checkpoint",
        "(4 of 4 layers) differ",
        {"layer_variance_l1": (44.0, 33.0, 22.0, 11.0), "param_norm": 27.0},
    ),
]


@pytest.mark.parametrize(("fault", "told", "changed"), FAULTS, ids=[f"{n}-{f}" for n, (f, *_) in enumerate(FAULTS)])
def test_each_fault_of_the_state_has_its_name_and_says_where(fault: str, told: str, changed: dict[str, Any]) -> None:
    found = audit(loaded(**changed))
    assert (found.verdict, found.fault) == (Continued.NO, fault), found.reason
    assert told in found.reason


def test_the_sums_alone_leave_an_exchange_unseen() -> None:
    """Older journals have no more: what they have is compared, and nothing else is claimed."""
    sums = {name: getattr(SAVED, name) for name in ("adam_variance_l1", "adam_variance_max", "momentum_l2")}
    known = replace(ANCESTOR.recent[-1], **sums)
    older = replace(ANCESTOR, recent=(*ANCESTOR.recent[:-1], known), layers=None)
    found = audit(replace(loaded(**RANKS), ancestor=older))
    assert found.verdict is Continued.YES
    assert "Adam's step" not in found.reason


@pytest.mark.parametrize(
    "changed",
    [
        {},
        {"rank_variance_l1": (50.0, 50.0)},  # another sharding of the same layers
        {"rank_variance_l1": (25.0,) * 4, "rank_momentum_l2": (0.3,) * 4, "rank_param_norm": (9.0,) * 4},
        {"adam_step": None, "adam_step_least": None},
        {"layer_variance_l1": tuple(x * (1 + 1e-7) for x in SAVED.layer_variance_l1)},
        {"layer_param_projection": (-7.0001, 3.0, 0.5, 2.0)},  # less than 1 part in 10^5 of the norm
        {"layer_param_projection": (1.0, 1.0, 1.0, 1.0), "state_layout": 1235},  # read at other places
        {"layer_param_projection": (), "layer_momentum_projection": (), "state_layout": None},  # an older hook
    ],
)
def test_a_state_that_lies_otherwise_on_the_ranks_is_the_same(changed: dict[str, Any]) -> None:
    found = audit(loaded(**changed))
    assert found.verdict is Continued.YES, found.reason


def test_moments_that_a_rung_has_reset_are_no_fault() -> None:
    from tests.support.audited_starts import RESET

    bare = replace(loaded(adam_variance_l1=0.0, momentum_l2=0.0, adam_step=0, adam_step_least=0))
    told = RESET["told"]
    reset = replace(bare, rollback=RESET["rollback"], started=replace(bare.started, **told))
    assert audit(reset).verdict is Continued.YES


def test_a_journal_carries_the_state_of_a_save() -> None:
    assert decode(encode(SAVED)) == SAVED
    assert STARTED.accumulation_steps is None
