"""Sequence lengths that nobody knows beforehand: decided by the validations, or by a function of the user's."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import ClassVar

from sentinel.vocabulary.errors import ConfigError
from sentinel.vocabulary.pacing.adaptive_state import AdaptiveState
from sentinel.vocabulary.pacing.seqlen import SeqlenSchedule


@dataclass(frozen=True, slots=True, kw_only=True)
class Adaptive(SeqlenSchedule):
    """Each validation decides: longer while its perplexity stays within `tolerance` of the best so far; else it waits.

    len <- min(e, len + n * multiple) where perplexity <= tolerance * best, the best being this one's included: a new
    best always lengthens. A perplexity that is nan or inf waits, and never becomes the best.

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
        """The state at the anchor, before any validation."""
        at = self.anchor_step
        return AdaptiveState(length=self.start, best_perplexity=math.inf, validated_step=at, anchor_step=at)

    def after_validation(self, state: AdaptiveState | None, perplexity: float, step: int) -> AdaptiveState:
        """The state after the validation that followed the completed `step`: the next step has its length.

        A step that was counted before changes nothing, so that a validation repeated after a resume is harmless.
        """
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
        """Tokens per sample of the update that makes `step`, in the state that the last validation before it left."""
        return self.start if step <= self.anchor_step else self._current(state).length

    def _current(self, state: AdaptiveState | None) -> AdaptiveState:
        """A checkpoint may hold the state of a schedule that a rollback has re-anchored since: that one is over."""
        if state is None or state.anchor_step != self.anchor_step:
            return self.begin()
        return replace(state, length=min(max(state.length, self.start), self.full))

    @property
    def end_step(self) -> int | None:
        """None: the validations decide. The anchor where there is nothing to warm up."""
        return None if self.start < self.full else self.anchor_step

    def foreseen(self, step: int) -> int | None:
        """Known only where there is nothing to decide."""
        return self.start if step <= self.anchor_step + 1 or self.start == self.full else None

    def _how(self) -> str:
        return f"as validations allow, within {self.tolerance:g} x the best perplexity,"


@dataclass(frozen=True, slots=True, kw_only=True)
class Custom(SeqlenSchedule):
    """A function of the user's: function(t - a) -> tokens per sample, rounded down and bounded as every pacing is.

    JSON names it; only the trainer, which runs the user's code anyway, ever imports it.
    """

    pacing: ClassVar[str] = "custom"
    function: str  # `module:function`, importable in the trainer
    # The function itself, where the trainer has found it; never in JSON.
    resolved: Callable[[int], int] | None = field(default=None, compare=False, repr=False)

    def _check(self) -> None:
        module, colon, name = self.function.partition(":")
        if not colon or not all(part.isidentifier() for part in (*module.split("."), *name.split("."))):
            raise ConfigError(f"a custom seqlen pacing is named 'module:function', not {self.function!r}")

    def resolved_by(self, load: Callable[[str], Callable[[int], int]]) -> Custom:
        """The same, with its function: `load` finds it by its name."""
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
        """None: nobody knows."""
        return None

    def foreseen(self, step: int) -> int | None:
        """Known where the function is."""
        return None if self.resolved is None else self.seqlen(step)

    def _how(self) -> str:
        return f"by {self.function}"
