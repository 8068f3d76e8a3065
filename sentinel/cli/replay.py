"""`sentinel replay`: judges recorded readings sample by sample."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Annotated, Any

import typer

from sentinel.cli.shared import (
    RUNS,
    Columns,
    ConfigDir,
    Json,
    Loss,
    Run,
    echo,
    fields_of,
    parsed_columns,
    print_json,
    to_stderr,
)
from sentinel.config.run_files import find_config
from sentinel.daemon.sources import source_at
from sentinel.judge.analysis.departures import FirstMoved
from sentinel.judge.analysis.first_mover import SIGNALS
from sentinel.judge.events import Event
from sentinel.judge.history import History
from sentinel.judge.reference import smoothed
from sentinel.judge.replay import Replay
from sentinel.judge.thresholds import Thresholds
from sentinel.judge.verdict import Verdict, VerdictKind, judge_past
from sentinel.plan.choose.policy import Policy
from sentinel.plan.choose.target import rollback_to
from sentinel.plan.review.backtest import WouldDo, would_do
from sentinel.sources.column_source import ColumnSource
from sentinel.sources.opening import open_sources
from sentinel.vocabulary.errors import ConfigError, SentinelError
from sentinel.vocabulary.sample import CheckpointSaved, RunStarted


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
    decisions: Annotated[
        bool,
        typer.Option("--decisions", help="Print what the policy would have done: rung, target, steps lost, GPU-hours."),
    ] = False,
    save_every: Annotated[
        int | None,
        typer.Option("--save-every", min=1, help="With --decisions: steps between saves, where the log names no save."),
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
    """With --run: \\[judge], \\[policy], planned steps and references of that run; otherwise the defaults. --decisions
    takes for granted what no log shows: that every save was whole, that the job could be stopped, and that no incident
    came before."""
    config = find_config(run, config_dir) if run is not None else None
    columns = parsed_columns(column, loss)
    thresholds, policy = (config.judge, config.policy) if config else (Thresholds(), Policy())
    thresholds = replace(thresholds, negative_loss=True) if "loss" in columns else thresholds
    steps = (*(planned or ()), *(config.run.planned_steps if config else ()))
    paths_of_references = (*(reference or ()), *(config.run.reference if config else ()))
    references = [smoothed(str(path), source_at(path, columns)) for path in paths_of_references]
    backtest, replayed, refused = (policy, save_every) if decisions else None, list[_Replayed](), list[SentinelError]()
    for path in paths:
        try:
            for source in open_sources(path, columns):
                made = Replay(thresholds, steps, references)
                replayed.append(
                    _replay(
                        source,
                        made,
                        policy.margin_steps,
                        still_running=still_running,
                        explain=explain,
                        backtest=backtest,
                    )
                )
        except SentinelError as error:  # the others are shown
            refused.append(error)
    if as_json and replayed:
        print_json([_document(each, explain=explain) for each in replayed])
    for each in replayed if not as_json else ():
        _show(each, explain=explain)
    for other in refused[:-1]:
        to_stderr(str(other))
    if refused:
        raise refused[-1]
    return int(any(each.verdict.kind is VerdictKind.DIVERGED for each in replayed))


_EVENT = ("onset_step", "onset_range", "verdict_step", "end_step", "recommend_rollback")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Replayed:
    source: ColumnSource
    verdict: Verdict
    # Each with what moved first, and with the step to roll back to; None where no loss moved, or none is recommended.
    events: tuple[tuple[Event, FirstMoved | None, int | None], ...]
    first_step: int | None
    last_step: int | None
    would_do: tuple[WouldDo, ...] | None  # at each divergence, in order; None where nobody asked


def _replay(
    source: ColumnSource,
    replay: Replay,
    margin_steps: int,
    *,
    still_running: bool,
    explain: bool,
    backtest: tuple[Policy, int | None] | None,
) -> _Replayed:
    first, source.explains, step_times = None, explain, list[float]()
    source.fields = tuple(dict.fromkeys((*source.fields, *SIGNALS)))
    diverged_in: dict[tuple[int, ...], int] = {}
    if backtest is not None:
        source.fields = (*source.fields, "step_time_s")
    told = 0
    for readings in source:
        first = int(readings.steps[0]) if first is None else first
        starts = [record for record in source.others[told:] if isinstance(record, RunStarted)]
        told, replay.clip = len(source.others), starts[-1].gradient_clipping if starts else replay.clip
        step_times += [t for t in readings.values("step_time_s").tolist() if t > 0][: 1000 - len(step_times)]
        replay.push(readings)
        if backtest is not None:
            _note(replay, readings.attempt, diverged_in)
    if not source.samples and source.unreadable:
        line, why = next(iter(source.first_unreadable), (0, ""))
        raise ConfigError(f"{source.path}: none of its {source.unreadable} readings can be read; line {line}: {why}")
    if not still_running:
        replay.end()
    history = History(source.others)
    attempts = history.attempts
    last = next((a.end_reason for a in reversed(attempts.values()) if a.finished), None)
    saved = sorted({r.global_step for r in source.others if isinstance(r, CheckpointSaved)})
    return _Replayed(
        source=source,
        verdict=judge_past(replay.series, last),
        events=tuple((event, moved, rollback_to(event, saved, margin_steps)) for event, moved in replay.found),
        first_step=first,
        last_step=replay.series.last_step,
        would_do=None if backtest is None else _would_do(replay.found, history, diverged_in, *backtest, step_times),
    )


def _would_do(
    found_events: Iterable[tuple[Event, FirstMoved | None]],
    history: History,
    diverged_in: dict[tuple[int, ...], int],
    policy: Policy,
    save_every: int | None,
    step_times: list[float],
) -> tuple[WouldDo, ...]:
    step_time_s, found = median(step_times) if step_times else None, []
    for event, moved in ((e, m) for e, m in found_events if e.recommend_rollback):
        until = diverged_in.get(_key(event))  # an event of the end of the readings is one of the newest attempt
        lineage = [a for number, a in sorted(history.attempts.items()) if until is None or number <= until]
        found.append(
            would_do(event, lineage, policy, save_every=save_every, step_time_s=step_time_s, moved_first=moved)
        )
    return tuple(found)


def _note(replay: Replay, attempt: int, diverged_in: dict[tuple[int, ...], int]) -> None:
    """Takes note of the attempt that each new divergence is one of."""
    for event in replay.events:
        if event.recommend_rollback:
            diverged_in.setdefault(_key(event), attempt)


def _key(event: Event) -> tuple[int, ...]:
    return (*event.onset_range, event.verdict_step)


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
            | {
                "led_by": [] if moved is None else moved.led_by,
                "moved_first": None if moved is None else moved.to_json(),
            }
            | {"reason": event.reason}
            for event, moved, to in replayed.events
        ],
        **explained,
        **({} if replayed.would_do is None else {"would_do": [_would_do_json(one) for one in replayed.would_do]}),
    }


def _would_do_json(done: WouldDo) -> dict[str, Any]:
    decision, names = done.decision, ("rung", "target_tag", "target_step", "changes", "lost_steps", "lost_gpu_hours")
    found = None if decision is None else fields_of(decision, *names)
    return {**fields_of(done, "at_step", "saves", "reason", "passed"), "decision": found}


def _show_names(source: ColumnSource) -> None:
    for ours, theirs in source.names.items():
        echo(f"  {ours} from {theirs!r}")
    if not source.names:
        echo("  all names are sentinel's own")
    if source.counts:
        echo("  lines: " + ", ".join(f"{count} {name.replace('_', ' ')}" for name, count in source.counts.items()))


def _show(replayed: _Replayed, *, explain: bool) -> None:
    source = replayed.source
    steps = "" if replayed.first_step is None else f", steps {replayed.first_step} to {replayed.last_step}"
    echo(f"{source.path}: {source.format}, {source.samples} samples{steps}")
    if explain:
        _show_names(source)
    for line, why in source.first_unreadable:
        echo(f"  line {line} can't be read: {why}")
    if source.unreadable > len(source.first_unreadable):
        echo(f"  {source.unreadable} lines can't be read in all")
    for note in source.notes:
        echo(f"  {note}")
    for event, moved, to in replayed.events:
        advice = "" if to is None else f"; roll back to step {to} or before"
        tells = moved is not None and (moved.leading or event.recommend_rollback)
        led = f"; {moved.sentence}" if moved is not None and tells else ""
        echo(f"  {event.kind} at step {event.onset_step}: {event.reason}{led}{advice}")
    for done in replayed.would_do or ():
        for sentence in done.passed:
            echo(f"  at step {done.at_step}: {sentence}")
        echo(f"  at step {done.at_step}: {_decided(done)}")
    echo(f"  {replayed.verdict.kind}: {replayed.verdict.reason}")


def _decided(done: WouldDo) -> str:
    decision = done.decision
    if decision is None:
        return f"a person would have been asked: {done.reason}"
    hours = "" if decision.lost_gpu_hours is None else f" ({decision.lost_gpu_hours:.3g} GPU-hours)"
    target = "scratch" if decision.target_tag is None else f"step {decision.target_step}"
    least, why = "", done.reason
    if done.saves == "unknown" and decision.target_tag is not None:
        target, least = f"the last save at or before step {decision.target_step}", "at least "
        why = "the log names no save; --save-every STEPS assumes them"
    changes = "; ".join(decision.changes)
    return (
        f"rung {decision.rung!r} would have restarted from {target}, with {least}{decision.lost_steps} steps "
        f"lost{hours}{f': {changes}' if changes else ''} ({why})"
    )
