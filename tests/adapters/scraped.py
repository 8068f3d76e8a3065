"""What scrapes of the real exporter's collector see, without a server: for tests that no network should slow down."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from benchmarks.recorded.curves import read_curve
from sentinel.adapters.prometheus.api import Point, PromSeries
from sentinel.adapters.prometheus.scrapes import Steps, scrapes_of
from sentinel.vocabulary.loss_ratio import loss_ratio
from sentinel.vocabulary.sample import Record, Sample, ScrapedSample
from trainer_hooks.export.step_collector import StepCollector

CURVES = Path(__file__).parents[2] / "benchmarks" / "recorded" / "curves"
READINGS = ("grad_norm", "lr", "adam_variance_l1", "adam_variance_max", "update_norm")


def recorded(name: str) -> list[Sample]:
    """The samples of a small GPT's run, one a second from 0; with the loss ratio, as the hook gives it."""
    curve = read_curve(CURVES / f"{name}.csv.xz")
    made, lowest = [], None
    for i in range(len(curve["step"])):
        loss = float(curve["loss"][i] or "nan")
        sample = Sample(
            attempt=1,
            global_step=int(curve["step"][i] or 0),
            time_unix_s=float(i + 1),
            loss=loss,
            loss_ratio=loss_ratio(loss, lowest),
            seqlen=int(curve["seqlen"][i] or 0),
            **{name: curve[name][i] for name in READINGS},
        )
        lowest = lowest if not math.isfinite(loss) else loss if lowest is None else min(lowest, loss)
        made.append(sample)
    return made


def scraped(
    samples: Sequence[Sample], at: Iterable[float], *, by: str = "a", run: str = "small"
) -> Iterator[PromSeries]:
    """What scrapes at these moments see of one attempt, whose steps end at their samples' times."""
    now = 0.0
    collector = StepCollector(run, samples[0].attempt, clock=lambda: now)
    coming = iter(samples)
    sample = next(coming, None)
    for moment in at:
        while sample is not None and sample.time_unix_s <= moment:
            now = sample.time_unix_s
            collector.push(sample)
            sample = next(coming, None)
        now = moment
        for family in collector.collect():
            for one in family.samples:
                labels = {"__name__": one.name, **one.labels, "instance": by}
                yield PromSeries(labels=labels, values=(Point(moment, one.value),))


def with_loss(samples: Sequence[Sample], step: int, loss: float, **more: bool) -> list[Sample]:
    """The same but for one step's loss."""
    ratio = math.inf if not math.isfinite(loss) else 2.0
    return [replace(s, loss=loss, loss_ratio=ratio, **more) if s.global_step == step else s for s in samples]


def folded(series: Sequence[PromSeries]) -> list[Record]:
    steps = Steps()
    return [record for scrape in scrapes_of(series) for record in steps.take(scrape)]


def seen(records: Sequence[Record]) -> list[ScrapedSample]:
    return [record for record in records if isinstance(record, ScrapedSample)]
