"""GPT-3 125M's shape in bf16: the LR at which it diverges, and what keeps it from that, on three seeds.

Short trainings of benchmarks/papers, as many as the minutes allow; `benchmarks/stability.py --device cuda` has longer
ones.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from functools import partial
from typing import Any

from .setting import UNFINISHED, Case, Row, Setting

__all__ = ["TITLE", "cases", "faults", "table"]

TITLE = "The LR at which GPT-3 125M's shape diverges"

SEEDS = 3
BEGIN_RATE = 2.4e-3
"""Four times GPT-3's own: below it nothing is expected to diverge, and the minutes are few."""


def cases(setting: Setting) -> Mapping[str, Case]:
    """One search; its trainings are kept each by itself."""
    return {"search": partial(_searched, setting)}


def _searched(setting: Setting) -> Row:
    from dataclasses import replace

    from benchmarks.papers import cuda
    from benchmarks.papers.cases import BASELINE, LONG_LR_WARMUP, QUICK, SLW
    from benchmarks.papers.reading import Curve
    from benchmarks.papers.running import Runs
    from benchmarks.papers.tables import document, grouped
    from benchmarks.papers.tokens import make_token_file

    runs = Runs(setting.folder, minutes=setting.seconds_left() / 60, say=_say, to_the_end=True)
    if setting.quick:
        task, largest = replace(QUICK, rates=(7.5e-3,)), 7.5e-3
    else:
        data = make_token_file(setting.folder / "library.bin").resolve()
        short = replace(cuda.GPT3_125M, steps=100, batch=64, lr_warmup=10, validate_every=20, rates=(BEGIN_RATE,))
        task, largest = replace(short, words=(*short.words, f"--data={data}")), cuda.LARGEST_RATE
    seeds = list(range(1 if setting.quick else SEEDS))
    wanted = cuda.search(task, runs, seeds, _say, cases=(BASELINE, SLW, LONG_LR_WARMUP), largest=largest)
    read = [(run, runs.records(run)) for run in wanted]
    made = [Curve.of(run, records) for run, records in read if records is not None]
    found = document(grouped(made)) if made else {"table_1": [], "to_the_baselines_best": []}
    row: dict[str, Any] = {
        "shape": " ".join(word for word in task.words if not word.startswith("--data=")),
        "seqlen": task.seqlen,
        "batch": task.batch,
        "steps": task.steps,
        "lr_warmup_steps": task.lr_warmup,
        "runs": len(made),
        "table_1": found["table_1"],
        "to_the_baselines_best": found["to_the_baselines_best"],
    }
    not_made = [str(run) for run, records in read if records is None]
    if not_made or len({run.case for run in wanted}) < 3:
        row[UNFINISHED] = f"trainings not made, the first of them: {(not_made or ['after the search'])[0]}"
    return row


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def table(rows: Mapping[str, Row]) -> str:
    """As Table 1 of Li, Zhang & He 2022: a line for each case at each LR."""
    lines = []
    for row in rows.values():
        task = f"{row['shape']}: length {row['seqlen']}, batch {row['batch']}, {row['steps']} steps of the baseline"
        lines += [
            f"{task}, LR warmup {row['lr_warmup_steps']} steps, {row['runs']} trainings",
            f"{'lr':>9} {'':14} {'seeds':>5} {'diverged':>8} {'steps above 1.2':>22} {'largest':>8}  final losses",
            *map(_line, row["table_1"]),
            *(
                _to_the_best(of)
                for of in row["to_the_baselines_best"]
                if of["own_reached"] and of["case"] != "baseline"
            ),
        ]
    return "\n".join(lines)


def _line(of: Row) -> str:
    over = ", ".join(f"{n}" for n in of["over"]) + f" of {of['steps'][0]}"
    final = " ".join(f"{float(loss):.2f}" for loss in of["final_validation_loss"])
    largest = max(float(ratio) for ratio in of["max_ratio"])
    counts = f"{len(of['seeds']):5d} {of['diverged']:8d} {over:>22} {largest:8.2f}"
    return f"{of['lr']:9.2e} {of['case']:14} {counts}  {final}"


def _to_the_best(of: Row) -> str:
    gain = f"{of['own_times_fewer_tokens']:.2f} x fewer tokens, {of['own_times_faster']:.2f} x less time"
    return f"{of['lr']:9.2e} {of['case']:14} its baseline's best on {of['own_reached']} of {of['seeds']} seeds: {gain}"


def faults(rows: Mapping[str, Row]) -> list[str]:
    """A search that trained nothing. What diverges and what does not is a finding, not a fault."""
    return [f"{case}: no training came to its end" for case, row in rows.items() if not row["runs"]]
