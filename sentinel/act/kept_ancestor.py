"""STATE_DIR/cache/ancestor.state: what a start is compared with. `sentinel status` reads the run before it once.

A watch needs none: it records its audit of a start in the incident log, and then no longer asks.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

from sentinel.act.judge_cache import code_digest, digest_of_journal
from sentinel.act.sealed_file import FOLDER, NotUsableError, read_sealed, write_sealed
from sentinel.act.source import Source
from sentinel.adapters.journal import Journals
from sentinel.judge.history import Attempt, History
from sentinel.judge.kept_state import StateError, from_data, to_data
from sentinel.plan.starts.audit import Ancestor, Trail

_LEAST_STEPS = 10_000  # fewer are read at once


class KeptAncestor:
    """Of the newest attempt. Keeps nothing of a source that is not the run's journals."""

    def __init__(self, state_dir: Path, source: Source, run: str) -> None:
        self._path = state_dir / FOLDER / "ancestor.state"
        self._journals = source if isinstance(source, Journals) else None
        self._run = run

    def read(self, history: History, attempt: Attempt) -> Ancestor | None:
        """What was kept; None where it is not of these journals."""
        if (of := self._of(history, attempt)) is None:
            return None
        try:
            data, *columns = read_sealed(self._path, of)
            started, recent, later, layers, saved, stops = from_data(data, {})
            trail = Trail()
            for kept, column in zip(trail.columns, columns, strict=True):
                kept.frombytes(column)
            known = {"started": started, "recent": recent, "later": later, "layers": layers, "saved": saved}
            return Ancestor(**known, trail=trail, stops=stops)
        except (NotUsableError, StateError, ValueError, TypeError):
            return None

    def keep(self, history: History, attempt: Attempt, ancestor: Ancestor) -> None:
        trail = ancestor.trail
        if len(trail.steps) < _LEAST_STEPS or (of := self._of(history, attempt)) is None:
            return
        before = [ancestor.started, ancestor.recent, ancestor.later, ancestor.layers, ancestor.saved, ancestor.stops]
        data = to_data(before, {})
        write_sealed(self._path, of, [data, *(column.tobytes() for column in trail.columns)])

    def _of(self, history: History, attempt: Attempt) -> bytes | None:
        """The journals of its ancestors, up to where they were read; None where they can't be read."""
        if self._journals is None:
            return None
        descent = [(one.number, until) for one, until in history.descent(attempt)]
        older = {number for number, _ in descent[:-1]}
        try:
            read = [
                (name, digest_of_journal(self._journals.folder / name, place.offset))
                for name, place in sorted(self._journals.places.items())
                if place.attempts & older
            ]
        except OSError:
            return None
        return hashlib.sha256(repr((code_digest(), self._run, descent, read)).encode()).hexdigest().encode()
