"""Five instabilities, unattended: from the divergence to a recovered run, or to a person, by several ladders.

    python benchmarks/ladders.py run --ladder default [--task logits ...] [--runs 1.0 1.1 1.2 2.0 2.1] [--folder DIR]
    python benchmarks/ladders.py table [--folder DIR]

Each run is the reference trainer on an instability of benchmarks/batched/cases.py, `sentinel watch` in mode act beside
it. A run is named DRAW.SEED, of the data and of the trainer; one that is in the folder is not made again. The LR is
held at its peak to the end.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(Path(__file__).resolve().parent))

import numpy as np

from benchmarks.batched.cases import TASKS, Task, text
from benchmarks.batched.intervals import of_share
from sentinel.adapters.incident_log import IncidentLog
from sentinel.adapters.journal import Journals
from sentinel.adapters.local import LocalJobs
from sentinel.config.toml import rung_text
from sentinel.plan.choose.ladder import DEFAULT_LADDER, Rung
from sentinel.plan.incident.events import fold
from sentinel.vocabulary.sample import Sample, Validation

TRAINER = Path(__file__).with_name("ladders_trainer.py")
HELD = {"logits": 400, "qknorm": 400, "early": 590, "tiny": 380, "stale": 650}  # steps at the peak LR
LONGEST_S = 900.0
FULL = 0.999  # of the peak LR: what counts as the whole of it

LR4 = Rung(name="LR / 4", hypothesis="the learning rate is higher than this model bears", lr_factor=0.25)
BEFORE = tuple(rung for rung in DEFAULT_LADDER if rung.instability is None)
LADDERS = {"default": DEFAULT_LADDER, "without diagnosis": BEFORE, "LR / 4": (LR4,)}

_TOML = """\
[run]
name = "{name}"
checkpoints = "checkpoints"
state_dir = "state"

[launcher]
kind = "local"
command = {command}
stop_grace_s = 20

[watch]
poll_interval_s = 0.4

[policy]
mode = "act"
max_starts_per_hour = 20

"""


def perform(task: Task, draw: int, seed: int, ladder: str, folder: Path) -> None:
    """One run, to its end or to where it waits for a person."""
    row = folder / f"{task.name}-{draw}.{seed}-{''.join(c if c.isalnum() else '-' for c in ladder)}.json"
    if row.exists():
        return
    began, here = time.monotonic(), folder / row.stem
    shutil.rmtree(here, ignore_errors=True)
    state = here / "state"
    state.mkdir(parents=True)
    corpus = text(task.corpus, task.shape.seqlen, draw)
    np.asarray(corpus.tokens).astype(np.uint16).tofile(here / "tokens.bin")
    command = _command(task, seed, corpus.vocabulary, here)
    rungs = "\n".join(map(rung_text, LADDERS[ladder]))
    (here / "run.toml").write_text(_TOML.format(name=row.stem, command=json.dumps(command)) + rungs)
    os.environ["OMP_NUM_THREADS"] = "1"
    jobs = LocalJobs(state)
    jobs.start(command, cwd=here, extra_env={"OMP_NUM_THREADS": "1"}, log_path=state / "job.log")
    watch = [sys.executable, "-m", "sentinel", "watch", "--run", str(here / "run.toml")]
    try:
        with (state / "watch.log").open("wb") as told:
            process = subprocess.Popen(watch, stdin=subprocess.DEVNULL, stdout=told, stderr=told)
            code = _await(process, state)
    finally:
        jobs.stop(grace_s=20)
    found = _read(task, state) | {"task": task.name, "draw": draw, "seed": seed, "ladder": ladder, "watch": code}
    row.write_text(json.dumps(found | {"seconds": round(time.monotonic() - began)}) + "\n")
    shutil.rmtree(here / "checkpoints", ignore_errors=True)
    print(_said(found), file=sys.stderr, flush=True)


def _command(task: Task, seed: int, vocabulary: int, here: Path) -> list[str]:
    s, steps = task.setting, task.setting.warmup + HELD[task.name]
    given = {
        "--seed": seed,
        "--data": here / "tokens.bin",
        "--vocabulary": vocabulary,
        "--global-batch": task.batch,
        "--lr": s.lr,
        "--lr-min": s.lr,
        "--lr-warmup": s.warmup,
        "--steps": steps,
        "--save-interval": 10,
        "--validate-every": 10,
        "--validation-batches": max(1, 16 // task.batch),
        "--save": here / "checkpoints",
        "--state-dir": here / "state",
        "--run": here.name,
    }
    return [sys.executable, str(TRAINER), task.name, "--", *(str(w) for pair in given.items() for w in pair)]


def _await(process: subprocess.Popen[bytes], state: Path) -> int | None:
    """The watch's exit code; None where it had to be ended: an incident waits for a person, or the time is over."""
    end = time.monotonic() + LONGEST_S
    while process.poll() is None and time.monotonic() < end:
        time.sleep(1.0)
        if any(i.status == "stopped" for i in _incidents(state)):
            break
    code = process.poll()
    process.terminate()
    process.wait(60)
    return code


def _incidents(state: Path) -> Sequence[Any]:
    return fold(IncidentLog(state / "incidents.jsonl").read())


def _read(task: Task, state: Path) -> dict[str, Any]:
    incidents, made = _incidents(state), list(Journals(state).poll())
    samples, peak = [r for r in made if isinstance(r, Sample)], task.setting.lr
    last = max((s.attempt for s in samples), default=0)
    own = [s for s in samples if s.attempt == last]
    losses = [r.loss for r in made if isinstance(r, Validation) and r.attempt == last]
    rollbacks = [r for i in incidents for r in i.rollbacks]
    return {
        "incidents": [
            {
                "onset": i.onset_range,
                "alarm": i.alarm_step,
                "outcome": i.outcome or i.status,
                "note": i.note,
                "reason": i.reason,
                "skips": [[s.rung, s.reason] for s in i.skips],
                "moved_first": i.moved_first.led_by if i.moved_first else None,
                "instability": i.leading.instability and i.leading.instability.sentence,
            }
            for i in incidents
        ],
        "rungs": [[r.rung, r.target_step, r.lost_steps, r.proof and r.proof.value, r.failed] for r in rollbacks],
        "lost": sum(r.lost_steps for r in rollbacks),
        "last_step": own[-1].global_step if own else 0,
        "steps": task.setting.warmup + HELD[task.name],
        "last_lr": own[-1].lr / peak if own and own[-1].lr is not None else None,
        "largest_lr": max((s.lr for s in own if s.lr is not None), default=0.0) / peak,
        "final": float(np.median(losses[-3:])) if losses else None,
        "best": min(losses, default=None),
    }


def _said(row: dict[str, Any]) -> str:
    outcomes = ", ".join(i["outcome"] for i in row["incidents"]) or "no incident"
    tried = "; ".join(f"{rung} from {target}" for rung, target, *_ in row["rungs"])
    final = "-" if row["final"] is None else f"{row['final']:.2f}"
    return (
        f"{row['task']} {row['draw']}.{row['seed']} {row['ladder']}: {outcomes}; {tried or 'nothing'}; lost "
        f"{row['lost']}; step {row['last_step']} of {row['steps']}, LR x {row['last_lr'] or 0:.2g}; validation {final}"
    )


def table(folder: Path) -> Iterator[str]:
    rows = [json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))]
    yield (
        f"{'ladder':18}{'task':8}{'runs':>5}{'diverged':>9}{'recovered':>10}{'at full LR':>11}{'lost':>6}"
        f"{'rollbacks':>10}{'final':>7}"
    )
    for ladder in LADDERS:
        for name in (*TASKS, ""):
            mine = [r for r in rows if r["ladder"] == ladder and name in ("", r["task"])]
            if mine:
                yield _row(ladder, name or "all", mine)
    yield ""
    for row in rows:
        yield _said(row)


def _row(ladder: str, name: str, rows: Sequence[dict[str, Any]]) -> str:
    ill = [r for r in rows if r["incidents"]]
    cured = [r for r in ill if recovered(r)]
    full = [r for r in cured if (r["last_lr"] or 0) >= FULL]
    finals = [r["final"] for r in cured if r["final"] is not None]
    share = of_share(len(cured), len(ill)) if name == "all" and ill else None
    said = f" ({share.low:.2f} to {share.high:.2f})" if share else ""
    return (
        f"{ladder:18}{name:8}{len(rows):>5}{len(ill):>9}{len(cured):>10}{len(full):>11}"
        f"{median([r['lost'] for r in ill]) if ill else 0:>6.0f}{sum(len(r['rungs']) for r in ill):>10}"
        f"{median(finals) if finals else float('nan'):>7.2f}{said}"
    )


def recovered(row: dict[str, Any]) -> bool:
    """Every incident was closed as recovered, or as held to the end, and the run came to its end."""
    outcomes = {incident["outcome"] for incident in row["incidents"]}
    return row["last_step"] >= row["steps"] and outcomes <= {"recovered", "held", "healed"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("run", "table"), nargs="?", default="table")
    parser.add_argument("--task", nargs="+", choices=list(TASKS), default=list(TASKS))
    parser.add_argument("--ladder", nargs="+", choices=list(LADDERS), default=list(LADDERS))
    parser.add_argument("--runs", nargs="+", default=["1.0", "1.1", "1.2", "2.0", "2.1"], metavar="DRAW.SEED")
    parser.add_argument("--folder", type=Path, default=Path(".ladders"))
    asked = parser.parse_args()
    if asked.what == "run":
        asked.folder.mkdir(parents=True, exist_ok=True)
        for named in asked.runs:
            draw, _, seed = named.partition(".")
            for ladder in asked.ladder:
                for name in asked.task:
                    perform(TASKS[name], int(draw), int(seed), ladder, asked.folder.resolve())
    for line in table(asked.folder):
        print(line)


if __name__ == "__main__":
    main()
