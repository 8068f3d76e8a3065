"""What is left of a job's time limit, as Slurm tells it."""

from __future__ import annotations

import math

import pytest

from sentinel.adapters.slurm.jobs import SlurmJob


@pytest.mark.parametrize(
    ("left", "seconds"),
    [
        ("59:30", 3570.0),
        ("1:02:03", 3723.0),
        ("2-01:00:00", 176_400.0),
        ("0:00", 0.0),
        ("UNLIMITED", None),
    ],
)
def test_the_time_that_is_left_of_a_job(left: str, seconds: float | None) -> None:
    assert SlurmJob(id="7", left=left).remaining_s == seconds


@pytest.mark.parametrize("left", ["", "NOT_SET", "INVALID"])
def test_a_time_that_slurm_does_not_tell_is_not_known(left: str) -> None:
    assert math.isnan(SlurmJob(id="7", left=left).remaining_s or 0.0)
