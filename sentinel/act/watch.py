"""The loop: observe, judge, plan, execute, prove, sleep."""

from __future__ import annotations

import logging
from collections.abc import Callable

from sentinel.act.ledger import Ledger
from sentinel.act.observe import Look, Observer
from sentinel.act.pinning import Pinning
from sentinel.act.recover import Done, Recoverer
from sentinel.judge.history import Attempt
from sentinel.judge.verdict import VerdictKind
from sentinel.plan.incident import Incident
from sentinel.plan.policy import Policy
from sentinel.plan.recovery import Plan, plan_hang, plan_restart
from sentinel.vocabulary.errors import ConfigError, FilesystemRefused, PermanentError, TemporaryError

__all__ = ["Watch"]

log = logging.getLogger(__name__)


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
    ) -> None:
        self._settle = settle
        self._observer = observer
        self._pinning = pinning
        self._recoverer = recoverer
        self._policy = policy
        self._ledger = ledger
        self._announced: tuple[VerdictKind, int | None] | None = None
        self.last: Look | None = None
        """What the last turn saw."""

    def tick(self, now_unix_s: float) -> Done | None:
        """One turn. A TemporaryError is logged and tried again; on a PermanentError sentinel stops acting."""
        try:
            look = self.last = self._observer.look(now_unix_s)
        except TemporaryError as error:
            log.warning("%s; looking again", error)
            return None
        self._announce(look)
        undoing = next((i for i in look.run.incidents if i.undoing), None)
        incident = look.run.open_incident if undoing is None else None
        try:
            self._observer.keep_jobs()
            if undoing is not None:
                return self._finish_undo(undoing)
            self._pinning.keep(look)
            return self._without_incident(look) if incident is None else self._with_incident(look)
        except TemporaryError as error:
            log.warning("%s; trying again", error)
        except FilesystemRefused:  # what was decided stands, and is taken up once a person has mended that
            raise
        except (PermanentError, ConfigError) as error:
            if incident is None:
                raise
            self._ledger.stopped(incident, str(error))
            return Done.PERSON_NEEDED
        return None

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
                len(look.run.incidents) + 1,
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
        ended = attempt.finished.reason if attempt and attempt.finished else None
        hung = _was_stopped_for_hanging(look)
        broken_off = look.run.jobs.broken_off  # the trainer has heard a SIGTERM, and it was not a person's
        asked_to = ended is not None and not ended.startswith("error") and not hung and broken_off is None
        if self._policy.mode != "act" or asked_to:
            self._ledger.say(f"{look.verdict.reason}; waiting for the next attempt")
            return None
        plan = plan_restart(look.run, self._policy, restarts_spent=_fruitless_starts(look), hung=hung)
        return self._do_or_say(plan, look)

    def _unhang(self, look: Look) -> Done | None:
        """A job that lives and does nothing is stopped, where the run's owner wants that."""
        if self._policy.mode != "act":
            self._ledger.say(look.verdict.reason)
            return None
        plan = plan_hang(look.run, self._policy, restarts_spent=_fruitless_starts(look))
        return self._do_or_say(plan, look)

    def _do_or_say(self, plan: Plan, look: Look) -> Done | None:
        if plan.refusal is not None:
            self._ledger.say(f"{look.verdict.reason}; {plan.refusal}")
            return None if plan.waits else Done.PERSON_NEEDED
        if plan.actions:
            self._ledger.say(f"{look.verdict.reason}; {plan.reason}")
            self._recoverer.do(plan, None, None)
        return None

    def _announce(self, look: Look) -> None:
        """One line in the log when the verdict changes."""
        attempt = look.history.latest.number if look.history.latest else None
        if (look.verdict.kind, attempt) != self._announced:
            self._announced = (look.verdict.kind, attempt)
            at = f" at step {look.verdict.global_step}" if look.verdict.global_step is not None else ""
            log.info("attempt %s is %s%s: %s", attempt, look.verdict.kind, at, look.verdict.reason)


def _ran_to_its_end(look: Look) -> bool:
    attempt = look.history.latest
    ended = attempt is not None and attempt.finished is not None and attempt.finished.reason == "finished"
    return ended and not look.run.jobs.writers


def _given_up(look: Look, attempt: Attempt) -> bool:
    """Whether a person has already taken this attempt's illness upon themselves."""
    return any(i.outcome == "undone" and i.attempt == attempt.number for i in look.run.incidents)


def _was_stopped_for_hanging(look: Look) -> bool:
    """Whether the newest attempt's job was stopped by us, since it hung."""
    started = look.history.latest.started if look.history.latest else None
    since = started.time_unix_s if started else 0.0
    return any(
        e["event"] == "intent" and e["action"].get("keep_stacks") and float(e["time_unix_s"]) > since
        for e in look.events
    )


def _fruitless_starts(look: Look) -> int:
    """Starts of the job since a checkpoint was last saved, or a rollback decided."""
    saved = [c.time_unix_s for a in look.history.attempts.values() for c in a.saved]
    decided = [r.decided_unix_s for i in look.run.incidents for r in i.rollbacks]
    since = max([*saved, *decided], default=0.0)
    return sum(
        e["event"] == "intent" and e["action"]["kind"] == "start_job" and float(e["time_unix_s"]) > since
        for e in look.events
    )
