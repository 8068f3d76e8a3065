"""Writes docs/PYTHON.md: what a training program calls, with its signature and docstring, read without an import."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator, Mapping
from itertools import pairwise
from pathlib import Path

__all__ = ["page"]

Documented = ast.ClassDef | ast.FunctionDef
ROOT = Path(__file__).parents[1]
# (where a program imports it from, file, public names)
API = (
    ("trainer_hooks", "trainer_hooks/attaching.py", ("attach",)),
    ("trainer_hooks", "trainer_hooks/hook.py", ("Hook",)),
    ("trainer_hooks.control.boundaries", "trainer_hooks/control/boundaries.py", ("Boundary",)),
    ("sentinel.vocabulary.parking", "sentinel/vocabulary/parking.py", ("ResumeRequest",)),
    ("trainer_hooks", "trainer_hooks/start_decisions.py", ("decisions", "StartDecisions")),
    ("trainer_hooks", "trainer_hooks/export/exporter.py", ("ExporterSettings",)),
    ("trainer_hooks.huggingface", "trainer_hooks/integrations/huggingface.py", ("StabilityCallback",)),
    ("trainer_hooks.huggingface", "trainer_hooks/integrations/huggingface_parked.py", ("train_in_place",)),
    ("What the callback applies of overrides.json", "trainer_hooks/integrations/huggingface_applied.py", ()),
    ("trainer_hooks.qk_clip", "trainer_hooks/qk_clip/override.py", ("AttentionOverride",)),
    ("trainer_hooks.qk_clip", "trainer_hooks/qk_clip/attention.py", ("Attention",)),
    ("trainer_hooks.seqlen_warmup", "trainer_hooks/warmup/seqlen_warmup.py", ("SeqlenWarmup",)),
    ("trainer_hooks.random_ltd", "trainer_hooks/random_ltd/random_ltd.py", ("RandomLtd", "LayerTokens")),
    ("trainer_hooks.data", "trainer_hooks/gpt/order.py", ("Order",)),
    ("trainer_hooks.data", "trainer_hooks/data/order.py", ("CurriculumOrder",)),
)
HEAD = """# Python

What a training program calls; in use: [attach](ATTACH.md), [sequence length warmup](SLW.md),
[token dropping](RANDOM_LTD.md), [a curriculum](DATA.md).

This page is made from the docstrings by `tools/python_page.py` (`make pages`).
"""


def page() -> str:
    """The page, as Markdown."""
    return "\n".join((HEAD, *(line for entry in API for line in _module(*entry))))


def _module(module: str, file: str, names: tuple[str, ...]) -> Iterator[str]:
    tree = ast.parse((ROOT / file).read_text())
    if not names:
        yield f"## {module}\n\n{inspect.cleandoc(ast.get_docstring(tree) or '')}\n"
    defined = {n.name: n for n in tree.body if isinstance(n, Documented)}
    for name in names:
        yield f"## {name}\n\n`from {module} import {name}`\n"
        yield from _entry(defined[name], defined)


def _entry(node: Documented, defined: Mapping[str, Documented]) -> Iterator[str]:
    methods = [m for m in node.body if isinstance(m, ast.FunctionDef)] if isinstance(node, ast.ClassDef) else []
    made = next((m for m in methods if m.name == "__init__"), node)
    if isinstance(made, ast.FunctionDef):
        yield f"```python\n{node.name}({_arguments(made)})\n```\n"
    yield _text(node)
    if made is not node and ast.get_docstring(made):
        yield _text(made)
    fields = _fields_of(node, defined) if isinstance(node, ast.ClassDef) else []
    if settings := [field for field in fields if field[1] is not None]:
        yield "| setting | default | meaning |\n|---|---|---|"
        yield "".join(f"| `{name}` | `{default}` | {_line(text)} |\n" for name, default, text in settings)
    elif fields:
        yield "| attribute | meaning |\n|---|---|"
        yield "".join(f"| `{name}` | {_line(text)} |\n" for name, _, text in fields)
    public = [m for m in methods if not m.name.startswith("_") and _is_for_programs(m)]
    if public:
        yield "| method | meaning |\n|---|---|"
        yield "".join(f"| `{_call(m)}` | {_cell(m)} |\n" for m in public)


def _fields_of(node: ast.ClassDef, defined: Mapping[str, Documented]) -> list[tuple[str, str | None, str]]:
    """Name, default (None without one) and docstring of each field that has a docstring; those of its bases in the same
    file first."""
    bases = (defined.get(ast.unparse(base)) for base in node.bases)
    inherited = [field for base in bases if isinstance(base, ast.ClassDef) for field in _fields_of(base, defined)]
    return inherited + [
        (field.target.id, ast.unparse(field.value) if field.value is not None else None, str(doc.value.value))
        for field, doc in pairwise(node.body)
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)
        if isinstance(doc, ast.Expr) and isinstance(doc.value, ast.Constant)
    ]


def _is_for_programs(method: ast.FunctionDef) -> bool:
    """Whether it has a docstring that does not begin with "Called by"."""
    text = ast.get_docstring(method)
    return text is not None and not text.startswith("Called") and not method.name.startswith("on_")


def _call(method: ast.FunctionDef) -> str:
    is_property = any(isinstance(d, ast.Name) and d.id == "property" for d in method.decorator_list)
    return method.name if is_property else f"{method.name}({_arguments(method)})".replace("|", "\\|")


def _arguments(function: ast.FunctionDef) -> str:
    first = function.args.args[:1]
    if first and first[0].arg == "self":
        function.args.args = function.args.args[1:]
    return ast.unparse(function.args)


def _text(node: Documented) -> str:
    return inspect.cleandoc(ast.get_docstring(node) or "").replace("<", "&lt;") + "\n"


def _cell(node: Documented) -> str:
    return _line(_text(node))


def _line(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")
