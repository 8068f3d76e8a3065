"""A schedule whose lengths the validations decide, with the state that they have brought it to."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

__all__ = ["Following", "Validated"]


class Validated(Protocol):
    """A pure schedule that follows the validations: its state is a value, which it moves on and never holds."""

    def begin(self) -> Any:
        """The state before any validation; it has to_json, and its class from_json."""
        ...

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
        """After update `step`."""
        self._state = self._schedule.after_validation(self._state, perplexity, step)

    def state(self) -> dict[str, Any]:
        """For the checkpoint; plain JSON."""
        told: dict[str, Any] = self._state.to_json()
        return told

    def load(self, state: Mapping[str, Any]) -> None:
        """Goes on from what state() gave."""
        self._state = type(self._schedule.begin()).from_json(state)
