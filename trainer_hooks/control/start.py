"""What all ranks of a training know before its first step: the decisions of overrides.json, and whether KILL is there.
Rank 0 reads the files; the others get what it has read by the store that the process group was made with."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any, Generic, TypeVar

from torch.distributed import distributed_c10d

from sentinel.vocabulary.errors import OverridesError
from sentinel.vocabulary.overrides import Overrides, decode_overrides
from trainer_hooks.control.step_requests import KILL_FILE, STOP, rank_and_world
from trainer_hooks.control.watched_files import stands
from trainer_hooks.ranks.agreement import Ballot, NotAgreedError, agreed
from trainer_hooks.restart import overrides_text

T = TypeVar("T")

READ_S = 60.0  # Within this time rank 0 has read a file of the state folder, or it counts as unreadable
RANKS_S = 1800.0  # Within this time all ranks have come here: torch's own default for a rank that is late

_agreements = count(1)  # of this process: the keys of each are its own in the store


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """The same on all ranks."""

    overrides: Overrides | None = None  # None: nothing was decided
    levels: Mapping[str, int] = field(default_factory=dict)  # {STOP: KILL_FILE} where KILL is there


def agreed_start(folder: Path) -> Start:
    """What rank 0 finds in the state folder. Called on every rank; waits for all of them.

    OverridesError, on every rank, where overrides.json can't be read in time or is not understood, or where not all
    ranks have got it: a start that does not know what was decided must not train."""
    rank, world = rank_and_world()
    found = _read(folder) if rank == 0 else {}
    if world > 1:
        try:
            found = agreed(_store(), rank, world, found, RANKS_S)
        except RuntimeError as error:  # NotAgreedError, or the store is gone
            raise OverridesError(f"{folder}: the ranks can't agree on overrides.json ({error})") from error
    if found["error"] is not None:
        raise OverridesError(found["error"])
    overrides = None if found["overrides"] is None else decode_overrides(found["overrides"])
    return Start(overrides=overrides, levels={STOP: KILL_FILE} if found["kill"] else {})


def totals(numbers: Sequence[int], timeout_s: float) -> list[int]:
    """The sum of each number over all ranks. Called on every rank; waits for all of them. NotAgreedError, on every
    rank, where one is missing after timeout_s."""
    rank, world = rank_and_world()
    if world == 1:
        return list(numbers)
    store = _store()
    ballot = Ballot(store, rank, world, time.monotonic() + timeout_s)
    for position, number in enumerate(numbers):
        store.add(f"sum/{position}", number)
    ballot.ready()
    if why := ballot.why_not():
        raise NotAgreedError(why)
    return [int(store.add(f"sum/{position}", 0)) for position in range(len(numbers))]


def _store() -> Any:
    """A part of the store that the process group was made with, for one agreement."""
    return distributed_c10d.PrefixStore(f"sentinel/start/{next(_agreements)}", distributed_c10d._get_default_store())


def _read(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = {"overrides": None, "kill": False, "error": None}
    try:
        found["overrides"], found["error"] = within(READ_S, lambda: _text_or_error(folder))
    except TimeoutError:
        found["error"] = f"{folder / 'overrides.json'}: not read within {READ_S:g} s: the filesystem hangs"
        return found
    with suppress(TimeoutError, OSError):  # it is looked for again at each step
        found["kill"] = within(READ_S, lambda: stands(folder / "KILL"))
    return found


def _text_or_error(folder: Path) -> tuple[str | None, str | None]:
    """Rank 0 decodes it too: all ranks learn what is wrong with it in the same sentence."""
    try:
        text = overrides_text(folder)
        if text is not None:
            decode_overrides(text)
    except OverridesError as error:
        return None, str(error)
    return text, None


@dataclass(slots=True)
class _Answer(Generic[T]):
    value: T | None = None
    error: Exception | None = None


def within(seconds: float, call: Callable[[], T]) -> T:
    """What the call returns or raises. TimeoutError where it takes longer: it then goes on in a thread of its own."""
    answer, done = _Answer[T](), threading.Event()

    def run() -> None:
        try:
            answer.value = call()
        except Exception as error:  # noqa: BLE001 - raised again by who asked
            answer.error = error
        done.set()

    threading.Thread(target=run, name="sentinel-start", daemon=True).start()
    if not done.wait(seconds):
        raise TimeoutError(f"not done within {seconds:g} s")
    if answer.error is not None:
        raise answer.error
    return answer.value  # type: ignore[return-value]
