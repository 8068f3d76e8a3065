"""`sentinel triage`: one HTML page about the run; also what `sentinel ui` serves."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sentinel import bounded
from sentinel.cli.incident import incident_named
from sentinel.cli.options import RUNS, ConfigDir, Run, Texts
from sentinel.daemon.run_files import clock, find_config, incident_log_of, state_dir_of
from sentinel.plan.incident_fold import fold
from sentinel.vocabulary.errors import ConfigError

if TYPE_CHECKING:
    from sentinel.config import Config
    from sentinel.reports.triage.past import Asked, Past

__all__ = ["documents", "texts_in", "triage"]


def triage(
    output: Annotated[Path, typer.Option("--output", "-o", help="The page, one HTML file.")] = Path("triage.html"),
    run: Run = None,
    config_dir: ConfigDir = RUNS,
    incident: Annotated[str | None, typer.Option(help="The incident shown first; default: the last one.")] = None,
    texts: Texts = None,
) -> int:
    """The file needs no other: it loads nothing when it is opened, and can be mailed."""
    from sentinel.reports.triage.page import page

    config = find_config(run, config_dir)
    if incident is not None:
        incident_named(fold(incident_log_of(config).read()), incident)
    made = documents(config, run, config_dir, texts)(incident)
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text(page(made), encoding="utf-8")
    typer.echo(f"wrote {output}")
    return 0


def documents(
    config: Config, run: str | None, config_dir: Path, texts: Path | None
) -> Callable[[str | None], dict[str, Any]]:
    """A function that reads the run as it is now, and makes the page's document with the incident shown first."""
    from sentinel.reports.triage.document import document

    where = "" if config_dir == RUNS else f" --config-dir {shlex.quote(str(config_dir))}"
    typed = f"--run {shlex.quote(run or config.run.name)}{where}"

    def made(incident: str | None = None) -> dict[str, Any]:
        asked = _asked(config, texts, typed)
        return document(_past(config), asked, now_unix_s=clock(), incident=incident)

    return made


def texts_in(path: Path) -> dict[int, str]:
    """{"position", "text"} on each line: the samples' texts by position in the data order. ConfigError otherwise."""
    found = {}
    for number, line in enumerate(bounded.read_text(path).splitlines(), 1):
        try:
            one = json.loads(line)
            found[int(one["position"])] = str(one["text"])
        except (ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
            raise ConfigError(f'{path}, line {number}: should be {{"position": 17, "text": "…"}}') from error
    return found


def _past(config: Config) -> Past:
    from sentinel.daemon.sources import source_of_run
    from sentinel.reports.triage.past import read_past
    from sentinel.sources.column_source import ColumnSource

    state_dir, events = state_dir_of(config), incident_log_of(config).read()
    if config.source.kind == "journal" and not any((state_dir / "attempts").glob("*.jsonl")):
        return read_past(ColumnSource(state_dir, "journal", lambda _: iter(())), events)  # no attempt has begun yet
    return read_past(source_of_run(config), events)


def _asked(config: Config, texts: Path | None, typed: str) -> Asked:
    from sentinel.adapters.slurm.submissions import Submissions
    from sentinel.daemon.sources import source_at
    from sentinel.judge.analysis.smoothing import smoothed
    from sentinel.reports.triage.past import Asked

    submissions = Submissions(state_dir_of(config) / "submissions")
    diffs = {label: submissions.difference(label) for label in submissions.labels()}
    return Asked(
        run=config.run.name,
        thresholds=config.judge,
        planned=config.run.planned_steps,
        references=tuple(smoothed(str(path), source_at(path, {})) for path in config.run.reference),
        texts=None if texts is None else texts_in(texts),
        scripts={label: diff for label, diff in diffs.items() if diff},
        typed=typed,
    )
