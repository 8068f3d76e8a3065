"""Makes one branch of a W&B run, in a process of its own: `python -m sentinel.act.wandb_child`, a request on standard
input, an answer as the last line of standard output. The key is in the environment or in a file, as for all of W&B."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from sentinel.adapters.wandb import Drawing, Row, WandbRun, draw_offline
from sentinel.sources.wandb_runs import named_columns, offline_runs, project_of, rows_of
from sentinel.vocabulary.errors import SentinelError

Answer = dict[str, Any]


def answer(request: Answer) -> Answer:
    """of_run, new_id, group, outcome, folder; or a problem."""
    given: Answer = {k: Path(v) if k in ("api_key_file", "folder") and v else v for k, v in request["of"].items()}
    of = WandbRun(**given)
    try:
        return _offline(of, of.folder, request) if of.folder is not None else _online(of, request)
    except SentinelError as error:
        return {"problem": str(error)}


def descended(rows: Iterable[Row], step: str, until: int) -> list[Row]:
    """The rows that the restart's line begins with: up to the step, and of what earlier restarts logged again the last.
    A row without a step belongs to the one before it."""
    kept: list[tuple[float, Row]] = []
    for row in rows:
        at = row.get(step)
        if not isinstance(at, int | float) or isinstance(at, bool):
            at = kept[-1][0] if kept else 0
        elif kept and at < kept[-1][0]:
            while kept and kept[-1][0] >= at:
                kept.pop()
        kept.append((at, row))
    return [row for at, row in kept if at <= until]


def _online(of: WandbRun, request: Answer) -> Answer:
    there = project_of(of)
    run_id = request["run_id"] or next(iter(reversed(there.called(request["name"]))), None)
    if run_id is None:
        return {"problem": f"{there.path} has no run called {request['name']!r}; set [wandb] run_id"}
    _, step = named_columns(there.rows(run_id), of, f"{there.path}/{run_id}")
    rows = descended(there.rows(run_id), step, request["global_step"])
    made = _names(run_id, request)
    if not rows:
        return made | {"outcome": f"nothing was logged to {run_id} up to step {request['until']}: the branch is empty"}
    last, how = int(rows[-1]["_step"]), request["how"]
    drawing = _drawing(run_id, f"{there.path}/{run_id}", made, request)
    try:
        if how == "rewind" and there.rewound(run_id, last):
            return made | {"new_id": run_id, "outcome": f"{run_id} was rewound to its line {last}"}
        if how == "fork" and there.forked(drawing, run_id, last):
            return made | {"outcome": f"forked from {run_id} at its line {last}"}
        why = "" if how == "copy" else f"; the server made no {how}"
    except SentinelError as error:
        why = f"; the server made no {how}: {error}"
    seen = there.draw(drawing, list(_plain(rows)), None)
    return made | {"outcome": f"{len(rows)} lines of {run_id} copied ({seen}){why}"}


def _offline(of: WandbRun, folder: Path, request: Answer) -> Answer:
    """The same from the client's own files, for `wandb sync` later."""
    runs = offline_runs(folder)
    run_id = request["run_id"] or next(reversed(runs), None)
    if run_id is None or run_id not in runs:
        return {"problem": f"{folder} holds no offline run{f' {run_id}' if run_id else ''}"}

    def logged() -> Iterator[Row]:
        return (row for path in runs[run_id] for row in rows_of(path))

    _, step = named_columns(logged(), of, str(folder))
    rows = descended(logged(), step, request["global_step"])
    made = _names(run_id, request)
    drawing = _drawing(run_id, run_id, made, request)
    where = draw_offline(drawing, list(_plain(rows)), folder, project=of.project, entity=of.entity)
    return made | {"outcome": f"{len(rows)} lines of the offline run {run_id} copied", "folder": str(where)}


def _names(run_id: str, request: Answer) -> Answer:
    group = request["group"] or run_id
    return {"of_run": run_id, "new_id": f"{group}-{request['rollback']}", "group": group}


def _drawing(run_id: str, path: str, made: Answer, request: Answer) -> Drawing:
    incident, until = request["incident"], request["global_step"]
    return Drawing(
        id=made["new_id"],
        name=f"{request['name']}: {request['rollback']}",
        notes=f"{incident}: restarted from step {until}; before it {path}, whose later steps stay there",
        tags=["sentinel", incident],
        config={"sentinel_run": request["name"], "sentinel_rollback": request["rollback"], "of_run": run_id},
        group=made["group"],
        job_type="",
    )


def _plain(rows: Iterable[Row]) -> Iterator[Row]:
    """Numbers, with W&B's own of its lines; its other values are pictures, tables and words."""
    for row in rows:
        found = {key: _number(value) for key, value in row.items() if not key.startswith("_") or key == "_step"}
        yield {key: value for key, value in found.items() if value is not None}


def _number(value: Any) -> float | int | None:
    if isinstance(value, int | float):
        return value
    return float(value) if value in ("NaN", "Infinity", "-Infinity") else None


if __name__ == "__main__":
    told = answer(json.load(sys.stdin))
    sys.stdout.write(f"\n{json.dumps(told)}\n")
