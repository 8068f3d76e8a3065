"""The run's chronicle as Markdown and PNG: what diverged, when, what led, what was tried, what it cost, what helped."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from types import MappingProxyType
from typing import Any

from sentinel.durable import write_atomically
from sentinel.judge.history import Attempt, History
from sentinel.plan.forecast import lost_so_far
from sentinel.plan.incident import Incident, Rollback
from sentinel.plan.incident_events import fold
from sentinel.plan.sentences import story
from sentinel.reports.bisect import chapter
from sentinel.vocabulary.loss_ratio import LossMinimum

_ENDS = ("opened", "rung_failed")  # events with the onset of the attempt that they end


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptRow:
    """One attempt, as a table shows it."""

    attempt: int
    mitigation: str | None  # the rung that it was started with; None for the first
    resumed_from: int | None
    first_step: int | None
    last_step: int | None
    steps_loss_ratio_gt_1_2: int
    max_loss_ratio: float
    onset_step: int | None  # early end of the onset; None where it did not diverge
    alarm_step: int | None
    verdict: str
    validation_loss: float | None  # the last one, nats


def attempt_rows(
    history: History, incidents: tuple[Incident, ...], events: Sequence[Mapping[str, Any]]
) -> tuple[AttemptRow, ...]:
    """What each attempt was started with and what became of it, in the order of the attempts."""
    return tuple(_row(attempt, incidents, events) for attempt in history.attempts.values())


def _row(attempt: Attempt, incidents: tuple[Incident, ...], events: Sequence[Mapping[str, Any]]) -> AttemptRow:
    rollbacks = {r.id: r for i in incidents for r in (*i.rollbacks, *(e for race in i.races for e in race.entrants))}
    started, minimum = attempt.started, LossMinimum()
    rollback = rollbacks.get(started.rollback) if started and started.rollback else None
    ended = next((e for e in events if e["event"] in _ENDS and e.get("attempt") == attempt.number), {})
    onset = ended.get("onset_range")
    # the ratios that the trainer reported; counted anew where it did not
    ratios = [s.loss_ratio if s.loss_ratio is not None else minimum.push(s.loss, s.seqlen) for s in attempt.samples]
    steps = [s.global_step for s in attempt.samples]
    return AttemptRow(
        attempt=attempt.number,
        mitigation=rollback.rung if rollback else None,
        resumed_from=started.resumed_from if started else None,
        first_step=min(steps, default=None),
        last_step=max(steps, default=None),
        steps_loss_ratio_gt_1_2=sum(r > 1.2 for r in ratios),
        max_loss_ratio=max(ratios, default=math.nan),
        onset_step=onset[0] if onset else None,
        alarm_step=ended.get("alarm_step"),
        verdict=_verdict(attempt, ended, incidents),
        validation_loss=attempt.validations[-1].loss if attempt.validations else None,
    )


def _verdict(attempt: Attempt, ended: Mapping[str, Any], incidents: tuple[Incident, ...]) -> str:
    if ended:
        did_diverge = ended["event"] == "opened" or ended.get("alarm_step") is not None
        return "diverged" if did_diverge else "not recovered"
    cured = [i.current.id for i in incidents if i.outcome == "recovered" and i.current is not None]
    if attempt.started is not None and attempt.started.rollback in cured:
        return "recovered"
    return "finished" if attempt.end_reason == "finished" else "cut short"


def write_chronicle(
    run: str,
    history: History,
    events: Sequence[Mapping[str, Any]],
    folder: Path,
    bisects: Mapping[str, Mapping[str, Any]] = MappingProxyType({}),
) -> Path:
    """Writes chronicle.md and one PNG for each incident into the folder; returns the page's path. `bisects`: the
    reports of the incidents that have one."""
    from sentinel.reports.pictures import draw_attempts  # matplotlib takes half a second

    folder.mkdir(parents=True, exist_ok=True)
    incidents = fold(events)
    rows = dict(zip(history.attempts, attempt_rows(history, incidents, events), strict=True))
    lines = [f"# {run}: chronicle", "", _summary(history, incidents), ""]
    for incident in incidents:
        started = {r.id for r in incident.rollbacks}
        concerned = [  # the attempt that diverged and those that its rollbacks started
            (a, rows[n])
            for n, a in history.attempts.items()
            if n == incident.attempt or (a.started is not None and a.started.rollback in started)
        ]
        if concerned:
            title = f"{run}  ·  {incident.id}  ·  {incident.outcome or incident.status}"
            draw_attempts(concerned, title=title, path=folder / f"{incident.id}.png")
        lines += [*_chapter(incident, concerned, events), ""]
        lines += chapter(bisects[incident.id]) if incident.id in bisects else []
    path = folder / "chronicle.md"
    write_atomically(path, "\n".join(lines))
    return path


def _summary(history: History, incidents: tuple[Incident, ...]) -> str:
    steps = [s.global_step for a in history.attempts.values() for s in a.samples]
    return (
        f"attempts: {len(history.attempts)}, steps reached: {max(steps, default=0)}, incidents: {len(incidents)}, "
        f"rollbacks: {sum(len(i.rollbacks) for i in incidents)}, steps lost to them: {lost_so_far(incidents)}, "
        f"recovered: {sum(i.outcome == 'recovered' for i in incidents)}."
    )


def _chapter(
    incident: Incident, attempts: Sequence[tuple[Attempt, AttemptRow]], events: Sequence[Mapping[str, Any]]
) -> Iterator[str]:
    yield f"## {incident.id}: {incident.outcome or incident.status}"
    yield ""
    yield f"- **What broke:** {incident.reason}"
    yield f"- **When:** {_when(incident)}"
    yield f"- **What led:** {', '.join(incident.led_by) or 'nothing that was seen before the loss'}"
    yield f"- **What it cost:** {_cost(incident, [attempt for attempt, _ in attempts])}"
    yield f"- **What helped:** {_helped(incident)}"
    yield ""
    if attempts:
        yield f"![loss, variance and learning rate of {incident.id}]({incident.id}.png)"
        yield ""
    if incident.rollbacks:
        yield from _tried(incident, {row.attempt: row.validation_loss for _, row in attempts})
    yield "| when (UTC) | what happened |"
    yield "|---|---|"
    for line in story(events, incident.id):
        yield f"| {_time(line.time_unix_s)} | {_cell(line.sentence)} |"


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
        yield "| " + " | ".join(_cell(cell) for cell in cells) + " |"
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


def _cost(incident: Incident, attempts: Sequence[Attempt]) -> str:
    starts = sum(r.starts for r in incident.rollbacks)
    failed = {r.attempt for r in incident.rollbacks if r.failed}
    hours = _gpu_hours([attempt for attempt in attempts if attempt.number in failed])
    spent = "" if hours is None else f"; {hours:.3g} GPU-hours went into attempts that did not recover"
    return f"{lost_so_far((incident,))} steps thrown away, {starts} starts of the job{spent}"


def _gpu_hours(attempts: Sequence[Attempt]) -> float | None:
    """Their steps' times, times their ranks. None where they were not measured."""
    total = 0.0
    for attempt in attempts:
        times = [s.step_time_s for s in attempt.samples if s.step_time_s is not None]
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
