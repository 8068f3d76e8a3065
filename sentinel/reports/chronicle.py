"""The run's chronicle as Markdown and PNG: what diverged, when, what led, what was tried, what it cost, what helped."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from sentinel.durable import write_atomically
from sentinel.plan.alerts.sentences import story
from sentinel.plan.incident.incident import Incident, Rollback
from sentinel.plan.restart.forecast import lost_so_far
from sentinel.reports.attempts import AttemptRow, attempt_rows
from sentinel.reports.bisect import chapter
from sentinel.reports.past import Past
from sentinel.vocabulary.texts import markdown


def write_chronicle(
    run: str, past: Past, folder: Path, bisects: Mapping[str, Mapping[str, Any]] = MappingProxyType({})
) -> Path:
    """Writes chronicle.md and one PNG for each incident into the folder; returns the page's path. `bisects`: the
    reports of the incidents that have one."""
    from sentinel.reports.pictures import draw_attempts  # matplotlib takes half a second

    folder.mkdir(parents=True, exist_ok=True)
    rows = {row.attempt: row for row in attempt_rows(past)}
    lines = [f"# {markdown(run)}: chronicle", "", _summary(past), ""]
    for incident in past.incidents:
        started = {r.id for r in incident.rollbacks}
        concerned = [  # the attempt that diverged and those that its rollbacks started
            rows[n]
            for n, a in past.history.attempts.items()
            if n == incident.attempt or (a.started is not None and a.started.rollback in started)
        ]
        if concerned:
            title = f"{run}  ·  {incident.id}  ·  {incident.outcome or incident.status}"
            draw_attempts(past, concerned, title=title, path=folder / f"{incident.id}.png")
        lines += [*_chapter(incident, concerned, past), ""]
        lines += chapter(bisects[incident.id]) if incident.id in bisects else []
    path = folder / "chronicle.md"
    write_atomically(path, "\n".join(lines))
    return path


def _summary(past: Past) -> str:
    incidents, reached = past.incidents, max((int(r.steps.max()) for r in past.stretches), default=0)
    return (
        f"attempts: {len(past.history.attempts)}, steps reached: {reached}, incidents: {len(incidents)}, "
        f"rollbacks: {sum(len(i.rollbacks) for i in incidents)}, steps lost to them: {lost_so_far(incidents)}, "
        f"recovered: {sum(i.outcome == 'recovered' for i in incidents)}."
    )


def _chapter(incident: Incident, attempts: Sequence[AttemptRow], past: Past) -> Iterator[str]:
    yield f"## {markdown(incident.id)}: {markdown(incident.outcome or incident.status)}"
    yield ""
    yield f"- **What broke:** {markdown(incident.reason)}"
    yield f"- **When:** {markdown(_when(incident))}"
    yield f"- **What led:** {markdown(incident.leading.sentence)}"
    yield f"- **What it cost:** {_cost(incident, past)}"
    yield f"- **What helped:** {markdown(_helped(incident))}"
    yield ""
    if attempts:
        yield f"![loss, variance and learning rate of {incident.id}]({incident.id}.png)"
        yield ""
    if incident.rollbacks:
        yield from _tried(incident, {row.attempt: row.validation_loss for row in attempts})
    yield "| when (UTC) | what happened |"
    yield "|---|---|"
    for line in story(past.events, incident.id):
        yield f"| {_time(line.time_unix_s)} | {markdown(line.sentence)} |"


def _tried(incident: Incident, losses: Mapping[int, float | None]) -> Iterator[str]:
    yield "| rollback | what was tried | hypothesis | from | changes | validation | what it did |"
    yield "|---|---|---|---|---|---|---|"
    for rollback in incident.rollbacks:
        loss = losses.get(rollback.attempt or -1)
        cells = (
            rollback.id,
            rollback.rung,
            rollback.hypothesis,
            rollback.target_tag or "scratch",
            "; ".join(rollback.changes) or "none",
            "not measured" if loss is None else f"{loss:.3f}",
            _did(incident, rollback),
        )
        yield "| " + " | ".join(markdown(cell) for cell in cells) + " |"
    yield ""


def _did(incident: Incident, rollback: Rollback) -> str:
    if rollback.result is not None:
        return rollback.result
    if rollback is incident.rollbacks[-1] and incident.outcome:
        return f"{incident.outcome}: {incident.note}"
    return "not settled"


def _when(incident: Incident) -> str:
    words = [f"attempt {incident.attempt}"]
    if incident.alarm_step is not None:
        words.insert(0, f"seen at step {incident.alarm_step}")
    if incident.onset_range:
        words.insert(0, f"onset between steps {incident.onset_range[0]} and {incident.onset_range[1]}")
    ended = f", {incident.outcome or 'ended'} {_time(incident.closed_unix_s)}" if incident.closed_unix_s else ""
    return f"{', '.join(words)}; opened {_time(incident.opened_unix_s)}{ended}"


def _cost(incident: Incident, past: Past) -> str:
    starts = sum(r.starts for r in incident.rollbacks)
    hours = _gpu_hours({r.attempt for r in incident.rollbacks if r.failed}, past)
    spent = "" if hours is None else f"; {hours:.3g} GPU-hours went into attempts that did not recover"
    return f"{lost_so_far((incident,))} steps thrown away, {starts} starts of the job{spent}"


def _gpu_hours(attempts: Collection[int | None], past: Past) -> float | None:
    """Their steps' times, times their ranks. None where they were not measured."""
    total = 0.0
    for number, attempt in past.history.attempts.items():
        if number in attempts:
            _, times = past.curve(number, "step_time_s")
            if attempt.started is None or attempt.started.world_size is None or np.isnan(times).all():
                return None
            total += float(np.nansum(times)) * attempt.started.world_size / 3600
    return total


def _helped(incident: Incident) -> str:
    if incident.outcome == "recovered" and incident.rollbacks:
        last = incident.rollbacks[-1]
        return f"{last.rung}, from {last.target_tag or 'scratch'}: {incident.note}"
    return f"nothing so far ({incident.note or incident.status})"


def _time(unix_s: float) -> str:
    return datetime.fromtimestamp(unix_s, UTC).strftime("%Y-%m-%d %H:%M:%S")
