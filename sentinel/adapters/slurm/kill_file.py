"""STATE_DIR/KILL as sentinel writes it, for a job that only its owner can cancel, and takes it away again."""

from __future__ import annotations

import logging
from collections.abc import Collection
from pathlib import Path

from sentinel import bounded
from sentinel.durable import sync_folder, write_atomically
from sentinel.vocabulary.kill_file import StopOrder, decode_stop_order, encode_stop_order

__all__ = ["KillFile"]

log = logging.getLogger(__name__)


class KillFile:
    """A person's file is neither replaced nor moved."""

    def __init__(self, state_dir: Path) -> None:
        self._path = state_dir / "KILL"
        self._over = state_dir / "kill-files"

    def ask(self, order: StopOrder) -> None:
        """Writes the order, unless a person's file asks for the same already."""
        if self._order() is not None or not self._path.exists():
            write_atomically(self._path, encode_stop_order(order))

    def withdraw(self, alive: Collection[str]) -> None:
        """Moves sentinel's file away once its job is gone: the next job would stop at it. `alive`: jobs and arrays."""
        order = self._order()
        if order is None or order.job in alive:
            return
        self._over.mkdir(exist_ok=True)
        kept = self._over / f"{order.time_unix_s:.3f}-{order.job}.json"
        self._path.rename(kept)
        sync_folder(self._over)
        sync_folder(self._path.parent)
        log.info("KILL is moved to %s: job %s, which it was for, is gone", kept, order.job)

    def _order(self) -> StopOrder | None:
        try:
            return decode_stop_order(bounded.read_text(self._path, errors="replace"))
        except (FileNotFoundError, bounded.UnfitFileError):  # the latter is no file of sentinel's
            return None
