"""load_config(path) -> the Config of a TOML file; template(name, …) -> a commented TOML file that loads."""

from __future__ import annotations

import logging
import tomllib
import typing
from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass, replace
from itertools import chain, pairwise
from pathlib import Path
from textwrap import wrap
from typing import Any, TypeVar, cast

from sentinel import bounded
from sentinel.adapters.paging.settings import EXAMPLES
from sentinel.config.removed_keys import without_removed
from sentinel.config.tables import Config
from sentinel.plan.choose.ladder import Rung
from sentinel.plan.choose.policy import Policy
from sentinel.vocabulary.codec import Form, read
from sentinel.vocabulary.errors import ConfigError
from sentinel.vocabulary.names import checked_path_text

log = logging.getLogger(__name__)

_RENAMED = {  # table -> keys of older versions, and what they are now
    "judge": {"led_by_window_steps": "agree_within_steps"},
    "paging": {"last_words_s": "deliver_within_s"},
}
_LARGEST_BYTES = 1 << 20  # one with every key and its comment has thirty thousand
_TOML = Form(
    error=ConfigError,
    name="the file",
    json=False,
    scalars={Path: ("a path", lambda text, key: Path(checked_path_text(text, key)))},
)

T = TypeVar("T")


def load_config(path: Path) -> Config:
    """The configuration in a file, with absolute paths. ConfigError names the file, the key, and what is right."""
    try:
        data = tomllib.loads(bounded.read_text(path, _LARGEST_BYTES))
    except FileNotFoundError as error:
        raise ConfigError(f"{path}: no such file; `sentinel init` writes a commented one") from error
    except (OSError, ValueError, RecursionError) as error:  # ValueError also for a number with too many digits
        raise ConfigError(f"{path}: {getattr(error, 'strerror', None) or error}") from error
    data, removed = without_removed(data)
    for sentence in removed:
        log.warning("%s: %s", path, sentence)
    try:
        return _resolved(read(Config, _with_new_names(data, path), form=_TOML), path.resolve().parent)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from error


def _with_new_names(data: dict[str, Any], path: Path) -> dict[str, Any]:
    """The document with the keys' present names. ConfigError where a key stands there under both."""
    for name, renamed in _RENAMED.items():
        table = data.get(name)
        for old, new in renamed.items():
            if not isinstance(table, dict) or old not in table:
                continue
            if new in table:
                raise ConfigError(f"[{name}] has {old} and {new}, which are one key; remove {old}")
            log.warning("%s: [%s] %s is called %s now; the old name is still read", path, name, old, new)
            data = {**data, name: {new if key == old else key: value for key, value in table.items()}}
    return data


def _resolved(config: Config, folder: Path) -> Config:
    if config.source.format is not None:
        from sentinel.sources.line_formats import format_named  # takes 0.2 s to import, and few runs name a format

        format_named(config.source.format)
    _check_consistent(config)
    state_dir = folder / config.run.state_dir if config.run.state_dir else Path.cwd() / ".sentinel" / config.run.name
    config = _absolute(config, folder)
    run, launcher = config.run, config.launcher
    return replace(
        config,
        run=replace(run, state_dir=state_dir, reference=tuple(path.resolve() for path in run.reference)),
        launcher=replace(launcher, log=launcher.log or state_dir / "job.log"),
    )


def _check_consistent(config: Config) -> None:
    launcher, mode = config.launcher, config.policy.mode
    if launcher.kind == "elsewhere" and mode != "observe":
        raise ConfigError(
            f"[policy] mode should be 'observe', not {mode!r}: with [launcher] kind = 'elsewhere' "
            "nothing can be stopped or started"
        )
    if config.source.kind == "prometheus" and mode != "observe":
        raise ConfigError(
            f"[policy] mode should be 'observe', not {mode!r}: with [source] kind = 'prometheus' nothing "
            "can be proved, for the trainer's own report of a start is in its journal"
        )
    if launcher.kind == "commands" and not (config.commands.list and config.commands.start and config.commands.stop):
        raise ConfigError("[launcher] kind = 'commands' needs `start`, `stop` and `list` in [commands]")
    if launcher.command and not launcher.command[0]:
        raise ConfigError("[launcher] command: its first element should name a program")
    if odd := next((a for a in launcher.sbatch_arguments if not a.startswith("--")), None):
        raise ConfigError(f"[launcher] sbatch_arguments: {odd!r} should be in the long form, as '--partition=long'")


def _absolute(value: T, folder: Path) -> T:
    """The value with every path in it, in tables and lists too, counted from the folder."""
    found: Any = value
    if isinstance(value, Path):
        found = folder / value
    elif isinstance(value, tuple):
        found = tuple(_absolute(item, folder) for item in value)
    elif is_dataclass(value) and not isinstance(value, type):
        before = {f.name: getattr(value, f.name) for f in fields(value)}
        after = {name: _absolute(item, folder) for name, item in before.items()}
        found = replace(value, **after) if after != before else value
    return cast("T", found)


def template(
    name: str,
    *,
    checkpoints: str,
    tensorboard: str | None = None,
    state_dir: str | None = None,
    command: tuple[str, ...] = (),
    launcher: str | None = None,
    working_directory: str | None = None,
    more: Mapping[str, Any] | None = None,
) -> str:
    """A commented configuration that loads: every key with its default, its unit and its meaning. `more`: other keys
    that are set, as {"launcher.job_name": "tr8"}."""
    lines = ["# What sentinel knows about this run. Keys that are commented out show their defaults.", ""]
    given: dict[str, Any] = {"run.name": name, "run.checkpoints": checkpoints, "run.state_dir": state_dir}
    given |= {"run.tensorboard": tensorboard}
    given |= {"launcher.command": command or None, "launcher.kind": launcher}
    given |= {"launcher.working_directory": working_directory, **(more or {})}
    for section in fields(Config):
        hint = cast("type[Any]", typing.get_type_hints(Config)[section.name])
        lines += [f"[{section.name}]"]
        docs = field_docs(hint)
        for f in fields(hint):
            if f.name == "ladder" or (section.name == "paging" and f.name in EXAMPLES):
                continue
            lines += _commented(docs.get(f.name, ""), "# ")
            value = given.get(f"{section.name}.{f.name}")
            made = f.default_factory() if f.default_factory is not MISSING else None
            default = f.default if f.default is not MISSING else made
            lines.append(f"# {f.name} = {_toml(default)}" if value is None else f"{f.name} = {_toml(value)}")
        lines.append("")
    lines += ["# Who is paged: as many tables of each kind as you like. Tokens and passwords stay where they are.", ""]
    for kind, example in EXAMPLES.items():
        lines.append(f"# [[paging.{kind}]]")
        docs = field_docs(type(example))
        for f in fields(example):
            lines += [*_commented(docs.get(f.name, ""), "#   "), f"# {f.name} = {_toml(getattr(example, f.name))}"]
        lines.append("")
    lines += ["# The ladder: one table for each rung, in the order they are tried. What a rung may hold:", "#"]
    for key, doc in field_docs(Rung).items():
        lines += wrap(f"{key}: {doc}", 120, initial_indent="#   ", subsequent_indent="#     ")
    lines += ["#", "# These are the default ones.", ""]
    for rung in Policy().ladder:
        lines += [*_commented(rung_text(rung), "# "), ""]
    return "\n".join(lines)


def rung_text(rung: Rung) -> str:
    """The rung as a table of a run's configuration, with the keys that are not at their defaults."""
    given = {f.name: getattr(rung, f.name) for f in fields(rung) if getattr(rung, f.name) != f.default}
    return "[[policy.ladder]]\n" + "".join(f"{key} = {_toml(value)}\n" for key, value in given.items())


def _commented(text: str, prefix: str) -> list[str]:
    return [prefix + line for line in text.splitlines() if line.strip()]


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

    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{json.dumps(key)} = {_toml(item)}" for key, item in value.items()) + "}"
    return json.dumps("" if value is None else str(value))
