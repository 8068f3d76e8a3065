"""What was warned of, how far ahead, and how often for nothing; of the detector and of simpler rules beside it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from backtest.curves import Curve, Event, held_out, read_folder
from backtest.ours import samples_of
from recorded.ill import ILL
from recorded.recipe import Recipe
from recorded.well import WELL

from early.making import LOGITS
from early.runs import GROWING, recipes
from sentinel.judge.detectors.attention_logits import AttentionLogits
from sentinel.judge.detectors.early_warning import _RISES, EarlyWarnings
from sentinel.judge.readings import BANDED, Readings, stretches_of
from sentinel.judge.series import Series
from sentinel.judge.thresholds import Thresholds
from sentinel.vocabulary.sample import Sample

__all__ = ["AHEAD_STEPS", "LOGITS_ALONE", "Run", "Tally", "read_public", "read_runs", "seen", "tally"]

AHEAD_STEPS = 50
LOGITS_ALONE = "attention logits alone"
_APART_STEPS = 256  # Steps after a warning of a simple rule in which it does not warn again, as the detector
_CHUNK = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A run, and what hindsight says of it."""

    curve: Curve
    cause_step: int | None  # Where what was done to it begins; None where that is the first step, or nothing was done
    held_out: bool
    public: bool = False  # Nothing was done to it: all of a run that did not diverge is healthy

    @property
    def diverged(self) -> bool:
        return self.curve.label in ("diverged", "nan")

    @property
    def growing(self) -> bool:
        return self.curve.family in GROWING

    @property
    def onset(self) -> int:
        return min(e.onset for e in self.curve.events if e.kind in ("diverge", "nan"))

    @property
    def healthy_until(self) -> int:
        """The first step that is not healthy by construction: a cause that is a setting is there from the first."""
        if self.curve.family.startswith("none:") or (self.public and not self.diverged):
            return self.curve.steps[-1] + 1
        return self.cause_step or 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What the judge and the rules saw of one run, live."""

    run: Run
    verdict_step: int | None
    warned: tuple[int, ...]  # Steps of the detector's warnings
    of_logits: tuple[int, ...]  # The same of the largest attention logit
    steps: tuple[int, ...]  # Steps at which the scores below were taken
    scores: dict[str, tuple[float, ...]]  # Rule -> its score at each; a rule warns above a threshold


def read_runs(recorded: Path, made: Path | None) -> list[Run]:
    """The recorded curves with a sample for each step, and the runs in `made`."""
    known = {recipe.name: recipe for recipe in (*ILL, *WELL)}
    curves = [c for c in read_folder(recorded) if c.log_interval == 1]
    found = [Run(curve=c, cause_step=known[c.name].onset, held_out=held_out(c.family)) for c in curves]
    for recipe in recipes() if made is not None else ():
        path = made / f"{recipe.name}.npz" if made is not None else Path()
        if path.exists():
            found.append(Run(curve=_curve(recipe, path), cause_step=recipe.onset, held_out=held_out(recipe.cause)))
    return found


def read_public(folder: Path) -> list[Run]:
    return [Run(curve=c, cause_step=None, held_out=held_out(c.family), public=True) for c in read_folder(folder)]


def _curve(recipe: Recipe, path: Path) -> Curve:
    with np.load(path) as file:
        about = json.loads(str(file["about"]))
        names = [n for n in file.files if n != "about" and not n.startswith("has_")]
        columns = {
            n: tuple(float(v) if there else None for v, there in zip(file[n], file[f"has_{n}"], strict=True))
            for n in names
        }
    for name in LOGITS:  # read at every step there, and by the hook at every tenth
        read = columns.pop(name)
        columns[f"{name}_max"] = tuple(v if n % 10 == 9 else None for n, v in enumerate(read))
    events = []
    for word in about["events"]:
        kind, _, at = word.partition(":")
        onset, peak, end = (int(float(step)) for step in at.split("-"))
        events.append(Event(kind=kind, onset=onset, peak=peak, end=end))
    return Curve(
        name=recipe.name,
        folder=path.parent.name,
        label=about["label"],
        events=tuple(events),
        log_interval=1,
        short=False,
        held_out=held_out(recipe.cause),
        note="",
        family=recipe.cause,
        planned=tuple(int(word.rpartition(":")[2]) for word in recipe.regime),
        steps=tuple(int(s) for s in columns.pop("step") if s is not None),
        columns=columns,
    )


def seen(run: Run) -> Seen:
    """The judge on the run, `_CHUNK` samples at a time, as a watch that polls."""
    series = Series(Thresholds(), planned=run.curve.planned)
    detectors = series.known.baseline.detectors
    early = next(d for d in detectors if isinstance(d, EarlyWarnings))
    logits = next(d for d in detectors if isinstance(d, AttentionLogits))
    verdict, warned, of_logits, steps = None, dict[int, None](), dict[int, None](), list[int]()
    scores: dict[str, list[float]] = {}
    for part in _parts(samples_of(run.curve)):
        series.push_readings(part)
        warned |= dict.fromkeys(w.step for w in early.warnings)
        of_logits |= dict.fromkeys(w.step for w in logits.warnings)
        if verdict is None and series.alarm is not None:
            verdict = series.alarm.verdict_step
        steps.append(int(part.steps[-1]))
        for name, value in _rules(series, early):
            scores.setdefault(name, []).append(value)
    kept = {name: tuple(values) for name, values in scores.items()}
    return Seen(
        run=run,
        verdict_step=verdict,
        warned=tuple(warned),
        of_logits=tuple(of_logits),
        steps=tuple(steps),
        scores=kept,
    )


def _parts(samples: Sequence[Sample]) -> Iterator[Readings]:
    for whole in stretches_of(samples):
        for at in range(0, len(whole), _CHUNK):
            end = at + _CHUNK
            yield Readings(
                attempt=whole.attempt,
                steps=whole.steps[at:end],
                columns={name: column[at:end] for name, column in whole.columns.items()},
                measured={name: there[at:end] for name, there in whole.measured.items()},
                skipped=None if whole.skipped is None else whole.skipped[at:end],
            )


def _rules(series: Series, early: EarlyWarnings) -> Iterator[tuple[str, float]]:
    for name in _RISES:
        yield f"{name} alone", early._trends[name].height
    departed = series.known.leading._departed
    outside = [departed[name][2] for name in BANDED if name in departed]
    yield "any signal outside its band", float(sum(outside))
    yield "two signals outside their bands", float(sorted(outside)[-2]) if len(outside) > 1 else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Tally:
    """One rule on one set of runs."""

    rule: str
    healthy_steps: int
    false: tuple[tuple[str, int], ...]  # Run and step of each warning in healthy steps
    # Of each divergence: run, steps ahead of the onset (negative: after it), ahead of the verdict; None: not warned
    leads: tuple[tuple[Seen, int | None, int | None], ...]

    def ahead(self, of: str, causes: Sequence[str] | None = None) -> tuple[int, int]:
        """How many were warned of AHEAD_STEPS before their onset or verdict, and how many there are."""
        which = 1 if of == "onset" else 2
        of_these = [lead for lead in self.leads if causes is None or lead[0].run.curve.family in causes]
        return sum(lead[which] is not None and lead[which] >= AHEAD_STEPS for lead in of_these), len(of_these)


def tally(rule: str, all_seen: Sequence[Seen], threshold: float | None = None) -> Tally:
    """The detector's own warnings, or those of a simple rule with this threshold."""
    healthy, false, leads = 0, [], []
    for one in all_seen:
        run, warned = one.run, _warned(one, rule, threshold)
        healthy += sum(step < run.healthy_until for step in run.curve.steps)
        false += [(run.curve.name, step) for step in warned if step < run.healthy_until]
        if run.diverged and not run.curve.family.startswith("none:"):
            first = next((step for step in warned if step >= (run.cause_step or 0)), None)
            known = one.verdict_step or run.curve.steps[-1]
            late = first is None or first > known
            leads.append((one, None if late else run.onset - first, None if late else known - first))
    return Tally(rule=rule, healthy_steps=healthy, false=tuple(false), leads=tuple(leads))


def _warned(one: Seen, rule: str, threshold: float | None) -> Sequence[int]:
    if threshold is not None:
        return _above(one, rule, threshold)
    return one.of_logits if rule == LOGITS_ALONE else one.warned


def _above(one: Seen, rule: str, threshold: float) -> list[int]:
    warned: list[int] = []
    last = -_APART_STEPS
    for step, score in zip(one.steps, one.scores[rule], strict=True):
        if score > threshold:
            if step - last >= _APART_STEPS:
                warned.append(step)
            last = step
    return warned
