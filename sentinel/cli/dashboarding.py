"""`dashboards`: to a Grafana, against a Grafana, or into a folder for its provisioning."""

from __future__ import annotations

import math
import os
import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from sentinel.act.source import read_all
from sentinel.adapters.grafana.shipped import PROVISIONING, differences, fitted, shipped, shipped_folder
from sentinel.adapters.paging.secret import Secret
from sentinel.config import Config
from sentinel.daemon import wiring
from sentinel.durable import write_atomically
from sentinel.plan.annotations import Annotation, marks, onset_steps
from sentinel.vocabulary.errors import ConfigError
from sentinel.vocabulary.numbers import dump_json
from sentinel.vocabulary.sample import Sample

if TYPE_CHECKING:  # its library is not in every installation
    from sentinel.adapters.grafana.api import Grafana

__all__ = ["Aim", "diff", "export", "push"]

_TOKEN = "GRAFANA_TOKEN"  # noqa: S105 - the name of the variable


@dataclass(frozen=True, slots=True, kw_only=True)
class Aim:
    """Which Grafana, and where in it."""

    url: str | None
    token_file: Path | None = None
    """Without one, the environment's GRAFANA_TOKEN."""

    ca_file: Path | None = None
    datasource: str | None = None
    """The uid of the Prometheus that the dashboards ask; None leaves it to Grafana's default."""

    folder: str = "Sentinel"
    """Its title; its uid is the same in small letters."""

    pages: str | None = None
    """Where sentinel's own pages are served; None leaves the links to them out."""

    timeout_s: float = 10.0
    """Seconds for one try of one request."""

    @property
    def folder_uid(self) -> str:
        return "-".join("".join(c if c.isalnum() else " " for c in self.folder.lower()).split())


def push(aim: Aim, config: Config | None, *, as_json: bool) -> int:
    """Folder and dashboards, and the marks of the run's incidents where there is one."""
    with _grafana(aim) as grafana:
        if aim.datasource is not None:
            grafana.datasource(aim.datasource)
        done: list[tuple[str, str, str]] = [("folder", aim.folder, grafana.folder(aim.folder_uid, aim.folder))]
        done += [("dashboard", name, _pushed(grafana, each, aim.folder_uid)) for name, each in _fitted(aim).items()]
        if config is not None:
            known = grafana.marks(config.run.name)
            done += [("annotation", mark.key, grafana.annotate(mark, known)) for mark in _marks(config)]
    _tell(done, as_json=as_json)
    return 0


def _pushed(grafana: Grafana, document: dict[str, Any], folder_uid: str) -> str:
    there = grafana.dashboard(document["uid"])
    if there is not None and not differences(there, document):
        return "unchanged"
    grafana.save(document, folder_uid, "pushed by sentinel")
    return "created" if there is None else "changed"


def diff(aim: Aim, *, as_json: bool) -> int:
    """What a push would change; 1 where it would change anything."""
    told: list[tuple[str, str, str]] = []
    with _grafana(aim) as grafana:
        for name, document in _fitted(aim).items():
            there = grafana.dashboard(document["uid"])
            where = ["all of it: it is not there"] if there is None else differences(there, document)
            told += [("dashboard", name, path) for path in where]
    _tell(told, as_json=as_json)
    return int(bool(told))


def export(aim: Aim, output: Path, *, as_json: bool) -> int:
    """The dashboards as files, and the provisioning that takes them; no Grafana is asked."""
    output.mkdir(parents=True, exist_ok=True)
    for name, document in _fitted(aim).items():
        write_atomically(output / name, dump_json(document) + "\n")
    for name in PROVISIONING:
        (output / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(shipped_folder() / name, output / name)
    _tell([("file", name, "written") for name in (*shipped(), *PROVISIONING)], as_json=as_json)
    return 0


def _grafana(aim: Aim) -> Grafana:
    if aim.url is None:
        raise ConfigError("which Grafana? --url, or GRAFANA_URL in the environment")
    try:
        from sentinel.adapters.grafana.api import Grafana
    except ModuleNotFoundError as error:
        raise ConfigError(f"{error.name} is not installed; pip install 'training-sentinel[grafana]'") from error
    env = None if aim.token_file is not None else _TOKEN
    token = Secret(what="token", env=env, file=aim.token_file, environ=os.environ).read()
    return Grafana(aim.url, token, ca_file=aim.ca_file, timeout_s=aim.timeout_s)


def _fitted(aim: Aim) -> dict[str, dict[str, Any]]:
    return {name: fitted(one, datasource=aim.datasource, pages=aim.pages) for name, one in shipped().items()}


def _marks(config: Config) -> tuple[Annotation, ...]:
    """Of the run's incident log; the times of onsets are those of their samples."""
    near = wiring.neighbours_of(config)
    events = near.incident_log.read()
    wanted = onset_steps(events)
    samples = (record for record in read_all(near.source) if isinstance(record, Sample)) if wanted else ()
    when = {(s.attempt, s.global_step): s.time_unix_s for s in samples if (s.attempt, s.global_step) in wanted}
    return marks(config.run.name, events, {key: at for key, at in when.items() if math.isfinite(at)})


def _tell(lines: Iterable[tuple[str, str, str]], *, as_json: bool) -> None:
    if as_json:
        typer.echo(dump_json([{"kind": kind, "name": name, "outcome": outcome} for kind, name, outcome in lines]))
        return
    for kind, name, outcome in lines:
        typer.echo(f"{kind} {name}: {outcome}")
