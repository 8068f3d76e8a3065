"""Sequence length warmup in DeepSpeed's PipelineEngine on gloo ranks; with three, one stage never sees a batch."""

from __future__ import annotations

import pytest

from tests.hooks.pipelined_lengths import FULL, LENGTHS
from tests.hooks.torchrun import lines_of

pytestmark = [
    pytest.mark.full,
    pytest.mark.timeout(900),  # several ranks start, on however few processors
]


@pytest.mark.parametrize("ranks", [2, 3])
def test_a_pipeline_whose_length_changes_at_every_step_trains_as_the_model_in_one_piece(ranks: int) -> None:
    cases = {case["case"]: case for case in lines_of("pipelined_lengths.py", ranks=ranks)}
    assert cases.keys() == {"truncate", "reshape"}
    for case in cases.values():
        assert case["losses"] == pytest.approx(case["reference"], rel=1e-5), case["case"]
        assert case["validations"] == pytest.approx(case["reference_validations"], rel=1e-5), case["case"]
        whole = case["samples"] * FULL
        assert [sum(count) for count in case["tokens"]] == [whole] * ranks
    per_length = case["samples"] // len(LENGTHS)
    assert cases["truncate"]["tokens"][0][0] == per_length * sum(LENGTHS)
    assert cases["reshape"]["tokens"][0][0] == per_length * sum(FULL // n * n for n in LENGTHS)
