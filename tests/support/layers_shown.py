"""Readings of layers, and what /metrics shows of them."""

from __future__ import annotations

from sentinel.vocabulary.metrics import SAMPLE_METRICS
from sentinel.vocabulary.sample import LayerVariance, Sample

LAYERS = LayerVariance(
    attempt=3,
    global_step=10,
    time_unix_s=1.0,
    layers=("embedding", "h.0", "h.1", "head"),
    adam_variance_l1=(1.0, 2.0, float("nan"), 4.0),
    adam_variance_max=(0.1, 0.2, 0.3, 0.4),
)


def sample(step: int, **readings: float | bool | None) -> Sample:
    return Sample(**({"attempt": 3, "global_step": step, "time_unix_s": 1.0, "loss": float(step)} | readings))  # type: ignore[arg-type]


def whole(step: int) -> Sample:
    """A sample with every reading."""
    return sample(step, **{metric.field: float(step) for metric in SAMPLE_METRICS if metric.field != "global_step"})
