"""The files: one xz-compressed CSV per curve, INDEX.csv, and which curves are held back. Needs no torch."""

from __future__ import annotations

import csv
import hashlib
import io
import lzma
import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

__all__ = ["COLUMNS", "INDEX_COLUMNS", "REFERENCE_COLUMNS", "held_out", "read_curve", "read_index", "write_curve"]

COLUMNS = (
    *("step", "loss", "grad_norm", "lr", "loss_scale", "tokens", "extra"),
    *("adam_variance_l1", "adam_variance_max", "update_norm", "seqlen", "global_batch_samples", "skipped"),
    *("attempt", "epoch"),
)
REFERENCE_COLUMNS = ("reference_loss", "validation_loss")
"""What the labels were made from. A detector must not see them."""

INDEX_COLUMNS = (
    *("name", "label", "events", "repo", "path", "commit", "licence", "n_points", "first_step", "last_step"),
    *("log_interval", "has_grad_norm", "has_lr", "n_nonfinite_loss", "short", "confidence", "note"),
    *("cause", "seed", "held_out", "regime"),
)


def held_out(cause: str) -> bool:
    """Whether the curves of a cause are kept from every tuning: about a third are, by the cause's name alone."""
    return hashlib.sha256(cause.encode()).digest()[0] % 3 == 0


def write_curve(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """Six significant digits, four for what is not the loss; blank = not measured, nan = measured as nan."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow((*COLUMNS, *REFERENCE_COLUMNS))
    for row in rows:
        writer.writerow([_said(name, row.get(name)) for name in (*COLUMNS, *REFERENCE_COLUMNS)])
    beside = path.with_suffix(".new")
    beside.write_bytes(lzma.compress(text.getvalue().encode(), preset=9 | lzma.PRESET_EXTREME))
    beside.replace(path)


def read_curve(path: Path) -> dict[str, list[float | None]]:
    """Column -> values; None = not measured."""
    with lzma.open(path, "rt", encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    return {name: [float(row[name]) if row[name] else None for row in rows] for name in rows[0]}


def read_index(folder: Path) -> list[dict[str, str]]:
    """The rows of INDEX.csv."""
    with (folder / "INDEX.csv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def _said(name: str, value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, int):
        return str(value)
    if not math.isfinite(value):
        return repr(float(value))
    return f"{value:.6g}" if "loss" in name else f"{value:.4g}"
