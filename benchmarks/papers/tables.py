"""The runs as the paper's tables: as data for --json, and as text."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from statistics import median
from typing import Any

from sentinel.judge.analysis.correlation.columns import correlate

from .cases import BASELINE
from .reading import Cost, Curve, Instability, diverged

__all__ = ["Group", "document", "grouped", "text"]

Group = tuple[str, float]
"""A case at a learning rate."""

Groups = dict[Group, list[Curve]]
"""Its curves, a seed each."""


def grouped(curves: Iterable[Curve]) -> Groups:
    """In the order in which they come."""
    groups: Groups = {}
    for curve in curves:
        groups.setdefault((curve.run.case, curve.run.rate), []).append(curve)
    return groups


def document(groups: Groups) -> dict[str, Any]:
    """What --json prints of the runs."""
    curves = [curve for group in groups.values() for curve in group]
    return {
        "table_1": [_instability(case, rate, some) for (case, rate), some in groups.items()],
        "table_3": [row for curve in curves if curve.run.case == BASELINE.name for row in _correlation(curve)],
        "to_the_baselines_best": list(_to_the_best(groups, Cost.of(curves))),
    }


def _instability(case: str, rate: float, curves: Sequence[Curve]) -> dict[str, Any]:
    rows = [Instability.of(c.ratios) for c in curves]
    by_length = [Instability.of(c.ratios_by_length) for c in curves]
    steps = sum(r.steps for r in rows)
    return {
        "case": case,
        "lr": rate,
        "largest_lr": max((s.lr for c in curves for s in c.samples if s.lr is not None), default=math.nan),
        "seeds": [c.run.seed for c in curves],
        "steps": [r.steps for r in rows],
        "tokens": [c.samples[-1].consumed_tokens for c in curves],
        "over": [r.over for r in rows],
        "share": sum(r.over for r in rows) / steps if steps else math.nan,
        "max_ratio": [r.largest for r in rows],
        "over_by_length": [r.over for r in by_length],
        "max_ratio_by_length": [r.largest for r in by_length],
        "diverged": sum(diverged([s.loss for s in c.samples]) for c in curves),
        "final_validation_loss": [c.final for c in curves],
    }


def _correlation(curve: Curve) -> Iterator[dict[str, Any]]:
    """Both methods at lag 0, of the two signals that Table 3 has."""
    for row in correlate(curve.samples).rows:
        if row.lag == 0 and row.signal.startswith("adam_variance"):
            yield {
                "lr": curve.run.rate,
                "seed": curve.run.seed,
                "signal": row.signal,
                "method": row.method,
                "pearson_r": row.pearson_r,
                "p_value": row.p_value,
                "n": row.n,
                "n_effective": row.n_effective,
                "p_value_adjusted": row.p_value_adjusted,
            }


def _to_the_best(groups: Groups, cost: Cost) -> Iterator[dict[str, Any]]:
    """Against the baseline of the same LR and seed, and against the best baseline of that seed at any LR."""
    baselines = {
        (c.run.rate, c.run.seed): c for (case, _), some in groups.items() if case == BASELINE.name for c in some
    }
    for (case, rate), curves in groups.items():
        row: dict[str, Any] = {
            "case": case,
            "lr": rate,
            "seeds": len(curves),
            "final": _median(c.final for c in curves),
            "best": _median(c.best for c in curves),
        }
        for name in ("own", "any"):
            pairs = []
            for curve in curves:
                theirs = [b for (r, s), b in baselines.items() if s == curve.run.seed and (name == "any" or r == rate)]
                pairs.append((curve, min(theirs, key=lambda b: _or_inf(b.best), default=None)))
            row |= {f"{name}_{key}": value for key, value in _reached(pairs, cost).items()}
        yield row


def _reached(pairs: Sequence[tuple[Curve, Curve | None]], cost: Cost) -> dict[str, Any]:
    """Medians over the seeds that got there, and over the same seeds how many times fewer it took than the baseline."""
    tokens, times, fewer, faster = [], [], [], []
    for curve, baseline in pairs:
        if baseline is None or math.isnan(baseline.best):
            continue
        theirs, ours = baseline.reached(baseline.best, cost), curve.reached(baseline.best, cost)
        if ours is None or theirs is None:
            continue
        tokens.append(ours.tokens)
        times.append(ours.time_s)
        fewer.append(theirs.tokens / ours.tokens)
        faster.append(theirs.time_s / ours.time_s)
    return {
        "reached": len(tokens),
        "tokens": _median(tokens),
        "time_s": _median(times),
        "times_fewer_tokens": _median(fewer),
        "times_faster": _median(faster),
    }


def _median(values: Iterable[float]) -> float | None:
    kept = list(values)
    return median(kept) if kept else None


def _or_inf(value: float) -> float:
    return math.inf if math.isnan(value) else value


def text(found: dict[str, Any]) -> str:
    """The three tables."""
    return "\n\n".join("\n".join(lines) for lines in (_table_1(found), _table_3(found), _table_of_the_best(found)))


def _table_1(found: dict[str, Any]) -> Iterator[str]:
    yield "Table 1: steps with a loss ratio above 1.2"
    yield "ratio: this step's loss / the smallest of all previous steps; by length: of those of the same length, as"
    yield "sentinel reads a run whose length changes. diverged: seeds whose loss stays above 1.2 x its minimum for 20"
    yield "steps on end. final: validation loss at the end, at full length, nats. largest lr: that any step had."
    yield (
        f"{'case':16}{'lr':>8}{'largest lr':>11}{'seeds':>6}{'over, by seed':>15}{'of steps':>10}{'share':>8}{'max':>7}"
        f"{'by length: over':>18}{'max':>7}{'diverged':>10}  final, by seed"
    )
    for row in found["table_1"]:
        largest, largest_by_length = max(row["max_ratio"]), max(row["max_ratio_by_length"])
        finals = _each(f"{value:.2f}" for value in row["final_validation_loss"])
        yield (
            f"{row['case']:16}{row['lr']:>8.5g}{row['largest_lr']:>11.3g}{len(row['seeds']):>6}"
            f"{_each(row['over']):>15}{median(row['steps']):>10.0f}"
            f"{row['share']:>8.1%}{largest:>7.2f}{_each(row['over_by_length']):>18}{largest_by_length:>7.2f}"
            f"{row['diverged']:>10}  {finals}"
        )


def _table_3(found: dict[str, Any]) -> Iterator[str]:
    yield "Table 3: Pearson's correlation of the loss ratio with Adam's variance, in each baseline, at lag 0"
    yield "plain: as the paper has it (0.23 with the norm, 0.26 with the max, p 0.0); its p is for independent samples,"
    yield "which the steps of a run are not. whitened: what of each series is not told by its own past. corrected: for"
    yield "its effective sample size and (Holm) for all signals and lags that were looked at; the p to believe."
    yield (
        f"{'lr':>9}{'seed':>6}  {'signal':20}{'n':>5}{'plain r':>9}{'p':>10}"
        f"{'whitened r':>12}{'p':>10}{'n eff.':>8}{'corrected p':>13}"
    )
    rows = {(r["lr"], r["seed"], r["signal"], r["method"]): r for r in found["table_3"]}
    for (lr, seed, signal, method), plain in rows.items():
        if method != "plain":
            continue
        white = rows[lr, seed, signal, "prewhitened"]
        yield (
            f"{lr:>9.5g}{seed:>6}  {signal:20}{plain['n']:>5}{plain['pearson_r']:>9.2f}{plain['p_value']:>10.2g}"
            f"{white['pearson_r']:>12.2f}{white['p_value']:>10.2g}{white['n_effective']:>8.0f}"
            f"{white['p_value_adjusted']:>13.2g}"
        )


def _table_of_the_best(found: dict[str, Any]) -> Iterator[str]:
    yield "Tokens and time to the baseline's best validation loss, at full length"
    yield "Medians over the seeds that got there. own: the baseline at the same LR and seed; any: the best baseline of"
    yield "that seed, whatever its LR. x: how many times fewer tokens, or less time, than that baseline needed."
    yield "time: each step at the median time of all steps of its length and batch, validations left out."
    columns = "".join(f"  {name:>5}{'tokens':>9}{'x':>6}{'time':>8}{'x':>6}" for name in ("own", "any"))
    yield f"{'case':16}{'lr':>8}{'final':>7}{'best':>7}{columns}"
    for row in found["to_the_baselines_best"]:
        line = f"{row['case']:16}{row['lr']:>8.5g}{row['final']:>7.2f}{row['best']:>7.2f}"
        yield line + "".join(_columns_of(row, name) for name in ("own", "any"))


def _columns_of(row: dict[str, Any], name: str) -> str:
    reached = f"  {row[name + '_reached']:>3}/{row['seeds']}"
    if not row[name + "_reached"]:
        return f"{reached}{'-':>9}{'-':>6}{'-':>8}{'-':>6}"
    tokens, time_s = row[name + "_tokens"], row[name + "_time_s"]
    fewer, faster = row[name + "_times_fewer_tokens"], row[name + "_times_faster"]
    return f"{reached}{tokens:>9.0f}{fewer:>6.2f}{time_s:>6.1f} s{faster:>6.2f}"


def _each(values: Iterable[object]) -> str:
    return " ".join(map(str, values))
