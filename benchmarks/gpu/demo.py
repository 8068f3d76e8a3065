"""`sentinel demo` on this device: a training that really diverges, watched, rolled back and restarted."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path

from .setting import Case, Row, Setting

__all__ = ["TITLE", "cases", "faults", "table"]

TITLE = "The demo"

QUICK_STEPS = 12


def cases(setting: Setting) -> Mapping[str, Case]:
    """One demo; in the shrunken form some steps of its training alone."""
    if setting.quick:
        return {f"{QUICK_STEPS} steps of the demo's training": partial(_some_steps, setting)}
    return {f"seed {seed}": partial(_demo, setting, seed) for seed in (0, 1)}


def _demo(setting: Setting, seed: int) -> Row:
    from sentinel.vocabulary.numbers import load_object

    output = _new(setting.folder / f"seed-{seed}")
    command = [sys.executable, "-m", "sentinel", "demo", "--seed", str(seed), "--output", str(output), "--json"]
    ran = _run(command, setting)
    if ran.returncode not in (0, 1):
        raise RuntimeError(f"sentinel demo ended with exit code {ran.returncode}: {ran.stderr[-500:]}")
    told = load_object(ran.stdout)
    return {
        **{key: told[key] for key in ("recovered", "wall_s", "final_validation_loss")},
        "attempts": [
            {key: attempt[key] for key in ("attempt", "mitigation", "first_step", "last_step", "verdict")}
            for attempt in told["attempts"]
        ],
    }


def _some_steps(setting: Setting) -> Row:
    from sentinel.adapters.journal import Journals
    from sentinel.demo.configuration import trainer_command
    from sentinel.vocabulary.sample import RunFinished, Sample

    folder = _new(setting.folder / "some-steps")
    began = time.monotonic()
    ran = _run([*trainer_command(folder, 0), "--steps", str(QUICK_STEPS), "--save-interval", "0"], setting)
    if ran.returncode:
        raise RuntimeError(f"the demo's trainer ended with exit code {ran.returncode}: {ran.stderr[-500:]}")
    records = Journals(folder / "state").poll()
    samples = [r for r in records if isinstance(r, Sample)]
    ended = [r.reason for r in records if isinstance(r, RunFinished)]
    return {
        "steps": len(samples),
        "first_loss": samples[0].loss,
        "last_loss": samples[-1].loss,
        "ended": ended,
        "wall_s": round(time.monotonic() - began, 1),
    }


def _run(command: list[str], setting: Setting) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, capture_output=True, text=True, timeout=max(10.0, setting.seconds_left()), check=False, env=os.environ
    )


def _new(folder: Path) -> Path:
    """A folder of that name that is not there yet: one of an earlier call that was cut short stays."""
    number = 1
    while (made := folder.with_name(f"{folder.name}-{number}")).exists():
        number += 1
    return made


def table(rows: Mapping[str, Row]) -> str:
    """A line for each attempt."""
    lines = []
    for case, row in rows.items():
        if "attempts" not in row:
            lines.append(
                f"{case}: {row['steps']} samples, loss {row['first_loss']:.3f} to {row['last_loss']:.3f}, "
                f"ended: {', '.join(row['ended'])}, {row['wall_s']:.0f} s"
            )
            continue
        outcome = "recovered" if row["recovered"] else "not recovered"
        loss = row["final_validation_loss"]
        shown = "none" if loss is None else f"{float(loss):.3f}"
        lines.append(f"{case}: {outcome}, {row['wall_s']:.0f} s, final validation loss {shown}")
        lines += [
            f"  attempt {a['attempt']}: steps {a['first_step']} to {a['last_step']}, {a['mitigation'] or 'as it is'}: "
            f"{a['verdict']}"
            for a in row["attempts"]
        ]
    return "\n".join(lines)


def faults(rows: Mapping[str, Row]) -> list[str]:
    """Demos that did not recover; trainings that did not come to their end."""
    found = [f"{case}: the run did not recover" for case, row in rows.items() if row.get("recovered") is False]
    return found + [
        f"{case}: {row['steps']} samples of {QUICK_STEPS} steps, ended: {row['ended']}"
        for case, row in rows.items()
        if "ended" in row and (row["steps"] != QUICK_STEPS or row["ended"] != ["finished"])
    ]
