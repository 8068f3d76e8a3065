"""From an answer's series to scrapes, and from scrapes to records: each step once. Pure."""

from __future__ import annotations

import math
import re
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sentinel.adapters.prometheus.api import PromSeries
from sentinel.vocabulary.loss_ratio import SPIKE_RATIO
from sentinel.vocabulary.metrics import COUNTERS, INTERVAL_METRICS, PREFIX, SAMPLE_METRICS, WINDOW
from sentinel.vocabulary.numbers import LARGEST_WHOLE
from sentinel.vocabulary.sample import Record, RunStarted, ScrapedSample

Looked = tuple[int, tuple[tuple[str, str], ...]]  # an attempt, and the other labels: who scraped whom

_LOSS_MAX = next(metric.maximum_name for metric in SAMPLE_METRICS if metric.field == "loss")

_NAMES = (*(m.name for m in SAMPLE_METRICS), *(c.name for c in COUNTERS), WINDOW.name, _LOSS_MAX)
_LOSS = PREFIX + "loss"
_STARTED = frozenset(counter.name for counter in COUNTERS)
_STEPPED = _STARTED | {metric.name for metric in SAMPLE_METRICS if metric.field in ("global_step", "loss", "skipped")}
_NUMBER = re.compile(r"[0-9]{1,9}")
_WHOLE_NUMBERS = frozenset(
    ("seqlen", "kept_tokens", "lr_warmup_steps", "global_batch_samples", "consumed_samples", "consumed_tokens")
)
_SHOWS_LONGER = 13 / 12  # windows that a maximum may show: the exporter keeps twelve parts, and one that is not over


@dataclass(frozen=True, slots=True, kw_only=True)
class Scrape:
    """All of one scrape: the exporter shows one step, so it is of one."""

    attempt: int
    time_unix_s: float  # when it was scraped; the step had ended by then
    by: tuple[tuple[str, str], ...]  # the other labels: two Prometheus servers see a trainer at different moments
    values: Mapping[str, float]  # by the metric's name

    @property
    def whole(self) -> bool:
        """Whether all is there: what is written remotely may arrive in parts. Before the first step there is less."""
        needed = _STARTED if self.waits else _STEPPED
        return needed.issubset(self.values) and all(
            0 <= self.values[name] <= LARGEST_WHOLE for name in needed - {_LOSS}
        )

    @property
    def waits(self) -> bool:
        return self.values.get(COUNTERS[0].name) == 0


def selector_of(runs: Sequence[str], more: str | None) -> str:
    """What selects these runs' series; `more` are matchers of the user's, in PromQL: `cluster="a",job="train"`."""
    sign, named = "=", runs[0]
    if len(runs) > 1:  # as RE2's regular expressions, which know no escape before a letter that is none of their signs
        sign, named = "=~", "|".join(re.sub(r"([\\.+*?()|\[\]{}^$])", r"\\\1", run) for run in runs)
    quoted = named.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    matchers = [f'__name__=~"{"|".join(_NAMES)}"', f'run{sign}"{quoted}"']
    return "{" + ",".join([*matchers, *([more.strip().strip(",")] if more else [])]) + "}"


def scrapes_of(series: Iterable[PromSeries], known: Mapping[Looked, Container[float]] | None = None) -> list[Scrape]:
    """The scrapes by attempt, then in the order of time, but for those at the known moments, Unix seconds. A series
    without an attempt is no trainer's of ours."""
    found: dict[Looked, dict[float, dict[str, float]]] = {}
    for one in series:
        labels = dict(one.labels)
        name, attempt = labels.pop("__name__", ""), labels.pop("attempt", "")
        if not _NUMBER.fullmatch(attempt):
            continue
        looked = (int(attempt), tuple(sorted(labels.items())))
        scrapes, old = found.setdefault(looked, {}), known.get(looked, ()) if known else ()
        for point in one.values:
            at = point.at
            if at in scrapes:
                scrapes[at][name] = point.value
            elif at not in old:
                scrapes[at] = {name: point.value}
    by_time = sorted((n, at, by) for (n, by), scrapes in found.items() for at in scrapes)
    return [Scrape(attempt=n, time_unix_s=at, by=by, values=found[n, by][at]) for n, at, by in by_time]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Last:
    step: int
    counts: tuple[float, ...]  # in the order of COUNTERS
    scrape: Scrape | None = None  # None before any: the attempt's own beginning


class Steps:
    """Takes whole scrapes, by attempt and in the order of time. Those it has seen already say nothing new."""

    def __init__(self) -> None:
        self._last: dict[int, _Last] = {}
        self._started: set[int] = set()
        self.gone_back = 0  # scrapes that were passed over: their step was before one that the attempt had reached

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
    typed: dict[str, Any] = dict(readings)
    for name in _WHOLE_NUMBERS & typed.keys():
        typed[name] = int(typed[name]) if 0 <= typed[name] <= LARGEST_WHOLE else None  # nan, too, is none
    skipped, loss = readings["skipped"] == 1, readings["loss"]
    own = (1, readings.get("loss_ratio", 0) > SPIKE_RATIO, not math.isfinite(loss), skipped)
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
    largest = scrape.values.get(_LOSS_MAX)
    if largest is None or not math.isfinite(largest) or not largest > loss:
        return None
    if last.scrape is None:
        return largest
    reach_s = _SHOWS_LONGER * scrape.values.get(WINDOW.name, math.inf)
    before = last.scrape.values.get(_LOSS_MAX, math.inf)
    new = largest > before or scrape.time_unix_s - last.scrape.time_unix_s > reach_s
    return largest if new else None


def _of(scrape: Scrape, field: str) -> float:
    return scrape.values[next(metric.name for metric in SAMPLE_METRICS if metric.field == field)]
