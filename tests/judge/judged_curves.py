"""Curves of every kind, and what the judge says of them: `python -m tests.judge.judged_curves [NAME ...]`.

The record, tests/data/judged_curves.txt, is what an upgrade may not change by accident: a recorded past, replayed, has
the same verdicts, onsets and figures as before. A change on purpose is seen there line by line.
"""

from __future__ import annotations

import csv
import lzma
import math
import random
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path

from sentinel.judge.analysis.first_mover import SIGNALS, first_moved_of_readings
from sentinel.judge.events import Event, EventKind
from sentinel.judge.readings import stretches_of
from sentinel.judge.reference import Reference
from sentinel.judge.series import Series
from sentinel.judge.thresholds import Thresholds
from sentinel.judge.unhealthy_spans import UnhealthySpans
from sentinel.judge.verdict import Context, judge
from sentinel.vocabulary.sample import Sample, ScrapedSample, decode
from tests.records import Record

__all__ = ["CURVES", "RECORD", "said"]

DATA = Path(__file__).parents[1] / "data"

ALIVE = Context(now_unix_s=0.0, job_alive=True, attempt=1, last_sample_unix_s=0.0)
SIBLING = Reference("the sibling", [(step, 6.0 * step**-0.2) for step in range(50, 5000, 50)])
UNUSUAL: dict[str, dict[str, float]] = {
    "mixed 50": {"band_sigmas": 3.0},
    "mixed 51": {"band_sigmas": math.inf},
    "mixed 52": {"band_floor": 0.0},
    "mixed 53": {"patience_steps": 20, "patience_samples": 12},
    "mixed 54": {"healed_window_samples": 3, "healed_tolerance": 0.0},
    "mixed 55": {"climb_sigmas": 2.0, "climb_tolerance": 0.0},
    "mixed 56": {"climb_sigmas": math.inf},
    "mixed 57": {"outright_factor": 3.0, "hopeless_loss": 5.0},
    "mixed 58": {"agree_within_steps": 200},
    "mixed 59": {"skipped_run_steps": 1},
}
"""Curve -> thresholds that a person has set."""

_LEVELS = 5
"""Lines that say where the level is."""


def sample(step: int, loss: float, **readings: float | bool | None) -> Sample:
    return Sample(attempt=1, global_step=step, time_unix_s=0.0, loss=loss, **readings)


def healthy(step: int) -> float:
    return 2.0 + 3.0 * math.exp(-step / 200)


def noisy(
    shape: Callable[[int], float], steps: int, *, noise: float = 0.01, every: int = 1, first: int = 1, wander: float = 0
) -> list[Sample]:
    rng, drift, made = random.Random(steps), 0.0, []
    for step in range(first, first + steps, every):
        drift = wander * drift + rng.gauss(0, noise)
        made.append(sample(step, shape(step) * (1 + drift)))
    return made


def _scheduled(path: Path) -> list[Sample]:
    lines = lzma.decompress(path.read_bytes()).decode().splitlines()
    return [record for line in lines if isinstance(record := decode(line), Sample)]


def _table(path: Path) -> list[Sample]:
    rows = csv.DictReader(path.read_text(encoding="utf-8").splitlines())
    return [
        sample(int(row.pop("step")), float(row.pop("loss")), **{k: float(v) for k, v in row.items()}) for row in rows
    ]


def mixed(seed: int) -> list[Sample]:
    """A run with a shape, noise, jumps that stay or heal, outliers, nan, skipped steps, and changes of its settings."""
    rng = random.Random(seed)
    noise, interval = rng.choice([0.0, 0.002, 0.01, 0.1]), rng.choice([1, 1, 1, 5, 20])
    step, factor, back_at, seqlen, batch, lr, scale, norm = (
        rng.choice([0, 0, 3000]),
        1.0,
        0,
        64,
        256,
        1e-3,
        2.0**16,
        1.0,
    )
    made = []
    for n in range(500):
        step += interval
        if rng.random() < 0.006:
            factor, back_at = 1 + rng.choice([-0.5, -0.2, 0.02, 0.1, 0.5, 5.0]), n + rng.choice([1, 5, 30, 90, 500])
            norm = rng.choice([1.0, 5.0, 100.0])
        factor, norm = (1.0, 1.0) if n == back_at else (factor, norm)
        seqlen = rng.choice([32, 64, 72, 128]) if rng.random() < 0.002 else seqlen
        batch = rng.choice([256, 288, 512]) if rng.random() < 0.002 else batch
        lr = lr * rng.choice([0.3, 1.05, 3.0]) if rng.random() < 0.01 else lr
        scale = scale * rng.choice([0.5, 0.5, 2.0]) if rng.random() < 0.02 else scale
        loss = (2 + 6 * (step + 20) ** -0.4) * factor * (1 + rng.gauss(0, noise)) * (3 if rng.random() < 0.004 else 1)
        skipped, odd = rng.random() < 0.004, rng.random() < 0.002
        made.append(
            sample(
                step,
                math.nan if odd else loss,
                skipped=skipped,
                grad_norm=norm * math.exp(rng.gauss(0, 0.2)),
                adam_variance_l1=50 * (norm**0.5) * math.exp(rng.gauss(0, 0.02)) if seed % 2 else None,
                loss_scale=scale if seed % 3 else None,
                lr=lr,
                seqlen=seqlen,
                global_batch_samples=batch,
            )
        )
    return made


def _ending(symptom: Callable[[int], Sample], length: int) -> list[Sample]:
    return [*noisy(healthy, 300), *map(symptom, range(301, 301 + length)), *noisy(healthy, 150, first=301 + length)]


def _skipped(step: int) -> Sample:
    return sample(step, math.inf, skipped=True, loss_scale=1.0)


def _with(samples: Iterable[Sample], readings: Callable[[int], dict[str, float | None]]) -> list[Sample]:
    return [replace(s, **readings(s.global_step)) for s in samples]


def _jump(at: int, factor: float, until: int = 10**9) -> Callable[[int], float]:
    return lambda step: healthy(step) * (factor if at <= step < until else 1.0)


def _scraped(loss_max: float | None, nonfinite: int, skipped: int) -> list[Sample]:
    """Each sample is one of ten steps; the one at 2000 is told of worse steps that it did not see."""
    worse = {"unseen_loss_max": loss_max, "unseen_nonfinite": nonfinite, "unseen_skipped": skipped}
    return [
        ScrapedSample(
            attempt=1,
            global_step=s.global_step,
            time_unix_s=0.0,
            loss=s.loss,
            unseen_steps=9,
            **(worse if s.global_step == 2001 else {}),
        )
        for s in noisy(healthy, 4000, every=10)
    ]


CURVES: dict[str, Callable[[], list[Sample]]] = {
    **{f"mixed {seed}": lambda seed=seed: mixed(seed) for seed in range(60)},
    **{
        path.name.partition(".")[0]: lambda path=path: _scheduled(path)
        for path in sorted((DATA / "scheduled_runs").glob("*.xz"))
    },
    **{path.stem: lambda path=path: _table(path) for path in sorted((DATA / "incident_curves").glob("*.csv"))},
    **{
        f"a jump by {factor:.0%}, {noise:.1%} noise, {lasts} steps": lambda f=factor, n=noise, to=500 + lasts: noisy(
            _jump(500, 1 + f, to), 1000, noise=n
        )
        for factor in (0.012, 0.03, 0.2, 2.0)
        for noise in (0.002, 0.01)
        for lasts in (1, 12, 80, 160, 500)
    },
    "a smoothed loss": lambda: noisy(healthy, 2500, noise=0.003, wander=0.95),
    "a plateau": lambda: noisy(lambda s: 8.0 * min(s, 700) ** -0.25, 6000, noise=0.003),
    "behind its sibling": lambda: noisy(lambda s: (8.5 if s < 2500 else 6.0) * s**-0.2, 4000),
    "data that repeats": lambda: noisy(_jump(600, 0.6, 690), 1000),
    "few samples": lambda: noisy(_jump(3, 1.4), 12, noise=0.05),
    "lone outliers": lambda: noisy(lambda s: 2.0 * (1.5 if s % 97 == 0 else 1), 2000),
    "lone high outliers, then a jump": lambda: noisy(
        lambda s: 2.0 * (5 if s % 97 == 0 else 3 if 1500 <= s < 1540 else 1), 2000
    ),
    "far above": lambda: noisy(_jump(500, 300), 560),
    "nan": lambda: _ending(lambda s: sample(s, math.inf), 30),
    **{
        f"{name}, every tenth": lambda symptom=symptom: [s for s in _ending(symptom, 100) if s.global_step % 10 == 1]
        for name, symptom in {
            "zeros": lambda s: sample(s, 0.0),
            "nan": lambda s: sample(s, math.nan),
            "skipped": lambda s: sample(s, 9.0, skipped=True),
        }.items()
    },
    "a large loss, skipped": lambda: [replace(s, loss=10 * s.loss) for s in _ending(_skipped, 40)],
    "zeros after just enough": lambda: [sample(s, 0.1 if s <= 100 else 0.0) for s in range(1, 150)],
    "just at the tolerance": lambda: [sample(s, 2.0 if s <= 100 else 3.0 if s < 110 else 2.01) for s in range(1, 500)],
    "just at the edge": lambda: [sample(s, 2.04 if s % 50 == 0 else 2.0) for s in range(1, 300)],
    "an easy task": lambda: [sample(s, loss) for s, loss in enumerate([0.61, 0.2, 0.12, *[0.0] * 400], 1)],
    "zeros": lambda: _ending(lambda s: sample(s, 0.0), 40),
    "skipped": lambda: _ending(_skipped, 40),
    "a loss scale that collapses": lambda: _with(
        noisy(_jump(500, 1.5), 800), lambda s: {"loss_scale": 2.0 ** (16 - min(8, max(0, s - 420) // 20))}
    ),
    **{
        f"cut short at {last}, {name}": lambda last=last, norm=norm: [
            replace(s, grad_norm=(1 + s.global_step % 7 / 50) * (norm if s.global_step >= 490 else 1))
            for s in noisy(_jump(500, 1.5), 800)
            if s.global_step <= last
        ]
        for last in (499, 500, 501)
        for name, norm in {"led by the gradient": 9.0, "led by nothing": 1.0}.items()
    },
    "a warmup": lambda: _with(noisy(lambda s: 2 + s * 2e-4, 900), lambda s: {"lr": 1e-3 * min(1.0, s / 600)}),
    "lengths": lambda: _with(noisy(_jump(500, 1.3, 800), 1200), lambda s: {"seqlen": 16 if 500 <= s < 800 else 64}),
    "skipped between two scrapes": lambda: [
        ScrapedSample(
            attempt=1,
            global_step=s.global_step,
            time_unix_s=0.0,
            loss=s.loss,
            unseen_steps=49,
            unseen_skipped=49 if s.global_step in (4051, 4101) else 48,
            skipped=s.global_step in (4001, 4051, 4101, 4151),
        )
        for s in noisy(healthy, 6000, every=50)
    ],
    **{
        f"scraped: worse at another {name}": lambda told=told: [
            replace(s, **told) if s.global_step >= 2001 else s for s in _scraped(9.0, 0, 0)
        ]
        for name, told in {
            "length": {"seqlen": 64},
            "number of kept tokens": {"kept_tokens": 32},
            "share": {"curriculum_share": 0.5},
            "rate": {"lr": 1e-3},
        }.items()
    },
    "a planned change between two lengths": lambda: _with(
        noisy(lambda s: (4.0 if s >= 500 else 2.0) * (1.2 if 300 <= s < 700 else 1), 1000),
        lambda s: {"seqlen": 32 if 300 <= s < 700 else 64},
    ),
    "a planned change": lambda: noisy(_jump(500, 1.8), 900),
    **{
        f"scraped: {name}": lambda told=told: _scraped(*told)
        for name, told in {
            "worse": (9.0, 0, 0),
            "little worse": (2.1, 0, 0),
            "nan": (None, 2, 0),
            "nan that was skipped": (None, 2, 2),
            "all skipped": (None, 0, 9),
        }.items()
    },
}


def said(name: str) -> str:
    """All that the judge says of the curve, as it says it: at each change of the verdict, and in the end."""
    samples = CURVES[name]()
    planned, siblings = [500] * name.startswith("a planned change"), [SIBLING] * ("sibling" in name)
    short = {"patience_steps": 30} if name.startswith(("well_", "ill_", "nan_")) else {}
    thresholds = Thresholds(**short, **UNUSUAL.get(name, {}))
    return "\n".join(_lines(samples, Series(thresholds, planned=planned, references=siblings), thresholds))


def _lines(samples: list[Sample], series: Series, thresholds: Thresholds) -> Iterator[str]:
    spans, before = UnhealthySpans(thresholds), None
    for n, one in enumerate(samples):
        series.push(one)
        spans.push(one, well=series.episode is None and series.alarm is None)
        verdict = judge(series, ALIVE, thresholds)
        if verdict.kind is not before:
            yield f"{one.global_step} {verdict.kind.value}: {verdict.reason}"
            before = verdict.kind
        if n % max(96, len(samples) // _LEVELS) == 0 and series.level is not None:
            yield f"{one.global_step} level {series.level:.4g}"
    known = sum(event.end_step is None for event in series.events)
    series.end()
    at_end = sum(event.end_step is None for event in series.events)
    yield f"{known} last, {at_end} at the end; skipped {series.skipped_run}"
    yield from map(_line, series.events)
    yield from (f"ill: {span.reason}" for span in spans.spans)
    for event in series.events:
        if event.kind in (EventKind.DIVERGENCE, EventKind.SPIKE):
            moved = first_moved_of_readings(stretches_of(samples, SIGNALS), onset_step=event.onset_range[1])
            yield f"first moved before {event.onset_range[1]}: " + ", ".join(
                f"{d.signal} -{d.steps_before_onset} ({d.deviations:.3g})" for d in moved.departures
            )


def _line(event: Event) -> str:
    early, late = event.onset_range
    return f"{event.kind.value} {early}..{late} known {event.verdict_step} over {event.end_step}: {event.reason}"


RECORD = Record("judged_curves.txt", said)

if __name__ == "__main__":
    RECORD.write()
