"""At which step boundary all ranks act on a request. Pure: a boundary's number and the exchanges' results go in.

At the end of step m each rank posts exchange E(m), whatever it knows; its result is the maximum of each number over all
ranks, and a rank takes it when it has come. A request is a level of a name, which only grows: 1 for KILL, the number of
times that SAVE was written. A rank posts the level that it has seen, and, as an acknowledgement, the level that the
results of earlier exchanges have shown it.

A rank acts at the end of step m on the level that all ranks have acknowledged in E(m-1), which is one number of that
result. A rank that has acknowledged nothing new in E(m-1) knows without the result that no rank acts, and does not wait
for it. A rank that has waits: all ranks act at the same boundary, or none does. In a run that no one asks for anything
no rank ever waits.

Where a rank loses an exchange it acknowledges nothing more, says so in what it posts, and no rank acts from then on.
One case is left, as in any agreement over a network that loses messages: E(m-1) holds all acknowledgements, and reaches
one rank within the time that the rank waits and another one not.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence


class Agreement:
    """One rank's part. At each boundary, in this order: `begin`, `take` of what has come, `decide`, `row`."""

    def __init__(self, names: Sequence[str], at_start: Mapping[str, int] | None = None) -> None:
        """`at_start`: levels that all ranks have learned at the start, the same on each; acted on at boundary 1."""
        self.number = 0  # Of the boundary under way; the first is 1
        self.failure: str | None = None  # Why requests are no longer obeyed
        self._names = tuple(names)
        self._acted = dict.fromkeys(names, 0)
        self._known = {name: (at_start or {}).get(name, 0) for name in names}
        self._to_act: Mapping[str, int] | None = dict(self._known)  # acknowledged by all; None: the result is not here
        self._has_acknowledged = True

    def begin(self) -> None:
        """The next boundary is reached."""
        self.number += 1
        if self.number > 1:
            self._to_act = None

    def take(self, number: int, result: Sequence[int] | None) -> None:
        """The result of the exchange of that boundary, in the order of the boundaries; None: it failed."""
        if number == self.number - 1:
            self._to_act = {}
        if result is None:
            self.fail("an exchange between the ranks was not completed")
            return
        last, minus_first, failed, *levels = result
        if not last == -minus_first == number:
            self.fail(f"the ranks exchanged different steps: {-minus_first} and {last}")
            return
        if failed:
            self.fail("another rank lost an exchange between the ranks")
        for name, level in zip(self._names, levels[::2], strict=True):
            self._known[name] = max(self._known[name], level)
        if number == self.number - 1:
            self._to_act = {name: -least for name, least in zip(self._names, levels[1::2], strict=True)}

    def fail(self, why: str) -> None:
        """From its next row on this rank acknowledges nothing. An acknowledgement that it has posted still binds it."""
        self.failure = self.failure or why

    @property
    def waits(self) -> bool:
        """Whether the result of the boundary before decides, and has not been taken."""
        return self._has_acknowledged and self._to_act is None

    def decide(self) -> dict[str, int]:
        """{name: level} to act on now, the same on all ranks; mostly empty."""
        to_act = self._to_act if self._has_acknowledged and self._to_act is not None else {}
        due = {name: level for name, level in to_act.items() if level > self._acted[name]}
        self._acted |= due
        return due

    def row(self, seen: Mapping[str, int]) -> list[int]:
        """What this rank posts at this boundary. `seen`: the levels of the requests that it has seen itself."""
        acknowledged = dict(self._acted if self.failure else self._known)
        self._has_acknowledged = acknowledged != self._acted
        row = [self.number, -self.number, int(self.failure is not None)]
        for name in self._names:
            own = 0 if self.failure else seen.get(name, 0)
            row += [max(own, acknowledged[name]), -acknowledged[name]]
        return row

    def decide_alone(self, seen: Mapping[str, int]) -> dict[str, int]:
        """For a training of one rank, in place of all the above: what it has seen is due at once."""
        self._known = {name: max(level, seen.get(name, 0)) for name, level in self._known.items()}
        due = {name: level for name, level in self._known.items() if level > self._acted[name]}
        self._acted |= due
        return due
