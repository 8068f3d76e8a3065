"""How far ahead of a divergence the early warning comes, of what, and how often for nothing.

On the recorded curves, and on new seeds of their recipes: `--make FOLDER` trains those first (a quarter of an hour on
two cores), `--runs FOLDER` reads them. The split is by cause: benchmarks/SPLIT.md. A warning is ahead of the onset that
hindsight sees (the label's), or of the verdict that the judge gives live. Beside the detector: simpler rules, each with
the lowest threshold that warns falsely at most once in 10,000 healthy steps of the tuning part. The curves of public
runs are a part of their own. Of each part: false warnings in 10,000 healthy steps, and the share of the warned runs
whose onset was still to come, both with their 95 % intervals (Clopper & Pearson).

`--instabilities FOLDER`: instead, on runs that benchmarks/instabilities.py has left there, with the largest attention
logit and without it.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import statistics
import sys
from collections.abc import Sequence
from datetime import date
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

from early.grown_logits import table as grown_logits  # noqa: E402 - after the path is set
from early.scoring import AHEAD_STEPS, LOGITS_ALONE, Seen, Tally, read_public, read_runs, seen, tally  # noqa: E402 - after the path is set
from scipy.stats import beta  # noqa: E402

from sentinel.vocabulary.numbers import dump_json  # noqa: E402

PER_STEPS = 10_000
PARTS = (("tuning", False), ("held out", True))
PUBLIC = "public"


def main() -> int:
    asked = _arguments()
    if asked.instabilities is not None:
        print("\n".join(grown_logits(asked.instabilities)))
        return 0
    if asked.make is not None:
        _make(asked.make)
    runs = read_runs(HERE / "recorded", asked.make or asked.runs)
    public = read_public(HERE / "public")
    if asked.quick:
        runs, public = runs[::10], public[::10]
    all_seen = [seen(run) for run in runs]
    found = {part: _of_part([s for s in all_seen if s.run.held_out == held], all_seen) for part, held in PARTS}
    found[PUBLIC] = _of_part([seen(run) for run in public], all_seen)
    shown = _text(found, len(runs), sum(s.run.curve.folder != "recorded" for s in all_seen))
    if asked.results:
        asked.results.write_text(shown + "\n", encoding="utf-8")
    print(dump_json({part: [_row(t) for t in tallies] for part, tallies in found.items()}) if asked.as_json else shown)
    return 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--make", type=Path, metavar="FOLDER", help="train the new runs that are not there yet")
    parser.add_argument("--runs", type=Path, metavar="FOLDER", help="new runs that were trained before")
    parser.add_argument("--instabilities", type=Path, metavar="FOLDER", help="runs of benchmarks/instabilities.py")
    parser.add_argument("--quick", action="store_true", help="every tenth run")
    parser.add_argument("--json", action="store_true", dest="as_json", help="one JSON document on stdout")
    parser.add_argument("--results", type=Path, help="also write the tables to this file")
    return parser.parse_args()


def _make(folder: Path) -> None:
    from early.making import main as make

    workers = [multiprocessing.Process(target=make, args=(folder, share, 2)) for share in range(2)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()


def _of_part(part: Sequence[Seen], everything: Sequence[Seen]) -> list[Tally]:
    tuning = [s for s in everything if not s.run.held_out]
    rules = list(part[0].scores) if part else []
    ours = [tally("early warning", part), tally(LOGITS_ALONE, part)]
    return [*ours, *(tally(rule, part, _threshold(rule, tuning)) for rule in rules)]


def _threshold(rule: str, tuning: Sequence[Seen]) -> float:
    """The lowest, in steps of a tenth, that warns falsely at most once in PER_STEPS healthy steps."""
    low, high = 0, 1000
    while low < high:
        middle = (low + high) // 2
        found = tally(rule, tuning, middle / 10)
        enough = len(found.false) * PER_STEPS <= found.healthy_steps
        low, high = (low, middle) if enough else (middle + 1, high)
    return low / 10


def _row(found: Tally) -> dict[str, Any]:
    row: dict[str, Any] = {"rule": found.rule, "healthy_steps": found.healthy_steps, "false": len(found.false)}
    row["false_per_10000"] = PER_STEPS * len(found.false) / max(1, found.healthy_steps)
    row["false_per_10000_95"] = [PER_STEPS * share for share in _clopper_pearson(len(found.false), found.healthy_steps)]
    right = sum(lead is not None and lead >= 0 for _, lead, _ in found.leads)
    row["precision"] = {"right": right, "warned": right + len(found.false)}
    row["precision_95"] = _clopper_pearson(right, right + len(found.false))
    for name, causes in _groups(found).items():
        before_onset, n = found.ahead("onset", causes)
        row[name] = {"n": n, "before_onset": before_onset, "before_verdict": found.ahead("verdict", causes)[0]}
    return row


def _clopper_pearson(hits: int, of: int) -> tuple[float, float]:
    """The 95 % interval of a share."""
    low = 0.0 if hits == 0 else float(beta.ppf(0.025, hits, of - hits + 1))
    return low, 1.0 if hits == of else float(beta.ppf(0.975, hits + 1, of - hits))


def _groups(found: Tally) -> dict[str, list[str]]:
    families = {one.run.curve.family: one.run.growing for one, _, _ in found.leads}
    return {
        "growing": [family for family, grows in families.items() if grows],
        "sudden": [family for family, grows in families.items() if not grows],
    }


def _text(found: dict[str, list[Tally]], runs: int, new: int) -> str:
    lines = [f"{date.today().isoformat()}, {runs} runs, of which {new} are new seeds", ""]
    lines += [f"Warned of at least {AHEAD_STEPS} steps ahead. False: warnings per {PER_STEPS:,} healthy steps.", ""]
    for part, tallies in found.items():
        if tallies:
            lines += [*_rules(part, tallies), "", *_causes(part, tallies[0]), ""]
    return "\n".join(lines).rstrip()


def _rules(part: str, tallies: Sequence[Tally]) -> list[str]:
    head = f"{part:33}{'growing causes':>20}{'sudden causes':>24}{'false':>12}{'n':>4}"
    lines = [head, f"{'':33}{'onset':>9}{'verdict':>12}{'onset':>12}{'verdict':>12}"]
    both = ("before_onset", "before_verdict")
    for found in tallies:
        row = _row(found)
        cells = "".join(f"{row[g][k]:>6} of {row[g]['n']:<2}" for g in ("growing", "sudden") for k in both)
        lines.append(f"{found.rule:33}{cells}{row['false_per_10000']:>8.2f}{row['false']:>4}")
    for found in tallies[:2]:
        row = _row(found)
        (least, most), (low, high) = row["false_per_10000_95"], row["precision_95"]
        right, warned = row["precision"]["right"], row["precision"]["warned"]
        lines.append(
            f"{found.rule}: false {least:.2f} to {most:.2f} in {PER_STEPS:,}; before the onset {right} of {warned}"
            f" warned ({100 * low:.0f} to {100 * high:.0f} %)"
        )
    return [*lines, f"{tallies[0].healthy_steps:,} healthy steps"]


def _causes(part: str, found: Tally) -> list[str]:
    head = f"{'early warning, ' + part:33}{'n':>4}{'onset':>8}{'verdict':>9}{'any':>6}"
    lines = [f"{head}  median lead to onset, to verdict"]
    for family in sorted({one.run.curve.family for one, _, _ in found.leads}):
        leads = [lead for lead in found.leads if lead[0].run.curve.family == family]
        warned = [lead for lead in leads if lead[1] is not None]
        leads_of = [[lead[k] or 0 for lead in warned] for k in (1, 2)]
        medians = ", ".join(f"{statistics.median(of):.0f}" for of in leads_of if of) or "-"
        onset, verdict = (found.ahead(of, [family])[0] for of in ("onset", "verdict"))
        lines.append(f"{family:33}{len(leads):>4}{onset:>8}{verdict:>9}{len(warned):>6}  {medians}")
    said = ", ".join(f"{name} at {step}" for name, step in found.false)
    return [*lines, f"False: {said or 'none'}"]


if __name__ == "__main__":
    sys.exit(main())
