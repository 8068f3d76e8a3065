"""runs/NAME.toml -> a frozen Config. A wrong key or value is an error that lists the right ones.

Configured once, at the door: nothing else reads files of settings or the environment.
"""

from __future__ import annotations

import tomllib
import typing
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields, replace
from itertools import pairwise
from pathlib import Path
from textwrap import wrap
from types import UnionType
from typing import Any, Literal, TypeVar, Union, cast, get_args, get_origin

from sentinel.adapters.paging.settings import EXAMPLES, Channel, Paging
from sentinel.adapters.sources.recognise import decoder_named
from sentinel.judge.thresholds import Thresholds
from sentinel.plan.policy import Policy
from sentinel.plan.rung import Rung
from sentinel.vocabulary.errors import ConfigError

__all__ = ["Config", "Launcher", "Run", "Source", "Watch", "load_config", "template"]

T = TypeVar("T")
C = TypeVar("C", bound=Channel)


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """The `[run]` table: where the run keeps its things. Relative paths count from the configuration file."""

    name: str
    checkpoints: Path
    """The trainer's save folder, which holds `latest` and global_stepN/."""

    state_dir: Path | None = None
    """What trainer and daemon share; default .sentinel/NAME beside the current folder."""

    tensorboard: Path | None = None
    """Folder of the run's event files; leave out where there is none."""

    reference: tuple[Path, ...] = ()
    """Other runs that this one should not be slower than at the same step: their runs/NAME.toml, or a log, a journal, a
    table, as `sentinel replay` reads them. 20 % above one is said as a plateau, and leads to nothing else."""

    planned_steps: tuple[int, ...] = ()
    """Steps at which something changes on purpose that the trainer does not report (other data, another stage): the
    loss may rise by 25 % there before it counts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Launcher:
    """The `[launcher]` table: how the job is started again."""

    kind: Literal["local", "slurm"] = "local"
    """local: a process of this machine; slurm: jobs, arrays and chains of them."""

    command: tuple[str, ...] = ()
    """local: the trainer's command line, as a list; run without a shell, with SENTINEL_STATE_DIR set."""

    working_directory: Path = Path()
    log: Path | None = None
    """Where the job's output is appended; default STATE_DIR/job.log."""

    stop_grace_s: float = 60.0
    """local: seconds between asking the job to end (SIGTERM) and making it (SIGKILL). slurm: seconds that one attempt
    waits for a cancelled job to be gone before it looks again; COMPLETING can last minutes."""

    job_name: str | None = None
    """slurm: jobs of this name are the run's, also before its trainer has reported its first start. Others are found
    by the ids that the trainer reports, with the rest of their arrays and all that depend on them."""

    script: Path | None = None
    """slurm: what to submit when no job of the run was ever seen; else it is the script that Slurm holds."""

    changes_in_script: bool = False
    """slurm: make a rung's changes in a copy of the job script, for a trainer that takes options (Megatron-DeepSpeed's)
    and does not read overrides.json. The original is never touched; `sentinel rollback --dry-run` shows the diff."""

    sbatch_arguments: tuple[str, ...] = ()
    """slurm: added to every submission, for what Slurm does not tell of a job, e.g. "--exclusive". In
    the long form, with its value behind a "="."""

    user: str | None = None
    """slurm: whose jobs to look at; default is the user that sentinel runs as."""

    exclude_after_failures: int = 2
    """slurm: a node that failed under so many of the run's jobs is left out of its submissions (--exclude)."""

    query_interval_s: float = 15.0
    """slurm: seconds between two queries; doubled up to 300 while Slurm does not answer."""

    slurm_timeout_s: float = 20.0
    """slurm: seconds that one of its commands may take."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """The `[source]` table: where the run's readings come from."""

    kind: Literal["journal", "log"] = "journal"
    """journal: what trainer_hooks writes, after every step. log: the trainer's own log, followed as it is written."""

    path: Path | None = None
    """log: the file, or a pattern with one file for each rank ("logs/rank-*.txt"); default is `[launcher] log`."""

    format: str | None = None
    """log: its format, as `megatron`; default is to recognise it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Watch:
    """The `[watch]` table: the loop's own pace."""

    poll_interval_s: float = 5.0
    """Seconds between two looks at the run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """One run, as its TOML file describes it."""

    run: Run
    launcher: Launcher = field(default_factory=Launcher)
    source: Source = field(default_factory=Source)
    watch: Watch = field(default_factory=Watch)
    judge: Thresholds = field(default_factory=Thresholds)
    policy: Policy = field(default_factory=Policy)
    paging: Paging = field(default_factory=Paging)


def load_config(path: Path) -> Config:
    """The configuration in a file. ConfigError names the file, the key, and what would be right."""
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise ConfigError(f"{path}: no such file; `sentinel init` writes a commented one") from error
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(f"{path}: {error}") from error
    try:
        return _resolved(_build(Config, data, ""), path.resolve().parent)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from error


def _resolved(config: Config, folder: Path) -> Config:
    run, launcher = config.run, config.launcher
    if config.source.format is not None:
        decoder_named(config.source.format)
    state_dir = folder / run.state_dir if run.state_dir else Path.cwd() / ".sentinel" / run.name
    if launcher.command and not launcher.command[0]:
        raise ConfigError("[launcher] command: its first element should name a program")
    if odd := next((a for a in launcher.sbatch_arguments if not a.startswith("--")), None):
        raise ConfigError(f"[launcher] sbatch_arguments: {odd!r} should be in the long form, as '--partition=long'")
    return Config(
        run=Run(
            name=run.name,
            checkpoints=folder / run.checkpoints,
            state_dir=state_dir,
            tensorboard=folder / run.tensorboard if run.tensorboard else None,
            reference=tuple((folder / path).resolve() for path in run.reference),
            planned_steps=run.planned_steps,
        ),
        launcher=replace(
            launcher,
            working_directory=folder / launcher.working_directory,
            log=folder / launcher.log if launcher.log else state_dir / "job.log",
            script=folder / launcher.script if launcher.script else None,
        ),
        source=replace(config.source, path=folder / config.source.path if config.source.path else None),
        watch=config.watch,
        judge=config.judge,
        policy=config.policy,
        paging=_paging_resolved(config.paging, folder),
    )


def _paging_resolved(paging: Paging, folder: Path) -> Paging:
    def resolved(channels: tuple[C, ...]) -> tuple[C, ...]:
        return tuple(replace(channel, **_absolute(channel, folder)) for channel in channels)

    return replace(
        paging,
        webhook=resolved(paging.webhook),
        mail=resolved(paging.mail),
        command=resolved(paging.command),
        alertmanager=resolved(paging.alertmanager),
    )


def _absolute(channel: Channel, folder: Path) -> dict[str, Any]:
    paths = {f.name: getattr(channel, f.name) for f in fields(channel)}
    return {name: folder / path for name, path in paths.items() if isinstance(path, Path)}


def _build(cls: type[T], data: Mapping[str, Any], where: str) -> T:
    """A dataclass from a TOML table, checked field by field against its annotations."""
    hints = typing.get_type_hints(cls)
    table = f"[{where}]" if where else "the file"
    known = {f.name: f for f in fields(cls)}  # type: ignore[arg-type]
    for key in data:
        if key not in known:
            raise ConfigError(f"{table} has no key {key!r}; the right ones are {', '.join(known)}")
    values = {}
    for name, f in known.items():
        if name in data:
            values[name] = _value(hints[name], data[name], f"{where}.{name}" if where else name)
        elif f.default is MISSING and f.default_factory is MISSING:
            raise ConfigError(f"{table} needs the key {name!r}")
    try:
        return cls(**values)
    except ConfigError as error:
        raise ConfigError(f"{table}: {error}") from error


def _value(hint: Any, value: Any, key: str) -> Any:
    origin = get_origin(hint)
    if origin in (UnionType, Union):  # `X | None`: TOML has no null, so it is X
        return _either(tuple(arm for arm in get_args(hint) if arm is not type(None)), value, key)
    if origin is Literal:
        if value not in get_args(hint):
            raise ConfigError(f"{key} should be one of {', '.join(map(repr, get_args(hint)))}, not {value!r}")
        return value
    if origin is tuple:
        (item_hint, *_) = get_args(hint)
        if isinstance(value, dict) and hasattr(item_hint, "__dataclass_fields__"):
            raise ConfigError(f"{key} can be there several times, so write [[{key}]], not [{key}]")
        if not isinstance(value, list):
            raise ConfigError(f"{key} should be a list, not {value!r}")
        return tuple(_value(item_hint, item, f"{key}[{i}]") for i, item in enumerate(value))
    if isinstance(hint, type) and hasattr(hint, "__dataclass_fields__"):
        if not isinstance(value, dict):
            raise ConfigError(f"{key} should be a table, not {value!r}")
        return _build(hint, value, key)
    return _scalar(hint, value, key)


def _either(arms: tuple[Any, ...], value: Any, key: str) -> Any:
    """The value as the first of the types that takes it; the error of all of them when none does."""
    refused = []
    for arm in arms:
        try:
            return _value(arm, value, key)
        except ConfigError as error:
            refused.append(str(error))
    wanted = " or ".join(text.removeprefix(f"{key} should be ").partition(", not ")[0] for text in refused)
    raise ConfigError(refused[0] if len(refused) == 1 else f"{key} should be {wanted}, not {value!r}")


def _scalar(hint: type, value: Any, key: str) -> Any:
    if hint is Path and isinstance(value, str) and value:
        return Path(value)
    if hint is float and isinstance(value, int | float) and not isinstance(value, bool):
        return float(value)
    if hint in (int, str, bool) and type(value) is hint:
        return value
    wanted = {Path: "a path", float: "a number", int: "a whole number", str: "a string", bool: "true or false"}[hint]
    raise ConfigError(f"{key} should be {wanted}, not {value!r}")


def template(name: str, *, checkpoints: str, command: tuple[str, ...] = ()) -> str:
    """A commented configuration that loads: every key with its default, its unit and its meaning."""
    lines = ["# What sentinel knows about this run. Keys that are commented out show their defaults.", ""]
    given: dict[str, Any] = {"run.name": name, "run.checkpoints": checkpoints}
    if command:
        given["launcher.command"] = list(command)
    for section in fields(Config):
        hint = cast("type[Any]", typing.get_type_hints(Config)[section.name])
        lines += [f"[{section.name}]"]
        docs = _field_docs(hint)
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
    for key, doc in _field_docs(Rung).items():
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
    docs = _field_docs(type(example))
    lines = []
    for f in fields(example):
        lines += [f"#   {line}" for line in docs.get(f.name, "").splitlines() if line.strip()]
        lines.append(f"# {f.name} = {_toml(getattr(example, f.name))}")
    return lines


def _field_docs(cls: type[Any]) -> dict[str, str]:
    """The docstring below each field, from the source: the one place where a key is explained."""
    import ast  # here, since only `sentinel init` needs them
    import inspect

    body = cast("ast.ClassDef", ast.parse(inspect.getsource(cls)).body[0]).body
    docs = {}
    for node, after in pairwise(body):
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
