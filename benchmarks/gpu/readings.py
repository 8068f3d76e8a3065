"""The hook's readings against float64, in real DeepSpeed: the tests' own reference, on this device.

fp16 begins with a loss scale of 65536 that doubles every second step, until steps overflow and it halves.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from .setting import Case, Row, Setting

__all__ = ["TITLE", "cases", "faults", "table"]

TITLE = "The hook's readings against float64"

STEPS, STEPS_FP16 = 5, 12
SCALE_POWER_FP16 = 16


def cases(setting: Setting) -> Mapping[str, Case]:
    """Every ZeRO stage in every precision, by torch's Adam; then the Adams that DeepSpeed compiles."""
    from tests.hooks.matrix import DTYPES, ZEROS
    from tests.hooks.matrix import Case as Combination

    from .process import join

    join(setting.device)
    kinds = [(zero, precision, "torch AdamW", 2) for zero in ZEROS for precision in DTYPES]
    if setting.quick:
        kinds = [kinds[0], ("1", "bf16", "torch AdamW", 1), ("2", "fp16", "torch AdamW", 2), kinds[-2]]
    elif setting.device == "cuda":
        kinds += [("0", "fp16", "FusedAdam", 2), ("1", "bf16", "FusedAdam", 2), ("3", "fp16", "FusedAdam", 2)]
        kinds += [("2 offload", "bf16", "DeepSpeedCPUAdam", 2)]
    combinations = [
        Combination(zero=zero, precision=precision, adam=adam, accumulation=accumulation)
        for zero, precision, adam, accumulation in kinds
    ]
    return {f"ZeRO {c.zero}, {c.precision}, {c.adam}": partial(_measured, setting, c) for c in combinations}


def _measured(setting: Setting, combination: object) -> Row:
    import tempfile
    from pathlib import Path

    from tests.hooks.matrix import LOOSER, TOLERANCE, RefusedError, run_case
    from tests.hooks.matrix import Case as Combination

    assert isinstance(combination, Combination)  # noqa: S101 - for mypy
    fp16 = combination.precision == "fp16"
    steps = STEPS_FP16 if fp16 else STEPS
    try:
        found = run_case(
            combination,
            Path(tempfile.mkdtemp(dir=setting.folder)),
            steps=steps,
            scale_power=SCALE_POWER_FP16,
        )
    except RefusedError as refusal:
        return {"refused": str(refusal)}
    over = {name: error for name, error in found["worst"].items() if not error < LOOSER.get(name, TOLERANCE)}
    return {**found, "steps": steps, "fp16": fp16, "over_tolerance": over}


def table(rows: Mapping[str, Row]) -> str:
    """A line for each combination."""
    names = ("loss", "adam_variance_l1", "adam_variance_max", "grad_norm", "update_norm")
    lines = ["The largest relative error over the steps (layers: l1 and max of each layer)"]
    lines.append(f"{'':38} {'samples':>8} {'skipped':>7} " + " ".join(f"{n:>17}" for n in (*names, "layers")))
    for case, row in rows.items():
        if row["refused"]:
            lines.append(f"{case:38} refused by DeepSpeed: {row['refused']}")
            continue
        worst = row["worst"]
        errors = [worst.get(name) for name in names]
        errors.append(max(worst.get("layer l1", 0.0), worst.get("layer max", 0.0)))
        shown = " ".join(f"{'not measured':>17}" if e is None else f"{e:17.0e}" for e in errors)
        lines.append(f"{case:38} {row['samples']:3d} of {row['steps']:2d} {row['skipped']:7d} {shown}")
    return "\n".join(lines)


def faults(rows: Mapping[str, Row]) -> list[str]:
    """Readings that are off, samples that are missing."""
    found = []
    for case, row in rows.items():
        if row["refused"]:
            continue
        off = ", ".join(f"{name} by {error:.1e}" for name, error in row["over_tolerance"].items())
        if off:
            found.append(f"{case}: relative error of {off}")
        if row["samples"] != row["steps"]:
            found.append(f"{case}: {row['samples']} samples of {row['steps']} steps")
        if row["errors"]:
            found.append(f"{case}: the hook counted {row['errors']} errors")
        if row["fp16"] and not row["skipped"]:
            found.append(f"{case}: no step overflowed, so an overflow's readings were not compared")
    return found
