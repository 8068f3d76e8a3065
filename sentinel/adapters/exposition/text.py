"""Prometheus's text formats in two parts: a run's lines, written at its turn, and the page, joined at a scrape."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from prometheus_client.utils import floatToGoString

from sentinel.vocabulary.metrics import DAEMON_METRICS, Exported, Shown

_METRICS = {metric.name: metric for metric in DAEMON_METRICS}
_NUMBERS = {0.0: "0.0", 1.0: "1.0"}  # most values, and floatToGoString is slower than this table


@dataclass(frozen=True, slots=True)
class RunText:
    """The series of one run as lines of text, by the metric's name; about 5 kB."""

    lines: Mapping[str, bytes]  # as in text format 0.0.4, and in OpenMetrics where there is no exemplar
    with_exemplars: Mapping[str, bytes]  # the same lines in OpenMetrics, of metrics that have exemplars


class RunWriter:
    """Writes the lines of one run; remembers the text before each value, which is the same at almost every turn."""

    def __init__(self) -> None:
        self._starts: dict[tuple[str, tuple[str, ...]], str] = {}
        self._same: tuple[tuple[Shown, ...], RunText] = ((), RunText({}, {}))

    def write(self, shown: Iterable[Shown], same: tuple[Shown, ...] = ()) -> RunText:
        """`same`: series of other metrics, written again only where it is another tuple than before."""
        if same is not self._same[0]:
            self._same = same, RunWriter()._written(same)
        new, old = self._written(shown), self._same[1]
        return RunText({**new.lines, **old.lines}, {**new.with_exemplars, **old.with_exemplars})

    def _written(self, shown: Iterable[Shown]) -> RunText:
        starts: dict[tuple[str, tuple[str, ...]], str] = {}
        lines: dict[str, list[str]] = {}
        exemplars: dict[str, dict[int, str]] = {}
        for one in shown:
            key = one.name, one.labels
            start = starts[key] = self._starts.get(key) or _start(_METRICS[one.name], one.labels)
            of_metric = lines.setdefault(one.name, [])
            if one.exemplar is not None and _METRICS[one.name].kind == "counter":
                exemplars.setdefault(one.name, {})[len(of_metric)] = _exemplar(one)
            of_metric.append(start + _number(one.value))
        self._starts = starts  # without those of an attempt that is over
        with_exemplars = {
            name: _joined([line + of.get(n, "") for n, line in enumerate(lines[name])])
            for name, of in exemplars.items()
        }
        return RunText({name: _joined(of_metric) for name, of_metric in lines.items()}, with_exemplars)


def page(runs: Iterable[RunText], *, openmetrics: bool = False, names: Collection[str] = ()) -> bytes:
    """The whole page, in the order of the vocabulary. `names`: these series only; none: all."""
    texts, found = tuple(runs), list[bytes]()
    for metric in DAEMON_METRICS:
        if names and metric.name not in names:
            continue
        of_metric = [text for run in texts if (text := _of(run, metric.name, openmetrics=openmetrics))]
        if of_metric:
            found += (_head(metric, openmetrics=openmetrics), *of_metric)
    return b"".join((*found, b"# EOF\n") if openmetrics else found)


def _of(run: RunText, name: str, *, openmetrics: bool) -> bytes | None:
    text = run.with_exemplars.get(name) if openmetrics else None
    return text or run.lines.get(name)


def _head(metric: Exported, *, openmetrics: bool) -> bytes:
    counter = openmetrics and metric.kind == "counter"
    name = metric.name.removesuffix("_total") if counter else metric.name
    text = metric.help.replace("\\", r"\\").replace("\n", r"\n")
    if openmetrics:
        text = text.replace('"', r"\"")
    return f"# HELP {name} {text}\n# TYPE {name} {metric.kind}\n".encode()


def _start(metric: Exported, labels: tuple[str, ...]) -> str:
    return f"{metric.name}{_labels(dict(zip(metric.labels, labels, strict=True)))} "


def _exemplar(shown: Shown) -> str:
    if (of := shown.exemplar) is None:
        return ""
    at = "" if of.time_unix_s is None else f" {of.time_unix_s}"
    return f" # {_labels(of.labels)} {_number(of.value)}{at}"


def _number(value: float) -> str:
    return _NUMBERS.get(value) or str(floatToGoString(value))  # type: ignore[no-untyped-call]


def _labels(labels: Mapping[str, str]) -> str:
    return "{" + ",".join(f'{name}="{_escaped(value)}"' for name, value in sorted(labels.items())) + "}"


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")


def _joined(lines: list[str]) -> bytes:
    return ("\n".join(lines) + "\n").encode()
