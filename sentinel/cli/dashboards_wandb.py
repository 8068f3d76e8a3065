"""`dashboards push --wandb`: incidents drawn over the trainer's loss in W&B, each as a run of its own."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from sentinel.adapters.wandb import WandbRun
from sentinel.cli.output import print_outcomes
from sentinel.config import Config
from sentinel.daemon.run_files import incident_log_of
from sentinel.plan.wandb_overlays import Overlay, overlays
from sentinel.sources.column_names import no_loss, resolve
from sentinel.sources.wandb_runs import project_of
from sentinel.vocabulary.errors import ConfigError

if TYPE_CHECKING:  # its library is optional
    from sentinel.adapters.wandb import Drawing, Row, Wandb

__all__ = ["push_incidents"]

_CLOCKS_S = 60.0
"""Seconds by which the trainer's clock may be ahead of the daemon's."""


def push_incidents(config: Config, *, as_json: bool) -> int:
    """Draws each incident as a W&B run of its own over the trainer's loss; a second push adds nothing."""
    of = config.wandb
    if of.entity is None or of.project is None:
        raise ConfigError(f"no W&B project is named for {config.run.name}; set [wandb] entity and project")
    outcomes: list[tuple[str, str, str]] = []
    wanted = overlays(config.run.name, incident_log_of(config).read())
    if wanted:
        there = project_of(of)
        runs = [of.run_id] if of.run_id is not None else there.called(config.run.name)
        if not runs:
            raise ConfigError(f"{there.path} has no run called {config.run.name!r}; set [wandb] run_id")
        outcomes = [("run", overlay.incident, _pushed(there, runs, overlay, of)) for overlay in wanted]
    print_outcomes(outcomes, as_json=as_json)
    return 0


def _pushed(there: Wandb, runs: Sequence[str], overlay: Overlay, of: WandbRun) -> str:
    for run_id in runs:
        if (outcome := there.touch_up(_drawing(overlay, run_id))) is not None:
            return outcome
    drawn = [(run_id, *_rows(there, run_id, overlay, of)) for run_id in runs]
    run_id, rows, axis = max(drawn, key=lambda each: max((row["_timestamp"] for row in each[1]), default=-math.inf))
    if not rows:
        return f"nothing was logged there between its steps {overlay.first_step} and {overlay.last_step}"
    points = [{key: value for key, value in row.items() if key != "_timestamp"} for row in rows]
    return there.draw(_drawing(overlay, run_id), points, axis)


def _drawing(overlay: Overlay, run_id: str) -> Drawing:
    from sentinel.adapters.wandb import Drawing

    return Drawing(
        id=f"{run_id}-{overlay.incident}",
        name=f"{overlay.run}: {overlay.incident}",
        notes=overlay.text,
        tags=overlay.tags,
        config={"sentinel_run": overlay.run, "sentinel_incident": overlay.incident, "of_run": run_id},
    )


def _rows(there: Wandb, run_id: str, overlay: Overlay, of: WandbRun) -> tuple[list[Row], str | None]:
    """The trainer's own points from onset to alarm, and the name of its step axis if it has one."""
    loss, step = _names(there, run_id, of)
    by_step: dict[float, Row] = {}
    bounds = (overlay.first_step, overlay.last_step) if step == "_step" else (0, None)
    for row in there.rows(run_id, *bounds):
        at, when = row.get(step), row.get("_timestamp") or 0.0
        if not isinstance(at, int | float) or not overlay.first_step <= at <= overlay.last_step or loss not in row:
            continue
        if when <= overlay.alarm_unix_s + _CLOCKS_S:  # of several attempts, the last one before the alarm
            by_step[at] = {loss: row[loss], step: at, "_step": row["_step"], "_timestamp": when}
    return sorted(by_step.values(), key=lambda row: row["_step"]), None if step == "_step" else step


def _names(there: Wandb, run_id: str, of: WandbRun) -> tuple[str, str]:
    """The run's names for its loss and its step."""
    configured = {ours: theirs for ours, theirs in (("loss", of.loss), ("step", of.step)) if theirs is not None}
    names: dict[str, None] = {}
    for row in there.rows(run_id):
        if row.keys() - names.keys():
            names |= dict.fromkeys(row)
            found = resolve(names, {}, "").columns
            if "loss" in found | configured.keys() and set(configured.values()) <= names.keys():
                break
    columns = resolve(names, configured, f"{there.path}/{run_id}").columns
    if "loss" not in columns:
        raise no_loss(f"{there.path}/{run_id}", names)
    return columns["loss"], columns.get("step", "_step")
