"""From scrapes to records: each step once, with what the counters say of those that no scrape saw. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from sentinel.adapters.prometheus.scrapes import LOSS_MAX, Scrape
from sentinel.vocabulary.metrics import COUNTERS, INTERVAL_METRICS, SAMPLE_METRICS, WINDOW
from sentinel.vocabulary.numbers import LARGEST_WHOLE
from sentinel.vocabulary.sample import Record, RunStarted, ScrapedSample

__all__ = ["Steps"]

_WHOLE_NUMBERS = frozenset(
    ("seqlen", "kept_tokens", "lr_warmup_steps", "global_batch_samples", "consumed_samples", "consumed_tokens")
)
_SHOWS_LONGER = 13 / 12
"""Windows that a maximum may show: the exporter keeps them in twelve parts, and one more that is not over yet."""

_SPIKE_RATIO = 1.2
"""Above it the exporter counts a spike step. Source: Li, Zhang & He 2022, Table 1 (arXiv:2108.06084)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Last:
    """Where an attempt was, when it was last seen a step further."""

    step: int
    counts: tuple[float, ...]
    """In the order of COUNTERS."""

    scrape: Scrape | None = None
    """None before any: the attempt's own beginning."""


class Steps:
    """Takes whole scrapes, by attempt and in the order of time. Those it has seen already say nothing new."""

    def __init__(self) -> None:
        self._last: dict[int, _Last] = {}
        self._started: set[int] = set()
        self.gone_back = 0
        """Scrapes whose step was before one that their attempt had reached: they are passed over."""

    def take(self, scrape: Scrape) -> Iterator[Record]:
        """What the scrape adds: an attempt, where it is the first of one, and the step, where it is a new one."""
        if scrape.attempt not in self._started:
            self._started.add(scrape.attempt)
            yield RunStarted(
                attempt=scrape.attempt,
                time_unix_s=scrape.time_unix_s,
                run=dict(scrape.by).get("run"),
                resumed_from=_before_first(scrape) or None,
            )
        if scrape.waits:
            return
        step, counts = int(_of(scrape, "global_step")), tuple(scrape.values[c.name] for c in COUNTERS)
        last = self._last.get(scrape.attempt)
        if last is None:
            last = _Last(step=_before_first(scrape), counts=(0.0,) * len(COUNTERS))
        elif step < last.step:
            self.gone_back += 1
            return
        if step > last.step:
            self._last[scrape.attempt] = _Last(step=step, counts=counts, scrape=scrape)
            yield _sample(scrape, step, counts, last)


def _before_first(scrape: Scrape) -> int:
    """The step that the attempt went on from: the one shown less those that it has made."""
    shown = 0.0 if scrape.waits else _of(scrape, "global_step")
    return max(0, int(shown - scrape.values[COUNTERS[0].name]))


def _sample(scrape: Scrape, step: int, counts: tuple[float, ...], last: _Last) -> ScrapedSample:
    readings = {m.field: v for m in SAMPLE_METRICS if (v := scrape.values.get(m.name)) is not None}
    for metric in INTERVAL_METRICS:  # shown until the next is measured: the same number is the same measurement
        if last.scrape is not None and readings.get(metric.field) == last.scrape.values.get(metric.name):
            readings.pop(metric.field, None)
    typed: dict[str, Any] = {name: _typed(name, value) for name, value in readings.items()}
    skipped, loss = readings["skipped"] == 1, readings["loss"]
    own = (1, readings.get("loss_ratio", 0) > _SPIKE_RATIO, not math.isfinite(loss), skipped)
    unseen = step - last.step - 1
    _, spikes, nonfinite, left_out = (
        min(unseen, max(0, int(now - then) - mine)) for now, then, mine in zip(counts, last.counts, own, strict=True)
    )
    return ScrapedSample(
        **typed | {"global_step": step, "skipped": skipped},
        attempt=scrape.attempt,
        time_unix_s=scrape.time_unix_s,
        unseen_steps=unseen,
        unseen_spikes=spikes,
        unseen_nonfinite=nonfinite,
        unseen_skipped=left_out,
        unseen_loss_max=_unseen_loss(scrape, last, loss) if unseen else None,
    )


def _unseen_loss(scrape: Scrape, last: _Last, loss: float) -> float | None:
    """The window's largest loss, where it can only be of a step since the last; see ScrapedSample."""
    largest = scrape.values.get(LOSS_MAX)
    if largest is None or not math.isfinite(largest) or not largest > loss:
        return None
    if last.scrape is None:
        return largest
    reach_s = _SHOWS_LONGER * scrape.values.get(WINDOW.name, math.inf)
    before = last.scrape.values.get(LOSS_MAX, math.inf)
    new = largest > before or scrape.time_unix_s - last.scrape.time_unix_s > reach_s
    return largest if new else None


def _typed(name: str, value: float) -> float | int | None:
    if name not in _WHOLE_NUMBERS:
        return value
    return int(value) if 0 <= value <= LARGEST_WHOLE else None  # nan, too, is none


def _of(scrape: Scrape, field: str) -> float:
    return scrape.values[next(metric.name for metric in SAMPLE_METRICS if metric.field == field)]
