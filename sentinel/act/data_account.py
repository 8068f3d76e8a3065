"""Whether the data of the run in force is accounted for, once its newest attempt has reported its planned end.

STATE_DIR/cache/account.state keeps the answer: the whole lineage is read for it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path

from sentinel.act.judge_cache import code_digest, digest_of_journal
from sentinel.act.sealed_file import FOLDER, NotUsableError, read_sealed, write_sealed
from sentinel.act.source import Source
from sentinel.adapters.journal import Journals
from sentinel.judge.history import Attempt, History
from sentinel.plan.account.lineage import account_of
from sentinel.plan.incident.incident import Incident, Rollback

_LEAST_STEPS = 10_000  # fewer are read at once


class EndAccount:
    """Of the newest attempt. Keeps nothing of a source that is not the run's journals."""

    def __init__(self, state_dir: Path, source: Source, run: str | None) -> None:
        self._path = state_dir / FOLDER / "account.state"
        self._journals = source if isinstance(source, Journals) else None
        self._run = run
        self._known: tuple[tuple[int, int, int], str | None] | None = None

    def unclosed(self, history: History, attempt: Attempt | None, incidents: Iterable[Incident]) -> str | None:
        """Why the account does not close, as a sentence; None where it does, or the attempt has not reported its
        planned end. What `history.samples` raises."""
        if attempt is None or attempt.end_reason != "finished":
            return None
        decided = [rollback for incident in incidents for rollback in incident.rollbacks]
        at = attempt.number, attempt.made, len(decided)
        if self._known is None or self._known[0] != at:
            self._known = at, self._read(history, attempt, decided)
        return self._known[1]

    def _read(self, history: History, attempt: Attempt, decided: list[Rollback]) -> str | None:
        of = self._of(history, attempt, decided)
        if of is not None:
            try:
                (kept,) = read_sealed(self._path, of)
                return None if kept is None else str(kept)
            except (NotUsableError, ValueError, TypeError):
                pass
        account = account_of(history, attempt, decided)
        why = None if account.closes else account.why
        if of is not None:
            write_sealed(self._path, of, [why])
        return why

    def _of(self, history: History, attempt: Attempt, decided: list[Rollback]) -> bytes | None:
        """What the answer follows from: the journals, up to where they were read; None where it is not worth while, or
        they can't be read."""
        descent = [(one.number, until) for one, until in history.descent(attempt)]
        if self._journals is None or sum(history.attempts[number].made for number, _ in descent) < _LEAST_STEPS:
            return None
        line, rollbacks = {number for number, _ in descent}, [rollback.id for rollback in decided]
        try:
            read = [
                (name, digest_of_journal(self._journals.folder / name, place.offset))
                for name, place in sorted(self._journals.places.items())
                if place.attempts & line
            ]
        except OSError:
            return None
        return hashlib.sha256(repr((code_digest(), self._run, descent, rollbacks, read)).encode()).hexdigest().encode()
