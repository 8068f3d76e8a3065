"""`sentinel bisect`: why a run diverged, by short trainings beside it."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sentinel.cli.shared import RUNS, ConfigDir, Json, Run, print_json, to_stderr
from sentinel.daemon.run_files import clock, find_config, state_dir_of
from sentinel.durable import make_folders
from sentinel.vocabulary.errors import ConfigError
from sentinel.vocabulary.numbers import dump_json
from sentinel.vocabulary.sample import RunStarted

if TYPE_CHECKING:
    from sentinel.act.bisect import Bisect
    from sentinel.config import Config
    from sentinel.plan.bisect_probes import Means

Incident = Annotated[str | None, typer.Argument(help="The incident, e.g. incident-1; default: the last one.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="List the probes and start none.")]


def bisect(
    incident: Incident = None,
    run: Run = None,
    config_dir: ConfigDir = RUNS,
    dry_run: DryRun = False,
    as_json: Json = False,
) -> int:
    """Repeats the run from the last healthy checkpoint before the onset: first unchanged, then with one change each.
    The run's own folders are only read. Ctrl-C stops the probes; the same command goes on where it was."""
    from sentinel.adapters.lock import RunLock

    config = find_config(run, config_dir)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # as Ctrl-C: the probes are stopped
    made = bisect_of(config, incident)
    if dry_run:
        report = made.report_only()
    else:
        make_folders(made.folder)
        with RunLock(made.folder):
            report = made.run(poll_interval_s=min(config.watch.poll_interval_s, 5.0))
    if as_json:
        print_json(report)
    else:
        for line in lines_of(report) if not dry_run else _planned(made):
            typer.echo(line)
    return 0 if report["ranked"] or dry_run else 1


def bisect_of(config: Config, name: str | None) -> Bisect:
    """The bisect of an incident of the run. ConfigError where there is none, or nothing to repeat."""
    from sentinel.act.bisect import Bisect, question_about
    from sentinel.cli.incident import incident_named
    from sentinel.daemon.probes import probe_jobs
    from sentinel.daemon.wiring import neighbours_of, observer_of
    from sentinel.plan.probe import Limits

    near, settings = neighbours_of(config), config.bisect
    observer = observer_of(config, near)
    look = observer.look(clock())
    if name is None and not look.run.incidents:
        raise ConfigError("the run has no incident: there is nothing to find the cause of")
    incident = look.run.incidents[-1] if name is None else incident_named(look.events, name)
    means = _means(config, observer.started, incident.attempt)
    question = question_about(incident, look.history, look.run, config.judge, config.policy, means)
    limits = Limits(
        parallel=settings.parallel,
        gpu_hours=settings.gpu_hours,
        probe_s=3600 * settings.probe_hours,
        count=settings.max_probes,
    )
    folder = (settings.folder or state_dir_of(config) / "bisect") / incident.id
    return Bisect(question, folder, config.run.checkpoints, probe_jobs(config), limits, to_stderr)


def _means(config: Config, started: Sequence[RunStarted], attempt: int) -> Means:
    from sentinel.daemon.probes import nodes_of
    from sentinel.plan.bisect_probes import Means

    settings = config.bisect
    other = dict(variable.split("=", 1) for variable in settings.other_node_environment)
    begun = next((one for one in started if one.attempt == attempt), None)
    return Means(
        window_steps=settings.window_steps,
        fp32_options=settings.fp32_options,
        other_node_environment=other or None,
        nodes=nodes_of(config, begun),
    )


def _planned(made: Bisect) -> list[str]:
    question = made.question
    begin = question.probes["control"]
    lines = [f"{question.incident}: from {begin.tag or 'scratch'}, in {made.folder}"]
    lines += [f"  {p.name}: {p.change}, up to step {p.until_step}" for p in question.probes.values()]
    return lines + [f"  {name}: not possible: {why}" for name, why in question.not_possible.items()]


def lines_of(report: dict[str, Any]) -> list[str]:
    """The report, as a person reads it."""
    lines = [f"{report['incident']}: {report['reason']}", f"  {report['repeats']}"]
    for probe in report["probes"]:
        took = f"{probe['steps']} steps, {probe['seconds']:.0f} s"
        lines.append(f"  {probe['name']}: {probe['outcome']} ({probe['change']}; {took}; {probe['why']})")
    for place, suspect in enumerate(report["ranked"], 1):
        lines.append(f"{place}. {suspect['cause']} ({suspect['sure']}): {suspect['why']}")
        if suspect["rung"]:
            keys = "; ".join(f"{key} = {dump_json(value)}" for key, value in suspect["rung"].items())
            lines.append(f"   the rung that follows: {keys}")
    if not report["ranked"]:
        lines.append("nothing that was tried speaks for a cause")
    lines += [f"not tried: {name}: {why}" for name, why in report["not_tried"]]
    return lines + ([f"stopped: {report['stopped']}"] if report["stopped"] else [])
