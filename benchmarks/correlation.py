"""How often chance is called a correlation, and whether Adam's variance moves with the loss ratio at lag 0.

    python benchmarks/correlation.py chance [--pairs 1000]           # the table of independent series
    python benchmarks/correlation.py pooled .instabilities/*.npz     # lag 0, over runs of instabilities.py
    python benchmarks/correlation.py printed benchmarks/results/stability-DATE.txt  # the same of its Table 3

chance: share of pairs of unrelated series of 1000 steps that are called related at 5 %, with Wilson's 95 % interval.
plain: Pearson's p. lag 0: prewhitened, the one coefficient at lag 0. any lag: prewhitened, corrected (Holm) for all of
401 lags.

pooled: lag 0 is the question that Table 3 of Li, Zhang & He 2022 asked beforehand, so it is a family of its own: one
coefficient per run, no correction over lags. Fisher's z of each run's prewhitened coefficient, their mean over runs
with Student's 95 % interval, the runs as the independent units, and the two-sided p; by seed: first the mean over the
runs of a seed, where a seed has several. printed: the coefficients of the file, which have two decimals.
"""

from __future__ import annotations

import argparse
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy import stats
from scipy.signal import lfilter

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.batched.intervals import Interval, of_mean, of_share
from sentinel.judge.analysis.correlation.columns import ratios
from sentinel.judge.analysis.correlation.table import SIGNALS, correlations

N = 1000
Floats = NDArray[np.float64]


def _ar1(rng: np.random.Generator) -> Floats:
    found: Floats = lfilter([1], [1, -0.95], rng.standard_normal(N + 500))[500:]
    return found


SERIES: dict[str, Callable[[np.random.Generator], Floats]] = {
    "white noise": lambda rng: rng.standard_normal(N),
    "AR(1), phi = 0.95": _ar1,
    "random walks": lambda rng: np.cumsum(rng.standard_normal(N)),
    "straight trends": lambda rng: np.linspace(0, 20, N) + rng.standard_normal(N),
    "falling like a loss": lambda rng: 20 * np.exp(-np.arange(N) / 200) + rng.standard_normal(N),
    "noise that shrinks": lambda rng: rng.standard_normal(N) * np.exp(-3 * np.arange(N) / N),
}


def chance(pairs: int) -> Iterator[str]:
    """A row per kind of series."""
    yield f"{'independent series':22}{'plain, p < 0.05':>24}{'lag 0':>24}{'any lag':>24}   n = {pairs} pairs each"
    for kind, drawn in SERIES.items():
        called = np.zeros(3, dtype=int)
        for seed in range(pairs):
            rng = np.random.default_rng(seed)
            columns = {"loss_ratio": drawn(rng), "grad_norm": drawn(rng)}
            found = correlations(columns, np.arange(N), always=())
            plain, at_zero = found.rows[0], found.rows[1]
            lagged = found.profiles[0].p_adjusted
            called += [plain.p_value < 0.05, at_zero.p_value < 0.05, bool((lagged < 0.05).any())]
        yield f"{kind:22}" + "".join(f"{_percent(of_share(int(c), pairs)):>24}" for c in called)


def _percent(found: Interval) -> str:
    return f"{found.value:.1%} ({found.low:.1%} to {found.high:.1%})"


def coefficients(file: Path) -> Iterator[tuple[int, str, float, float]]:
    """(seed, signal, plain r, prewhitened r) at lag 0 of each run in the file; the runs were never restarted."""
    with np.load(file, allow_pickle=False) as saved:
        loss, seeds = saved["loss"], saved["seeds"].tolist()
        for run, seed in enumerate(seeds):
            steps = np.arange(1, len(loss) + 1)
            columns = {name: saved[name][:, run] for name in SIGNALS}
            columns["loss_ratio"] = ratios(steps, loss[:, run])
            rows = {(row.signal, row.method): row for row in correlations(columns, steps).rows if row.lag == 0}
            for signal in SIGNALS:
                yield seed, signal, rows[signal, "plain"].pearson_r, rows[signal, "prewhitened"].pearson_r


def pooled(r: Sequence[float]) -> tuple[Interval, float]:
    """The mean coefficient by Fisher's z, its 95 % interval over runs, and the two-sided p of Student's t."""
    z = np.arctanh(np.asarray(r))
    return of_mean(z).through(np.tanh), float(stats.ttest_1samp(z, 0.0).pvalue)


def over_runs(files: Sequence[Path]) -> Iterator[str]:
    """A row per file and signal, then all files together, by run and by seed."""
    yield f"{'runs':34}{'signal':20}{'n':>4}{'plain r':>9}{'lag 0, prewhitened r':>28}{'p':>10}"
    everything: dict[str, list[tuple[int, float, float]]] = defaultdict(list)
    for file in files:
        of_file: dict[str, list[tuple[int, float, float]]] = defaultdict(list)
        for seed, signal, plain, white in coefficients(file):
            of_file[signal].append((seed, plain, white))
            everything[signal].append((seed, plain, white))
        yield from _rows(file.stem, of_file)
    if len(files) > 1:
        yield from _rows("all, by run", everything)
        yield from _rows("all, by seed", {name: _by_seed(found) for name, found in everything.items()})


def printed(file: Path) -> Iterator[str]:
    """The rows of a Table 3 that benchmarks/stability.py has printed: lr, seed, signal, n, plain r, p, whitened r, …"""
    yield f"{'runs':34}{'signal':20}{'n':>4}{'plain r':>9}{'lag 0, prewhitened r':>28}{'p':>10}"
    found: dict[str, list[tuple[int, float, float]]] = {signal: [] for signal in SIGNALS}
    for words in map(str.split, file.read_text(encoding="utf-8").splitlines()):
        if len(words) == 10 and words[2] in SIGNALS:
            found[words[2]].append((int(words[1]), float(words[4]), float(words[6])))
    yield from _rows("all, by run", found)
    yield from _rows("all, by seed", {name: _by_seed(rows) for name, rows in found.items()})


def _by_seed(found: Sequence[tuple[int, float, float]]) -> list[tuple[int, float, float]]:
    seeds = sorted({seed for seed, *_ in found})
    means = [np.mean([row[1:] for row in found if row[0] == seed], axis=0) for seed in seeds]
    return [(seed, *mean) for seed, mean in zip(seeds, means, strict=True)]


def _rows(name: str, found: Mapping[str, Sequence[tuple[int, float, float]]]) -> Iterator[str]:
    for signal, rows in found.items():
        finite = [(plain, white) for _, plain, white in rows if np.isfinite([plain, white]).all()]
        if len(finite) < 2:
            continue
        mean, p = pooled([white for _, white in finite])
        said = f"{mean.value:.2f} ({mean.low:.2f} to {mean.high:.2f})"
        plain = float(np.mean([plain for plain, _ in finite]))
        yield f"{name:34}{signal:20}{len(finite):>4}{plain:>9.2f}{said:>28}{p:>10.2g}"


def main() -> None:
    """Computes and prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.set_defaults(table="chance", pairs=1000)
    table = parser.add_subparsers()
    by_chance, of_runs, of_text = (table.add_parser(name) for name in ("chance", "pooled", "printed"))
    by_chance.add_argument("--pairs", type=int, default=1000, help="of each kind of series")
    of_runs.add_argument("files", type=Path, nargs="+", help="of benchmarks/instabilities.py")
    of_runs.set_defaults(table="pooled")
    of_text.add_argument("file", type=Path, help="a result of benchmarks/stability.py")
    of_text.set_defaults(table="printed")
    asked = parser.parse_args()
    lines = {
        "chance": lambda: chance(asked.pairs),
        "pooled": lambda: over_runs(asked.files),
        "printed": lambda: printed(asked.file),
    }
    for line in lines[asked.table]():
        print(line, flush=True)


if __name__ == "__main__":
    main()
