"""`sentinel demo`: trains a small GPT that diverges, and prints what sentinel did about it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from sentinel.cli.correlate import correlation_table
from sentinel.cli.shared import Json, print_json, table
from sentinel.demo.configuration import WITH_LAYERNORMS, WITHOUT_LAYERNORMS, Restarts
from sentinel.demo.story import DemoReport, tell
from sentinel.vocabulary.texts import neutral

_OUT = Path("demo-output")


def demo(
    seed: Annotated[int, typer.Option(help="The run's seed; 0 to 4 were tried.")] = 0,
    output: Annotated[Path, typer.Option(help="Folder for the run and its picture; it must not contain a run.")] = _OUT,
    layernorms: Annotated[
        bool,
        typer.Option(
            "--layernorms/--without-layernorms",
            help="With them attention logits grow, as in large models; without, the failure is the model's own.",
        ),
    ] = True,
    restart: Annotated[
        Restarts,
        typer.Option(help="How each rollback restarts the training, as \\[policy] restart. job: always by a new job."),
    ] = "auto",
    why: Annotated[bool, typer.Option("--bisect", help="At the end, find why it diverged: docs/BISECT.md.")] = False,
    as_json: Json = False,
) -> int:
    """Exit 0 only where the run diverged and recovered."""
    from sentinel.reports.pictures import draw_attempts

    console = Console(stderr=as_json, highlight=False, width=None if sys.stdout.isatty() else 120)
    recipe = WITH_LAYERNORMS if layernorms else WITHOUT_LAYERNORMS
    report = tell(seed, output, lambda line: console.print(neutral(line), markup=False), recipe, restart)
    how = "recovered" if report.recovered else ("not recovered" if report.diverged else "did not diverge")
    title = f"A GPT that diverges, and what sentinel did about it  ·  seed {report.seed}  ·  {how}"
    draw_attempts(report.past, report.attempts, title=title, path=report.plot)
    console.print(_attempts(report))
    console.print(correlation_table(report.correlations, report.correlations.rows, "the demo"))
    for restarted in report.restarts:
        console.print(restarted.sentence, markup=False)
    console.print(neutral(summary(report)), markup=False)
    console.print(f"Commands for this run: sentinel status|incidents|undo --run {output / 'demo.toml'}", markup=False)
    if why and report.diverged:
        _bisect(output / "demo.toml", report.past.incidents[0].id, console)
    if as_json:
        print_json(report.to_json())
    return 0 if report.recovered else 1


def _bisect(configuration: Path, incident: str, console: Console) -> None:
    from sentinel.cli.bisect import bisect_of
    from sentinel.config import load_config
    from sentinel.reports.bisect import lines_of

    found = bisect_of(load_config(configuration), incident).run(poll_interval_s=0.4)
    for line in lines_of(found):
        console.print(neutral(line), markup=False)


def _attempts(report: DemoReport) -> Table:
    heads = ("attempt", "mitigation", "from", "steps", "ratio > 1.2", "max ratio", "validation", "verdict")
    rows = [
        (
            str(row.attempt),
            row.mitigation or "—",
            str(row.resumed_from or 0),
            f"{row.first_step}-{row.last_step}",
            str(row.steps_loss_ratio_gt_1_2),
            f"{row.max_loss_ratio:.2f}",
            f"{row.validation_loss:.3f}" if row.validation_loss is not None else "—",
            row.verdict,
        )
        for row in report.attempts
    ]
    return table(f"Attempts (seed {report.seed})", heads, rows, left=("mitigation", "verdict"))


def summary(report: DemoReport) -> str:
    if not report.diverged:
        seeds = ", ".join(map(str, report.calm_seeds))
        return (
            f"Failed: the training did not diverge with any of the seeds {seeds} on this machine, so there was nothing "
            f"to recover. Give another --seed; benchmarks/demo_divergence.py counts how many seeds diverge here."
        )
    if not report.recovered:
        last = report.past.incidents[-1]
        return f"Not recovered: {last.note or last.status}. Picture: {report.plot}"
    return (
        f"Recovered in {report.wall_s:.0f} s, with {report.attempts[-1].mitigation!r}: "
        f"{report.past.incidents[-1].note}. Picture: {report.plot}"
    )
