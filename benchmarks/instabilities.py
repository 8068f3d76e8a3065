"""Small GPTs that diverge as large ones do, and what each rung of the ladder does to each of them.

    python benchmarks/instabilities.py sweep [--task logits]     # peak LR x warmup x beta2: where it is healthy first
    python benchmarks/instabilities.py tune [--task logits]      # SLW's start and T, by sentinel's own search
    python benchmarks/instabilities.py run [--task logits] [--rungs "LR / 2" ...] [--seeds 10]
    python benchmarks/instabilities.py table [--task logits]     # of the runs that are in --folder
    python benchmarks/instabilities.py summary                   # each change on each task, as docs/STABILITY.md has it

All seeds of a rung are trained at once in one process, by the arithmetic of the reference trainer's model and of AdamW,
without DeepSpeed. Runs that are in --folder are not made again. The LR is held at its peak: a rung that only postpones
has as many steps there as the baseline. What was found: docs/STABILITY.md.
"""

from __future__ import annotations

import argparse
import math
import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import date
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(Path(__file__).resolve().parent))

import numpy as np
import torch

from benchmarks.batched.cases import RESTARTS, SCRATCH, TASKS, Rung, Task, text
from benchmarks.batched.intervals import of_share
from benchmarks.batched.outcomes import OVER, Group, first_lasting, save, verdict
from benchmarks.batched.training import Setting, State, Training
from sentinel.lab.tune.search import Pacing, ProbeSeen, Space, decide
from sentinel.vocabulary.pacing import FixedLinear

RESEED = 1000
"""Added to each run's seed, for the order of its data alone."""


# ---- runs


def perform(task: Task, rung: Rung, seeds: Sequence[int], folder: Path, draw: int = 1) -> None:
    """Trains all seeds of one rung, and saves their curves; of the baseline also its checkpoints."""
    path = _file(folder, task, rung)
    if path.exists():
        return
    began = time.monotonic()
    setting = rung.setting(task)
    training = _training(task, [setting] * len(seeds), seeds, draw)
    prior = np.full(len(seeds), math.inf)
    if rung.begins != "scratch":
        training.load(State.read(_checkpoint(folder, task, rung.begin(task))), reset_moments=rung.reset_moments)
        prior = _prior(folder, task, rung.begin(task))
    if rung.bound_logits is not None:
        training.bound_logits(rung.bound_logits)
    if rung.reseed:
        training.reseed(RESEED)
    if rung.name == "baseline":
        for at in range(task.save_every, task.steps, task.save_every):
            training.train(steps=at)
            training.state.save(_checkpoint(folder, task, at))
    training.train(tokens=rung.tokens(task))
    save(path, rung.name, seeds, task.setting.lr, prior, training.recorded)
    print(f"{task.name}: {rung.name}: {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)


def _training(task: Task, settings: Sequence[Setting], seeds: Sequence[int], draw: int = 1) -> Training:
    return Training(task.shape, text(task.corpus, task.shape.seqlen, draw), settings, seeds, batch=task.batch)


def _prior(folder: Path, task: Task, step: int) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    with np.load(_file(folder, task, SCRATCH["baseline"]), allow_pickle=False) as saved:
        before = saved["validated"] <= step
        found: np.ndarray[tuple[int], np.dtype[np.float64]] = saved["validation_loss"][before].min(axis=0)
        return found


def _file(folder: Path, task: Task, rung: Rung) -> Path:
    words = "".join(letter if letter.isalnum() else "-" for letter in rung.name)
    return folder / f"{task.name}-{words}.npz"


def _checkpoint(folder: Path, task: Task, step: int) -> Path:
    return folder / "checkpoints" / f"{task.name}-{step}.npz"


# ---- the table


def table(task: Task, folder: Path) -> Iterator[str]:
    """Every rung that has runs, against the baseline, or against the restart that changes nothing."""
    yield f"{date.today().isoformat()}, torch {torch.__version__}, {os.cpu_count()} CPUs; task {task.name}:"
    yield told(task)
    well = _file(folder, task, SCRATCH[task.healthy])
    if not well.exists():
        yield f"no run of {task.healthy!r} in the folder: run it first"
        return
    healthy = float(np.median(Group.read(well).best))
    yield f"failed: diverged (validation loss at full length above {OVER} x its smallest so far for 3 validations, 20"
    yield f"steps, on end), or never well (ends above {OVER} x {healthy:.2f}, the median best of: {task.healthy}); of"
    yield "seeds, with Wilson's 95 % interval. onset: median step over the seeds that diverged. at peak: steps at the"
    yield "task's peak LR. p fewer: McNemar, p later (onset): sign test, exact, paired by seed, against the block's"
    yield "first row. What it did is said within the row's own steps: a row held longer shows whether fewer fail then."
    yield (
        f"{'rung':27}{'largest LR':>11}{'steps':>6}{'at peak':>8}{'failed':>21}{'diverged':>9}{'onset':>6}"
        f"{'LR there':>9}{'best':>6}{'final':>6}{'att. logit':>11}{'p fewer':>8}{'p later':>8}  what it did"
    )
    for rungs, against in ((SCRATCH, "baseline"), (RESTARTS, "near: nothing changed")):
        compared = _file(folder, task, rungs[against])
        for rung in rungs.values() if compared.exists() else ():
            if (path := _file(folder, task, rung)).exists():
                yield _row(Group.read(path), Group.read(compared), healthy)


def told(task: Task) -> str:
    """A task in a line."""
    shape, s = task.shape, task.setting
    norm = "pre-LN" if shape.block_layernorm else "no LayerNorm in the blocks"
    padded = f", gradients x {s.padded_scale:g} up to step {s.padded_steps}" if s.padded_steps else ""
    return (
        f"{shape.layers} layers x {shape.width}, {shape.heads} heads, {norm}, {task.corpus}, {task.batch} x "
        f"{shape.seqlen} tokens, LR {s.lr:g} after {s.warmup} steps of warmup, held for {task.held}; AdamW "
        f"{s.beta1:g}/{s.beta2:g}, clip {s.clip:g}{padded}, SLW {task.slw[0]} over {task.slw[1]}; "
        f"checkpoints near {task.near}, earlier {task.earlier}"
    )


def _row(group: Group, baseline: Group, healthy: float) -> str:
    failed, seeds = sum(group.failed(healthy)), len(group.seeds)
    share, diverged = of_share(failed, seeds), [onset for onset in group.onsets if math.isfinite(onset)]
    onset = f"{np.median(diverged):.0f}" if diverged else "-"
    said = f"{failed}/{seeds} ({share.low:.2f} to {share.high:.2f})"
    line = (
        f"{group.name:27}{group.largest_lr:>11.3g}{group.steps:>6}{group.steps_at_peak:>8}{said:>21}{len(diverged):>9}"
        f"{onset:>6}{group.lr_at_onset:>9.3g}{np.median(group.best):>6.2f}{np.median(group.final):>6.2f}{group.attention_logit:>11.2g}"
    )
    if group.name == baseline.name:
        return line
    did, fewer, later = verdict(group, baseline, healthy)
    return f"{line}{fewer:>8.2g}{later:>8.2g}  {did}"


# ---- the summary


_LONGER = ", held longer"


def summary(folder: Path) -> Iterator[str]:
    """A Markdown table, one row for each rung, one column for each task: how many seeds fail, and what it did."""
    tasks = [task for task in TASKS.values() if _file(folder, task, SCRATCH["baseline"]).exists()]
    compared = 0
    found = 0
    yield f"| change | {' | '.join(task.name for task in tasks)} |"
    yield f"|{'---|' * (len(tasks) + 1)}"
    for rungs, against in ((SCRATCH, "baseline"), (RESTARTS, "near: nothing changed")):
        for name in rungs:
            if name.endswith(_LONGER):
                continue
            cells = [_cell(folder, task, rungs, name, against) for task in tasks]
            if any(cells):
                yield f"| {name} | {' | '.join(cell or '-' for cell in cells)} |"
            if name != against:
                compared += sum(cell != "" for cell in cells)
                found += sum("," in cell for cell in cells)
    yield ""
    yield f"{found} of {compared} comparisons show something: p < 0.05 in one of two tests: fewer fail, or later."
    yield f"Chance alone gives that in at most {2 * _SIZE:.1%} of them at ten pairs; nothing is corrected for"
    yield "their number."


_SIZE = 2 * (1 + 10) / 2**10
"""Share of a sign test's outcomes of ten pairs without a tie that have p < 0.05: nine or ten alike."""


def _cell(folder: Path, task: Task, rungs: Mapping[str, Rung], name: str, against: str) -> str:
    """Of the longest run that there is; before it, the baseline's steps, where they differ. Empty where none is."""
    versions = [rungs[each] for each in (name, name + _LONGER) if each in rungs]
    there = [path for rung in versions if (path := _file(folder, task, rung)).exists()]
    compared, well = _file(folder, task, rungs[against]), _file(folder, task, SCRATCH[task.healthy])
    if not (there and compared.exists() and well.exists()):
        return ""
    healthy = float(np.median(Group.read(well).best))
    groups = [Group.read(path) for path in there]
    counts = [f"{sum(group.failed(healthy))} of {len(group.seeds)}" for group in groups]
    said = counts[-1] if counts[0] == counts[-1] else f"{counts[0]}; held longer {counts[-1]}"
    did, _, _ = verdict(groups[-1], Group.read(compared), healthy)
    return said if did == "nothing shown" else f"{said}, {did}"


# ---- the sweep


def sweep(task: Task, rates: Sequence[float], warmups: Sequence[int], seeds: Sequence[int]) -> Iterator[str]:
    """Peak LR x warmup x beta2, each a few seeds: healthy first, and then?"""
    yield f"{told(task)}; LRs and seeds as below, {task.steps} steps"
    yield (
        f"{'LR':>7}{'warmup':>8}{'beta2':>7}{'diverged':>10}{'onset':>7}{'best':>6}{'final':>7}"
        f"{'attention logit: at best':>25}{'at the end':>11}{'output logit':>13}"
    )
    for rate in rates:
        settings = [
            replace(task.setting, lr=rate, warmup=warmup, beta2=beta2) for warmup in warmups for beta2 in (0.95, 0.999)
        ]
        training = _training(task, [s for s in settings for _ in seeds], [*seeds] * len(settings))
        made = training.train(steps=task.steps)
        losses, logits = made.of("validation_loss"), made.of("attention_logit")
        outputs = made.of("output_logit")
        for number, setting in enumerate(settings):
            runs = range(number * len(seeds), (number + 1) * len(seeds))
            places = [first_lasting(losses[:, run].tolist()) for run in runs]
            ill = [made.validated[place] for place in places if place is not None]
            at_best = np.median([logits[losses[:, run].argmin(), run] for run in runs])
            yield (
                f"{setting.lr:>7.3g}{setting.warmup:>8}{setting.beta2:>7}{f'{len(ill)}/{len(seeds)}':>10}"
                f"{np.median(ill) if ill else math.nan:>7.0f}{np.median(losses[:, runs].min(0)):>6.2f}"
                f"{np.median(losses[-1, runs]):>7.2f}{at_best:>25.3g}{np.median(logits[-1, runs]):>11.3g}"
                f"{np.median(outputs[-1, runs]):>13.3g}"
            )


# ---- SLW's start and T


def tune(task: Task, seed: int) -> Iterator[str]:
    """The paper's search by `sentinel tune slw`'s own deciding function, one seed, probes of this program."""
    warmup = task.setting.warmup
    starts = tuple(start for start in (8, 16, 32) if start < task.shape.seqlen)
    longer = {warmup * times for times in (8, 16, 32) if warmup * times <= task.steps}
    durations = tuple(sorted({max(1, int(warmup * share)) for share in (0.25, 0.5, 1, 1.5, 2, 3, 4)} | longer))
    space = Space(
        starts=starts, durations=durations, first_duration=warmup, beginning_steps=warmup // 2, horizon_steps=task.steps
    )
    seen: dict[Pacing, ProbeSeen] = {}
    while not (decision := decide(space, seen)).over:
        pacing = decision.probes[0]
        schedule = FixedLinear(start=pacing.start, full=task.shape.seqlen, total_steps=pacing.total_steps)
        made = _training(task, [replace(task.setting, seqlen=schedule)], [seed]).train(steps=space.horizon_steps)
        seen[pacing] = fluctuation(made.validated, made.of("validation_loss")[:, 0].tolist())
        yield f"{pacing}: {seen[pacing]}"
    yield f"chosen: {decision.chosen or 'nothing'}; {decision.reason}"


def fluctuation(validated: Sequence[int], losses: Sequence[float], over: float = 1.3) -> ProbeSeen:
    """As `sentinel tune slw` reads a probe: a perplexity above 1.3 x the best before it."""
    best = math.inf
    for step, loss in zip(validated, losses, strict=True):
        if not math.isfinite(loss) or loss > best + math.log(over):
            return ProbeSeen(fluctuated_at=step, calm_through=step)
        best = min(best, loss)
    return ProbeSeen(calm_through=validated[-1])


def main() -> None:
    """Runs, prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="?", default="table", choices=("sweep", "tune", "run", "table", "summary"))
    parser.add_argument("--task", choices=list(TASKS), default=next(iter(TASKS)))
    parser.add_argument("--rungs", nargs="+", choices=[*SCRATCH, *RESTARTS], metavar="RUNG", help="default: all")
    parser.add_argument("--rates", nargs="+", type=float, help="peak LRs of the sweep")
    parser.add_argument("--warmups", nargs="+", type=int, help="steps, of the sweep")
    parser.add_argument("--seeds", type=int, help="how many; default 10, in the sweep 2")
    parser.add_argument("--draw", type=int, default=1, help="of the data: 1 is the tasks' own, 2 is another")
    parser.add_argument("--folder", type=Path, default=Path(".instabilities"), help="of the runs")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    folder = asked.folder if asked.draw == 1 else asked.folder / f"draw-{asked.draw}"
    task, seeds = TASKS[asked.task], range(asked.seeds or (2 if asked.what == "sweep" else 10))
    if asked.what == "run":
        (folder / "checkpoints").mkdir(parents=True, exist_ok=True)
        for name, rung in {**SCRATCH, **RESTARTS}.items():
            if asked.rungs is None or name in asked.rungs:
                perform(task, rung, seeds, folder, asked.draw)
        return
    rates = asked.rates or [task.setting.lr * share for share in (0.25, 0.5, 1.0, 2.0)]
    warmups = asked.warmups or (max(1, task.setting.warmup // 4), task.setting.warmup)
    lines = {
        "sweep": lambda: sweep(task, rates, warmups, seeds),
        "tune": lambda: tune(task, 0),
        "table": lambda: table(task, folder),
        "summary": lambda: summary(folder),
    }
    for line in lines[asked.what]():
        print(line, flush=True)


if __name__ == "__main__":
    main()
