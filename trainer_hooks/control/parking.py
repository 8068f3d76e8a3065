"""A training that is parked: all ranks stand at the end of one step, have closed their files, and wait for RESUME or
RELEASE. No collective is pending meanwhile: rank 0 looks at files, the others ask the store that the process group was
made with. Each of them waits until the deadline of PARK at most.

Until all ranks have closed their files any of them may say no, or be late: then none parks, and the training goes on.
Once they are parked, one that is lost ends the training: an end that the daemon sees, and starts the job anew.
"""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any, Protocol

from torch._C._distributed_c10d import HashStore, PrefixStore
from torch.distributed import distributed_c10d

from sentinel.vocabulary.parking import (
    PARKED_TOO_LONG,
    ParkRequest,
    ResumeRequest,
    decode_request,
    encode_request,
    ended_by_resume,
)
from sentinel.vocabulary.sample import Parked, Released
from trainer_hooks.control.park_files import ParkedFiles, ParkFile, shown_time
from trainer_hooks.control.step_requests import KILL_FILE, REASONS, SIGTERM, rank_and_world
from trainer_hooks.control.watched_files import WatchedFiles
from trainer_hooks.errors import Guard
from trainer_hooks.ranks.agreement import Ballot, awaited

log = logging.getLogger(__name__)

POLL_S = 0.2  # Between two looks of rank 0 at the files
TOLD_S = 60.0  # Within this time after the boundary rank 0 has told the others what PARK says
GRACE_S = 30.0  # After the deadline the other ranks wait so long for rank 0's word
LEAVE_S = 60.0  # Within this time all ranks have heard that they go on
LINGER_S = 5.0  # Rank 0, whose process may hold the store, waits so long for the others to hear that the training ends

_parks = count(1)  # of this process: the keys of each are its own in the store


class Report(Protocol):
    def __call__(self, kind: type[Parked | Released], rollback: str, *, not_parked: str | None = None) -> None:
        """Puts such a record into the journal; called on rank 0."""


class ParkLostError(RuntimeError):
    """A rank, or the store, was lost while the training was parked: it can't go on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AfterPark:
    """What all ranks do, the same on each."""

    ends: str | None = None  # Why the attempt ends, for `run_finished`; None: it trains on
    resume: ResumeRequest | None = None  # The next attempt begins in this process


class Parking:
    """Of one attempt, on one rank."""

    def __init__(
        self,
        folder: Path,
        guard: Guard,
        attempt: Callable[[], int],
        cannot: Callable[[ResumeRequest], str | None] = lambda _: None,
    ) -> None:
        """`folder`: the state folder. `attempt`: its number; 0 while there is none, and on other ranks than 0. A RESUME
        that the trainer `cannot` obey is ignored with that reason: the rollback then goes on by a new job."""
        self._folder, self._guard, self._cannot = folder, guard, cannot
        self.file = ParkFile(attempt)
        self._parked_for: str | None = None  # The last rollback, on rank 0

    def park(self, *, close: Callable[[], None], report: Report, stop: Callable[[], int]) -> AfterPark:
        """Called on every rank, at the boundary where PARK is due on all of them; returns once the park is over.

        `close` closes all that this rank writes to. `stop`: the level that this rank is asked to stop with, say by a
        signal. ParkLostError where a rank is lost while the training is parked."""
        place, asked = _Place.new(), self.file.request
        try:
            request, why = self._gathered(place, close)
        except (TimeoutError, RuntimeError) as error:  # this rank alone: the others will miss it, and train on too
            request, why = None, str(error)
        if why or request is None:
            log.log(place.level, "sentinel: the training is not parked: %s; it goes on", why)
            if place.rank == 0 and asked is not None and asked.rollback != self._parked_for:
                report(Released, asked.rollback, not_parked=why)
            return AfterPark()
        if place.rank == 0:
            report(Parked, request.rollback)
        self._parked_for, until = request.rollback, shown_time(request.deadline_unix_s)
        log.log(place.level, "sentinel: parked for %s; waiting for RESUME or RELEASE until %s", request.rollback, until)
        try:
            after = self._decided(place, request, stop) if place.rank == 0 else place.heard(stop)
            place.leave(ends=after.ends is not None and after.resume is None)
        except RuntimeError as error:
            raise ParkLostError(f"the training was parked, and {error}") from error
        if after.resume is not None:
            os.environ["SENTINEL_ROLLBACK"] = after.resume.rollback  # as a job that is started for it would have it
        elif after.ends is None and place.rank == 0:
            report(Released, request.rollback)
        return after

    def _gathered(self, place: _Place, close: Callable[[], None]) -> tuple[ParkRequest | None, str]:
        """What PARK asks for, and why it can't be done, which is the same on every rank; empty once all have closed
        their files."""
        asked = self.file.request
        request = place.told(asked if asked is not None and asked.rollback != self._parked_for else None)
        if request is None:
            return None, "PARK asks for nothing any more"
        why = None
        try:
            close()
        except Exception as error:  # noqa: BLE001 - whatever it is: a file is open, and no rank may count as parked
            why = f"rank {place.rank} could not close its files ({type(error).__name__}: {error})"
        ballot = Ballot(place.part("parked"), place.rank, place.world, place.deadline)
        if why is None:
            ballot.ready()
        else:
            ballot.failed(why)
        return request, ballot.why_not()

    def _decided(self, place: _Place, request: ParkRequest, stop: Callable[[], int]) -> AfterPark:
        """On rank 0: how the park ends, as soon as that is known. The other ranks hear of it."""
        parked = ParkedFiles(request, self._cannot)
        reads = {"RESUME": parked.resumes, "RELEASE": parked.releases}
        files = WatchedFiles(self._folder, self._guard, standing=("KILL",), read=reads, period_s=POLL_S)
        try:
            while (after := _after(files, parked, place.deadline, stop() or place.asked_to_stop())) is None:
                time.sleep(POLL_S)
        finally:
            files.close()
        place.say(after)
        return after


def _after(files: WatchedFiles, parked: ParkedFiles, deadline: float, stop: int) -> AfterPark | None:
    """What the files, the signals and the clock say, one that nobody sets; None while the park goes on."""
    levels = files.levels
    if stop := max(stop, KILL_FILE * levels["KILL"]):
        return AfterPark(ends=REASONS[stop])
    if parked.resume is not None:
        return AfterPark(ends=ended_by_resume(parked.resume.rollback), resume=parked.resume)
    if levels["RELEASE"]:
        return AfterPark()
    return AfterPark(ends=PARKED_TOO_LONG) if time.monotonic() >= deadline else None


@dataclass(slots=True, kw_only=True)
class _Place:
    """This rank's place in one park, and its part of the store."""

    rank: int
    world: int
    store: Any
    deadline: float = 0.0  # Of PARK, on the monotonic clock; known once PARK is

    @property
    def level(self) -> int:
        """Of what all ranks would log alike: one of them is enough."""
        return logging.INFO if self.rank else logging.WARNING

    @classmethod
    def new(cls) -> _Place:
        rank, world = rank_and_world()
        base = HashStore() if world == 1 else distributed_c10d._get_default_store()
        return cls(rank=rank, world=world, store=PrefixStore(f"sentinel/park/{next(_parks)}", base))

    def part(self, name: str) -> Any:
        return PrefixStore(name, self.store)

    def told(self, request: ParkRequest | None) -> ParkRequest | None:
        """What PARK says, on every rank; None where its deadline is past. `request`: what rank 0 has read. TimeoutError
        or RuntimeError where rank 0 has not said it."""
        left_s = 0.0
        if self.rank == 0:
            left_s = 0.0 if request is None else request.deadline_unix_s - time.time()
            text = None if request is None or left_s <= 0 else encode_request(request)
            self.store.set("request", json.dumps([text, left_s]))  # by rank 0's clock
        else:
            awaited(self.store, ["request"], time.monotonic() + TOLD_S, world=self.world)
            text, left_s = json.loads(self.store.get("request"))
        self.deadline = time.monotonic() + left_s
        return None if text is None else decode_request(ParkRequest, text)

    def asked_to_stop(self) -> int:
        """On rank 0: whether another rank is asked to, by a signal."""
        return SIGTERM if self.store.check(["stop"]) else 0

    def say(self, after: AfterPark) -> None:
        resume = None if after.resume is None else encode_request(after.resume)
        self.store.set("after", json.dumps([after.ends, resume]))

    def heard(self, stop: Callable[[], int]) -> AfterPark:
        """On the other ranks: what rank 0 says. Where it says nothing the deadline counts."""
        until = self.deadline + GRACE_S
        try:
            try:
                awaited(self.store, ["after"], until, lambda: bool(stop()), world=self.world)
            except TimeoutError:
                if stop():
                    self.store.set("stop", b"1")
                awaited(self.store, ["after"], until, world=self.world)
        except TimeoutError:
            return AfterPark(ends=PARKED_TOO_LONG)
        ends, resume = json.loads(self.store.get("after"))
        return AfterPark(ends=ends, resume=None if resume is None else decode_request(ResumeRequest, resume))

    def leave(self, *, ends: bool) -> None:
        """All ranks go on together: RuntimeError, the same on each, where one is missing. Where the training `ends`,
        rank 0 alone waits, briefly, for those that still listen."""
        if not ends:
            ballot = Ballot(self.part("on"), self.rank, self.world, time.monotonic() + LEAVE_S)
            ballot.ready()
            if why := ballot.why_not():
                raise RuntimeError(f"{why} when it was to go on")
        elif self.rank:
            with suppress(RuntimeError):  # rank 0 has not waited
                self.store.add("left", 1)
        else:
            until = time.monotonic() + LINGER_S
            while int(self.store.add("left", 0)) < self.world - 1 and time.monotonic() < until:
                time.sleep(POLL_S / 4)
