"""`replay`: what happened in a run, by what it left behind."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import typer

from sentinel.daemon.readings import source_at
from sentinel.judge.analysis.smoothing import smoothed
from sentinel.judge.events import Event
from sentinel.judge.history import History
from sentinel.judge.reference import Reference
from sentinel.judge.replay import Replay
from sentinel.judge.thresholds import Thresholds
from sentinel.judge.verdict import Verdict, VerdictKind, judge_past
from sentinel.plan.policy import Policy
from sentinel.plan.recommended import rollback_to
from sentinel.sources.column_source import ColumnSource
from sentinel.sources.opening import open_sources
from sentinel.vocabulary.errors import ConfigError
from sentinel.vocabulary.numbers import dump_json
from sentinel.vocabulary.sample import CheckpointSaved

__all__ = ["Asked", "parsed_columns", "replay_paths"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What a person asked for on the command line."""

    columns: Mapping[str, str]
    """Name of ours to the source's: loss to train/loss."""

    planned: tuple[int, ...]
    references: tuple[Path, ...]
    still_running: bool
    """Whether an episode at the end of the readings may still heal."""

    thresholds: Thresholds
    policy: Policy


@dataclass(frozen=True, slots=True, kw_only=True)
class Replayed:
    """One source, and what the judge says of it."""

    source: ColumnSource
    verdict: Verdict
    events: tuple[Event, ...]
    first_step: int | None
    last_step: int | None
    saved_steps: tuple[int, ...]


def replay_paths(paths: Sequence[Path], asked: Asked, *, as_json: bool) -> int:
    """Each path on its own; 1 when one of them ends diverged."""
    references = [smoothed(str(path), source_at(path, asked.columns)) for path in asked.references]
    replayed = [_replay(source, asked, references) for path in paths for source in open_sources(path, asked.columns)]
    if as_json:
        typer.echo(dump_json([_document(each, asked) for each in replayed]))
    else:
        for each in replayed:
            _show(each, asked)
    return int(any(each.verdict.kind is VerdictKind.DIVERGED for each in replayed))


def parsed_columns(texts: Sequence[str]) -> dict[str, str]:
    """`loss=train/loss` as a mapping. ConfigError for anything else."""
    columns = {}
    for text in texts:
        ours, equals, theirs = text.partition("=")
        if not (ours and equals and theirs):
            raise ConfigError(f"--column {text!r}: write it as --column loss=train/loss, our name first")
        columns[ours.strip()] = theirs.strip()
    return columns


def _replay(source: ColumnSource, asked: Asked, references: Sequence[Reference]) -> Replayed:
    replay = Replay(asked.thresholds, asked.planned, references)
    first = None
    for readings in source:
        first = int(readings.steps[0]) if first is None else first
        replay.push(readings)
    if not source.samples and source.unreadable:
        line, why = next(iter(source.first_unreadable), (0, ""))
        raise ConfigError(f"{source.path}: none of its {source.unreadable} readings can be read; line {line}: {why}")
    if not asked.still_running:
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


def _document(replayed: Replayed, asked: Asked) -> dict[str, Any]:
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
        "events": [_event(event, replayed, asked) for event in replayed.events],
    }


def _event(event: Event, replayed: Replayed, asked: Asked) -> dict[str, Any]:
    return {
        "kind": str(event.kind),
        "onset_step": event.onset_step,
        "onset_range": list(event.onset_range),
        "verdict_step": event.verdict_step,
        "end_step": event.end_step,
        "recommend_rollback": event.recommend_rollback,
        "rollback_to": rollback_to(event, replayed.saved_steps, asked.policy.margin_steps),
        "led_by": list(event.led_by),
        "led_by_steps": list(event.led_by_steps),
        "reason": event.reason,
    }


def _show(replayed: Replayed, asked: Asked) -> None:
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
        to = rollback_to(event, replayed.saved_steps, asked.policy.margin_steps)
        advice = "" if to is None else f"; roll back to step {to} or before"
        led = "".join(
            f"; {name} led by {steps} steps" for name, steps in zip(event.led_by, event.led_by_steps, strict=True)
        )
        typer.echo(f"  {event.kind} at step {event.onset_step}: {event.reason}{led}{advice}")
    typer.echo(f"  {replayed.verdict.kind}: {replayed.verdict.reason}")
