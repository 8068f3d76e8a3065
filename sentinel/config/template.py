"""template(name, …) -> a commented configuration that loads; field_docs(cls) -> the meaning of each key."""

from __future__ import annotations

import typing
from dataclasses import MISSING, fields
from itertools import chain, pairwise
from textwrap import wrap
from typing import Any, cast

from sentinel.adapters.paging.settings import EXAMPLES, Channel
from sentinel.config.tables import Config
from sentinel.plan.ladder import Rung
from sentinel.plan.policy import Policy


def template(
    name: str,
    *,
    checkpoints: str,
    state_dir: str | None = None,
    command: tuple[str, ...] = (),
    launcher: str | None = None,
) -> str:
    """A commented configuration that loads: every key with its default, its unit and its meaning."""
    lines = ["# What sentinel knows about this run. Keys that are commented out show their defaults.", ""]
    given: dict[str, Any] = {"run.name": name, "run.checkpoints": checkpoints}
    if state_dir is not None:
        given["run.state_dir"] = state_dir
    if command:
        given["launcher.command"] = list(command)
    if launcher is not None:
        given["launcher.kind"] = launcher
    for section in fields(Config):
        hint = cast("type[Any]", typing.get_type_hints(Config)[section.name])
        lines += [f"[{section.name}]"]
        docs = field_docs(hint)
        for f in fields(hint):
            if f.name == "ladder" or (section.name == "paging" and f.name in EXAMPLES):
                continue
            key = f"{section.name}.{f.name}"
            lines += [f"# {line}" for line in docs.get(f.name, "").splitlines() if line.strip()]
            default = f.default if f.default is not MISSING else None
            lines.append(f"{f.name} = {_toml(given[key])}" if key in given else f"# {f.name} = {_toml(default)}")
        lines.append("")
    lines += ["# Who is paged: as many tables of each kind as you like. Tokens and passwords stay where they are.", ""]
    for kind, example in EXAMPLES.items():
        lines += [f"# [[paging.{kind}]]", *_shown(example), ""]
    lines += ["# The ladder: one table for each rung, in the order they are tried. What a rung may hold:", "#"]
    for key, doc in field_docs(Rung).items():
        lines += wrap(f"{key}: {doc}", 120, initial_indent="#   ", subsequent_indent="#     ")
    lines += ["#", "# These are the default ones.", ""]
    for rung in Policy().ladder:
        lines.append("# [[policy.ladder]]")
        lines += [f"# {f.name} = {_toml(v)}" for f in fields(Rung) if (v := getattr(rung, f.name)) not in _OFF]
        lines.append("")
    return "\n".join(lines)


_OFF = (None, False, ())


def _shown(example: Channel) -> list[str]:
    """One channel's keys, each with its meaning; those that it does not use are empty."""
    docs = field_docs(type(example))
    lines = []
    for f in fields(example):
        lines += [f"#   {line}" for line in docs.get(f.name, "").splitlines() if line.strip()]
        lines.append(f"# {f.name} = {_toml(getattr(example, f.name))}")
    return lines


def field_docs(cls: type[Any]) -> dict[str, str]:
    """The docstring below each field, from the source: the one place where a key is explained. Inherited ones last."""
    import ast  # here, since only `sentinel init` needs them
    import inspect

    classes = [base for base in cls.__mro__ if "__dataclass_fields__" in vars(base)]
    bodies = [cast("ast.ClassDef", ast.parse(inspect.getsource(base)).body[0]).body for base in classes]
    docs = {}
    for node, after in chain.from_iterable(map(pairwise, bodies)):
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and isinstance(after, ast.Expr):
            docs[node.target.id] = inspect.cleandoc(str(cast("ast.Constant", after.value).value))
    return docs


def _toml(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, list | tuple):
        return "[" + ", ".join(_toml(item) for item in value) + "]"
    import json  # a JSON string is a TOML basic string

    return json.dumps("" if value is None else str(value))
