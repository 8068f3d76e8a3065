"""page_for(event, run) -> Page: which events of the incident log concern somebody who may be asleep."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from sentinel.plan.alerts.sentences import sentence
from sentinel.plan.incident.log_events import IncidentEvent
from sentinel.plan.topics import Severity
from sentinel.vocabulary.codec import Form, read
from sentinel.vocabulary.errors import LineError
from sentinel.vocabulary.numbers import dump_json
from sentinel.vocabulary.texts import for_people, neutral, neutral_in

RUNBOOK = "docs/PAGING.md"
_FORM = Form(error=LineError, ignores_unknown=True)

# What a page is about, and what to do about it: docs/PAGING.md is made from this table (`make pages`)
WHAT_TO_DO: Mapping[str, str] = {
    "divergence": "Warning: the run diverged. In mode act do nothing; in mode observe `sentinel rollback --to TAG"
    " --dry-run` shows the plan. Critical: sentinel stopped acting, or a restart does not run with what was"
    " decided: look up the sentence in docs/RUNBOOK.md, settle the incident by `sentinel rollback` or `sentinel"
    " undo`, and start `sentinel watch` again.",
    "approval": "Critical, mode approve: a plan waits, or expired. `sentinel approve INCIDENT` shows it and asks.",
    "watch_failing": "Warning, critical in an incident: Slurm, an action or a turn fails for [policy]"
    " confirm_within_s; again every hour. The sentence is the last error. Slurm: `sinfo`, `scontrol ping`. `the"
    " job may still write`: a job is COMPLETING, usually on a node that hangs. Sentinel tries again by itself.",
    "down": "Critical, warning in observe and approve: the job is gone and sentinel does not start it. Read its"
    " log; `sentinel status` gives the reason. Start it by hand, or set [policy] restart_on_crash. Where it"
    " reported its planned end: `sentinel data` names what is not accounted for (docs/DATA_ACCOUNT.md).",
    "stalled": "Critical: the job is alive; journal and log are silent. Often NCCL. Save the ranks' stacks"
    " (`py-spy dump`), then stop the job. [policy] restart_on_hang lets sentinel do both.",
    "blind": "Warning: no readings for [policy] confirm_within_s. The filesystem of the state folder hangs or is"
    " not mounted, or the trainer's log can be read in two ways (docs/SOURCES.md#following-a-log). With"
    " [launcher] kind = 'elsewhere' also: nothing arrived for [judge] stalled_after_s; check whether the job"
    " ended or hangs.",
    "overlap": "Critical: an attempt made three steps after a newer one began: two jobs write the same"
    " checkpoints. Stop one at once; the sentence names both. `sentinel rollback --to TAG` goes back to a"
    " checkpoint from before the newer attempt. Causes: a job submitted by hand, an array without a throttle"
    " (--array=1-9 instead of --array=1-9%1), a node that lost its scheduler.",
    "unknown": "Critical, warning in observe: what the run writes contradicts what the scheduler or the machine"
    " says, or the job is another account's. Nothing is stopped, moved or started. Find out whether the run"
    " trains (`squeue`, `ps`), then see docs/RUNBOOK.md#whether-the-run-is-alive.",
    "paging": "Critical: a channel's folder can't be written. Make STATE_DIR/pages writable, or free space. The"
    " incident log has every event.",
    "bad_start": "Warning, critical where the newest attempt loaded another state than was saved: it does not"
    " continue the run, and the sentence names the likeliest fault (docs/STARTS.md). Stop the job, repair the fault"
    " and start it again; if the change was meant, do nothing.",
    "attention_logits": "Warning: the largest attention logit is above 100, and a divergence may follow"
    " (docs/JUDGE.md#attention-logits). [policy] warn says what is done; 'off' ends these pages.",
    "ended": "Critical: `sentinel watch` ended by an error outside of an incident, usually a file that the"
    " sentence names (docs/RUNBOOK.md). The run is unwatched until `sentinel watch` is started.",
    "test": "A test page. Do nothing.",
}

_TOLD: Mapping[str, tuple[str, Severity]] = {
    "opened": ("divergence", "warning"),
    "shadow": ("divergence", "warning"),
    "not_proved": ("divergence", "critical"),
    "stopped": ("divergence", "critical"),
    "proposed": ("approval", "critical"),
    "expired": ("approval", "critical"),
}
_OVER: Mapping[str, str] = {"closed": "divergence", "approved": "approval"}
# what a page carries of an event beside its sentence; schedules and overrides stay in the incident log
_DETAILS = (
    *("attempt", "onset_range", "alarm_step", "led_by", "rollback", "rung", "hypothesis", "target", "changes"),
    *("lost_steps", "digest", "refusal", "outcome", "since_unix_s", "last_lines"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """What a person is told, and until when. Pages of one key are one story: each updates it, `resolved` ends it."""

    run: str
    incident: str | None  # None for what belongs to no incident
    topic: str  # a key of WHAT_TO_DO, or one of an older version
    severity: Severity  # of a resolved page: the highest that its key had
    summary: str  # one sentence
    details: Mapping[str, Any]
    runbook: str  # where it says what to do
    time_unix_s: float  # when it happened; its delivery may be hours later
    resolved: bool = False

    @property
    def key(self) -> str:
        """The same for all pages of one story, over restarts of the daemon."""
        return "/".join(part for part in (self.run, self.incident, self.topic) if part)

    @property
    def id(self) -> str:
        """The same for all deliveries of one page, which is delivered at least once."""
        return f"{self.key}@{self.time_unix_s:.3f}"

    @property
    def status(self) -> str:
        return "resolved" if self.resolved else "firing"

    @property
    def title(self) -> str:
        about = f"{self.run} {self.incident}" if self.incident else self.run
        return for_people(f"[{'resolved' if self.resolved else self.severity}] {about}: {self.summary}")

    @property
    def text(self) -> str:
        details = self.details.items()
        facts = [
            for_people(f"{key}: {value if isinstance(value, str) else dump_json(value)}") for key, value in details
        ]
        advice = WHAT_TO_DO.get(self.topic)
        return "\n".join([self.title, *facts, *([advice] if advice else []), f"what to do: {self.runbook}"])

    def to_json(self) -> dict[str, Any]:
        of_itself = ("severity", "topic", "run", "incident", "summary", "details", "runbook", "time_unix_s")
        return {
            "id": self.id,
            "key": self.key,
            "status": self.status,
            **{name: getattr(self, name) for name in of_itself},
            "time": datetime.fromtimestamp(self.time_unix_s, UTC).isoformat(timespec="seconds"),
            "text": self.text,
        }


def page_from_json(data: Mapping[str, Any]) -> Page:
    """What `to_json` wrote. LineError, or LookupError, when it did not."""
    return read(Page, {**data, "resolved": data["status"] == "resolved"}, "page", _FORM)


def page_for(event: IncidentEvent, run: str, *, runbook: str = RUNBOOK) -> Page | None:
    """The page that one event is; None for what can wait until morning, and for what a person began themselves."""
    kind, line = event.name, event.to_json()
    if kind in ("alert_firing", "alert_resolved"):
        topic, severity = line.get("topic"), line.get("severity", "warning")
    else:
        topic, severity = _TOLD.get(kind) or (_OVER.get(kind), "warning")
    if topic is None or (kind == "opened" and line.get("onset_range") is None):
        return None
    details = {key: line[key] for key in _DETAILS if line.get(key) not in (None, [], ())}
    if kind == "proposed":
        details["answer"] = f"sentinel approve {event.incident} --run {run}"
    return Page(
        run=run,
        incident=event.incident,
        topic=topic,
        severity=severity,
        summary=neutral(sentence(event) or kind),
        details=neutral_in(details),
        runbook=f"{runbook}#{topic}",
        time_unix_s=event.time_unix_s,
        resolved=kind in _OVER or kind == "alert_resolved",
    )


def pages(events: Iterable[IncidentEvent], run: str, *, runbook: str = RUNBOOK) -> Iterator[tuple[int, Page]]:
    """The pages of a whole incident log, each with the number of its event, from 0. Nothing is resolved that nobody was
    told of, and the end of an incident ends all that was told of it."""
    firing: dict[str, Page] = {}
    for number, event in enumerate(events):
        page = page_for(event, run, runbook=runbook)
        if page is None:
            continue
        before = firing.get(page.key)
        if not page.resolved:
            was_critical = before is not None and before.severity == "critical"
            firing[page.key] = replace(page, severity="critical") if was_critical else page
            yield number, page
            continue
        closed = event.name == "closed"
        for key, told in list(firing.items()):
            if key == page.key or (closed and told.incident == page.incident):
                del firing[key]
                yield number, replace(page, topic=told.topic, severity=told.severity, runbook=told.runbook)


def ended(run: str, reason: str, now_unix_s: float, *, runbook: str = RUNBOOK) -> Page:
    return _of_ourselves(run, "ended", "critical", f"sentinel watch has ended: {reason}", now_unix_s, runbook)


def trial_page(run: str, now_unix_s: float, *, runbook: str = RUNBOOK) -> Page:
    """What `sentinel page --test` sends."""
    return _of_ourselves(run, "test", "warning", "a test by a person: nothing is wrong", now_unix_s, runbook)


def _of_ourselves(run: str, topic: str, severity: Severity, summary: str, now_unix_s: float, runbook: str) -> Page:
    about: dict[str, Any] = {"run": run, "topic": topic, "summary": neutral(summary), "runbook": f"{runbook}#{topic}"}
    return Page(**about, incident=None, severity=severity, details={}, time_unix_s=now_unix_s)
