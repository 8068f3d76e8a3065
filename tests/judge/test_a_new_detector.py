"""A new detector is one file and one entry in DETECTORS."""

from __future__ import annotations

import pytest

from sentinel.judge import series
from sentinel.judge.detectors import DETECTORS
from sentinel.judge.detectors.detector import Block, Detector, Finding, Known
from sentinel.judge.readings import Readings, Samples
from sentinel.judge.series import Series
from sentinel.judge.thresholds import Thresholds
from sentinel.vocabulary.sample import Sample


class EpochLimit(Detector):
    """An invented one: the data was repeated more than four times."""

    def __init__(self, thresholds: Thresholds) -> None:  # noqa: ARG002
        self._epoch = 0.0

    def push(self, samples: Samples, known: Known) -> Finding | None:  # noqa: ARG002
        self._epoch = samples.readings.get("epoch") or self._epoch
        if self._epoch <= 4:
            return None
        return Finding(onset_range=(samples.steps[0], samples.steps[-1]), reason=f"epoch {self._epoch:.1f}")

    def persists(self, block: Block) -> bool:  # noqa: ARG002
        return self._epoch > 4


@pytest.mark.parametrize("in_columns", [False, True])
def test_a_detector_that_is_listed_gets_every_sample_and_raises_the_alarm(
    in_columns: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    samples = [
        Sample(attempt=1, global_step=step, time_unix_s=0.0, loss=2.0 + step % 7 / 100, epoch=step / 100)
        for step in range(1, 601)
    ]
    monkeypatch.setattr(series, "DETECTORS", (*DETECTORS, EpochLimit))
    judged = Series(Thresholds())
    if in_columns:
        judged.push_readings(Readings.of(samples))
    else:
        for one in samples:
            judged.push(one)
    assert judged.alarm is not None
    assert 401 <= judged.alarm.onset_range[1] <= 408
    assert judged.alarm.reason.startswith("epoch 4")
