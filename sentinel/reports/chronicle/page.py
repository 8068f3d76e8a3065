"""The chronicle as Markdown, beside its pictures."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from sentinel.durable import write_atomically
from sentinel.judge.history import Attempt, History
from sentinel.plan.forecast import lost_so_far
from sentinel.plan.incident import Incident, Rollback
from sentinel.plan.incident_events import fold
from sentinel.plan.sentences import story
from sentinel.reports.chronicle.attempts import AttemptRow, attempt_rows
from sentinel.reports.chronicle.picture import draw

__all__ = ["write_chronicle"]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Chapter:
    """One incident with the attempts that it concerns: the one that diverged and those that its rollbacks started."""

    incident: Incident
    attempts: tuple[Attempt, ...]
    rows: tuple[AttemptRow, ...]


def write_chronicle(run: str, history: History, events: Sequence[dict[str, Any]], folder: Path) -> Path:
    """Writes chronicle.md and one PNG for each incident into the folder; returns the page's path."""
    folder.mkdir(parents=True, exist_ok=True)
    incidents = fold(events)
    rows = dict(zip(history.attempts, attempt_rows(history, incidents, events), strict=True))
    lines = [f"# {run}: chronicle", "", *_summary(history, incidents), ""]
    for incident in incidents:
        concerned = [n for n, a in history.attempts.items() if n == incident.attempt or _belongs(a, incident)]
        chapter = _Chapter(
            incident=incident,
            attempts=tuple(history.attempts[n] for n in concerned),
            rows=tuple(rows[n] for n in concerned),
        )
        if concerned:
            title = f"{run}  ·  {incident.id}  ·  {incident.outcome or incident.status}"
            draw(chapter.attempts, chapter.rows, title=title, path=folder / f"{incident.id}.png")
        lines += [*_chapter(chapter, events), ""]
    path = folder / "chronicle.md"
    write_atomically(path, "\n".join(lines))
    return path


def _belongs(attempt: Attempt, incident: Incident) -> bool:
    started = attempt.started
    return started is not None and started.rollback in {r.id for r in incident.rollbacks}


def _summary(history: History, incidents: tuple[Incident, ...]) -> Iterator[str]:
    steps = [s.global_step for a in history.attempts.values() for s in a.samples]
    lost = lost_so_far(incidents)
    helped = [i for i in incidents if i.outcome == "recovered"]
    yield (
        f"{len(history.attempts)} attempts, {max(steps, default=0)} steps reached, {len(incidents)} incidents, "
        f"{sum(len(i.rollbacks) for i in incidents)} rollbacks, {lost} steps lost to them, {len(helped)} recovered."
    )


def _chapter(chapter: _Chapter, events: Sequence[dict[str, Any]]) -> Iterator[str]:
    incident = chapter.incident
    yield f"## {incident.id}: {incident.outcome or incident.status}"
    yield ""
    yield f"- **What broke:** {incident.reason}"
    yield f"- **When:** {_when(incident)}"
    yield f"- **What led:** {', '.join(incident.led_by) or 'nothing that was seen before the loss'}"
    yield f"- **What it cost:** {_cost(chapter)}"
    yield f"- **What helped:** {_helped(incident)}"
    yield ""
    if chapter.attempts:
        yield f"![loss, variance and learning rate of {incident.id}]({incident.id}.png)"
        yield ""
    if incident.rollbacks:
        yield from _tried(chapter)
    yield "| when (UTC) | what happened |"
    yield "|---|---|"
    for told in story(events, incident.id):
        yield f"| {_time(told.time_unix_s)} | {_cell(told.sentence)} |"


def _tried(chapter: _Chapter) -> Iterator[str]:
    yield "| rollback | what was tried | hypothesis | from | changes | validation | what it did |"
    yield "|---|---|---|---|---|---|---|"
    losses = {row.attempt: row.validation_loss for row in chapter.rows}
    for rollback in chapter.incident.rollbacks:
        loss = losses.get(rollback.attempt or -1)
        cells = (
            rollback.id,
            rollback.rung,
            rollback.hypothesis,
            rollback.target_tag or "scratch",
            "; ".join(rollback.changes) or "none",
            "not measured" if loss is None else f"{loss:.3f}",
            _did(chapter.incident, rollback),
        )
        yield "| " + " | ".join(_cell(cell) for cell in cells) + " |"
    yield ""


def _did(incident: Incident, rollback: Rollback) -> str:
    if rollback.result is not None:
        return rollback.result
    if rollback is incident.rollbacks[-1] and incident.outcome:
        return f"{incident.outcome}: {incident.note}"
    return "not settled"


def _when(incident: Incident) -> str:
    onset = (
        f"onset between steps {incident.onset_range[0]} and {incident.onset_range[1]}" if incident.onset_range else ""
    )
    alarm = f"seen at step {incident.alarm_step}" if incident.alarm_step is not None else ""
    ended = f", {incident.outcome or 'ended'} {_time(incident.closed_unix_s)}" if incident.closed_unix_s else ""
    words = [word for word in (onset, alarm, f"attempt {incident.attempt}") if word]
    return f"{', '.join(words)}; opened {_time(incident.opened_unix_s)}{ended}"


def _cost(chapter: _Chapter) -> str:
    lost = lost_so_far((chapter.incident,))
    starts = sum(r.starts for r in chapter.incident.rollbacks)
    hours = _gpu_hours(chapter)
    spent = "" if hours is None else f"; {hours:.3g} GPU-hours went into attempts that did not recover"
    return f"{lost} steps thrown away, {starts} starts of the job{spent}"


def _gpu_hours(chapter: _Chapter) -> float | None:
    """Of the attempts whose rung failed: their steps' times, times their ranks. None where nobody measured them."""
    failed = {r.attempt for r in chapter.incident.rollbacks if r.failed}
    total = 0.0
    for attempt in chapter.attempts:
        times = [s.step_time_s for s in attempt.samples if s.step_time_s is not None]
        if attempt.number in failed:
            if attempt.started is None or attempt.started.world_size is None or not times:
                return None
            total += sum(times) * attempt.started.world_size / 3600
    return total


def _helped(incident: Incident) -> str:
    if incident.outcome == "recovered" and incident.rollbacks:
        last = incident.rollbacks[-1]
        return f"{last.rung}, from {last.target_tag or 'scratch'}: {incident.note}"
    return f"nothing so far ({incident.note or incident.status})"


def _time(unix_s: float) -> str:
    return datetime.fromtimestamp(unix_s, UTC).strftime("%Y-%m-%d %H:%M:%S")


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")
