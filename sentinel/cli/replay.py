"""`sentinel replay`: judges recorded readings sample by sample."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sentinel.cli.options import RUNS, Columns, ConfigDir, Json, Run, parsed_columns
from sentinel.cli.output import print_json
from sentinel.daemon.run_files import find_config
from sentinel.judge.history import History
from sentinel.judge.thresholds import Thresholds
from sentinel.plan.policy import Policy
from sentinel.plan.recommended import rollback_to
from sentinel.vocabulary.errors import ConfigError
from sentinel.vocabulary.sample import CheckpointSaved

if TYPE_CHECKING:
    from sentinel.judge.events import Event
    from sentinel.judge.reference import Reference
    from sentinel.judge.verdict import Verdict
    from sentinel.sources.column_source import ColumnSource

__all__ = ["replay"]


def replay(
    paths: Annotated[list[Path], typer.Argument(help="Journals, state folders, logs, tables, TensorBoard folders.")],
    column: Columns = None,
    planned: Annotated[
        list[int] | None, typer.Option("--planned", help="A step with a planned change; may be repeated.")
    ] = None,
    reference: Annotated[
        list[Path] | None,
        typer.Option("--reference", help="A run that this one should not be slower than; may be repeated."),
    ] = None,
    still_running: Annotated[
        bool, typer.Option("--still-running", help="More samples will come: the last episode may still recover.")
    ] = False,
    run: Run = None,
    config_dir: ConfigDir = RUNS,
    as_json: Json = False,
) -> int:
    """With --run: \\[judge], \\[policy], planned steps and references of that run; otherwise the defaults."""
    from sentinel.daemon.sources import source_at
    from sentinel.judge.reference import smoothed
    from sentinel.judge.verdict import VerdictKind
    from sentinel.sources.opening import open_sources

    config = find_config(run, config_dir) if run is not None else None
    columns = parsed_columns(column)
    settings = Settings(
        planned=(*(planned or ()), *(config.run.planned_steps if config is not None else ())),
        still_running=still_running,
        thresholds=config.judge if config is not None else Thresholds(),
        policy=config.policy if config is not None else Policy(),
    )
    paths_of_references = (*(reference or ()), *(config.run.reference if config is not None else ()))
    references = [smoothed(str(path), source_at(path, columns)) for path in paths_of_references]
    replayed = [_replay(source, settings, references) for path in paths for source in open_sources(path, columns)]
    if as_json:
        print_json([_document(each, settings) for each in replayed])
    else:
        for each in replayed:
            _show(each, settings)
    return int(any(each.verdict.kind is VerdictKind.DIVERGED for each in replayed))


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How the readings are judged."""

    planned: tuple[int, ...]
    still_running: bool
    """Whether an episode at the end of the readings may still recover."""

    thresholds: Thresholds
    policy: Policy


@dataclass(frozen=True, slots=True, kw_only=True)
class Replayed:
    """One source and its verdict."""

    source: ColumnSource
    verdict: Verdict
    events: tuple[Event, ...]
    first_step: int | None
    last_step: int | None
    saved_steps: tuple[int, ...]


def _replay(source: ColumnSource, settings: Settings, references: Sequence[Reference]) -> Replayed:
    from sentinel.judge.replay import Replay
    from sentinel.judge.verdict import judge_past

    replay = Replay(settings.thresholds, settings.planned, references)
    first = None
    for readings in source:
        first = int(readings.steps[0]) if first is None else first
        replay.push(readings)
    if not source.samples and source.unreadable:
        line, why = next(iter(source.first_unreadable), (0, ""))
        raise ConfigError(f"{source.path}: none of its {source.unreadable} readings can be read; line {line}: {why}")
    if not settings.still_running:
        replay.end()
    history = History()
    for record in source.others:
        history.push(record)
    last = next((a.end_reason for a in reversed(history.attempts.values()) if a.finished), None)
    saved = {r.global_step for r in source.others if isinstance(r, CheckpointSaved)}
    return Replayed(
        source=source,
        verdict=judge_past(replay.series, last),
        events=replay.events,
        first_step=first,
        last_step=replay.series.last_step,
        saved_steps=tuple(sorted(saved)),
    )


def _document(replayed: Replayed, settings: Settings) -> dict[str, Any]:
    source = replayed.source
    return {
        "path": str(source.path),
        "format": source.format,
        "samples": source.samples,
        "unreadable_lines": source.unreadable,
        "first_unreadable": [{"line": line, "why": why} for line, why in source.first_unreadable],
        "notes": list(source.notes),
        "first_step": replayed.first_step,
        "last_step": replayed.last_step,
        "verdict": str(replayed.verdict.kind),
        "severity": replayed.verdict.severity,
        "reason": replayed.verdict.reason,
        "events": [_event(event, replayed, settings) for event in replayed.events],
    }


def _event(event: Event, replayed: Replayed, settings: Settings) -> dict[str, Any]:
    return {
        "kind": str(event.kind),
        "onset_step": event.onset_step,
        "onset_range": list(event.onset_range),
        "verdict_step": event.verdict_step,
        "end_step": event.end_step,
        "recommend_rollback": event.recommend_rollback,
        "rollback_to": rollback_to(event, replayed.saved_steps, settings.policy.margin_steps),
        "led_by": list(event.led_by),
        "led_by_steps": list(event.led_by_steps),
        "reason": event.reason,
    }


def _show(replayed: Replayed, settings: Settings) -> None:
    source = replayed.source
    steps = "" if replayed.first_step is None else f", steps {replayed.first_step} to {replayed.last_step}"
    typer.echo(f"{source.path}: {source.format}, {source.samples} samples{steps}")
    for line, why in source.first_unreadable:
        typer.echo(f"  line {line} can't be read: {why}")
    if source.unreadable > len(source.first_unreadable):
        typer.echo(f"  {source.unreadable} lines can't be read in all")
    for note in source.notes:
        typer.echo(f"  {note}")
    for event in replayed.events:
        to = rollback_to(event, replayed.saved_steps, settings.policy.margin_steps)
        advice = "" if to is None else f"; roll back to step {to} or before"
        led = "".join(
            f"; {name} led by {steps} steps" for name, steps in zip(event.led_by, event.led_by_steps, strict=True)
        )
        typer.echo(f"  {event.kind} at step {event.onset_step}: {event.reason}{led}{advice}")
    typer.echo(f"  {replayed.verdict.kind}: {replayed.verdict.reason}")
