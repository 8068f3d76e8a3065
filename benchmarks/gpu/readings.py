"""The hook's readings against float64, in real DeepSpeed: the tests' own reference, on this device.

fp16 begins with a loss scale of 65536 that doubles every second step, until steps overflow and it halves.
"""

from __future__ import annotations

from .case import Row, Setting

__all__ = ["compared", "faults"]

STEPS, STEPS_FP16 = 5, 12
SCALE_POWER_FP16 = 16


def compared(setting: Setting, zero: str, precision: str, adam: str) -> Row:
    """The largest relative error of each reading over the steps; two micro-batches a step."""
    from tests.hooks.matrix import LOOSER, TOLERANCE, Case, RefusedError, run_case

    from .process import join

    join(setting.device)
    steps = STEPS_FP16 if precision == "fp16" else STEPS
    combination = Case(zero=zero, precision=precision, adam=adam, accumulation=2)
    try:
        found = run_case(combination, setting.folder / "state", steps=steps, scale_power=SCALE_POWER_FP16)
    except RefusedError as refusal:
        return {"not_run": f"refused by DeepSpeed: {refusal}"}
    del found["refused"], found["loss_scales"]
    over = {name: error for name, error in found["worst"].items() if not error < LOOSER.get(name, TOLERANCE)}
    row = {**found, "steps": steps, "over tolerance": over}
    return {**row, "wrong": faults(row, overflows=precision == "fp16")}


def faults(row: Row, *, overflows: bool) -> list[str]:
    """Readings that are off, samples that are missing."""
    found = [f"relative error of {name} by {error:.1e}" for name, error in row["over tolerance"].items()]
    if row["samples"] != row["steps"]:
        found.append(f"{row['samples']} samples of {row['steps']} steps")
    if row["errors"]:
        found.append(f"the hook counted {row['errors']} errors")
    if overflows and not row["skipped"]:
        found.append("no step overflowed, so an overflow's readings were not compared")
    return found
