"""Whether the curvature that Adam's update meets foretells a divergence: an experiment with an answer.

    python benchmarks/sharpness.py [--quick] [--json] [--folder FOLDER] [--minutes M] [--results FILE]

Theory (Adaptive Preconditioners Trigger Loss Spikes in Adam, arXiv:2506.04805): a spike begins when the preconditioned
curvature along the gradient passes its limit, 2 / LR where momentum is counted in (curvature/ratio.py has the formula).
First on Adam on 0.5 k x^2; then, each tenth step, on the five instabilities of instabilities.py and on a case of each
that stays healthy, two draws of the data: steps ahead of the onset that the judge dates, and warnings in healthy runs,
beside the judge's warnings of attention logits and of variance. Also the error of the measurement and its cost. Runs
that are in --folder are not made again; --minutes begins no run after these, and a later call goes on.

Rule, set before the runs: a signal of the product if it leads where logits and variance are silent, under 1 % of the
training. What was found: docs/STABILITY.md.
"""

from __future__ import annotations

import argparse
import math
import os
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.path[:0] = [str(Path(__file__).resolve().parent), str(Path(__file__).resolve().parents[1])]

import torch  # noqa: E402 - after the path is set

from benchmarks.batched.cases import TASKS, Task  # noqa: E402
from benchmarks.curvature.precision import errors  # noqa: E402
from benchmarks.curvature.quadratic import agreement  # noqa: E402
from benchmarks.curvature.runs import DRAWS, HEALTHY, path_of, perform, seen_in, training_of  # noqa: E402
from benchmarks.curvature.scoring import OTHERS, RULES, Seen, Tally, tally, tuned  # noqa: E402
from sentinel.vocabulary.numbers import dump_json  # noqa: E402

BASELINE = "baseline"
MEASURED_EVERY = (10, 50, 100)
"""Steps between two measurements that count, of those that were made at each tenth step."""


def main() -> int:
    asked = _arguments()
    torch.set_num_threads(1)
    asked.folder.mkdir(parents=True, exist_ok=True)
    tasks = [replace(TASKS["early"], held=50)] if asked.quick else list(TASKS.values())
    draws, seeds = (DRAWS[:1], 1) if asked.quick else (DRAWS, asked.seeds)
    _perform(tasks, draws, range(seeds), asked)
    found: dict[str, Any] = {
        "quadratic": [agreement(beta1, 20 if asked.quick else 100) for beta1 in (0.0, 0.9)],
        "precision": list(_precision(tasks)),
        "cost": _cost(tasks[0], 5 if asked.quick else 30),
    }
    ill, meant_healthy = (_seen(tasks, draws, asked.folder, well) for well in (False, True))
    healthy = [one for one in meant_healthy if one.onset is None]
    found["rules"] = [row for every in MEASURED_EVERY for row in _rules(ill, healthy, every)]
    found["tasks"] = [row for task in tasks for row in _of_task(task, ill, meant_healthy)]
    shown = "\n".join(_text(found))
    if asked.results:
        asked.results.write_text(shown + "\n", encoding="utf-8")
    print(dump_json(found) if asked.as_json else shown)
    return 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one short run of each: a check of the program, no result")
    parser.add_argument("--json", action="store_true", dest="as_json", help="one JSON document on stdout")
    parser.add_argument("--folder", type=Path, default=Path(".sharpness"), help="of the runs")
    parser.add_argument("--seeds", type=int, default=3, help="how many, from 0")
    parser.add_argument("--minutes", type=float, default=math.inf, help="begin no run after these")
    parser.add_argument("--results", type=Path, help="also write the tables to this file")
    return parser.parse_args()


def _perform(tasks: Sequence[Task], draws: Sequence[int], seeds: range, asked: argparse.Namespace) -> None:
    began = time.monotonic()
    for draw in draws:
        for well in (False, True):
            for task in tasks:
                if time.monotonic() - began < 60 * asked.minutes:
                    perform(task, HEALTHY[task.name] if well else BASELINE, draw, seeds, asked.folder)


def _seen(tasks: Sequence[Task], draws: Sequence[int], folder: Path, well: bool) -> list[Seen]:
    paths = [
        (path_of(folder, task, HEALTHY[task.name] if well else BASELINE, draw), task.name, draw)
        for task in tasks
        for draw in draws
    ]
    return [one for path, task, draw in paths if path.exists() for one in seen_in(path, task, draw)]


def _rules(ill: Sequence[Seen], healthy: Sequence[Seen], every: int) -> Iterator[dict[str, Any]]:
    """Each rule on both draws; the tuned ones with the limit of draw 1's healthy runs, on draw 2 alone."""
    names = RULES if every != MEASURED_EVERY[0] else (*OTHERS, *RULES)
    for rule in names:
        yield _row(tally(rule, ill, healthy, every=every), every, "both", "theory" if rule in RULES else "the judge's")
    if every != MEASURED_EVERY[0]:
        return
    first, second = DRAWS
    held = [[one for one in group if one.draw == second] for group in (ill, healthy)]
    for rule in RULES if all(held) else ():
        limit = tuned(rule, [one for one in healthy if one.draw == first])
        yield _row(tally(rule, *held, limit=limit), every, "2", "tuned on draw 1")


def _row(found: Tally, every: int, draws: str, limit: str) -> dict[str, Any]:
    return found.row() | {"every": every, "draws": draws, "limit_from": limit}


def _of_task(task: Task, ill: Sequence[Seen], meant_healthy: Sequence[Seen]) -> Iterator[dict[str, Any]]:
    mine, meant = ([one for one in group if one.task == task.name] for group in (ill, meant_healthy))
    well = [one for one in meant if one.onset is None]
    runs = {
        "runs": [{"draw": one.draw, "seed": one.seed, "onset": one.onset, "by_judge": one.by_judge} for one in mine],
        "healthy_runs": len(well),
        "not_healthy": len(meant) - len(well),
    }
    for rule in (*OTHERS, *RULES):
        yield {"task": task.name, **runs, **tally(rule, mine, well).row()}


def _precision(tasks: Sequence[Task]) -> Iterator[dict[str, Any]]:
    """At three places of the training of one small and one larger model, draw 1, two seeds."""
    for task in [one for one in tasks if one.name in ("early", "logits")]:
        training = training_of(task, BASELINE, 1, (0, 1))
        training.measures = False
        for step in (20, 50, 100):
            training.train(steps=step)
            yield {"task": task.name, "step": step, "relative_errors": errors(training)}


def _cost(task: Task, steps: int) -> dict[str, Any]:
    """CPU seconds of a step, and of one more gradient of the same batch, one seed; its share where it is made at each
    n-th step, and the smallest n with a share under 1 %."""
    training = training_of(task, BASELINE, 1, (0,))
    training.measures, training.validate_every = False, 10**9
    training.train(steps=2)
    took = time.process_time()
    training.train(steps=2 + steps)
    a_step = (time.process_time() - took) / steps
    took = time.process_time()
    with torch.no_grad():
        at = training.state.flat.clone()
        for _ in range(steps):
            training.gradient_at(at)
    one_more = (time.process_time() - took) / steps
    share = one_more / a_step
    return {"step_s": a_step, "gradient_s": one_more, "share_of_a_step": share, "least_every": math.ceil(100 * share)}


def _text(found: dict[str, Any]) -> Iterator[str]:
    yield "python benchmarks/sharpness.py"
    yield f"{date.today().isoformat()}, torch {torch.__version__}, {os.cpu_count()} CPUs, shared"
    yield ""
    yield "Adam on 0.5 k x^2, float64: the step at which the ratio passes 1, against that at which the spike begins"
    for row in found["quadratic"]:
        yield (
            f"beta1 {row['beta1']:g}: a spike in {row['with_spike']} of {row['draws']} draws, a ratio above 1 in "
            f"{row['predicted']}; within 2 steps {row['within_2']}, within 10 {row['within_10']}, median "
            f"{row['median_steps_off']:+g}"
        )
    yield ""
    yield "Difference of float32 gradients against double backward in float64: largest relative error of a ratio, two"
    yield "seeds, by the length of the difference as a share of the parameters' norm"
    for row in found["precision"]:
        said = ", ".join(f"{step}: {max(map(abs, off)):.1e}" for step, off in row["relative_errors"].items())
        yield f"{row['task']}, step {row['step']}: {said}"
    cost = found["cost"]
    yield ""
    yield (
        f"Cost: one more gradient takes {cost['share_of_a_step']:.2f} of a step whose batch is one micro-batch: "
        f"under 1 % of the training from each {cost['least_every']}th step on"
    )
    yield from _tables(found)


_COLUMNS = f"{'warned':>9}{'before onset':>14}{'median lead':>13}{'alone':>7}{'false':>7}{'in steps':>10}  per 10,000"


def _tables(found: dict[str, Any]) -> Iterator[str]:
    yield ""
    yield "warned: of all runs of the baseline; before onset: before it, of the runs that have one; median lead: of the"
    yield "first warning, steps; alone: none of the judge's own signals had warned by the onset; false: warnings in the"
    yield "runs that stay healthy, and per 10,000 steps with the 95 % interval"
    yield f"{'rule':33}{'every':>6}{'draws':>6}{'limit':>6}{_COLUMNS}"
    for row in found["rules"]:
        limit = f"{row['limit']:g}" if row["rule"] in RULES else "-"
        yield f"{row['rule']:33}{row['every']:>6}{row['draws']:>6}{limit:>6}{_counts(row)}"
    yield ""
    yield "By task, both draws, each tenth step, limit 1"
    yield f"{'task':9}{'rule':33}{_COLUMNS}"
    for row in found["tasks"]:
        yield f"{row['task']:9}{row['rule']:33}{_counts(row)}"
    yield ""
    for name, row in {row["task"]: row for row in found["tasks"]}.items():
        said = [f"{run['draw']}.{run['seed']} {_onset(run)}" for run in row["runs"]]
        yield f"{name}: {len(said)} runs (draw.seed onset; v: the validation loss's, where the judge gives none):"
        yield f"{'':9}{', '.join(said)}"
        left_out = f", {row['not_healthy']} that diverged all the same left out" if row["not_healthy"] else ""
        yield f"{'':9}healthy: {row['healthy_runs']} runs of {HEALTHY[name]!r}{left_out}"


def _onset(run: dict[str, Any]) -> str:
    return "-" if run["onset"] is None else f"{run['onset']}{'' if run['by_judge'] else 'v'}"


def _counts(row: dict[str, Any]) -> str:
    low, high = row["false_per_10000_95"]
    lead = "-" if row["median_lead_steps"] is None else f"{row['median_lead_steps']:g}"
    before, warned = f"{row['before_onset']} of {row['with_onset']}", f"{row['warned']} of {row['of_runs']}"
    return (
        f"{warned:>9}{before:>14}{lead:>13}{row['alone']:>7}{row['false']:>7}{row['healthy_steps']:>10}"
        f"  {row['false_per_10000']:.1f} ({low:.1f} to {high:.1f})"
    )


if __name__ == "__main__":
    sys.exit(main())
