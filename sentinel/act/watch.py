"""The loop: observe, judge, plan, execute, prove, sleep."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from itertools import pairwise
from time import monotonic

from sentinel.act.ledger import Ledger
from sentinel.act.observe import Look, Observer
from sentinel.act.pinning import Pinning
from sentinel.act.recover import Done, Recoverer
from sentinel.act.silence import Silence
from sentinel.act.troubles import Troubles
from sentinel.judge.events import EventKind
from sentinel.judge.history import Attempt
from sentinel.judge.verdict import VerdictKind
from sentinel.plan.incident import Incident
from sentinel.plan.liveness import hindered, life_of
from sentinel.plan.observation import RunState
from sentinel.plan.policy import Policy
from sentinel.plan.restart import plan_hang, plan_restart
from sentinel.plan.rollback import Plan
from sentinel.plan.trouble import Severity, unsettled
from sentinel.plan.witnesses import Life
from sentinel.vocabulary.errors import ConfigError, FilesystemRefused, PermanentError, SentinelError, TemporaryError

__all__ = ["Watch"]

log = logging.getLogger(__name__)

_TO_ACT_ON = (VerdictKind.DIVERGED, VerdictKind.DOWN, VerdictKind.STALLED)

_UNKNOWN_S = 60.0
"""Seconds for which the state of a job that trains well may be unknown before somebody is told."""

_FRESH_S = 60.0
"""A look that took longer has waited for a filesystem: what it found first may not be so any more."""


class Watch:
    """Follows one run. `tick` is one turn; it returns why the watch is over, or None."""

    def __init__(
        self,
        observer: Observer,
        recoverer: Recoverer,
        pinning: Pinning,
        policy: Policy,
        ledger: Ledger,
        settle: Callable[[tuple[Incident, ...]], None],
        own: Callable[[], None] = lambda: None,
        paging_problem: Callable[[], str | None] = lambda: None,
    ) -> None:
        """`own` raises LockHeld where another sentinel has the run by now: a look may take an hour, and more.

        `paging_problem` tells why pages can't be written; None when they can.
        """
        self._paging_problem = paging_problem
        self._settle = settle
        self._own = own
        self._observer = observer
        self._pinning = pinning
        self._recoverer = recoverer
        self._policy = policy
        self._ledger = ledger
        self._troubles = Troubles(ledger)
        self._announced: tuple[VerdictKind, int | None] | None = None
        self._plateaus_told: set[int] = set()
        self._silence = Silence()
        self._silent_s = 0.0
        self._was_slow = False
        self.last: Look | None = None
        """What the last turn saw."""
        self.struggles = 0
        """Turns that something went wrong in, so far."""

    def tick(self, now_unix_s: float) -> Done | None:
        """One turn. A TemporaryError is tried again, and told when it lasts; on a PermanentError sentinel stops."""
        first, began_s = self.last is None, monotonic()
        try:
            look = self.last = self._observer.look(now_unix_s)
        except TemporaryError as error:
            log.warning("%s; looking again", error)
            self._struggle(str(error), now_unix_s, self.last)
            return None
        self._own()
        self._silent_s = self._silence.lasts_s(look.history)
        self._announce(look)
        if self._was_old(monotonic() - began_s, first=first):
            return None
        self._troubles.take_up(look.events)
        undoing = next((i for i in look.run.incidents if i.undoing), None)
        incident = look.run.open_incident if undoing is None else None
        try:
            self._observer.keep_jobs()
            done = self._turn(look, undoing, incident)
        except TemporaryError as error:
            log.warning("%s; trying again", error)
            self._notice(look, str(error))
            return None
        except FilesystemRefused:  # what was decided stands, and is taken up once a person has mended that
            raise
        except (PermanentError, ConfigError) as error:
            if incident is None:
                raise
            self._ledger.stopped(incident, str(error))
            return Done.PERSON_NEEDED
        jobs = look.run.jobs
        self._notice(look, None if jobs.known or jobs.elsewhere else f"job state unknown: {jobs.why_unknown}")
        return done

    def _was_old(self, took_s: float, *, first: bool) -> bool:
        """Whether what was found is to be looked at again before anything is done: not twice running, nor at first,
        when there is much to read."""
        self._was_slow = took_s > _FRESH_S and not first and not self._was_slow
        if self._was_slow:
            log.warning("looking took %.0f s, and what was found may be old: looking again", took_s)
        return self._was_slow

    def _turn(self, look: Look, undoing: Incident | None, incident: Incident | None) -> Done | None:
        if undoing is not None:
            return self._finish_undo(undoing)
        self._pinning.keep(look)
        return self._without_incident(look) if incident is None else self._with_incident(look)

    def failed(self, error: Exception, now_unix_s: float) -> None:
        """A turn ended with what nobody foresaw: tried again, and told when it lasts."""
        try:
            self._struggle(f"the watch's turns fail: {error!r}", now_unix_s, self.last)
        except (OSError, SentinelError) as failure:
            log.error("the failure can't be recorded in the incident log: %s", failure)

    def _finish_undo(self, incident: Incident) -> Done | None:
        """What a person took back, and a crash cut short."""
        if self._policy.mode == "act":
            self._settle((incident,))
        else:
            self._ledger.say(f"the undo of {incident.id} is half done: `sentinel undo` goes on with it")
        return None

    def _with_incident(self, look: Look) -> Done | None:
        incident = look.run.open_incident
        if incident is None:
            return None
        if incident.status == "holding" and look.verdict.kind is VerdictKind.DOWN:
            return self._restart(look)
        if incident.status == "holding" and look.verdict.kind is VerdictKind.STALLED:
            return self._unhang(look)
        done = self._recoverer.turn(incident, look)
        if done is None and self._policy.mode != "act" and incident.shadows and _ran_to_its_end(look):
            return Done.NOT_WELL
        return done

    def _without_incident(self, look: Look) -> Done | None:
        stopped = [i for i in look.run.incidents if i.status == "stopped"]
        if stopped:
            self._ledger.say(f"{stopped[-1].id} waits for a person: {stopped[-1].note}")
            return Done.PERSON_NEEDED
        attempt = look.history.latest
        if look.verdict.kind is VerdictKind.DIVERGED and attempt is not None and not _given_up(look, attempt):
            self._ledger.opened(
                look.run.next_incident,
                attempt,
                look.run.baseline,
                look.run.overrides,
                reason=look.verdict.reason,
                verdict=look.verdict,
                lineage=look.history.lineage(attempt),
            )
            return None
        if look.verdict.kind is VerdictKind.DOWN:
            return self._restart(look)
        if look.verdict.kind is VerdictKind.STALLED:
            return self._unhang(look)
        return Done.FINISHED if look.verdict.kind is VerdictKind.FINISHED else None

    def _restart(self, look: Look) -> Done | None:
        """A job that is gone without a word is started again, where the run's owner wants that."""
        attempt = look.history.latest
        ended = attempt.end_reason if attempt else None
        hung = _was_stopped_for_hanging(look)
        broken_off = look.run.jobs.broken_off  # the trainer has heard a SIGTERM, and it was not a person's
        asked_to = ended is not None and not ended.startswith("error") and not hung and broken_off is None
        if self._policy.mode != "act" or asked_to:
            self._ledger.say(f"{look.verdict.reason}; waiting for the next attempt")
            if not asked_to:
                self._down(
                    look, f"mode is {self._policy.mode}, so sentinel does not start it", within_s=self._patience_s
                )
            return None
        plan = plan_restart(look.run, self._policy, restarts_spent=_fruitless_starts(look), hung=hung)
        return self._do_or_say(plan, look)

    def _unhang(self, look: Look) -> Done | None:
        """A job that lives and does nothing is stopped, where the run's owner wants that."""
        if self._policy.mode != "act":
            self._ledger.say(look.verdict.reason)
            return None
        if self._silent_s < self._observer.stalled_after_s:  # by the clocks it hangs, and one of them may be wrong
            self._ledger.say(f"{look.verdict.reason}; it is stopped once this watch has itself waited for as long")
            return None
        plan = plan_hang(look.run, self._policy, restarts_spent=_fruitless_starts(look))
        return self._do_or_say(plan, look)

    def _do_or_say(self, plan: Plan, look: Look) -> Done | None:
        if plan.refusal is not None:
            self._ledger.say(f"{look.verdict.reason}; {plan.refusal}")
            if not (look.run.paused or look.run.kill_file):  # a person holds it: they know
                self._down(look, plan.refusal)
            return None if plan.waits else Done.PERSON_NEEDED
        if plan.actions:
            self._ledger.say(f"{look.verdict.reason}; {plan.reason}")
            self._recoverer.do(plan, None, None)
        return None

    def _notice(self, look: Look, failure: str | None) -> None:
        """What is wrong beside the loss, and what is not any more."""
        now_unix_s, kind = look.run.now_unix_s, look.verdict.kind
        if failure is not None:
            self._struggle(failure, now_unix_s, look)
        elif not unsettled(look.events, now_unix_s, within_s=self._patience_s):
            self._troubles.over("struggling", now_unix_s)
        if (problem := self._paging_problem()) is not None:
            self._troubles.met("paging", problem, now_unix_s, severity="critical")
        else:
            self._troubles.over("paging", now_unix_s)
        if kind is VerdictKind.BLIND:  # nothing is known: neither better nor worse
            within_s = self._patience_s
            self._troubles.met("blind", look.verdict.reason, now_unix_s, severity="warning", within_s=within_s)
            return
        self._troubles.over("blind", now_unix_s)
        if look.run.overlap is not None:
            self._troubles.met("overlap", look.run.overlap, now_unix_s, severity="critical")
        else:
            self._troubles.over("overlap", now_unix_s)
        self._notice_unknown(look)
        if kind is VerdictKind.STALLED:
            self._troubles.met("stalled", look.verdict.reason, now_unix_s, severity="critical")
        else:
            self._troubles.over("stalled", now_unix_s)
        if kind is not VerdictKind.DOWN:
            self._troubles.over("down", now_unix_s)

    def _notice_unknown(self, look: Look) -> None:
        """Why nothing would be done: told at once where something is to be done, else when it lasts."""
        why = self._hindered(look.run) if look.run.jobs.known else None
        if why is None:
            self._troubles.over("unknown", look.run.now_unix_s)
            return
        due = look.run.open_incident is not None or look.verdict.kind in _TO_ACT_ON
        severity: Severity = "warning" if self._policy.mode == "observe" else "critical"
        within_s = 0.0 if due else _UNKNOWN_S
        self._troubles.met("unknown", why, look.run.now_unix_s, severity=severity, within_s=within_s)

    def _hindered(self, run: RunState) -> str | None:
        """Who only watches may watch another account's job."""
        known = life_of(run)
        if self._policy.mode == "observe":
            return known.sentence if known.life is Life.UNKNOWN else None
        return hindered(run)

    def _struggle(self, reason: str, now_unix_s: float, look: Look | None) -> None:
        self.struggles += 1
        severity: Severity = "critical" if look is not None and look.run.open_incident else "warning"
        self._troubles.met("struggling", reason, now_unix_s, severity=severity, within_s=self._patience_s)

    def _down(self, look: Look, why: str, *, within_s: float = 0.0) -> None:
        severity: Severity = "critical" if self._policy.mode == "act" else "warning"
        reason = f"{look.verdict.reason}; {why}"
        self._troubles.met("down", reason, look.run.now_unix_s, severity=severity, within_s=within_s)

    @property
    def _patience_s(self) -> float:
        return self._policy.confirm_within_s

    def _announce(self, look: Look) -> None:
        """One line in the log when the verdict changes, and one for each plateau, which nothing else follows from."""
        attempt = look.history.latest.number if look.history.latest else None
        if (look.verdict.kind, attempt) != self._announced:
            self._announced = (look.verdict.kind, attempt)
            at = f" at step {look.verdict.global_step}" if look.verdict.global_step is not None else ""
            log.info("attempt %s is %s%s: %s", attempt, look.verdict.kind, at, look.verdict.reason)
        for event in look.series.events:
            lasts = event.kind is EventKind.PLATEAU and event.end_step is None
            if lasts and event.onset_step not in self._plateaus_told:
                self._plateaus_told.add(event.onset_step)
                log.info("slower than it should be, for a person to look at: %s", event.reason)


def _ran_to_its_end(look: Look) -> bool:
    attempt = look.history.latest
    ended = attempt is not None and attempt.end_reason == "finished"
    return ended and not look.run.jobs.writers


def _given_up(look: Look, attempt: Attempt) -> bool:
    """Whether a person has already taken this attempt's illness upon themselves."""
    return any(i.outcome == "undone" and i.attempt == attempt.number for i in look.run.incidents)


def _was_stopped_for_hanging(look: Look) -> bool:
    """Whether the newest attempt's job was stopped by us, since it hung."""
    newest = look.history.latest.number if look.history.latest else None
    stopped = (e for e in look.events if e["event"] == "intent" and e["action"].get("keep_stacks"))
    return any(e.get("newest_attempt") == newest for e in stopped)


def _fruitless_starts(look: Look) -> int:
    """Starts of the job since one of them was seen to save a checkpoint, or a rollback was decided.

    What a trainer saves that was there before is no progress of theirs: an attempt counts for the last start before it.
    By attempts and the log's order: the trainer's clock and the daemon's may differ by minutes.
    """
    begun_after: list[float] = []
    for event in look.events:
        if event["event"] == "decided":
            begun_after.clear()
        elif event["event"] == "intent" and event["action"]["kind"] == "start_job":
            begun_after.append(event.get("newest_attempt") or 0)
    saved = [number for number, attempt in look.history.attempts.items() if attempt.saved]
    spans = pairwise([*begun_after, math.inf])
    fruitful = [n for n, (after, last) in enumerate(spans, 1) if any(after < number <= last for number in saved)]
    return len(begun_after) - max(fruitful, default=0)
