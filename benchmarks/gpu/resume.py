"""Whether a resumed training is the uninterrupted one, to the bit; and whether that one is itself, run again.

The reference trainer, with dropout and sequence length warmup: to the end, to the end again, and to the middle and on
from there. What the device does not repeat no resume can: so it is run as it is, and with torch's deterministic
algorithms.
"""

from __future__ import annotations

import os
import warnings
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from .case import Row, Setting

__all__ = ["compared", "faults", "told"]

_COMPARED = ("loss", "grad_norm", "adam_variance_l1", "loss_scale")


def compared(setting: Setting, precision: str, zero: int, deterministic: bool) -> Row:
    """One precision and ZeRO stage, as it is or with torch's deterministic algorithms."""
    import tempfile

    import torch

    from .process import join

    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # cuBLAS repeats itself only so
    join(setting.device)
    folder = Path(tempfile.mkdtemp(dir=setting.folder))
    middle = 4 if setting.quick else 10
    model = ("--preset", "tiny", "--seqlen", "32") if setting.quick else ("--preset", "117M", "--seqlen", "256")
    words = (
        *model,
        *("--precision", precision, "--zero", str(zero), "--global-batch", "8", "--dropout", "0.1", "--lr", "1e-3"),
        *("--lr-decay", str(2 * middle), "--seqlen-start", "16", "--seqlen-warmup-steps", str(middle + 2)),
        *("--save-interval", str(middle)),
    )
    with ExitStack() as stack:
        said = stack.enter_context(warnings.catch_warnings(record=True))
        warnings.simplefilter("always")
        if deterministic:
            torch.use_deterministic_algorithms(True, warn_only=True)
            stack.callback(torch.use_deterministic_algorithms, False)
        whole = _trained(folder / "whole", words, 2 * middle)
        again = _trained(folder / "again", words, 2 * middle)
        _trained(folder / "resumed", words, middle)
        resumed = _trained(folder / "resumed", words, 2 * middle)
    row = {
        "steps": len(whole),
        "resumed_from": middle,
        "repeat": _difference(whole, again),
        "resume": _difference(whole, resumed),
        "not_deterministic": sorted(
            {str(w.message).split(" does not have")[0][:80] for w in said if "deterministic" in str(w.message)}
        ),
    }
    return {**row, "wrong": faults(row)}


def _trained(folder: Path, words: tuple[str, ...], steps: int) -> dict[int, dict[str, Any]]:
    """{step: its readings}, of all attempts in that folder."""
    from sentinel.vocabulary.sample import Sample, decode
    from trainer_hooks.gpt.arguments import parse
    from trainer_hooks.gpt.train import Trainer

    where = ("--save", str(folder / "checkpoints"), "--state-dir", str(folder / "state"))
    Trainer(parse([*words, "--steps", str(steps), *where])).train()
    files = sorted((folder / "state").rglob("*.jsonl"))
    records = [decode(line) for file in files for line in file.read_text(encoding="utf-8").splitlines()]
    return {r.global_step: {key: getattr(r, key) for key in _COMPARED} for r in records if isinstance(r, Sample)}


def _difference(one: dict[int, dict[str, Any]], other: dict[int, dict[str, Any]]) -> Row:
    """The first step at which a reading differs, and the largest relative difference of the loss."""
    differing = [step for step in sorted(one) if one[step] != other.get(step)]
    losses = [(one[step]["loss"], other[step]["loss"]) for step in differing if step in other]
    return {
        "first_step": differing[0] if differing else None,
        "loss": max((abs(a - b) / abs(a) for a, b in losses), default=0.0),
        "missing": len(one) - len(other),
    }


def told(difference: Row) -> str:
    """As a phrase."""
    if difference["missing"]:
        return f"{difference['missing']} samples missing"
    if difference["first_step"] is None:
        return "the same to the bit"
    return f"from step {difference['first_step']} on, loss by {difference['loss']:.0e}"


def faults(row: Row) -> list[str]:
    """A training that repeats itself, and whose resume does not."""
    resumed = row["resume"]
    if row["repeat"]["first_step"] is None and (resumed["first_step"] or resumed["missing"]):
        return [f"resumed from step {row['resumed_from']}, {told(resumed)}; run again it is the same to the bit"]
    return []
