"""Sequence length warmup: what every schedule has, and those that validations or a user's function decide."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, ClassVar, Self

from sentinel.vocabulary.codec import Described, fields_of, read
from sentinel.vocabulary.errors import ConfigError
from sentinel.vocabulary.numbers import COUNT, POSITIVE_OR_INF, to_json


@dataclass(frozen=True, slots=True, kw_only=True)
class AdaptiveState(Described):
    length: Annotated[int, COUNT]  # Tokens per sample from here on
    best_perplexity: Annotated[float, POSITIVE_OR_INF]  # Lowest since the anchor; inf before the first finite one
    validated_step: Annotated[int, COUNT]  # Completed step of the last validation that was counted
    anchor_step: Annotated[int, COUNT]  # Of the schedule that it belongs to: a re-anchored one begins anew

    def to_json(self) -> dict[str, Any]:
        return dict(to_json(fields_of(self)))


_PACINGS: dict[str, type[SeqlenSchedule]] = {}  # Pacing -> its schedule; the package imports them all


@dataclass(frozen=True, slots=True, kw_only=True)
class SeqlenSchedule(ABC):
    """Sequence length warmup (SLW): how many tokens of each sample a step trains on. One subclass for each pacing.

    Lengths are rounded down to a multiple, are never below the start and never above the full length; the anchor moves
    the whole schedule, so that one switched on at step 3000 begins there.

    Source: Li, Zhang & He 2022, section 4 (arXiv:2108.06084), with the anchor added.
    """

    pacing: ClassVar[str]  # What JSON calls it: the key "pacing", which is left out for fixed_linear
    start: int  # s, tokens per sample at the anchor
    full: int  # e, tokens per sample once warmed up
    anchor_step: int = 0  # a, the completed step that the warmup counts from
    multiple: int = 8  # Lengths are rounded down to a multiple of this (difficulty_step): 8 for fp16, 16 for int8

    def __init_subclass__(cls) -> None:
        _PACINGS[cls.pacing] = cls

    def __post_init__(self) -> None:
        if not 1 <= self.start <= self.full:
            raise ConfigError(f"seqlen start should lie between 1 and the full length {self.full}, not {self.start}")
        if self.multiple < 1:
            raise ConfigError(f"seqlen multiple should be at least 1, not {self.multiple}")
        self._check()

    def _check(self) -> None:  # noqa: B027 - not every pacing has more to check
        """ConfigError for what this pacing can't do."""

    @abstractmethod
    def seqlen(self, step: int, state: AdaptiveState | None = None) -> int:
        """Tokens per sample of the update that makes `step`. Only the adaptive pacing looks at the state."""

    @property
    @abstractmethod
    def end_step(self) -> int | None:
        """The first step from which on the length stays as it is; None where nobody can know it beforehand."""

    def foreseen(self, step: int) -> int | None:
        """The length of a step that is yet to come; None where it does not follow from the step alone."""
        return self.seqlen(step)

    @property
    def warms_up(self) -> bool:
        """Whether any step is shorter than the full length; a run without SLW reports a schedule that does not."""
        return self.start < self.full and (self.end_step is None or self.end_step > self.anchor_step)

    def anchored_at(self, step: int) -> Self:
        return replace(self, anchor_step=step)

    def to_json(self) -> dict[str, Any]:
        """Its fields, and its pacing by name. fixed_linear has none: it is what older versions wrote, and read."""
        named = {} if self.pacing == "fixed_linear" else {"pacing": self.pacing}
        return named | fields_of(self)

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> SeqlenSchedule:
        if not isinstance(data, Mapping):
            raise ConfigError(f"a seqlen schedule is an object, not {data!r}")
        told = dict(data)
        pacing = told.pop("pacing", "fixed_linear")
        cls = _PACINGS.get(pacing) if isinstance(pacing, str) else None
        if cls is None:
            raise ConfigError(f"there is no seqlen pacing {pacing!r}; there are {', '.join(sorted(_PACINGS))}")
        return read(cls, told, cls.__name__)

    def __str__(self) -> str:
        if not self.warms_up:
            return f"{self.full}, not warmed up"
        return f"{self.start} -> {self.full} {self._how()} from {self.anchor_step}"

    @abstractmethod
    def _how(self) -> str:
        """The middle of `8 -> 1024 over 2000 steps from 0`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Adaptive(SeqlenSchedule):
    """Each validation decides: longer while its perplexity stays within `tolerance` of the best so far; else it waits.

    len <- min(e, len + n * multiple) where perplexity <= tolerance * best, this one included; nan and inf wait.
    Source: our own. Li, Zhang & He 2022 (arXiv:2108.06084) tried an adaptive pacing and give no formula; 1.3 x the best
    is what they call a significant fluctuation (appendix A.1).
    """

    pacing: ClassVar[str] = "adaptive"
    tolerance: float = 1.3  # Largest perplexity at which it goes on, as a multiple of the best so far; at least 1
    multiples_per_validation: int = 1  # n: how many multiples a validation lengthens by

    def _check(self) -> None:
        if not (1 <= self.tolerance < math.inf):
            raise ConfigError(f"seqlen tolerance should be at least 1 and finite, not {self.tolerance}")
        if self.multiples_per_validation < 1:
            raise ConfigError("seqlen multiples_per_validation should be at least 1")

    def begin(self) -> AdaptiveState:
        at = self.anchor_step
        return AdaptiveState(length=self.start, best_perplexity=math.inf, validated_step=at, anchor_step=at)

    def after_validation(self, state: AdaptiveState | None, perplexity: float, step: int) -> AdaptiveState:
        """The state after the validation at the completed `step`; one repeated after a resume changes nothing."""
        now = self._current(state)
        if step <= now.validated_step:
            return now
        if not math.isfinite(perplexity):
            return replace(now, validated_step=step)
        best = min(now.best_perplexity, perplexity)
        length = now.length
        if perplexity <= self.tolerance * best:
            longer = (length + self.multiples_per_validation * self.multiple) // self.multiple * self.multiple
            length = min(self.full, longer)
        return replace(now, length=length, best_perplexity=best, validated_step=step)

    def seqlen(self, step: int, state: AdaptiveState | None = None) -> int:
        return self.start if step <= self.anchor_step else self._current(state).length

    def _current(self, state: AdaptiveState | None) -> AdaptiveState:
        """A checkpoint may hold the state of a schedule that a rollback has re-anchored since: that one is over."""
        if state is None or state.anchor_step != self.anchor_step:
            return self.begin()
        return replace(state, length=min(max(state.length, self.start), self.full))

    @property
    def end_step(self) -> int | None:
        return None if self.start < self.full else self.anchor_step

    def foreseen(self, step: int) -> int | None:
        return self.start if step <= self.anchor_step + 1 or self.start == self.full else None

    def _how(self) -> str:
        return f"as validations allow, within {self.tolerance:g} x the best perplexity,"


@dataclass(frozen=True, slots=True, kw_only=True)
class Custom(SeqlenSchedule):
    """A function of the user's: function(t - a) -> tokens per sample, rounded down and bounded as every pacing is. JSON
    names it; only the trainer, which runs the user's code anyway, ever imports it."""

    pacing: ClassVar[str] = "custom"
    function: str  # `module:function`, importable in the trainer
    # The function itself, where the trainer has found it; never in JSON.
    resolved: Callable[[int], int] | None = field(default=None, compare=False, repr=False)

    def _check(self) -> None:
        module, colon, name = self.function.partition(":")
        if not colon or not all(part.isidentifier() for part in (*module.split("."), *name.split("."))):
            raise ConfigError(f"a custom seqlen pacing is named 'module:function', not {self.function!r}")

    def resolved_by(self, load: Callable[[str], Callable[[int], int]]) -> Custom:
        return replace(self, resolved=load(self.function))

    def seqlen(self, step: int, state: AdaptiveState | None = None) -> int:  # noqa: ARG002 - the step tells all
        """Tokens per sample of the update that makes `step`. ConfigError where the function was not looked for."""
        if self.resolved is None:
            raise ConfigError(f"{self.function} is known to the trainer alone: it was not looked for here")
        length = self.resolved(max(step - self.anchor_step, 0))
        if isinstance(length, bool) or not isinstance(length, int):
            raise ConfigError(f"{self.function} should give a whole number of tokens, not {length!r}")
        if length >= self.full:
            return self.full
        return max(self.start, length // self.multiple * self.multiple)

    @property
    def end_step(self) -> int | None:
        return None

    def foreseen(self, step: int) -> int | None:
        return None if self.resolved is None else self.seqlen(step)

    def _how(self) -> str:
        return f"by {self.function}"
