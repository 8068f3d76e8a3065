"""STATE_DIR/cache: the judge's state, with how far the journals were read, so that a start reads only what is new.

Nothing depends on it: it may be deleted at any time. A file counts where the same code wrote it, for the same run and
thresholds, whole, and where the journals still have the bytes that it was made from: their first 4 KiB, and the last
64 KiB before the place up to which they were read. Otherwise an older file counts, or everything is read afresh.

The files are the newest state, and older ones, ever farther apart, about two for each doubling of the samples since: an
attempt that goes back to an earlier step is judged from the newest one before it.
"""

from __future__ import annotations

import hashlib
import logging
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import sentinel
from sentinel.act.following import FollowedState, Following
from sentinel.act.sealed_file import FOLDER, NotUsableError, read_sealed, write_sealed
from sentinel.act.source import Source
from sentinel.adapters.journal import JournalPlace, Journals
from sentinel.bounded import open_regular
from sentinel.judge.history import Attempt
from sentinel.judge.kept_state import StateError, from_data, to_data
from sentinel.judge.thresholds import Thresholds

log = logging.getLogger(__name__)

_HEAD_BYTES, _TAIL_BYTES = 4 << 10, 64 << 10  # of a journal, that are compared
_LEAST_NEW = 512  # samples since the last state that make another worth while: they are read in some 50 ms
_EVERY_S = 300.0
WHILE_READING = 1 << 14  # samples of a long reading after which one is kept, for an attempt that goes back
_CODE = ("judge", "vocabulary", "act", "adapters/journal.py")  # under the package: what a state depends on


class _Name(NamedTuple):
    """What a file's name says of its state."""

    made: int  # samples that were read, of all attempts
    attempt: int  # the newest
    step: int  # its last one

    @property
    def text(self) -> str:
        return f"judge-{self.made:012d}-{self.attempt:04d}-{self.step:012d}.state"


class JudgeCache:
    """Of one run. `of`: what else a state depends on, as text."""

    def __init__(
        self,
        state_dir: Path,
        thresholds: Thresholds,
        of: Sequence[object],
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._folder = state_dir / FOLDER
        self._thresholds = thresholds
        self._of = hashlib.sha256(repr((code_digest(), thresholds, *of)).encode()).hexdigest().encode()
        self._clock = clock
        self._kept: tuple[int, float] | None = None  # samples of the newest file, and when it was written or read
        self._compared: dict[str, tuple[int, str]] = {}  # journal -> (offset, digest)
        self._journals: Journals | None = None

    def restore(self, journals: Source, following: Following) -> None:
        """Before the first reading: both go on from the newest state that counts, if there is one. Does nothing for a
        source that is not the run's journals, and where it was called before."""
        if not isinstance(journals, Journals) or self._journals is not None:
            return
        self._journals = journals
        for name in sorted(self._names(), reverse=True):
            try:
                places, unreadable, state = self._read(name, journals.folder)
            except NotUsableError as error:
                log.debug("the judge's state is not used: %s", error)
                continue
            journals.places, journals.unreadable = places, unreadable
            following.go_on(state)
            self._kept = (name.made, self._clock())
            return

    def earlier(self, attempt: int, until: int | None) -> FollowedState | None:
        """The newest state of when that attempt was the newest, at a step that is not above `until`."""
        journals = self._journals
        of_attempt = [p for p in journals.places.values() if attempt in p.attempts] if journals is not None else []
        if journals is None or len(of_attempt) != 1 or not of_attempt[0].rising:  # else a step is no place
            return None
        for name in sorted(self._names(), reverse=True):
            if name.attempt == attempt and (until is None or name.step <= until):
                try:
                    return self._read(name, journals.folder)[2]
                except NotUsableError as error:
                    log.debug("the judge's state is not used: %s", error)
        return None

    def keep(self, following: Following, *, at_once: bool = False) -> None:
        """Writes the state where it is worth while: enough samples since the last one, and enough time; `at_once`: at
        the end, or after a long reading, whenever there are enough samples. Never raises for a folder that can't be
        written."""
        journals = self._journals
        if journals is None or (state := following.state()) is None or state.series.last_step is None:
            return
        made, now_s = sum(attempt.made for attempt in state.attempts.values()), self._clock()
        if self._kept is not None:
            before, at_s = self._kept
            soon = now_s - at_s < _EVERY_S and made - before < WHILE_READING
            if made - before < _LEAST_NEW or (soon and not at_once):
                return
        elif made < _LEAST_NEW:
            return
        self._kept = (made, now_s)
        name = _Name(made, state.followed[0], state.series.last_step)
        try:
            if not write_sealed(self._folder / name.text, self._of, self._data(journals, state)):
                return
            for old in _superfluous([one for one in self._names() if one != name], made):
                (self._folder / old.text).unlink(missing_ok=True)
        except (OSError, StateError) as error:
            log.debug("the judge's state is not kept: %s", error)

    def _data(self, journals: Journals, state: FollowedState) -> list[Any]:
        places = [(one, *_fields(place), self._digest(journals, one)) for one, place in journals.places.items()]
        references = state.series.known.references  # a look gives them anew
        given = {"thresholds": self._thresholds, "references": references}
        return [places, journals.unreadable, to_data(tuple(state), given)]

    def _read(self, name: _Name, journals: Path) -> tuple[dict[str, JournalPlace], int, FollowedState]:
        try:
            listed, unreadable, data = read_sealed(self._folder / name.text, self._of)
            places = {one: _place(fields) for one, *fields, _ in listed}
            for one, *_, digest in listed:
                if digest_of_journal(journals / one, places[one].offset) != digest:
                    raise NotUsableError(f"{one} is another one")
            attempts, *rest = from_data(data, {"thresholds": self._thresholds, "references": ()})
            state = FollowedState(_checked(attempts), *rest)
        except (OSError, StateError, LookupError, TypeError, ValueError) as error:
            raise NotUsableError(str(error)) from error
        return places, unreadable, state

    def _digest(self, journals: Journals, name: str) -> str:
        offset, known = journals.places[name].offset, self._compared.get(name)
        if known is None or known[0] != offset:
            known = self._compared[name] = (offset, digest_of_journal(journals.folder / name, offset))
        return known[1]

    def _names(self) -> Iterator[_Name]:
        try:
            found = [path.name for path in self._folder.iterdir()]
        except OSError:
            return
        for text in found:
            numbers = text.removeprefix("judge-").removesuffix(".state").split("-")
            if len(numbers) == 3 and all(number.isdecimal() for number in numbers):
                name = _Name(*map(int, numbers))
                if name.text == text:
                    yield name


def _superfluous(names: list[_Name], made: int) -> Iterator[_Name]:
    """Of the files beside the newest, which has `made` samples: those that can't be older than it, and those without
    which the next older one is still not more than twice as old as the next younger one that stays."""
    older = sorted((name for name in names if name.made < made), reverse=True)
    yield from (name for name in names if name.made >= made)
    younger = 0
    for name, next_older in pairwise(older):
        if made - next_older.made <= 2 * max(younger, _LEAST_NEW):
            yield name
        else:
            younger = made - name.made


def _fields(place: JournalPlace) -> tuple[Any, ...]:
    attempts = sorted(place.attempts)
    return place.offset, place.within, attempts, place.samples, place.last_step, place.rising, place.marks


def _place(fields: Sequence[Any]) -> JournalPlace:
    offset, within, attempts, samples, last_step, rising, marks = fields
    marked = [(int(step), int(at)) for step, at in marks]
    return JournalPlace(int(offset), bool(within), set(attempts), int(samples), int(last_step), bool(rising), marked)


def _checked(attempts: Any) -> dict[int, Attempt]:
    if not isinstance(attempts, dict) or not all(isinstance(one, Attempt) for one in attempts.values()):
        raise StateError("there are no attempts")
    return attempts


def digest_of_journal(journal: Path, offset: int) -> str:
    """Of its first bytes and of the last ones before the offset. OSError where it is not that long."""
    with open_regular(journal) as file:
        head = file.read(min(_HEAD_BYTES, offset))
        file.seek(max(0, offset - _TAIL_BYTES))
        tail = file.read(min(_TAIL_BYTES, offset))
    if len(tail) < min(_TAIL_BYTES, offset):
        raise OSError(f"{journal} is shorter than {offset} bytes")
    return hashlib.sha256(b"%d\n%d\n" % (offset, len(head)) + head + tail).hexdigest()


@lru_cache(maxsize=1)
def code_digest() -> str:
    """Of the code that a state depends on: another version judges from the beginning."""
    package, found = Path(sentinel.__file__).parent, hashlib.sha256(sys.version.encode())
    for place in _CODE:
        path = package / place
        sources = [path] if path.is_file() else sorted(path.rglob("*.py"))
        if not sources:  # an installation without them: no two of its processes are known to be of one version
            found.update(os.urandom(32))
        for source in sources:
            found.update(f"\n{source.relative_to(package)}\n".encode() + source.read_bytes())
    return found.hexdigest()
