"""The tables of Li, Zhang & He 2022, small: what keeps a GPT from diverging, and what only seems to.

By the reference trainer, a run after the other, all with the same training tokens. On a CPU: the tiny GPT without the
LayerNorms in its blocks, ten cases, at several LRs and seeds. With --device cuda: GPT-3 125M's shape in bf16, the LR
doubled until the baseline diverges, then SLW at that LR. The runs are kept in --folder: what is done is not run again.
What it shows and does not: docs/STABILITY.md.
"""

from __future__ import annotations

import argparse
import os
import platform
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch

from benchmarks.papers import cuda
from benchmarks.papers.cases import BASELINE, CASES, QUICK, SLW, TINY, Run, Task, plan
from benchmarks.papers.figure import draw
from benchmarks.papers.reading import Curve
from benchmarks.papers.running import Runs
from benchmarks.papers.tables import document, grouped, text
from benchmarks.papers.tokens import make_token_file
from sentinel.vocabulary.numbers import dump_json


def main() -> int:
    """Runs what is missing, reads all, prints."""
    asked = _arguments()
    with _folder(asked) as folder:
        made, task, missing = _performed(asked, folder)
        if not made:
            print("no run came to its end: see worker.log in the folder", file=sys.stderr)
            return 1
        groups = grouped(made)
        found = {"task": _told(task), "not_made": [str(run) for run in missing], **document(groups)}
        if asked.plot:
            runs = len({curve.run.name for curve in made})
            title = f"As Figure 4 of Li, Zhang & He 2022, small: {' '.join(task.words[:3])}, {runs} runs"
            draw(groups, asked.plot, title)
    shown = f"{_header(task)}\n\n{text(found)}\n\n{_said(found, task)}"
    if asked.results:
        asked.results.write_text(shown + "\n", encoding="utf-8")
    print(dump_json(found) if asked.as_json else shown)
    return 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="every case for a moment, one seed: it shows nothing")
    parser.add_argument("--json", action="store_true", dest="as_json", help="one JSON document on stdout")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--seeds", type=int, default=3, help="how many")
    parser.add_argument(
        "--cases", nargs="+", choices=[c.name for c in CASES], metavar="CASE", help="only these, on a CPU"
    )
    parser.add_argument("--minutes", type=float, help="begin no run after these; default 28, on CUDA 40")
    parser.add_argument("--folder", type=Path, help="of the runs; default .stability/DEVICE, with --quick a new one")
    parser.add_argument("--data", type=Path, help="with --device cuda: a token file; default: of Python's library")
    parser.add_argument("--seqlen", type=int, default=1024, help="with --device cuda: 1024 to 2048")
    parser.add_argument("--batch", type=int, default=128, help="with --device cuda: 128 to 256")
    parser.add_argument("--results", type=Path, help="also write the tables to this file")
    parser.add_argument("--plot", type=Path, help="draw Figure 4 to this file")
    return parser.parse_args()


@contextmanager
def _folder(asked: argparse.Namespace) -> Iterator[Path]:
    if asked.folder is None and asked.quick:
        with tempfile.TemporaryDirectory(prefix="stability-") as made:
            yield Path(made)
        return
    folder = (asked.folder or Path(".stability") / asked.device).resolve()
    folder.mkdir(parents=True, exist_ok=True)
    yield folder


def _performed(asked: argparse.Namespace, folder: Path) -> tuple[list[Curve], Task, list[Run]]:
    """The curves of all runs that are done, what they were of, and the runs that are not."""
    on_cuda = asked.device == "cuda"
    if on_cuda and not torch.cuda.is_available():
        sys.exit("--device cuda: torch sees no CUDA device here")
    runs = Runs(folder, minutes=asked.minutes or (40 if on_cuda else 28), say=_progress, one_each=on_cuda)
    if on_cuda:
        _progress("making a token file" if asked.data is None else f"training on {asked.data}")
        data = asked.data or make_token_file(folder / "library.bin")
        task = cuda.on(data.resolve(), seqlen=asked.seqlen, batch=asked.batch)
        wanted = cuda.search(task, runs, list(range(asked.seeds)), _progress)
    else:
        task = QUICK if asked.quick else TINY
        wanted = plan(task, range(1 if asked.quick else asked.seeds))
        wanted = [run for run in wanted if asked.cases is None or run.case in asked.cases]
        runs.perform(wanted)
    read = [(run, runs.records(run)) for run in wanted]
    made = [Curve.of(run, records) for run, records in read if records is not None]
    if on_cuda:
        task = replace(task, rates=tuple(sorted({run.rate for run in wanted})))
    return made, task, [run for run, records in read if records is None]


def _progress(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _told(task: Task) -> dict[str, Any]:
    return {
        "words": [word for word in task.words if not word.startswith("--data=")],
        "seqlen": task.seqlen,
        "batch": task.batch,
        "tokens": task.tokens,
        "lr_warmup_steps": task.lr_warmup,
        "slw": {"start": task.shortest, "steps": 4 * task.lr_warmup},
        "rates": task.rates,
    }


def _header(task: Task) -> str:
    """When, with what, on what; no names of machines."""
    where = torch.cuda.get_device_name() if torch.cuda.is_available() else "no accelerator"
    versions = f"Python {platform.python_version()}, torch {torch.__version__}, {os.cpu_count()} CPUs, {where}"
    cases = (f"  {case.name:17}{case.how}" for case in CASES)
    return "\n".join(
        (
            f"{date.today().isoformat()}, {versions}",
            f"{' '.join(_told(task)['words'])}: length {task.seqlen}, batch {task.batch}",
            f"{task.tokens} training tokens for every run that decays, {task.steps} steps of the baseline",
            f"LR warmup over {task.lr_warmup} steps, then a cosine over tokens down to 0",
            *cases,
        )
    )


def _said(found: dict[str, Any], task: Task) -> str:
    """What the numbers say, from the numbers alone."""
    highest = max(row["lr"] for row in found["table_1"])
    rows = {row["case"]: row for row in found["table_1"] if row["lr"] == highest}
    lines = [f"What this says, at lr {highest:g}"]
    for case, row in rows.items():
        seeds = len(row["seeds"])
        calm = sum(not over for over in row["over"])
        lines.append(f"  {case}: {calm} of {seeds} seeds without a step above 1.2, {row['diverged']} diverged")
    if {BASELINE.name, SLW.name} <= set(rows):
        lines.append(_of_slw(rows[BASELINE.name], rows[SLW.name]))
    lines += [_of_tokens(row) for row in found["to_the_baselines_best"] if row["case"] == SLW.name]
    lines += _CAVEATS
    if task.words == TINY.words:
        lines.append("  (Letters' frequencies alone give about 3.5 here.)")
    if missing := found["not_made"]:
        lines.append(f"  Not made, for want of time: {len(missing)} runs, of which {'; '.join(missing[:3])}")
    return "\n".join(lines)


_CAVEATS = (
    "  One machine, one small task, few seeds: after a first spike rounding decides the path. Only a large difference",
    "  between two cases means anything, and none of it says what a large model does. The ratio by length begins anew",
    "  with each length, and a loss that has stopped falling has a ratio near 1: see the final losses beside them.",
)


def _of_slw(baseline: dict[str, Any], slw: dict[str, Any]) -> str:
    if not any(baseline["over"]):
        return "  The baseline is stable here: nothing is shown about SLW's effect on stability."
    if not any(slw["over"]):
        return "  SLW alone took away every step above 1.2, as in the paper."
    cured = "SLW alone does not cure it here" if slw["diverged"] else "SLW alone keeps some spikes here, none lasts"
    return f"  {cured}: {slw['share']:.1%} of its steps are above 1.2, {baseline['share']:.1%} of the baseline's."


def _of_tokens(row: dict[str, Any]) -> str:
    got, seeds = row["own_reached"], row["seeds"]
    where = f"  SLW at lr {row['lr']:g} gets to its own baseline's best on {got} of {seeds} seeds"
    if not got:
        return where
    fewer, faster = row["own_times_fewer_tokens"], row["own_times_faster"]
    return f"{where}, with {fewer:.2f} x fewer tokens and in {faster:.2f} x less time (medians)"


if __name__ == "__main__":
    sys.exit(main())
