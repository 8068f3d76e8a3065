"""From an answer's series to scrapes: what one look of one Prometheus at the trainer's /metrics saw. Pure."""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass

from sentinel.adapters.prometheus.api import Series
from sentinel.vocabulary.metrics import COUNTERS, PREFIX, SAMPLE_METRICS, WINDOW
from sentinel.vocabulary.numbers import LARGEST_WHOLE

__all__ = ["LOSS_MAX", "Known", "Looked", "Scrape", "scrapes_of", "selector_of"]

Looked = tuple[int, tuple[tuple[str, str], ...]]
"""An attempt, and the other labels: who scraped whom."""

Known = Mapping[Looked, Container[float]]
"""The moments, in Unix seconds, of scrapes that need not be read again."""

LOSS_MAX = next(metric.maximum_name for metric in SAMPLE_METRICS if metric.field == "loss")

_NAMES = (*(m.name for m in SAMPLE_METRICS), *(c.name for c in COUNTERS), WINDOW.name, LOSS_MAX)
_LOSS = PREFIX + "loss"
_STARTED = frozenset(counter.name for counter in COUNTERS)
_STEPPED = _STARTED | {metric.name for metric in SAMPLE_METRICS if metric.field in ("global_step", "loss", "skipped")}


_NUMBER = re.compile(r"[0-9]{1,9}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Scrape:
    """All of one scrape: the exporter shows one step, so it is of one."""

    attempt: int
    time_unix_s: float
    """When it was scraped; the step had ended by then."""

    by: tuple[tuple[str, str], ...]
    """The other labels: who scraped whom. Two Prometheus servers see the same trainer at different moments."""

    values: Mapping[str, float]
    """{name of the metric: value}."""

    @property
    def whole(self) -> bool:
        """Whether all is there: what is written remotely may arrive in parts. Before the first step there is less."""
        needed = _STARTED if self.waits else _STEPPED
        return needed.issubset(self.values) and all(
            0 <= self.values[name] <= LARGEST_WHOLE for name in needed - {_LOSS}
        )

    @property
    def waits(self) -> bool:
        """Whether the attempt has not made a step yet."""
        return self.values.get(COUNTERS[0].name) == 0


def selector_of(runs: Sequence[str], more: str | None) -> str:
    """What selects these runs' series; `more` are matchers of the user's, in PromQL: `cluster="a",job="train"`."""
    named = _equal(runs[0]) if len(runs) == 1 else _one_of(runs)
    matchers = [f'__name__=~"{"|".join(_NAMES)}"', f"run{named}"]
    return "{" + ",".join([*matchers, *([more.strip().strip(",")] if more else [])]) + "}"


def _equal(run: str) -> str:
    return f'="{_in_quotes(run)}"'


def _one_of(runs: Sequence[str]) -> str:
    return f'=~"{_in_quotes("|".join(map(_literally, runs)))}"'


def _literally(run: str) -> str:
    """The name as a regular expression of RE2's, which knows no escape before a letter that is none of its signs."""
    return re.sub(r"([\\.+*?()|\[\]{}^$])", r"\\\1", run)


def _in_quotes(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def scrapes_of(series: Iterable[Series], known: Known | None = None) -> list[Scrape]:
    """The scrapes by attempt, then in the order of time, but for those known. No attempt: no trainer's of ours."""
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
