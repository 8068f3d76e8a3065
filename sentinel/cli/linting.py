"""`lint`: what is wrong with a run by formula, before it starts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import typer

from sentinel import bounded
from sentinel.config import Config
from sentinel.jobscript.facts import Facts
from sentinel.jobscript.reading import Read, read_command, read_text
from sentinel.lint import Finding, in_its_words, lint
from sentinel.vocabulary.errors import ConfigError
from sentinel.vocabulary.numbers import dump_json

__all__ = ["lint_paths", "lint_run"]


def lint_paths(paths: Sequence[Path], told: Facts, *, as_json: bool) -> int:
    """Job scripts, logs and DeepSpeed JSONs, each on its own; 1 when there is an error in one of them."""
    return _tell([(str(path), _read_file(path, path.stem)) for path in paths], told, as_json=as_json)


def lint_run(config: Config, told: Facts, *, as_json: bool) -> int:
    """The run's own job script, else its command."""
    launcher, name = config.launcher, config.run.name
    if launcher.script is not None:
        return _tell([(str(launcher.script), _read_file(launcher.script, name))], told, as_json=as_json)
    if not launcher.command:
        raise ConfigError(f"{name} has neither [launcher] script nor command: name a file to lint")
    try:
        read = read_command(launcher.command, name)
    except ConfigError as error:
        raise ConfigError(f"[launcher] command: {error}") from error
    return _tell([("[launcher] command", read)], told, as_json=as_json)


def _read_file(path: Path, name: str) -> Read:
    try:
        text = bounded.read_text(path, errors="surrogateescape")
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from error
    try:
        return read_text(text, name)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from error


def _tell(reads: Sequence[tuple[str, Read]], told: Facts, *, as_json: bool) -> int:
    """What a person said on the command line counts before what was read."""
    found = [(path, replace(read, facts=replace(read.facts, **_known(told)))) for path, read in reads]
    findings = [(path, read, in_its_words(read, lint(read.facts))) for path, read in found]
    if as_json:
        typer.echo(dump_json([_document(*each) for each in findings]))
    else:
        for path, read, each in findings:
            _show(path, read, each)
    return int(any(finding.severity == "error" for _, _, each in findings for finding in each))


def _known(facts: Facts) -> dict[str, Any]:
    return {key: value for key, value in asdict(facts).items() if value is not None}


def _document(path: str, read: Read, findings: Sequence[Finding]) -> dict[str, Any]:
    return {
        "path": path,
        "format": read.format,
        "facts": _known(read.facts),
        "unread": [asdict(unread) for unread in read.unread],
        "findings": [asdict(finding) for finding in findings],
    }


def _show(path: str, read: Read, findings: Sequence[Finding]) -> None:
    if read.format == "not understood":
        typer.echo(f"{path}: not understood: {read.unread[0].why}")
        return
    counts = [f"{n} {s}{'s' * (n != 1)}" for s in ("error", "warning", "note") if (n := _count(findings, s))]
    known = _known(read.facts)
    typer.echo(f"{path} ({read.format}): {', '.join(counts) or 'nothing to say'}; {len(known)} facts known")
    for finding in findings:
        typer.echo(f"  {finding.severity}: {finding.sentence}")
        typer.echo(f"    {finding.what}: {finding.source}")
    for unread in read.unread:
        where = "" if unread.line is None else f" (line {unread.line})"
        typer.echo(f"  not known: {unread.what}{where}: {unread.why}")


def _count(findings: Sequence[Finding], severity: str) -> int:
    return sum(finding.severity == severity for finding in findings)
