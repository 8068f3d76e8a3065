"""Writes docs/COMMANDS.md: every command of `sentinel` with its arguments and options, from the command line itself."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from sentinel.cli.commands import COMMANDS, loaded

__all__ = ["page"]

HEAD = """# Commands

Every command of `sentinel`. `--run NAME` is a file under `--config-dir`, or a path to a TOML file; it may be left out
where there is one run. `--json` prints one JSON document on stdout and nothing else there; logs go to stderr.

What the exit codes 0 to 4 mean: [Runbook](RUNBOOK.md).

This page is made from the code by `tools/commands_page.py` (`make pages`).
"""
TABLE = """| option | value | default | meaning |
|---|---|---|---|"""

WORDS = {Path: "path", float: "number", int: "whole number", str: "string"}


def page() -> str:
    """The page, as Markdown."""
    return "\n".join((HEAD, *("\n".join(_section(c.name, loaded(c.name))) for c in COMMANDS)))


def _section(name: str, command: Any) -> Iterator[str]:
    yield f"## sentinel {name}\n"
    yield _plain(inspect.cleandoc(command.help or ""))
    yield ""
    rows = [_row(parameter) for parameter in command.params if parameter.name != "help"]
    if rows:
        yield from (TABLE, *rows, "")


def _row(parameter: Any) -> str:
    if parameter.param_type_name == "argument":
        name = f"`{parameter.name.upper()}{'…' if parameter.nargs == -1 else ''}`"
    else:
        name = ", ".join(f"`{option}`" for option in (*parameter.opts, *parameter.secondary_opts))
    default = "" if parameter.default in (None, False) else f"`{parameter.default}`"
    return f"| {name} | {_value(parameter)} | {default} | {_plain(' '.join((parameter.help or '').split()))} |"


def _value(parameter: Any) -> str:
    """What an option takes, in words."""
    hint = parameter.type_descriptor.annotation
    several = get_origin(hint) is list
    inner = get_args(hint)[0] if several else hint
    if inner is bool:
        return ""
    kind = ", ".join(f"`{one}`" for one in get_args(inner)) if get_origin(inner) is Literal else WORDS[inner]
    return f"{kind}; may be repeated" if several else kind


def _plain(text: str) -> str:
    """What Markdown or typer would take for its own, as the sign that it is."""
    return text.replace("\\[", "[").replace("<", "&lt;").replace("|", "\\|")
