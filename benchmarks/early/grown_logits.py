"""On runs of instabilities.py: the early warning of the other signals, and that of the largest attention logit."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
from batched.outcomes import Group
from numpy.typing import NDArray

from sentinel.judge.detectors.attention_logits import AttentionLogits
from sentinel.judge.detectors.early_warning import EarlyWarnings
from sentinel.judge.readings import Readings
from sentinel.judge.series import Series
from sentinel.judge.thresholds import Thresholds

__all__ = ["Said", "judged", "readings_of", "table"]

_LOGIT = "attention_logit_max"
_CHUNK = 8  # samples between two looks


class Said(NamedTuple):
    """What the judge says of one run."""

    warned: tuple[tuple[int, tuple[str, ...]], ...]  # step and signals of each warning
    verdict: int | None
    onset: int | None  # as the verdict dates it, its early end
    variance: tuple[int, ...]  # steps at which adam_variance_max alone stands at what scores 1 in an early warning


def table(folder: Path) -> Iterator[str]:
    """A row for each seed of each rung in `folder`; the onset is the validation loss's."""
    yield f"{'rung':16}{'seed':>5}{'onset':>7}{'verdict':>9}{'logit at onset':>16}  warned: other signals; logits"
    for path in sorted(folder.glob("*.npz")):
        group = Group.read(path)
        with np.load(path, allow_pickle=False) as saved:
            columns = {name: saved[name].astype(np.float64) for name in saved.files if saved[name].ndim == 2}
            steps, validated = saved["steps"], saved["validated"]
        for run, (seed, onset) in enumerate(zip(group.seeds, group.onsets, strict=True)):
            mine = {name: column[:, run] for name, column in columns.items()}
            readings = readings_of(steps, validated, mine)
            without, with_them = (judged(readings, drop=drop) for drop in (True, False))
            at = mine["attention_logit"][-1 if onset == np.inf else int(np.searchsorted(validated, onset))]
            warned = "; ".join(_text(said, onset) for said in (without, with_them))
            known = "-" if with_them.verdict is None else f"{with_them.verdict}"
            at_onset = "-" if onset == np.inf else f"{onset:.0f}"
            yield f"{group.name:16}{seed:>5}{at_onset:>7}{known:>9}{at:>16.3g}  {warned}"


def readings_of(
    steps: NDArray[np.int64], validated: NDArray[np.int64], columns: dict[str, NDArray[np.float64]]
) -> Readings:
    """As the hook would give them: the logits, and the update's norm, at every tenth step alone."""
    names = ("loss", "grad_norm", "adam_variance_l1", "adam_variance_max", "update_norm", "lr")
    there = np.isin(steps, validated)
    logits = np.full(len(steps), np.nan)
    logits[there] = columns["attention_logit"]
    found = {name: columns[name] for name in names} | {_LOGIT: logits}
    found["update_norm"] = columns["update_norm"] / columns["lr"]  # recorded after it is scaled
    return Readings(attempt=1, steps=steps, columns=found, measured={"update_norm": there, _LOGIT: there})


def judged(readings: Readings, *, drop: bool) -> Said:
    """The early warnings and the attention logits' warnings, live; `drop`: the first alone, without the logits."""
    series, verdict, onset = Series(Thresholds()), None, None
    warned, variance = dict[int, tuple[str, ...]](), list[int]()
    for at in range(0, len(readings), _CHUNK):
        end = at + _CHUNK
        part = Readings(
            attempt=1,
            steps=readings.steps[at:end],
            columns={n: c[at:end] for n, c in readings.columns.items() if not (drop and n == _LOGIT)},
            measured={n: c[at:end] for n, c in readings.measured.items() if not (drop and n == _LOGIT)},
        )
        series.push_readings(part)
        for one in series.known.baseline.detectors:
            if isinstance(one, EarlyWarnings) and drop:
                warned |= {w.step: w.signals for w in one.warnings}
                if one._trends["adam_variance_max"].height >= 1:
                    variance.append(int(part.steps[-1]))
            elif isinstance(one, AttentionLogits):
                warned |= {w.step: (_LOGIT,) for w in one.warnings}
        if verdict is None and series.alarm is not None:
            verdict, onset = series.alarm.verdict_step, series.alarm.onset_step
    return Said(tuple(warned.items()), verdict, onset, tuple(variance))


def _text(said: Said, onset: float) -> str:
    if not said.warned:
        return "never"
    step, signals = said.warned[0]
    ahead = "" if onset == np.inf else f", {onset - step:+.0f}"
    more = f", {len(said.warned)} in all" if len(said.warned) > 1 else ""
    return f"{step} ({' '.join(signals)}{ahead}{more})"
