"""`sentinel dashboards`: pushes the dashboards to a Grafana, compares or exports them; draws incidents in W&B."""

from __future__ import annotations

import math
import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from sentinel.act.source import read_all
from sentinel.adapters.grafana.shipped import PROVISIONING, differences, fitted, shipped, shipped_folder
from sentinel.adapters.paging.secret import Secret
from sentinel.cli.shared import RUNS, ConfigDir, Json, print_outcomes
from sentinel.config import Config
from sentinel.config.run_files import find_config, incident_log_of, state_dir_of
from sentinel.daemon.sources import source_of
from sentinel.durable import write_atomically
from sentinel.plan.alerts.annotations import Annotation, marks, onset_steps
from sentinel.vocabulary.errors import ConfigError
from sentinel.vocabulary.numbers import dump_json
from sentinel.vocabulary.sample import Sample

if TYPE_CHECKING:  # their libraries are optional
    from sentinel.adapters.grafana.api import Grafana
    from sentinel.adapters.wandb import Drawing, Row, Wandb, WandbRun
    from sentinel.plan.alerts.annotations import Overlay

_TOKEN = "GRAFANA_TOKEN"  # noqa: S105 - the name of the variable
_CLOCKS_S = 60.0  # by which the trainer's clock may be ahead of the daemon's

Outcome = tuple[str, str, str]
Document = dict[str, Any]


def dashboards(
    what: Annotated[
        Literal["push", "diff", "export"],
        typer.Argument(help="push: to a Grafana; diff: print what a push would change; export: into a folder."),
    ],
    url: Annotated[str | None, typer.Option(envvar="GRAFANA_URL", help="Grafana's address.")] = None,
    token_file: Annotated[
        Path | None, typer.Option(help="File with the service account's token; default: GRAFANA_TOKEN.")
    ] = None,
    ca_file: Annotated[Path | None, typer.Option(help="Certificates to trust instead of the system's.")] = None,
    datasource: Annotated[
        str | None, typer.Option(help="uid of the Prometheus data source; default: Grafana's default one.")
    ] = None,
    folder: Annotated[str, typer.Option(help="Title of the folder in Grafana.")] = "Sentinel",
    pages: Annotated[
        str | None, typer.Option(help="Address of sentinel's own pages; default: no links to them.")
    ] = None,
    timeout: Annotated[float, typer.Option(min=0.1, help="Seconds for each of three tries of a request.")] = 10,
    output: Annotated[Path, typer.Option("--output", "-o", help="export: the folder.")] = Path("grafana"),
    run: Annotated[
        str | None, typer.Option("--run", help="push: also annotate this run's onsets, alarms, rollbacks.")
    ] = None,
    wandb: Annotated[
        bool, typer.Option("--wandb", help="push: to W&B instead: draw the incidents of --run over its loss.")
    ] = False,
    config_dir: ConfigDir = RUNS,
    as_json: Json = False,
) -> int:
    """Exit 3: Grafana can't be reached; diff: exit 1 when a push would change something.

    There is no option for the token itself: it would be visible in the list of processes.
    """
    if wandb:
        if what != "push" or run is None:
            raise ConfigError("--wandb needs push and --run: it draws a run's incidents")
        return _push_to_wandb(find_config(run, config_dir), as_json=as_json)
    config = find_config(run, config_dir) if what == "push" and run else None
    documents = {name: fitted(one, datasource=datasource, pages=pages) for name, one in shipped().items()}
    if what == "export":
        outcomes = _export(documents, output)
    else:
        with _grafana(url, token_file, ca_file, timeout) as grafana:
            if what == "push" and datasource is not None:
                grafana.datasource(datasource)
            outcomes = _diff(grafana, documents) if what == "diff" else _push(grafana, documents, folder, config)
    print_outcomes(outcomes, as_json=as_json)
    return int(what == "diff" and bool(outcomes))


def _push(grafana: Grafana, documents: dict[str, Document], title: str, config: Config | None) -> list[Outcome]:
    """Folder and dashboards, and the annotations of the run's incidents where there is a run."""
    uid = "-".join("".join(c if c.isalnum() else " " for c in title.lower()).split())
    done: list[Outcome] = [("folder", title, grafana.folder(uid, title))]
    done += [("dashboard", name, _pushed(grafana, each, uid)) for name, each in documents.items()]
    if config is not None:
        known = grafana.marks(config.run.name)
        done += [("annotation", mark.key, grafana.annotate(mark, known)) for mark in _marks(config)]
    return done


def _pushed(grafana: Grafana, document: Document, folder_uid: str) -> str:
    there = grafana.dashboard(document["uid"])
    if there is not None and not differences(there, document):
        return "unchanged"
    grafana.save(document, folder_uid, "pushed by sentinel")
    return "created" if there is None else "changed"


def _diff(grafana: Grafana, documents: dict[str, Document]) -> list[Outcome]:
    """What a push would change."""
    changed: list[Outcome] = []
    for name, document in documents.items():
        there = grafana.dashboard(document["uid"])
        where = ["does not exist there"] if there is None else differences(there, document)
        changed += [("dashboard", name, path) for path in where]
    return changed


def _export(documents: dict[str, Document], output: Path) -> list[Outcome]:
    """Writes the dashboards as files, with their provisioning; calls no Grafana."""
    output.mkdir(parents=True, exist_ok=True)
    for name, document in documents.items():
        write_atomically(output / name, dump_json(document) + "\n")
    for name in PROVISIONING:
        (output / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(shipped_folder() / name, output / name)
    return [("file", name, "written") for name in (*documents, *PROVISIONING)]


def _grafana(url: str | None, token_file: Path | None, ca_file: Path | None, timeout_s: float) -> Grafana:
    if url is None:
        raise ConfigError("no Grafana is named; pass --url or set GRAFANA_URL")
    try:
        from sentinel.adapters.grafana.api import Grafana
    except ModuleNotFoundError as error:
        raise ConfigError(f"{error.name} is not installed; pip install 'training-sentinel[grafana]'") from error
    env = None if token_file is not None else _TOKEN
    token = Secret(what="token", env=env, file=token_file, environ=os.environ).read()
    return Grafana(url, token, ca_file=ca_file, timeout_s=timeout_s)


def _marks(config: Config) -> tuple[Annotation, ...]:
    """From the run's incident log; the time of an onset is that of its sample."""
    events = incident_log_of(config).read()
    wanted = onset_steps(events)
    records = read_all(source_of(config, state_dir_of(config))) if wanted else ()
    samples = (r for r in records if isinstance(r, Sample) and (r.attempt, r.global_step) in wanted)
    when = {(s.attempt, s.global_step): s.time_unix_s for s in samples}
    return marks(config.run.name, events, {key: at for key, at in when.items() if math.isfinite(at)})


def _push_to_wandb(config: Config, *, as_json: bool) -> int:
    """Draws each incident as a W&B run of its own over the trainer's loss; a second push adds nothing."""
    from sentinel.plan.alerts.annotations import overlays
    from sentinel.sources.wandb_runs import project_of

    of = config.wandb
    if of.entity is None or of.project is None:
        raise ConfigError(f"no W&B project is named for {config.run.name}; set [wandb] entity and project")
    outcomes: list[Outcome] = []
    wanted = overlays(config.run.name, incident_log_of(config).read())
    if wanted:
        there = project_of(of)
        runs = [of.run_id] if of.run_id is not None else there.called(config.run.name)
        if not runs:
            raise ConfigError(f"{there.path} has no run called {config.run.name!r}; set [wandb] run_id")
        outcomes = [("run", overlay.incident, _drawn(there, runs, overlay, of)) for overlay in wanted]
    print_outcomes(outcomes, as_json=as_json)
    return 0


def _drawn(there: Wandb, runs: Sequence[str], overlay: Overlay, of: WandbRun) -> str:
    for run_id in runs:
        if (outcome := there.touch_up(_drawing(overlay, run_id))) is not None:
            return outcome
    found = [(run_id, *_rows(there, run_id, overlay, of)) for run_id in runs]
    run_id, rows, axis = max(found, key=lambda each: max((row["_timestamp"] for row in each[1]), default=-math.inf))
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
    from sentinel.sources.wandb_runs import named_columns

    loss, step = named_columns(there.rows(run_id), of, f"{there.path}/{run_id}")
    by_step: dict[float, Row] = {}
    bounds = (overlay.first_step, overlay.last_step) if step == "_step" else (0, None)
    for row in there.rows(run_id, *bounds):
        at, when = row.get(step), row.get("_timestamp") or 0.0
        if not isinstance(at, int | float) or not overlay.first_step <= at <= overlay.last_step or loss not in row:
            continue
        if when <= overlay.alarm_unix_s + _CLOCKS_S:  # of several attempts, the last one before the alarm
            by_step[at] = {loss: row[loss], step: at, "_step": row["_step"], "_timestamp": when}
    return sorted(by_step.values(), key=lambda row: row["_step"]), None if step == "_step" else step
