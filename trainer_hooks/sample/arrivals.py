"""What the training thread does about the steps on their way: hands them over, and waits for them, briefly."""

from __future__ import annotations

from typing import Any

from trainer_hooks.errors import Guard
from trainer_hooks.ranks.signs import Signs
from trainer_hooks.sample.gathering import Gathering
from trainer_hooks.sample.reading import Measurement

# How long rank 0 waits at a step's end for the other ranks' readings of it, on a CPU: they have just made the same
# step. After a wait in vain it waits for none; the sample is made when the readings arrive.
PATIENCE_S = 1.0
LAST_PATIENCE_S = 10.0  # Once training is finished: what has not arrived by then is lost


class Arrivals:
    """The outer edge of a Gathering: every error is the guard's."""

    def __init__(self, gathering: Gathering, guard: Guard, signs: Signs) -> None:
        self._gathering = gathering
        self._guard = guard
        self._signs = signs
        self.patience_s = PATIENCE_S
        """How long it would wait at the next step."""

    @property
    def layers(self) -> tuple[str, ...]:
        return self._gathering.layers

    def add(
        self, step: int, facts: Any, measurement: Measurement | None, *, layered: bool, state: bool = False
    ) -> None:
        """A step that was made, or the state at a save or a start; see `Gathering.add`."""
        with self._guard("gather the ranks' readings"):
            self._gathering.add(step, facts, measurement, layered=layered, state=state)

    def micro_batch_seen(self) -> None:
        """The training thread lives."""
        self._signs.came()

    def step_ends(self, step: int, *, waits: bool) -> None:
        """Reports what has come, on the training thread. `waits`: for what comes soon as well."""
        self._signs.came(step)
        self._advance(self.patience_s if waits else 0.0)

    def await_all(self) -> None:
        """Samples on their way are reported before what follows them, as far as they arrive soon."""
        while before := len(self._gathering):
            self._advance(self.patience_s)
            if len(self._gathering) == before:
                return
        self._advance(0.0)

    def await_last(self, *, finished: bool) -> None:
        """What has not come then is lost; counted."""
        self.patience_s = LAST_PATIENCE_S if finished else PATIENCE_S  # also after a wait in vain
        self.await_all()
        self._signs.close()
        with self._guard("get the last readings"):
            if left := len(self._gathering):
                raise RuntimeError(f"the readings of {left} step(s) have never come")

    def _advance(self, wait_s: float) -> None:
        self._gathering.advance(wait_s)
        if not len(self._gathering):
            self.patience_s = PATIENCE_S
        elif wait_s:
            self.patience_s = 0.0
            with self._guard("get the other ranks' readings in time"):
                raise TimeoutError(f"those of {len(self._gathering)} step(s) have not come within {wait_s:g} s")
