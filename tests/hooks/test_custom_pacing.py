"""A pacing of the user's own: found by its name in the trainer, or refused with the reason."""

from __future__ import annotations

from pathlib import Path

import pytest

from sentinel.vocabulary.errors import ConfigError
from sentinel.vocabulary.pacing import Custom, FixedLinear, SeqlenSchedule
from trainer_hooks.warmup.pacing import resolved

LENGTHS = """\
LIMIT = 9


class Lengths:
    @staticmethod
    def by_thirds(step: int) -> int:
        return 8 * (step // 3)
"""


def test_a_users_function_paces_the_length_from_the_anchor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own_lengths.py").write_text(LENGTHS)
    monkeypatch.syspath_prepend(tmp_path)
    told = {"pacing": "custom", "start": 8, "full": 32, "anchor_step": 100, "function": "own_lengths:Lengths.by_thirds"}
    schedule = resolved(SeqlenSchedule.from_json(told))
    assert [schedule.seqlen(step) for step in (101, 105, 106, 109, 112, 999)] == [8, 8, 16, 24, 32, 32]
    with pytest.raises(ConfigError, match="own_lengths:LIMIT is no function"):
        resolved(Custom(start=8, full=32, function="own_lengths:LIMIT"))


@pytest.mark.parametrize("name", ["no_such_module_here:f", "math:no_such_function"])
def test_a_function_that_is_not_there_is_said_at_the_start(name: str) -> None:
    with pytest.raises(ConfigError, match=f"{name} can't be imported here"):
        resolved(Custom(start=8, full=32, function=name))


def test_every_other_pacing_is_left_as_it_is() -> None:
    schedule = FixedLinear(start=8, full=32, total_steps=9)
    assert resolved(schedule) is schedule
