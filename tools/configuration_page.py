"""Writes docs/CONFIGURATION.md: every key of runs/NAME.toml, from the dataclasses that read it and their docstrings."""

from __future__ import annotations

import inspect
import json
import typing
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, Field, fields, is_dataclass
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from sentinel.config import Config, field_docs
from sentinel.config.removed_keys import REMOVED
from sentinel.vocabulary.numbers import ranges_of

__all__ = ["page"]

HEAD = """# Configuration

Every key of `runs/NAME.toml`, one file for each run. `sentinel init NAME` writes a file with each key, its default and
its meaning. A wrong key or value is an error that lists the right ones; `sentinel doctor` checks the rest. Relative
paths count from the file. A key without a default is required; *none* means that the key may be left out.

This page is made from the code by `tools/configuration_page.py` (`make pages`).
"""
WORDS = {
    Path: "path",
    float: "number",
    int: "whole number",
    str: "string",
    bool: "true or false",
    Mapping[str, Literal["pending", "running", "ended"]]: 'table of words to "pending", "running" or "ended"',
}


def page() -> str:
    """The page, as Markdown."""
    sections = (section for f in fields(Config) for section in _sections(f.name, typing.get_type_hints(Config)[f.name]))
    return "\n".join((HEAD, *sections, *_removed()))


def _removed() -> Iterator[str]:
    """What keys of older releases say now: nothing."""
    yield "## Removed keys\n"
    yield "A file that has one is read all the same; the key is ignored, with a warning.\n"
    yield "| table | key | removed in | instead |\n|---|---|---|---|"
    for name, keys in REMOVED.items():
        for key, (release, instead) in keys.items():
            yield f"| `[{name}]` | `{key}` | {release} | {_cell(instead)} |"
    yield ""


def _sections(name: str, cls: type[Any], *, several: bool = False) -> Iterator[str]:
    """One table of the file, and those inside it that can be there several times."""
    hints, docs, ranges = typing.get_type_hints(cls), field_docs(cls), ranges_of(cls)
    heading = f"[[{name}]]" if several else f"[{name}]"
    rows = ["| key | type | default | meaning |", "|---|---|---|---|"]
    inner: list[tuple[str, type[Any]]] = []
    for f in sorted(fields(cls), key=lambda f: list(docs).index(f.name) if f.name in docs else 0):
        item = _item(hints[f.name])
        if is_dataclass(item):
            inner.append((f"{name}.{f.name}", typing.cast("type[Any]", item)))
            rows.append(f"| `{f.name}` | tables, see below |  | {_cell(docs.get(f.name, ''))} |")
        else:
            kind = ", ".join((_type(hints[f.name]), *([str(ranges[f.name])] if f.name in ranges else [])))
            rows.append(f"| `{f.name}` | {kind} | {_default(f)} | {_cell(docs.get(f.name, ''))} |")
    about = inspect.cleandoc(cls.__doc__ or "").replace("\n\n", "\n")
    yield "\n".join((f"## `{heading}`\n", _plain(about), "", *rows, ""))
    for inner_name, inner_cls in inner:
        yield from _sections(inner_name, inner_cls, several=True)


def _item(hint: Any) -> Any:
    """What a list is of; the type itself where it is no list."""
    return get_args(hint)[0] if get_origin(hint) is tuple else hint


def _type(hint: Any) -> str:
    origin = get_origin(hint)
    if origin is tuple:
        return f"list of {_type(_item(hint))}s"
    if origin is Annotated:
        return _type(get_args(hint)[0])
    if origin is Mapping:
        return f"table of {_type(get_args(hint)[1])}s"
    if origin is Literal:
        return ", ".join(f"`{json.dumps(value)}`" for value in get_args(hint))
    if origin in (UnionType, Union):
        return " or ".join(_type(arm) for arm in get_args(hint) if arm is not type(None))
    return WORDS[hint]


def _default(f: Field[Any]) -> str:
    if f.default is MISSING:
        return ""
    if f.default is None:
        return "*none*"
    value = list(f.default) if isinstance(f.default, tuple) else f.default
    if isinstance(value, float) and value == int(value) and abs(value) < 1e15:
        return f"`{int(value)}`"
    return f"`{json.dumps(str(value) if isinstance(value, Path) else value)}`"


def _cell(doc: str) -> str:
    """A docstring in a cell of a table."""
    return "<br>".join(" ".join(part.split()) for part in _plain(doc).split("\n\n")).replace("|", "\\|")


def _plain(doc: str) -> str:
    """What Markdown would take for its own, outside of code, as the sign that it is."""
    parts = doc.split("`")
    return "`".join(part if i % 2 else part.replace("<", "&lt;").replace("*", "\\*") for i, part in enumerate(parts))
