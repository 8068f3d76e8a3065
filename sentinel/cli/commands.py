"""The table of commands, and the group that imports a command's module when that command is called.

`sentinel --help` prints the table and imports none of them.
"""

from __future__ import annotations

import inspect
from importlib import import_module
from typing import Any, NamedTuple

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command_from_info
from typer.models import CommandInfo

FIRST, RUN, RECOVER, UNDERSTAND, SET_UP, KEEP = "First", "Run", "Recover", "Understand", "Set up", "Keep"


class Listed(NamedTuple):
    """The function of its name in sentinel/cli/MODULE.py, whose docstring holds further help."""

    name: str
    module: str
    group: str
    summary: str


COMMANDS = (  # in the order of `sentinel --help`
    Listed("watch", "watch", FIRST, "Follow a run, or many; in mode act, recover them."),
    Listed("status", "status", FIRST, "Show the run's verdict, step and loss. Exit 1: diverged, stalled or down."),
    Listed("incidents", "incidents", FIRST, "List the run's incidents and the rollbacks tried."),
    Listed("rollback", "rollback", FIRST, "Roll the run back to a checkpoint. Moves files, never deletes."),
    Listed("undo", "undo", FIRST, "Bring back, byte for byte, what an incident's rollbacks moved aside."),
    Listed("sbatch-watch", "sbatch_watch", RUN, "Submit the watch as a Slurm job; one per run runs at a time."),
    Listed("pause", "pause", RUN, "Let sentinel watch and page, but not act, until `resume`."),
    Listed("resume", "pause", RUN, "Let sentinel act again. Exit 1: the run was not paused."),
    Listed("page", "page", RUN, "List undelivered pages (exit 1: there are some), or send a test page."),
    Listed("approve", "approve", RECOVER, "Approve the plan that watch proposed in mode approve."),
    Listed("purge", "purge", RECOVER, "Delete what a closed incident's rollbacks moved aside. It can't be undone."),
    Listed("incident", "incident", UNDERSTAND, "Show one incident, event by event."),
    Listed("explain", "explain", UNDERSTAND, "Explain a decision: what was seen, and what would have changed it."),
    Listed("bisect", "bisect", UNDERSTAND, "Find why the run diverged, by short trainings beside it. Exit 1: unknown."),
    Listed("triage", "triage", UNDERSTAND, "Write one HTML page about the run: what diverged, what led, what helped."),
    Listed("ui", "ui", UNDERSTAND, "Serve the triage page live. It shows commands to type, and never acts."),
    Listed("replay", "replay", UNDERSTAND, "Judge recorded readings as if they were live. Exit 1: one ends diverged."),
    Listed("data", "data", UNDERSTAND, "Account for the samples that the run was trained on. Exit 1: a fault."),
    Listed("correlate", "correlate", UNDERSTAND, "Correlate the loss ratio with Adam's variance and other signals."),
    Listed("compare", "compare", UNDERSTAND, "Compare the smoothed loss of runs at the same step or token count."),
    Listed("init", "init", SET_UP, "Write a commented configuration for a run."),
    Listed("doctor", "doctor", SET_UP, "Check everything that a recovery needs. Exit 1: a recovery would fail."),
    Listed("lint", "lint", SET_UP, "Check a run's settings by formula before it starts. Exit 1: there is an error."),
    Listed("tune", "tune", SET_UP, "Find a warmup's start and duration by short runs. Exit 1: all fluctuate."),
    Listed("dashboards", "dashboards", SET_UP, "Push the dashboards to a Grafana, diff them, or export them."),
    Listed("demo", "demo", SET_UP, "Train a small GPT until it diverges, and recover it. Needs the trainer extra."),
    Listed("checkpoints", "checkpoints", KEEP, "List the checkpoints: whole, healthy, pinned, and why not."),
    Listed("pin", "pin", KEEP, "Keep a checkpoint from keep-last-k and site purges, by hard links."),
    Listed("manifest", "manifest", KEEP, "Write a checkpoint's digests: a later restart finds flipped bits."),
    Listed("chronicle", "chronicle", KEEP, "Write the run's history as Markdown with plots."),
    Listed("export", "export", KEEP, "Write a run's samples as a table: one row per step and attempt."),
)


def loaded(name: str, markup_mode: Any = "rich") -> Any:
    command = next(one for one in COMMANDS if one.name == name)
    function = getattr(import_module(f"sentinel.cli.{command.module}"), name.replace("-", "_"))
    text = "\n\n".join((command.summary, *filter(None, [inspect.getdoc(function)])))
    info = CommandInfo(name, callback=function, help=text, rich_help_panel=command.group)
    return get_command_from_info(info, pretty_exceptions_short=False, rich_markup_mode=markup_mode)


class _Commands(TyperGroup):
    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.commands = {c.name: TyperCommand(c.name, help=c.summary, rich_help_panel=c.group) for c in COMMANDS}

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        name, listed, rest = super().resolve_command(ctx, args)
        return name, listed if name is None else loaded(name, self.rich_markup_mode), rest


def _exit_with(code: int) -> None:
    raise typer.Exit(code)


app = typer.Typer(
    cls=_Commands,
    result_callback=_exit_with,
    name="sentinel",
    help="Watches a training run, tells a spike from a divergence, and rolls the run back.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)


@app.callback()
def _no_options() -> None:
    """Makes the app a group: its commands are in the table."""
