"""`sentinel replay`: judges recorded readings sample by sample."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from sentinel.cli.shared import RUNS, Columns, ConfigDir, Json, Loss, Run, fields_of, parsed_columns, print_json
from sentinel.daemon.run_files import find_config
from sentinel.daemon.sources import source_at
from sentinel.judge.events import Event
from sentinel.judge.history import History
from sentinel.judge.reference import smoothed
from sentinel.judge.replay import Replay
from sentinel.judge.thresholds import Thresholds
from sentinel.judge.verdict import Verdict, VerdictKind, judge_past
from sentinel.plan.policy import Policy
from sentinel.plan.target import rollback_to
from sentinel.sources.column_source import ColumnSource
from sentinel.sources.opening import open_sources
from sentinel.vocabulary.errors import ConfigError
from sentinel.vocabulary.sample import CheckpointSaved


def replay(
    paths: Annotated[list[Path], typer.Argument(help="Journals, state folders, logs, tables, TensorBoard folders.")],
    column: Columns = None,
    loss: Loss = None,
    explain: Annotated[
        bool, typer.Option("--explain", help="Print what each name was taken for, and how many lines were what.")
    ] = False,
    planned: Annotated[
        list[int] | None, typer.Option("--planned", help="A step with a planned change; may be repeated.")
    ] = None,
    reference: Annotated[
        list[Path] | None,
        typer.Option("--reference", help="A run that this one should not be slower than; may be repeated."),
    ] = None,
    still_running: Annotated[
        bool,
        typer.Option(
            "--still-running", "--live", help="Judge as a watch does: more samples will come, and a spike may recover."
        ),
    ] = False,
    run: Run = None,
    config_dir: ConfigDir = RUNS,
    as_json: Json = False,
) -> int:
    """With --run: \\[judge], \\[policy], planned steps and references of that run; otherwise the defaults."""
    config = find_config(run, config_dir) if run is not None else None
    columns = parsed_columns(column, loss)
    thresholds, policy = (config.judge, config.policy) if config else (Thresholds(), Policy())
    steps = (*(planned or ()), *(config.run.planned_steps if config else ()))
    paths_of_references = (*(reference or ()), *(config.run.reference if config else ()))
    references = [smoothed(str(path), source_at(path, columns)) for path in paths_of_references]
    replayed = [
        _replay(
            source,
            Replay(thresholds, steps, references),
            policy.margin_steps,
            still_running=still_running,
            explain=explain,
        )
        for path in paths
        for source in open_sources(path, columns)
    ]
    if as_json:
        print_json([_document(each, explain=explain) for each in replayed])
    else:
        for each in replayed:
            _show(each, explain=explain)
    return int(any(each.verdict.kind is VerdictKind.DIVERGED for each in replayed))


_EVENT = ("onset_step", "onset_range", "verdict_step", "end_step", "recommend_rollback")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Replayed:
    source: ColumnSource
    verdict: Verdict
    events: tuple[tuple[Event, int | None], ...]  # each with the step to roll back to, None where none is recommended
    first_step: int | None
    last_step: int | None


def _replay(
    source: ColumnSource, replay: Replay, margin_steps: int, *, still_running: bool, explain: bool
) -> _Replayed:
    first, source.explains = None, explain
    for readings in source:
        first = int(readings.steps[0]) if first is None else first
        replay.push(readings)
    if not source.samples and source.unreadable:
        line, why = next(iter(source.first_unreadable), (0, ""))
        raise ConfigError(f"{source.path}: none of its {source.unreadable} readings can be read; line {line}: {why}")
    if not still_running:
        replay.end()
    attempts = History(source.others).attempts
    last = next((a.end_reason for a in reversed(attempts.values()) if a.finished), None)
    saved = sorted({r.global_step for r in source.others if isinstance(r, CheckpointSaved)})
    return _Replayed(
        source=source,
        verdict=judge_past(replay.series, last),
        events=tuple((event, rollback_to(event, saved, margin_steps)) for event in replay.events),
        first_step=first,
        last_step=replay.series.last_step,
    )


def _document(replayed: _Replayed, *, explain: bool) -> dict[str, Any]:
    source, verdict = replayed.source, replayed.verdict
    explained = {"names": dict(source.names), "counts": source.counts} if explain else {}
    return {
        "path": str(source.path),
        **fields_of(source, "format", "samples"),
        "unreadable_lines": source.unreadable,
        "first_unreadable": [{"line": line, "why": why} for line, why in source.first_unreadable],
        "notes": list(source.notes),
        **fields_of(replayed, "first_step", "last_step"),
        "verdict": str(verdict.kind),
        **fields_of(verdict, "severity", "reason"),
        "events": [
            {"kind": str(event.kind), **fields_of(event, *_EVENT), "rollback_to": to}
            | fields_of(event, "led_by", "led_by_steps", "reason")
            for event, to in replayed.events
        ],
        **explained,
    }


def _show_names(source: ColumnSource) -> None:
    for ours, theirs in source.names.items():
        typer.echo(f"  {ours} from {theirs!r}")
    if not source.names:
        typer.echo("  all names are sentinel's own")
    if source.counts:
        typer.echo(
            "  lines: " + ", ".join(f"{count} {name.replace('_', ' ')}" for name, count in source.counts.items())
        )


def _show(replayed: _Replayed, *, explain: bool) -> None:
    source = replayed.source
    steps = "" if replayed.first_step is None else f", steps {replayed.first_step} to {replayed.last_step}"
    typer.echo(f"{source.path}: {source.format}, {source.samples} samples{steps}")
    if explain:
        _show_names(source)
    for line, why in source.first_unreadable:
        typer.echo(f"  line {line} can't be read: {why}")
    if source.unreadable > len(source.first_unreadable):
        typer.echo(f"  {source.unreadable} lines can't be read in all")
    for note in source.notes:
        typer.echo(f"  {note}")
    for event, to in replayed.events:
        advice = "" if to is None else f"; roll back to step {to} or before"
        leads = zip(event.led_by, event.led_by_steps, strict=True)
        led = "".join(f"; {name} led by {steps} steps" for name, steps in leads)
        typer.echo(f"  {event.kind} at step {event.onset_step}: {event.reason}{led}{advice}")
    typer.echo(f"  {replayed.verdict.kind}: {replayed.verdict.reason}")
