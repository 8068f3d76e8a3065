"""`triage` and `ui`: the page in a file, and the page live."""

from __future__ import annotations

import json
import secrets
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import typer

from sentinel import bounded
from sentinel.adapters.exposition.certificate import Certificate
from sentinel.adapters.incident_log import IncidentLog
from sentinel.adapters.slurm.records import Submissions
from sentinel.cli.chronicling import named
from sentinel.config import Config
from sentinel.daemon import wiring
from sentinel.daemon.readings import source_at, source_of_run
from sentinel.judge.analysis.smoothing import smoothed
from sentinel.reports.triage.document import document
from sentinel.reports.triage.feed import Feed
from sentinel.reports.triage.page import page
from sentinel.reports.triage.past import Asked, Past, read_past
from sentinel.reports.triage.server import TriageServer, is_loopback
from sentinel.sources.source import FileSource
from sentinel.vocabulary.errors import ConfigError

__all__ = ["certificate_of", "texts_in", "triage", "typed", "ui"]


def triage(config: Config, output: Path, *, incident: str | None, texts: Path | None, typed: str) -> int:
    """Writes the page."""
    past = _past(config)
    if incident is not None:
        named(past.incidents, incident)
    made = document(past, _asked(config, texts, typed), now_unix_s=wiring.clock(), incident=incident)
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text(page(made), encoding="utf-8")
    typer.echo(f"wrote {output}")
    return 0


def ui(
    config: Config,
    address: tuple[str, int],
    *,
    token_file: Path | None,
    certificate: Certificate | None,
    texts: Path | None,
    typed: str,
) -> int:
    """Serves the page until it is interrupted."""
    token = _token(token_file) if token_file is not None else None
    if token is None and not is_loopback(address[0]):
        token = secrets.token_urlsafe(24)
    state_dir = wiring.state_dir_of(config)
    feed = Feed(wiring.source_of(config, state_dir), state_dir / "incidents.jsonl")
    try:
        server = TriageServer(address, feed, _maker(config, texts, typed), token, certificate)
    except OSError as error:
        raise ConfigError(f"can't listen on {address[0]}:{address[1]}: {error.strerror or error}") from error
    server.follow(min(config.watch.poll_interval_s, 2.0))
    host, port = server.server_address[0], server.server_address[1]
    scheme = "http" if certificate is None else "https"
    typer.echo(f"{scheme}://{host!s}:{port}/" + (f"?token={token}" if token is not None and token_file is None else ""))
    try:
        server.serve_forever()
    except KeyboardInterrupt:
        return 0
    finally:
        server.server_close()
    return 0


def certificate_of(certificate: Path | None, key: Path | None) -> Certificate | None:
    """What the files hold; None where none is asked for. ConfigError names what can't be used."""
    if certificate is not None:
        return Certificate(certificate, key)
    if key is not None:
        raise ConfigError("--key: a key is of no use without its --certificate")
    return None


def typed(run: str | None, config_dir: Path, default_dir: Path, config: Config) -> str:
    """How a person names the run on the command line."""
    where = "" if config_dir == default_dir else f" --config-dir {shlex.quote(str(config_dir))}"
    return f"--run {shlex.quote(run or config.run.name)}{where}"


def texts_in(path: Path) -> dict[int, str]:
    """{"position", "text"} on each line: the samples' texts by their place in the data order. ConfigError else."""
    found = {}
    for number, line in enumerate(bounded.read_text(path).splitlines(), 1):
        try:
            one = json.loads(line)
            found[int(one["position"])] = str(one["text"])
        except (ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
            raise ConfigError(f'{path}, line {number}: {{"position": 17, "text": "…"}} is wanted') from error
    return found


def _maker(config: Config, texts: Path | None, typed: str) -> Callable[[], dict[str, Any]]:
    return lambda: document(_past(config), _asked(config, texts, typed), now_unix_s=wiring.clock())


def _past(config: Config) -> Past:
    state_dir = wiring.state_dir_of(config)
    events = IncidentLog(state_dir / "incidents.jsonl").read()
    if config.source.kind == "journal" and not any((state_dir / "attempts").glob("*.jsonl")):
        return read_past(FileSource(state_dir, "journal", lambda _: iter(())), events)  # it has not begun yet
    return read_past(source_of_run(config), events)


def _asked(config: Config, texts: Path | None, typed: str) -> Asked:
    return Asked(
        run=config.run.name,
        thresholds=config.judge,
        planned=config.run.planned_steps,
        references=tuple(smoothed(str(path), source_at(path, {})) for path in config.run.reference),
        texts=None if texts is None else texts_in(texts),
        scripts=_scripts(config),
        typed=typed,
    )


def _scripts(config: Config) -> dict[str, str]:
    """How each rollback has changed the job script, as Slurm was given it."""
    prepared = Submissions(wiring.state_dir_of(config) / "submissions")
    found = {label: prepared.difference(label) for label in prepared.labels()}
    return {label: diff for label, diff in found.items() if diff}


def _token(path: Path) -> str:
    token = bounded.read_text(path, bounded.SECRET_BYTES).strip()
    if len(token) < 16:
        raise ConfigError(f"the token in {path} is shorter than 16 characters")
    return token
