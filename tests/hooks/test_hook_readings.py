"""The hook's readings, in real DeepSpeed on real gloo ranks, against float64 references, step by step."""

from __future__ import annotations

from typing import Any

import pytest

from tests.hooks.compiled import compile_adams
from tests.hooks.matrix import ALL, LOOSER, TOLERANCE, WITHOUT_FUSED, ZEROS, pairwise
from tests.hooks.matrix_table import REFUSED, described
from tests.hooks.torchrun import lines_of

FULL, SOAK = pytest.mark.full, pytest.mark.soak
ALWAYS = {"loss", "adam_variance_l1", "adam_variance_max", "grad_norm", "layer l1", "layer max"}
MOMENTS = {"update_norm", "momentum_l2", "param_norm"}


def check(case: dict[str, Any], *, ranks: int) -> None:
    what = described(case["case"])
    if case["refused"]:
        assert any(reason in case["refused"] for reason in REFUSED), f"{what}: {case['refused']}"
        return
    assert case["samples"] == 5, what
    assert case["errors"] == 0, what
    assert case["worst"].keys() >= ALWAYS | MOMENTS | ({"loss_spread"} if ranks > 1 else set()), what
    for name, error in case["worst"].items():
        assert error < LOOSER.get(name, TOLERANCE), f"{what}: {name}"


@pytest.mark.timeout(1600)  # the first launch compiles DeepSpeed's Adam for the CPU
@pytest.mark.parametrize(
    "ranks", [pytest.param(1, marks=SOAK), pytest.param(2, marks=FULL), pytest.param(4, marks=SOAK)]
)
def test_readings_equal_the_reference_on_every_sharding(ranks: int) -> None:
    compile_adams(("CPUAdamBuilder",))
    cases = lines_of("matrix.py", ranks=ranks)
    assert len(cases) == len(pairwise(WITHOUT_FUSED)) >= 21
    for case in cases:
        check(case, ranks=ranks)


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_readings_equal_the_reference_in_every_combination(ranks: int) -> None:
    compile_adams()
    cases = lines_of("matrix.py", "--all", ranks=ranks, timeout_s=3500)
    assert len(cases) == len(ALL)
    for case in cases:
        check(case, ranks=ranks)


def test_the_pairwise_selection_holds_every_pair() -> None:
    chosen = pairwise(WITHOUT_FUSED)
    assert {c.zero for c in chosen} == set(ZEROS)
    for zero in ZEROS:
        assert {c.adam for c in chosen if c.zero == zero} == {c.adam for c in WITHOUT_FUSED}
        assert {c.precision for c in chosen if c.zero == zero} == {"fp32", "bf16", "fp16"}
