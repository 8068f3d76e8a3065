"""Pins the checkpoints that a turn names."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field

from sentinel.adapters.checkpoints import Checkpoints
from sentinel.adapters.state_files import OwnPins
from sentinel.vocabulary.errors import SentinelError

log = logging.getLogger(__name__)

_MOST = 2  # pins that retention has left nothing but the pin of: each holds a whole checkpoint's bytes


@dataclass(eq=False)
class Pinning:
    """Pins the checkpoints that a turn names, and lets the others of its own go where that loses nothing."""

    checkpoints: Checkpoints
    own: OwnPins
    _pinned: tuple[str, ...] | None = field(default=None, init=False)
    _last_warning: str | None = field(default=None, init=False)

    def keep(self, tags: tuple[str, ...] | None) -> None:
        """What goes wrong is said once and never stops the watch: a pin is a safeguard, not a duty. None leaves the
        pins as they are; they are looked at again with the next tags, since a rollback may have taken some."""
        if tags is None or tags == self._pinned:
            self._pinned = tags
            return
        try:
            why = self._change_over(tags)
        except (SentinelError, OSError) as error:
            why = str(error)
        if why is not None and (line := f"{' and '.join(tags)} is not pinned: {why}") != self._last_warning:
            self._last_warning = line
            log.warning("%s", line)
        self._pinned = tags

    def _change_over(self, tags: tuple[str, ...]) -> str | None:
        pins, own = self.checkpoints.pins, self.own.read()
        others = [old for old in own if old not in tags]  # a person's own pins are not ours to let go
        kept = [old for old in others if old in pins.usable() and not self._let_go(old)]
        if len(kept) >= _MOST:
            return f"{', '.join(kept)} live on only as pins; `sentinel pin --release TAG` ends that"
        if own != [*kept, *tags]:
            self.own.write([*kept, *tags])
        for tag in tags:
            with self.checkpoints.linking(tag):
                pins.pin(tag)
            log.debug("%s is pinned", tag)
        return None

    def _let_go(self, tag: str) -> bool:
        with self.checkpoints.linking(tag):
            return self.checkpoints.pins.let_go(tag)
