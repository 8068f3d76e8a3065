"""Whether the demo's run diverges: its trainer, seed after seed, at three sets of vector instructions.

Rounding decides the path of a run that is about to diverge, and other vector instructions round differently. So the
demo's recipe is trained from each seed with the instructions that torch picks by itself, with AVX2 and with none
(ATEN_CPU_CAPABILITY, set for the trainer's process), as far as the verdict of the judge with its default settings.
--without-layernorms counts for the demo of that name; a file of --runs is of one of the two.
Each run that diverges ends at its verdict; what the demo does from there on is not run here. With --patience the judge
waits for fewer steps after the onset: less to train, and a loss that would come back later counts as diverged.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from datetime import date
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
os.environ.setdefault("DS_ACCELERATOR", "cpu")  # else DeepSpeed says on stdout, beside the JSON, that it found no other

import torch
import torch.distributed as dist

from sentinel.demo.configuration import WITH_LAYERNORMS, WITHOUT_LAYERNORMS, Recipe, trainer_command, write_data
from sentinel.judge.events import Event
from sentinel.judge.series import Series
from sentinel.judge.thresholds import Thresholds
from sentinel.vocabulary.numbers import dump_json
from sentinel.vocabulary.sample import Sample
from trainer_hooks.gpt.__main__ import be_a_launcher
from trainer_hooks.gpt.arguments import parse
from trainer_hooks.gpt.train import Trainer

ROOT = Path(__file__).resolve().parents[1]
CAPABILITIES = (None, "avx2", "default")
"""Values of ATEN_CPU_CAPABILITY; None leaves it to torch."""

LEAST_SHARE = 19 / 20
"""Of the seeds, for each capability."""


def main() -> int:
    """Exit code 0 where enough seeds diverge at every capability, else 1."""
    asked = _arguments()
    if asked.train is not None:
        _train(asked)
        return 0
    began = time.monotonic()
    if asked.quick:
        asked.seeds, asked.steps = 1, 30
    rows = [_row(capability, list(_runs(capability, asked, began))) for capability in CAPABILITIES]
    found = {"recipe": _recipe(asked.recipe), "rows": rows}
    shown = f"{_header(asked.recipe)}\n\n{_table(rows)}"
    if asked.results:
        asked.results.write_text(shown + "\n", encoding="utf-8")
    print(dump_json(found) if asked.as_json else shown)
    return 0 if asked.quick or all(row["diverged"] >= LEAST_SHARE * max(1, row["seeds"]) for row in rows) else 1


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one seed, 30 steps: a check of the program, no result")
    parser.add_argument("--json", action="store_true", dest="as_json", help="one JSON document on stdout")
    parser.add_argument("--seeds", type=int, default=20, help="how many, from 0")
    parser.add_argument("--steps", type=int, help="most steps of a run; default: the demo's")
    parser.add_argument("--without-layernorms", action="store_true", help="`sentinel demo --without-layernorms`")
    parser.add_argument("--patience", type=int, default=Thresholds().patience_steps, help="steps; default: the judge's")
    parser.add_argument("--minutes", type=float, default=math.inf, help="begin no run after these")
    parser.add_argument("--runs", type=Path, help="keep each run as a line of this file, and run none of them again")
    parser.add_argument("--results", type=Path, help="also write the table to this file")
    parser.add_argument("--train", type=int, nargs="+", metavar="SEED", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    asked.recipe = WITHOUT_LAYERNORMS if asked.without_layernorms else WITH_LAYERNORMS
    asked.steps = asked.steps or asked.recipe.steps
    return asked


def _runs(capability: str | None, asked: argparse.Namespace, began: float) -> Iterator[dict[str, Any]]:
    """One process for a capability: torch reads it once, at its start."""
    kept = asked.runs.read_text(encoding="utf-8").splitlines() if asked.runs and asked.runs.exists() else []
    done = [run for run in map(json.loads, kept) if run["asked"] == capability and run["seed"] < asked.seeds]
    yield from done
    missing = [seed for seed in range(asked.seeds) if seed not in {run["seed"] for run in done}]
    if not missing:
        return
    own = {"OMP_NUM_THREADS": "1"} | ({} if capability is None else {"ATEN_CPU_CAPABILITY": capability})
    minutes = asked.minutes - (time.monotonic() - began) / 60
    limits = [f"--steps={asked.steps}", f"--patience={asked.patience}", f"--minutes={minutes}"]
    limits += ["--without-layernorms"] * asked.without_layernorms
    command = [sys.executable, __file__, *limits, "--train", *map(str, missing)]
    environment = {name: value for name, value in os.environ.items() if name != "ATEN_CPU_CAPABILITY"} | own
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as worker:
        assert worker.stdout is not None  # noqa: S101 - for mypy: it is a pipe
        for line in worker.stdout:
            if line.startswith('{"seed"'):
                run = json.loads(line) | {"asked": capability}
                print(dump_json(run), file=sys.stderr, flush=True)
                if asked.runs:
                    with asked.runs.open("a", encoding="utf-8") as file:
                        file.write(dump_json(run) + "\n")
                yield run
    if worker.returncode:
        sys.exit(f"the trainer ended with exit code {worker.returncode}")


class Judged(Trainer):
    """The trainer, which stops as soon as the judge calls the run diverged."""

    def __init__(self, settings: argparse.Namespace, patience: int) -> None:
        self._series = Series(Thresholds(patience_steps=patience))
        self.verdict: Event | None = None
        """The first; a sample that comes after it changes nothing."""
        self.last: Sample | None = None
        super().__init__(settings)

    def _on_sample(self, sample: Sample) -> None:
        if self.verdict is not None:
            return
        self._series.push(sample)
        self.last, self.verdict = sample, self._series.alarm
        self.process.stop_asked = self.process.stop_asked or self.verdict is not None


def _train(asked: argparse.Namespace) -> None:
    """In a process of its own: a line of JSON for each seed."""
    patience, end = asked.patience, time.monotonic() + 60 * asked.minutes
    be_a_launcher()
    dist.init_process_group("gloo")
    for seed in asked.train:
        if time.monotonic() > end:
            break
        with tempfile.TemporaryDirectory(prefix="divergence-") as folder:
            write_data(Path(folder), asked.recipe)
            words = trainer_command(Path(folder), seed, asked.recipe)[3:]
            settings = parse([*words, "--save-interval=0", "--validate-every=0", *_decay(asked)])
            trainer = Judged(settings, patience)
            reason = trainer.train()
        alarm, last = trainer.verdict, trainer.last
        if alarm is None and reason != "finished":  # neither diverged nor trained to the end: it counts as no run
            print(f"seed {seed}: stopped before its verdict: {reason}", file=sys.stderr, flush=True)
            os._exit(1)
        print(
            dump_json(
                {
                    "seed": seed,
                    "patience": patience,
                    "capability": torch.backends.cpu.get_cpu_capability(),
                    "onset": list(alarm.onset_range) if alarm else None,
                    "verdict_step": last.global_step if alarm and last else None,
                    "last_step": last.global_step if last else None,
                    "last_loss": last.loss if last else None,
                }
            ),
            flush=True,
        )
    os._exit(0)  # see trainer_hooks.gpt.__main__.leave


def _decay(asked: argparse.Namespace) -> list[str]:
    """A run that is shorter than the demo's has the demo's LR all the same."""
    return [f"--steps={asked.steps}", f"--lr-decay={asked.recipe.steps}"]


def _row(capability: str | None, runs: Sequence[dict[str, Any]]) -> dict[str, Any]:
    ill = [run for run in runs if run["onset"] is not None]
    onsets = [run["onset"][0] for run in ill]
    return {
        "aten_cpu_capability": capability,
        "used": runs[0]["capability"] if runs else "-",
        "seeds": len(runs),
        "patience": sorted({run["patience"] for run in runs}),
        "diverged": len(ill),
        "not_diverged": [run["seed"] for run in runs if run["onset"] is None],
        "onset": {"least": min(onsets), "median": median(onsets), "largest": max(onsets)} if ill else None,
        "verdict_steps": [run["verdict_step"] for run in ill],
        "runs": list(runs),
    }


def _recipe(recipe: Recipe) -> str:
    words = trainer_command(Path(), 0, recipe)[3:]
    left_out = {"--seed", "--save", "--tensorboard", "--state-dir", "--run"}
    switches, words = words[: len(words) % 2], words[len(words) % 2 :]
    pairs = [f"{n} {v}" for n, v in zip(words[::2], words[1::2], strict=True) if n not in left_out]
    return " ".join([*switches, *pairs])


def _header(recipe: Recipe) -> str:
    """When, with what, on what, how it was called; no names of machines."""
    versions = f"Python {platform.python_version()}, torch {torch.__version__}, {os.cpu_count()} CPUs"
    judge = "diverged: the judge says so, with its default settings but for the patience (steps after the onset)"
    command = shlex.join(["python", "benchmarks/demo_divergence.py", *sys.argv[1:]])
    return f"{date.today().isoformat()}, {versions}\n{command}\n\n{_recipe(recipe)}\n{judge}"


def _table(rows: Sequence[dict[str, Any]]) -> str:
    heading = f"{'ATEN_CPU_CAPABILITY':21}{'used':9}{'patience':>9}{'diverged':>10}{'onset: least':>14}{'median':>8}"
    lines = [f"{heading}{'largest':>9}{'verdict: largest':>18}  seeds that did not diverge"]
    for row in rows:
        onset = row["onset"] or {"least": "-", "median": "-", "largest": "-"}
        share, patience = f"{row['diverged']}/{row['seeds']}", " ".join(map(str, row["patience"]))
        lines.append(
            f"{row['aten_cpu_capability'] or '(not set)':21}{row['used']:9}{patience:>9}{share:>10}{onset['least']:>14}"
            f"{onset['median']:>8}{onset['largest']:>9}{max(row['verdict_steps'], default='-'):>18}  "
            f"{' '.join(map(str, row['not_diverged'])) or 'none'}"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
