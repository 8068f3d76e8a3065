"""`sentinel lint`: checks a run's settings by formula, before it starts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, replace
from itertools import takewhile
from pathlib import Path
from typing import Annotated, Any

import typer

from sentinel import bounded
from sentinel.adapters.slurm.trainer_files import files_named_in
from sentinel.cli.shared import RUNS, ConfigDir, Json, Run, echo, print_json
from sentinel.config import Config
from sentinel.config.run_files import find_config
from sentinel.jobscript.facts import ScriptFacts, declared_size
from sentinel.jobscript.given import Unread
from sentinel.jobscript.named_files import with_files
from sentinel.jobscript.reading import Read, read_command, read_text
from sentinel.lint import LintFinding, in_its_words
from sentinel.lint import lint as check
from sentinel.vocabulary.errors import ConfigError


def lint(
    paths: Annotated[
        list[Path] | None, typer.Argument(help="Job scripts, Megatron logs, DeepSpeed JSONs; default: the run's own.")
    ] = None,
    run: Run = None,
    config_dir: ConfigDir = RUNS,
    parameters: Annotated[str | None, typer.Option(help="Intended number of parameters, e.g. 104B.")] = None,
    gpus: Annotated[int | None, typer.Option(help="Number of GPUs of all nodes.")] = None,
    step_time: Annotated[float | None, typer.Option(help="Seconds of a step at full batch.")] = None,
    save_time: Annotated[float | None, typer.Option(help="Seconds for which a save stops the training.")] = None,
    failures_per_day: Annotated[float | None, typer.Option(help="Node failures per day, all nodes together.")] = None,
    consumed_samples: Annotated[
        int | None, typer.Option(help="Consumed samples at the resume; default: the run's start.")
    ] = None,
    as_json: Json = False,
) -> int:
    """Checks shape, batches, schedules, SLW and saves. Options count before what the files say."""
    given = ScriptFacts(
        declared_parameters=None if parameters is None else declared_size(parameters),
        world_size=gpus,
        step_time_s=step_time,
        save_time_s=save_time,
        node_failures_per_day=failures_per_day,
        consumed_samples=consumed_samples,
    )
    if paths:
        reads = [(str(path), _read_file(path, path.stem)) for path in paths]
    else:
        reads = [_read_run(find_config(run, config_dir))]
    documents, failed = [], False
    for path, as_read in reads:
        read = replace(as_read, facts=replace(as_read.facts, **_known(given)))
        findings = in_its_words(read, check(read.facts))
        failed = failed or any(finding.severity == "error" for finding in findings)
        if as_json:
            documents.append(_document(path, read, findings))
        else:
            _show(path, read, findings)
    if as_json:
        print_json(documents)
    return int(failed)


def _read_run(config: Config) -> tuple[str, Read]:
    """The run's own job script, else its command."""
    launcher, name = config.launcher, config.run.name
    if launcher.script is not None:
        return str(launcher.script), _read_file(launcher.script, name)
    if not launcher.command:
        raise ConfigError(
            f"{name} has neither [launcher] script nor command: name a file, as in `sentinel lint train.sh`"
        )
    try:
        return "[launcher] command", read_command(launcher.command, name)
    except ConfigError as error:
        raise ConfigError(f"[launcher] command: {error}") from error


def _read_file(path: Path, name: str) -> Read:
    try:
        text = bounded.read_text(path, errors="surrogateescape")
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from error
    try:
        read = read_text(text, name)
        if read.format not in ("job script", "not understood"):
            return read
        files = files_named_in(text, [path.parent, Path()])
        inside = with_files(text, {named: (named, content) for named, (_, content) in files.items()})
        return read if inside == text else _in_its_lines(read_text(inside, name), text, inside)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from error


def _in_its_lines(read: Read, text: str, inside: str) -> Read:
    """The lines as the script counts them; none for a line of a file that is inside."""
    own, with_files_inside = text.splitlines(), inside.splitlines()
    first = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(own, with_files_inside, strict=False)))
    more = len(with_files_inside) - len(own)

    def line_of(unread: Unread) -> int | None:
        if unread.line is None or unread.line <= first:
            return unread.line
        return unread.line - more if unread.line > first + more else None

    return replace(read, unread=tuple(replace(unread, line=line_of(unread)) for unread in read.unread))


def _known(facts: ScriptFacts) -> dict[str, Any]:
    return {key: value for key, value in asdict(facts).items() if value is not None}


def _document(path: str, read: Read, findings: Sequence[LintFinding]) -> dict[str, Any]:
    return {
        "path": path,
        "format": read.format,
        "facts": _known(read.facts),
        "unread": [asdict(unread) for unread in read.unread],
        "findings": [asdict(finding) for finding in findings],
    }


def _show(path: str, read: Read, findings: Sequence[LintFinding]) -> None:
    if read.format == "not understood":
        echo(f"{path}: not understood: {read.unread[0].why}")
        return
    severities = Counter(finding.severity for finding in findings)
    counts = [f"{n} {s}{'s' * (n != 1)}" for s in ("error", "warning", "note") if (n := severities[s])]
    echo(f"{path} ({read.format}): {', '.join(counts) or 'no finding'}; {len(_known(read.facts))} facts known")
    for finding in findings:
        echo(f"  {finding.severity}: {finding.sentence}")
        echo(f"    {finding.what}: {finding.source}")
    for unread in read.unread:
        where = "" if unread.line is None else f" (line {unread.line})"
        echo(f"  not known: {unread.what}{where}: {unread.why}")
