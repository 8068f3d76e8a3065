"""Where a curriculum's drawing stands, in a few numbers: what a checkpoint holds of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sentinel.vocabulary.errors import DataError
from trainer_hooks.data.pool import Counts

__all__ = ["Progress", "Segment"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """What joined a pass at once."""

    up_to: Counts
    """What each metric let in when it joined. It holds what the segment before it did not let in."""

    size: int
    """Samples."""

    drawn: int
    """Of them, in the order of its permutation."""

    seeds: tuple[tuple[int, int], ...]
    """(drawn, seed): from that many drawn samples on, what is left is permuted anew by that seed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """Where the drawing stands; all that a restart needs."""

    position: int = 0
    """Samples drawn so far, since the run began."""

    step: int = 0
    """The last step that drew."""

    passes: int = 0
    """Begun so far; the present one has this number."""

    let_in: Counts = ()
    """What each metric let in at the last step."""

    segments: tuple[Segment, ...] = ()
    """Of the present pass."""

    def to_json(self) -> dict[str, Any]:
        """As a checkpoint's client state holds it."""
        segments = [[list(s.up_to), s.size, s.drawn, [list(pair) for pair in s.seeds]] for s in self.segments]
        counted = {"position": self.position, "step": self.step, "passes": self.passes}
        return {**counted, "let_in": list(self.let_in), "segments": segments}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Progress:
        """What to_json gave. DataError when it is something else."""
        try:
            return cls(
                position=int(data["position"]),
                step=int(data["step"]),
                passes=int(data["passes"]),
                let_in=tuple(map(int, data["let_in"])),
                segments=tuple(
                    Segment(
                        up_to=tuple(map(int, up_to)),
                        size=int(size),
                        drawn=int(drawn),
                        seeds=tuple((int(at), int(seed)) for at, seed in seeds),
                    )
                    for up_to, size, drawn, seeds in data["segments"]
                ),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise DataError(f"the checkpoint's curriculum state can't be read: {error!r}") from error
