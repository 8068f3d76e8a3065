"""Runs in the files that W&B's client writes where it has no server, for `wandb sync`."""

from __future__ import annotations

import importlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sentinel.adapters.wandb.settings import Drawing, Row
from sentinel.vocabulary.errors import ConfigError


def draw_offline(
    drawing: Drawing, rows: Sequence[Row], folder: Path, *, project: str | None, entity: str | None
) -> Path:
    """Writes a run into the client's folder of offline runs, for `wandb sync`; returns its own. Asks no server."""
    os.environ.setdefault("WANDB_SILENT", "true")
    try:
        library: Any = importlib.import_module("wandb")
    except ModuleNotFoundError as error:
        raise ConfigError(f"{error.name} is not installed; pip install 'training-sentinel[wandb]'") from error
    plain = {"x_disable_meta": True, "x_disable_stats": True, "x_disable_machine_info": True}
    run = library.init(
        mode="offline",
        entity=entity,
        project=project,
        id=drawing.id,
        name=drawing.name,
        notes=drawing.notes,
        tags=list(drawing.tags),
        config=dict(drawing.config),
        group=drawing.group,
        dir=str(folder.parent),
        settings=library.Settings(silent=True, console="off", disable_git=True, disable_code=True, **plain),
    )
    for row in rows:
        run.log({key: value for key, value in row.items() if key != "_step"}, step=int(row["_step"]))
    where = Path(run.settings.sync_dir)
    run.finish()
    return where
