"""`sentinel dashboards`: pushes the dashboards to a Grafana, compares them with it, or exports them into a folder."""

from __future__ import annotations

import math
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from sentinel.adapters.grafana.shipped import PROVISIONING, differences, fitted, shipped, shipped_folder
from sentinel.adapters.paging.secret import Secret
from sentinel.cli.options import RUNS, ConfigDir, Json
from sentinel.cli.output import print_outcomes
from sentinel.daemon.run_files import find_config, incident_log_of, state_dir_of
from sentinel.durable import write_atomically
from sentinel.plan.annotations import Annotation, marks, onset_steps
from sentinel.vocabulary.errors import ConfigError
from sentinel.vocabulary.numbers import dump_json
from sentinel.vocabulary.sample import Record, Sample

if TYPE_CHECKING:  # its library is optional
    from sentinel.adapters.grafana.api import Grafana
    from sentinel.config import Config

__all__ = ["Target", "dashboards", "diff", "export", "push"]

_TOKEN = "GRAFANA_TOKEN"  # noqa: S105 - the name of the variable


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
        from sentinel.cli.dashboards_wandb import push_incidents

        if what != "push" or run is None:
            raise ConfigError("--wandb needs push and --run: it draws a run's incidents")
        return push_incidents(find_config(run, config_dir), as_json=as_json)
    target = Target(
        url=url,
        token_file=token_file,
        ca_file=ca_file,
        datasource=datasource,
        folder=folder,
        pages=pages,
        timeout_s=timeout,
    )
    if what == "export":
        return export(target, output, as_json=as_json)
    if what == "diff":
        return diff(target, as_json=as_json)
    return push(target, find_config(run, config_dir) if run else None, as_json=as_json)


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A Grafana, and the place of the dashboards in it."""

    url: str | None
    token_file: Path | None = None
    """None: the environment variable GRAFANA_TOKEN."""

    ca_file: Path | None = None
    datasource: str | None = None
    """uid of the Prometheus data source; None: Grafana's default one."""

    folder: str = "Sentinel"
    """Title of the folder; its uid is the title in lower case."""

    pages: str | None = None
    """Address of sentinel's own pages; None: no links to them."""

    timeout_s: float = 10.0
    """Seconds for one try of one request."""

    @property
    def folder_uid(self) -> str:
        return "-".join("".join(c if c.isalnum() else " " for c in self.folder.lower()).split())


def push(target: Target, config: Config | None, *, as_json: bool) -> int:
    """Pushes folder and dashboards, and the annotations of the run's incidents where there is a run."""
    with _grafana(target) as grafana:
        if target.datasource is not None:
            grafana.datasource(target.datasource)
        done: list[tuple[str, str, str]] = [("folder", target.folder, grafana.folder(target.folder_uid, target.folder))]
        done += [
            ("dashboard", name, _pushed(grafana, each, target.folder_uid)) for name, each in _fitted(target).items()
        ]
        if config is not None:
            known = grafana.marks(config.run.name)
            done += [("annotation", mark.key, grafana.annotate(mark, known)) for mark in _marks(config)]
    print_outcomes(done, as_json=as_json)
    return 0


def _pushed(grafana: Grafana, document: dict[str, Any], folder_uid: str) -> str:
    there = grafana.dashboard(document["uid"])
    if there is not None and not differences(there, document):
        return "unchanged"
    grafana.save(document, folder_uid, "pushed by sentinel")
    return "created" if there is None else "changed"


def diff(target: Target, *, as_json: bool) -> int:
    """Prints what a push would change; 1 where it would change anything."""
    changed: list[tuple[str, str, str]] = []
    with _grafana(target) as grafana:
        for name, document in _fitted(target).items():
            there = grafana.dashboard(document["uid"])
            where = ["does not exist there"] if there is None else differences(there, document)
            changed += [("dashboard", name, path) for path in where]
    print_outcomes(changed, as_json=as_json)
    return int(bool(changed))


def export(target: Target, output: Path, *, as_json: bool) -> int:
    """Writes the dashboards as files, with their provisioning; calls no Grafana."""
    output.mkdir(parents=True, exist_ok=True)
    for name, document in _fitted(target).items():
        write_atomically(output / name, dump_json(document) + "\n")
    for name in PROVISIONING:
        (output / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(shipped_folder() / name, output / name)
    print_outcomes([("file", name, "written") for name in (*shipped(), *PROVISIONING)], as_json=as_json)
    return 0


def _grafana(target: Target) -> Grafana:
    if target.url is None:
        raise ConfigError("no Grafana is named; pass --url or set GRAFANA_URL")
    try:
        from sentinel.adapters.grafana.api import Grafana
    except ModuleNotFoundError as error:
        raise ConfigError(f"{error.name} is not installed; pip install 'training-sentinel[grafana]'") from error
    env = None if target.token_file is not None else _TOKEN
    token = Secret(what="token", env=env, file=target.token_file, environ=os.environ).read()
    return Grafana(target.url, token, ca_file=target.ca_file, timeout_s=target.timeout_s)


def _fitted(target: Target) -> dict[str, dict[str, Any]]:
    return {name: fitted(one, datasource=target.datasource, pages=target.pages) for name, one in shipped().items()}


def _marks(config: Config) -> tuple[Annotation, ...]:
    """From the run's incident log; the time of an onset is that of its sample."""
    events = incident_log_of(config).read()
    wanted = onset_steps(events)
    samples = (record for record in _records(config) if isinstance(record, Sample)) if wanted else ()
    when = {(s.attempt, s.global_step): s.time_unix_s for s in samples if (s.attempt, s.global_step) in wanted}
    return marks(config.run.name, events, {key: at for key, at in when.items() if math.isfinite(at)})


def _records(config: Config) -> Iterator[Record]:
    from sentinel.act.source import read_all
    from sentinel.daemon.sources import source_of

    return read_all(source_of(config, state_dir_of(config)))
