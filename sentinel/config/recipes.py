"""The launchers' recipes that sentinel brings along: examples/launchers, each a folder with launcher.toml in it."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

from sentinel.vocabulary.errors import ConfigError

_PACKAGE = Path(__file__).parents[1]
_TABLES = "launcher.toml"


def recipes_folder() -> Path:
    """Where they are: inside the installed package, or beside it in a checkout."""
    for folder in (_PACKAGE / "shipped_launchers", _PACKAGE.parent / "examples" / "launchers"):
        if folder.is_dir():
            return folder
    raise ConfigError("this installation of sentinel has no recipes for launchers in it: install it again")


def recipe_names() -> tuple[str, ...]:
    return tuple(sorted(path.parent.name for path in recipes_folder().glob(f"*/{_TABLES}")))


def recipe_keys(name: str) -> dict[str, Any]:
    """What its launcher.toml sets, as {"launcher.job_name": …, "commands.start": …}."""
    tables = tomllib.loads((recipes_folder() / name / _TABLES).read_text(encoding="utf-8"))
    return {f"{table}.{key}": value for table, keys in tables.items() for key, value in keys.items()}


def recipe_files(name: str) -> dict[str, str]:
    """{file name: text} of what its commands need beside the configuration, in the launcher's working directory."""
    files = (path for path in (recipes_folder() / name).iterdir() if path.is_file())  # and not pip's __pycache__
    return {path.name: path.read_text(encoding="utf-8") for path in sorted(files) if path.name != _TABLES}
