"""Adam's settings after a resume: what is decided holds over what the checkpoint brings back, for ZeRO 0 to 3."""

from __future__ import annotations

from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest

from sentinel.vocabulary.errors import OverridesError
from sentinel.vocabulary.overrides import Anchor, Overrides
from sentinel.vocabulary.training_settings import TrainingSettings
from tests.hooks.adam_matrix import CHANGES, FIRST, SECOND
from tests.hooks.torchrun import lines_of
from tests.tiers import full
from trainer_hooks.integrations.huggingface_applied import refuse
from trainer_hooks.sample.adam_settings import AdamSettings, keys_of_groups

pytestmark = pytest.mark.full


@pytest.fixture(scope="module", params=[1, *full([2])], ids=["1 rank", "2 ranks"])
def cases(request: pytest.FixtureRequest) -> list[dict[str, Any]]:
    return lines_of("adam_matrix.py", ranks=request.param)


def test_a_checkpoint_brings_the_old_settings_back(cases: list[dict[str, Any]]) -> None:
    assert len(cases) == 24
    for case in cases:
        assert case["brought_back"]["adam_beta2"] == FIRST["beta2"], case["case"]
    clipping = {case["case"][:6]: case["brought_back"]["gradient_clipping"] for case in cases}
    assert clipping == {"ZeRO 0": 0.5, "ZeRO 1": 0.1, "ZeRO 2": 0.1, "ZeRO 3": 0.5}


def test_what_is_decided_holds_over_it_and_still_after_the_next_steps(cases: list[dict[str, Any]]) -> None:
    for case in cases:
        wanted = CHANGES[case["change"]]
        told = {
            "adam_beta1": wanted.get("adam_beta1", 0.9),
            "adam_beta2": wanted.get("adam_beta2", SECOND["beta2"]),
            "weight_decay": wanted.get("weight_decay", SECOND["weight_decay"]),
            "gradient_clipping": wanted.get("clip_grad", SECOND["clip"]),
            "precision": case["precision"],
        }
        for facts in (case["facts"], case["after"]):
            assert {key: facts[key] for key in told} == told, case["case"]


def test_the_losses_are_those_of_plain_torch_with_the_same_change(cases: list[dict[str, Any]]) -> None:
    for case in cases:
        tolerance = 1e-5 if case["precision"] == "fp32" else 2e-2
        assert case["losses"] == pytest.approx(case["reference"], rel=tolerance), case["case"]
    for stage in range(4):
        ends = sorted(c["losses"][-1] for c in cases if c["case"].startswith(f"ZeRO {stage}, fp32"))
        assert min(b - a for a, b in pairwise(ends)) > 1e-3  # the changes differ by far more than the tolerance


def test_moments_that_were_reset_read_zero_and_others_do_not(cases: list[dict[str, Any]]) -> None:
    for case in cases:
        assert case["zero"] == [False, case["change"] == "reset"], case["case"]


def test_a_loss_scale_is_set_and_survives_the_next_checkpoint(cases: list[dict[str, Any]]) -> None:
    half = [case for case in cases if case["precision"] == "fp16"]
    assert len(half) == 4
    for case in half:
        assert case["brought_back"]["loss_scale"] == 65536.0
        assert case["facts"]["loss_scale"] == case["resumed"]["loss_scale"] == 512.0
    assert all(case["facts"]["loss_scale"] is None for case in cases if case not in half)


def engine_with(*decays: float) -> Any:
    groups = [{"betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": decay} for decay in decays]
    optimizer = SimpleNamespace(param_groups=groups)
    return SimpleNamespace(optimizer=optimizer, gradient_clipping=lambda: 1.0, _config=SimpleNamespace())


def test_a_weight_decay_is_refused_where_none_of_several_groups_has_one() -> None:
    alone, several = engine_with(0.0), engine_with(0.0, 0.0)
    AdamSettings.of(alone).impose(alone, TrainingSettings(weight_decay=0.1))
    assert alone.optimizer.param_groups[0]["weight_decay"] == 0.1
    AdamSettings.of(several).impose(several, TrainingSettings(weight_decay=0.0))
    with pytest.raises(OverridesError, match="no parameter group has a weight decay"):
        AdamSettings.of(several).impose(several, TrainingSettings(weight_decay=0.1))
    assert "weight_decay" not in keys_of_groups(several.optimizer.param_groups)


def test_a_weight_decay_of_0_is_no_change_of_groups_that_have_none() -> None:
    """A rollback writes all settings, also those that it does not change."""
    standing = {decay: TrainingSettings(adam_beta2=0.95, weight_decay=decay) for decay in (0.0, 0.1)}
    overrides = {
        decay: Overrides(incident="incident-1", rollback="incident-1-r1", anchor=Anchor(global_step=4), standing=each)
        for decay, each in standing.items()
    }
    refuse(overrides[0.0], None, ("adam_beta2",), {})
    with pytest.raises(OverridesError, match=r"weight_decay\) can't be applied to this Trainer: none has one"):
        refuse(overrides[0.1], None, ("adam_beta2",), {"weight_decay": "none has one"})


def test_groups_that_are_decayed_differently_or_not_at_all_are_told_apart() -> None:
    engine = engine_with(0.1, 0.05, 0.0)
    groups = engine.optimizer.param_groups
    configured = AdamSettings.of(engine)
    configured.impose(engine, TrainingSettings(weight_decay=0.1))  # as it was: named, and no change
    assert [group["weight_decay"] for group in groups] == [0.1, 0.05, 0.0]
    configured.impose(engine, TrainingSettings(weight_decay=0.2, adam_beta2=0.95, adam_eps=1e-6))
    assert [group["weight_decay"] for group in groups] == [0.2, 0.2, 0.0]
    assert [(group["betas"], group["eps"]) for group in groups] == [((0.9, 0.95), 1e-6)] * 3
