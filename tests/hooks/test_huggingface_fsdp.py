"""The callback where FSDP 2 has cut weights, gradients and Adam's state up; see fsdp_callback.py."""

from __future__ import annotations

from typing import Any

import pytest

from tests.hooks.callback_decisions import ADAM, ANCHOR, LR, STEPS
from tests.hooks.torchrun import lines_of

pytestmark = pytest.mark.full


@pytest.fixture(scope="module")
def sharded() -> dict[str, Any]:
    return lines_of("fsdp_callback.py", ranks=2)[0]


def samples(life: dict[str, Any]) -> list[dict[str, Any]]:
    return [record for record in life["journal"] if record["is"] == "Sample"]


@pytest.mark.parametrize("life", ["first", "second"])
def test_readings_are_those_of_the_whole_model_each_element_once(sharded: dict[str, Any], life: str) -> None:
    found = sharded[life]
    assert found["caught"] == 0
    told = samples(found)
    wanted = {step: found["logged"][step] for step in (str(s["global_step"]) for s in told)}
    assert {str(s["global_step"]): [s["loss"], s["grad_norm"]] for s in told} == {
        step: pytest.approx(pair, rel=1e-5) for step, pair in wanted.items()
    }
    assert [told[-1][f"adam_variance_{which}"] for which in ("l1", "max")] == pytest.approx(found["variance"], rel=1e-6)


def test_what_is_decided_is_applied_to_the_parts(sharded: dict[str, Any]) -> None:
    second = sharded["second"]
    started = next(record for record in second["journal"] if record["is"] == "RunStarted")
    for name in ("adam_beta1", "adam_beta2", "adam_eps", "weight_decay"):
        assert started[name] == getattr(ADAM, name)
    assert (started["gradient_clipping"], started["seed"], started["parameters"]) == (ADAM.clip_grad, 11, 4656)
    assert started["moments_reset_steps"] == [ANCHOR]
    assert {s["global_step"]: s["lr"] for s in samples(second)} == {
        step: pytest.approx(LR.lr(step=step)) for step in range(ANCHOR + 1, STEPS + 1)
    }
