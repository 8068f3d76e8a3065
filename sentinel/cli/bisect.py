"""`sentinel bisect`: why a run diverged, by short trainings beside it."""

from __future__ import annotations

import signal
from typing import Annotated

import typer

from sentinel.adapters.read_only import held_by, words_alone
from sentinel.cli.incident import incident_named
from sentinel.cli.shared import RUNS, ConfigDir, Json, Run, echo, print_json, to_stderr
from sentinel.config import Config
from sentinel.config.run_files import clock, find_config
from sentinel.daemon.probes import bisect_about
from sentinel.daemon.wiring import neighbours_of, observer_of
from sentinel.durable import make_folders
from sentinel.lab.bisect.bisect import Bisect
from sentinel.lab.bisect.causes import CONTROL
from sentinel.reports.bisect import lines_of
from sentinel.vocabulary.errors import ConfigError, NoProbeError

Incident = Annotated[str | None, typer.Argument(help="The incident, e.g. incident-1; default: the last one.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="List the probes and what would be refused; start none.")]


def bisect(
    incident: Incident = None,
    run: Run = None,
    config_dir: ConfigDir = RUNS,
    dry_run: DryRun = False,
    as_json: Json = False,
) -> int:
    """Repeats the run from the last healthy checkpoint before the onset: first unchanged, then with one change each.
    The run's own folders are only read. Ctrl-C stops the probes; the same command goes on where it was."""
    config = find_config(run, config_dir)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # as Ctrl-C: the probes are stopped
    try:
        made = bisect_of(config, incident)
    except NoProbeError as error:
        if not dry_run:
            raise
        if as_json:
            print_json({"planned": [], "refusal": str(error), "refused": {}})
        else:
            echo(f"would be refused: {error}")
        return 1
    if dry_run:
        return _planned(made, as_json=as_json)
    make_folders(made.folder)
    with made.lock:
        report = made.run(poll_interval_s=min(config.watch.poll_interval_s, 5.0))
    if as_json:
        print_json(report)
    else:
        for line in lines_of(report):
            echo(line)
    return 0 if report["ranked"] else 1


def bisect_of(config: Config, name: str | None) -> Bisect:
    """The bisect of an incident of the run. ConfigError where there is none, or nothing to repeat."""
    observer = observer_of(config, neighbours_of(config))
    look = observer.look(clock())
    if name is None and not look.facts.incidents:
        raise ConfigError("the run has no incident: `sentinel watch` opens one where the run diverges")
    incident = look.facts.incidents[-1] if name is None else incident_named(look.events, name)
    return bisect_about(config, incident, look.history, look.facts, observer.started, to_stderr)


def _planned(made: Bisect, *, as_json: bool) -> int:
    """Exit code 1 where the command would be refused."""
    question, refused, done = made.question, made.refusals(), made.probes.results
    refusal = refused.pop(CONTROL, None)
    means, sentence = held_by()
    guarded = f"{sentence}; nodes of a cluster try for themselves" if means else words_alone(sentence)
    if as_json:
        planned = [{"name": p.name, "change": p.change, "until_step": p.until_step} for p in question.probes.values()]
        print_json(
            {**made.report_only(), "planned": planned, "read_only": means, "refusal": refusal, "refused": refused}
        )
        return int(refusal is not None)
    begin = question.probes[CONTROL]
    echo(f"{question.incident}: from {begin.tag or 'scratch'}, in {made.folder}")
    for name, probe in question.probes.items():
        known = f"; known: {done[name].outcome}" if name in done else ""
        why = f"; would be refused: {refused[name]}" if name in refused else ""
        echo(f"  {name}: {probe.change}, up to step {probe.until_step}{known}{why}")
    for name, why in question.not_possible.items():
        echo(f"  {name}: not possible: {why}")
    echo(f"the run's folders: {guarded}")
    if refusal is not None:
        echo(f"would be refused: {refusal}")
    return int(refusal is not None)
