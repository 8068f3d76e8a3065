"""What every sequence-length schedule has: two lengths, an anchor, a multiple; and how one is chosen by its pacing."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

from sentinel.vocabulary.codec import fields_of, read
from sentinel.vocabulary.errors import ConfigError
from sentinel.vocabulary.pacing.adaptive_state import AdaptiveState

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
    # Lengths are rounded down to a multiple of this, DeepSpeed's difficulty_step: 8 suits fp16, 16 int8.
    multiple: int = 8

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
        """The same warmup, counted from this completed step."""
        return replace(self, anchor_step=step)

    def to_json(self) -> dict[str, Any]:
        """Its fields, and its pacing by name. fixed_linear has none: it is what older versions wrote, and read."""
        named = {} if self.pacing == "fixed_linear" else {"pacing": self.pacing}
        return named | fields_of(self)

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> SeqlenSchedule:
        """The schedule that to_json gave, of any pacing. ConfigError names the key that is wrong."""
        if not isinstance(data, Mapping):
            raise ConfigError(f"a seqlen schedule is an object, not {data!r}")
        told = dict(data)
        pacing = told.pop("pacing", "fixed_linear")
        cls = _PACINGS.get(pacing) if isinstance(pacing, str) else None
        if cls is None:
            raise ConfigError(f"there is no seqlen pacing {pacing!r}; there are {', '.join(sorted(_PACINGS))}")
        return read(cls, told, cls.__name__)

    def __str__(self) -> str:
        """As a person reads it, in a plan."""
        if not self.warms_up:
            return f"{self.full}, not warmed up"
        return f"{self.start} -> {self.full} {self._how()} from {self.anchor_step}"

    def _how(self) -> str:
        return f"({self.pacing})"
