"""`sentinel triage`: one HTML page about the run; `sentinel ui` serves the same page."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from sentinel import bounded
from sentinel.adapters.slurm.submissions import Submissions
from sentinel.cli.incident import incident_named
from sentinel.cli.shared import RUNS, ConfigDir, Run, Texts, echo
from sentinel.config import Config
from sentinel.config.run_files import bisect_folder, clock, find_config, incident_log_of, state_dir_of
from sentinel.daemon.sources import source_at, source_of_run
from sentinel.judge.reference import smoothed
from sentinel.reports.bisect import reports_in
from sentinel.reports.past import PageSettings, read_past
from sentinel.reports.triage.document import document, page
from sentinel.vocabulary.errors import ConfigError


def triage(
    output: Annotated[Path, typer.Option("--output", "-o", help="The page, one HTML file.")] = Path("triage.html"),
    run: Run = None,
    config_dir: ConfigDir = RUNS,
    incident: Annotated[str | None, typer.Option(help="The incident shown first; default: the last one.")] = None,
    texts: Texts = None,
) -> int:
    """The file needs no other: it loads nothing when it is opened, and can be mailed."""
    config = find_config(run, config_dir)
    if incident is not None:
        incident_named(incident_log_of(config).read(), incident)
    made = documents(config, run, config_dir, texts)(incident)
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text(page(made), encoding="utf-8")
    echo(f"wrote {output}")
    return 0


def documents(
    config: Config, run: str | None, config_dir: Path, texts: Path | None
) -> Callable[[str | None], dict[str, Any]]:
    """A function that reads the run as it is now, and makes the page's document with the incident shown first."""
    state_dir = state_dir_of(config)
    submissions = Submissions(state_dir / "submissions")
    where = "" if config_dir == RUNS else f" --config-dir {shlex.quote(str(config_dir))}"
    run_option = f"--run {shlex.quote(run or config.run.name)}{where}"

    def made(incident: str | None = None) -> dict[str, Any]:
        events = incident_log_of(config).read()
        diffs = {label: submissions.difference(label) for label in submissions.labels()}
        settings = PageSettings(
            run=config.run.name,
            thresholds=config.judge,
            planned=config.run.planned_steps,
            references=tuple(smoothed(str(path), source_at(path, {})) for path in config.run.reference),
            texts=None if texts is None else texts_in(texts),
            scripts={label: diff for label, diff in diffs.items() if diff},
            bisects=reports_in(bisect_folder(config)),
            run_option=run_option,
        )
        past = read_past(source_of_run(config), events)
        return document(past, settings, now_unix_s=clock(), incident=incident)

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
