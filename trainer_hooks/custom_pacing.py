"""The user's own pacing, found by the name that a schedule gives it: in the trainer alone, which runs user code."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from importlib import import_module
from typing import cast

from sentinel.vocabulary.errors import ConfigError
from sentinel.vocabulary.pacing import Custom, SeqlenSchedule

__all__ = ["load", "resolved"]


def resolved(schedule: SeqlenSchedule) -> SeqlenSchedule:
    """The schedule, with its function where it is a custom one; every other as it is."""
    return schedule.resolved_by(load) if isinstance(schedule, Custom) else schedule


def load(name: str) -> Callable[[int], int]:
    """The function that `module:function` names. ConfigError where it is not there."""
    module, _, function = name.partition(":")
    try:
        found = reduce(getattr, function.split("."), import_module(module))
    except (ImportError, AttributeError) as error:
        raise ConfigError(f"the custom pacing {name} can't be imported here: {error}") from error
    if not callable(found):
        raise ConfigError(f"the custom pacing {name} is no function")
    return cast("Callable[[int], int]", found)
