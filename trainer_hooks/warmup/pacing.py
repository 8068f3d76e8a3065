"""A schedule whose lengths the validations decide, with the state that they have brought it to."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import reduce
from importlib import import_module
from typing import Any, Protocol, cast

from sentinel.vocabulary.errors import ConfigError
from sentinel.vocabulary.pacing import Custom, SeqlenSchedule


class Validated(Protocol):
    """A pure schedule that follows the validations: its state is a value, which it moves on and never holds."""

    def begin(self) -> Any:
        """The state before any validation; it has to_json, and its class from_json."""

    def after_validation(self, state: Any, perplexity: float, step: int) -> Any: ...

    def seqlen(self, step: int, state: Any) -> int: ...


class Following:
    """Holds that state, for the loop that asks for a step's length."""

    def __init__(self, schedule: Validated) -> None:
        self._schedule = schedule
        self._state = schedule.begin()

    def seqlen(self, step: int) -> int:
        """Tokens per sample of the update that makes `step`."""
        return self._schedule.seqlen(step, self._state)

    def validated(self, perplexity: float, step: int) -> None:
        self._state = self._schedule.after_validation(self._state, perplexity, step)

    def state(self) -> dict[str, Any]:
        state: dict[str, Any] = self._state.to_json()
        return state

    def load(self, state: Mapping[str, Any]) -> None:
        self._state = type(self._schedule.begin()).from_json(state)


def followed(schedule: Any) -> Any:
    """The schedule for a loop: one that follows the validations with its state, a custom one with its function."""
    return Following(schedule) if hasattr(schedule, "after_validation") else resolved(schedule)


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
