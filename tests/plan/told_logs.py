"""Drawn incident logs and queues, and all that is told of them: `python -m tests.plan.told_logs [SEED ...]`.

The record, tests/data/told_logs.txt, is what an upgrade may not change by accident: a log that a version has written
means the same to the next one, in where each incident stands, what is paged, what is marked and what the story is.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import fields, replace
from typing import Any

from sentinel.adapters.slurm.jobs import SlurmJob, mark_in, resubmission, with_own_head
from sentinel.adapters.slurm.whose_jobs import jobs_of_run
from sentinel.judge.verdict import Verdict, VerdictKind
from sentinel.plan.alerts.alerts import alert_states, is_due, unsettled
from sentinel.plan.alerts.annotations import marks, onset_steps, overlays
from sentinel.plan.alerts.page import page_from_json, pages
from sentinel.plan.alerts.sentences import story
from sentinel.plan.incident.events import fold
from sentinel.plan.incident.incident import overrides_to_json
from sentinel.plan.incident.log_events import IncidentEvent
from sentinel.plan.incident.log_lines import event_of
from sentinel.plan.observation import JobsSeen
from sentinel.plan.restart.by_hand import ManualRollback, plan_by_hand
from sentinel.vocabulary.errors import IncidentLogError
from tests.plan.drawn_situations import Drawn
from tests.plan.planned_situations import short
from tests.records import Record
from tests.support.log_lines import ALWAYS

__all__ = ["RECORD", "said"]


def said(name: str) -> str:
    """What is told of the log of that seed, and of its queue of Slurm's."""
    drawn = Drawn(int(name))
    return "\n".join([*_of_log(_log(drawn)), *_of_queue(drawn)])


def _of_log(events: list[IncidentEvent]) -> Iterator[str]:
    known = {key: 10.0 * key[1] for key in onset_steps(events) if key[1] != 90}
    told: dict[str, str] = {}
    for n in range(1, len(events) + 1):
        now = _standing(events[:n])
        changed = ", ".join(f"{key}: {value}" for key, value in now.items() if told.get(key) != value)
        yield f"{events[n - 1].name}: {changed}"
        told = now
    for incident in ("incident-1", "incident-2", None):
        yield from (f"{incident} {each.time_unix_s:g}: {each.sentence}" for each in story(events, incident))
    for number, page in pages(events, "tr8", runbook="https://runbook"):
        assert page_from_json(page.to_json()) == page
        yield f"page {number} {page.id} {page.title} {sorted(page.details)} {page.to_json()['time']} {page.runbook}"
    yield from (
        f"mark {m.key} {m.time_unix_s:g} {m.end_unix_s:g} {m.text} {m.tags}" for m in marks("tr8", events, known)
    )
    for over in overlays("tr8", events):
        steps = f"{over.first_step}..{over.last_step} at {over.alarm_unix_s:g}"
        yield f"over {steps}, {over.tags}, {len(over.text.splitlines())} lines"
    last = events[-1].time_unix_s
    for topic, state in alert_states(events).items():
        again = [is_due(state, last + s, within_s=50.0) for s in (0.0, 3599.0, 3600.0, 9e4)]
        untold = replace(state, alerted_unix_s=None)
        first = [is_due(untold, untold.since_unix_s + s, within_s=50.0) for s in (49.0, 50.0)]
        yield f"{topic}: {short(state)} {again} {first}"
    yield f"unsettled: {[unsettled(events, last + s, within_s=60.0) for s in (0.0, 59.0, 60.0)]}"


def _standing(events: list[IncidentEvent]) -> dict[str, str]:
    """What is known of each incident and of its last rollback."""
    try:
        incidents = fold(events)
    except IncidentLogError as error:
        return {"no sense": str(error)}
    known: dict[str, str] = {}
    for incident in incidents:
        parts = [incident, *incident.rollbacks[-1:]]
        for part in parts:
            known |= {
                f"{part.id}.{f.name}": short(getattr(part, f.name)) for f in fields(part) if f.name != "rollbacks"
            }
        of_all = (incident.half_done, incident.current, incident.waiting)
        known[f"{incident.id} has"] = f"{[part is not None for part in of_all]}, {len(incident.tried)} tried"
        known |= {f"{r.id} came to": f"{r.proved}, {r.result}" for r in incident.rollbacks}
    return known


def _log(drawn: Drawn) -> list[IncidentEvent]:
    """Events as they come after one another, some as an older version wrote them, and some that make no sense."""
    events: list[dict[str, Any]] = []

    def write(kind: str, incident: str | None = "incident-1", **more: Any) -> None:
        events.append({"event": kind, "incident": incident, "time_unix_s": 1000.0 + 40.0 * len(events), **more})

    baseline = drawn.baseline()
    for number in range(1, drawn.one(2, 3)):
        incident = f"incident-{number}"
        _open(drawn, write, incident, baseline.to_json())
        for rollback in range(1, drawn.one(1, 2, 3)):
            _one_rollback(drawn, write, incident, f"{incident}-r{rollback}", baseline)
        if drawn.maybe(True, 0.5):
            write("stopped", incident, reason="the ladder is used up")
        if drawn.maybe(True, 0.7):
            outcome = drawn.one("recovered", "undone", "superseded", "healed")
            write("closed", incident, outcome=outcome, reason="so it is")
    for at in drawn.rng.sample(range(len(events)), min(3, len(events))):
        events[at] = {
            k: v
            for k, v in events[at].items()
            if k not in drawn.one(("led_by",), ("proof", "doubts"), ("newest_attempt",))
        }
    plans = {"shadow": ALWAYS["decided"], "proposed": ALWAYS["decided"]}
    return [event_of({**plans.get(event["event"], {}), **event}) for event in events]


def _open(drawn: Drawn, write: Any, incident: str, baseline: Mapping[str, Any]) -> None:
    onset = drawn.one([47, 49], [90, 95], None)
    topic, critical = drawn.one("struggling", "down", "blind"), drawn.one("warning", "critical")
    if drawn.maybe(True):
        write("troubled", None, topic=topic, severity=critical, reason="squeue timed out", since_unix_s=900.0)
    write(
        "opened",
        incident,
        attempt=1,
        onset_range=onset,
        alarm_step=drawn.one(88, 60, None) if onset else None,
        onset_tokens=drawn.maybe(9),
        onset_samples=drawn.maybe(7),
        best_mean=drawn.one(3.6, None),
        reason="it does not come back",
        led_by=drawn.one([], ["grad_norm", "lr"]),
        baseline=baseline,
        ignored=drawn.maybe("incident-1-r1", 0.1),
    )
    if drawn.maybe(True):
        write("relieved", None, topic=drawn.one(topic, "down"), reason="squeue answers")
    if drawn.odd():
        write("baseline_completed", incident, baseline=drawn.baseline().to_json())
    if drawn.maybe(True, 0.3):
        write("waiting", incident, rung="watch", hypothesis="it heals", from_step=80, until_step=130)
        if drawn.maybe(True):
            write("wait_over", incident, rung="watch", reason="still diverged")
    if drawn.maybe(True, 0.3):
        write("rung_skipped", incident, rung="betas", hypothesis="too slow", reason="the trainer has not reported it")
    told = {
        "rollback": f"{incident}-r1",
        "rung": "reseed",
        "target": {"tag": "t", "global_step": 30},
        "changes": ["seed 4"],
    }
    if drawn.maybe(True, 0.3):
        write("shadow", incident, **drawn.one(told, {**told, "refusal": "the budget is spent"}))
    if drawn.maybe(True, 0.4):
        write("proposed", incident, **told, digest="0123456789abcdef")
        if (answer := drawn.one("approved", "expired", None)) is not None:
            write(answer, incident, by="alice", digest="0123456789abcdef")


def _one_rollback(drawn: Drawn, write: Any, incident: str, rollback: str, baseline: Any) -> None:
    own = drawn.incident(())
    run = drawn.run(own).changed(baseline=baseline, jobs=JobsSeen(), attempts=(), files_seen=(), last_step=300)
    made = plan_by_hand(
        ManualRollback(to="scratch", seed=9),
        run.changed(verdict=Verdict(kind=VerdictKind.DIVERGED, reason="…")),
        drawn.policy(),
    ).decision
    if made is None:
        return
    tags = drawn.one(["global_step40"], ["global_step40", "global_step50"])
    write(
        "decided",
        incident,
        rollback=rollback,
        rung="reseed",
        hypothesis="the data",
        target={"tag": drawn.one("global_step30", None), "global_step": 30},
        overrides=overrides_to_json(made.overrides),
        changes=drawn.one([], ["seed 3 -> 4", "lr"]),
        lost_steps=58,
        **drawn.one({}, {"lost_gpu_hours": 2.5, "unconfirmed": ["seed"], "in_script": True, "restart": False}),
    )
    actions: list[dict[str, Any]] = [
        {"kind": "verify_checkpoint", "tag": "global_step30"},
        {"kind": "restore_pinned", "tag": "global_step30"},
        {"kind": "prepare_job"},
        {"kind": "stop_job", "jobs": ["job 33", "job 34"], "keep_stacks": drawn.odd()},
        {"kind": "quarantine_checkpoints", "tags": tags},
        {"kind": "point_latest", "tag": drawn.one("global_step30", None)},
        {"kind": "cut_tensorboard", "at": {"global_step": 30}},
        {"kind": "write_overrides"},
        {"kind": "start_job"},
        {"kind": "something_new"},
    ]
    for action in sorted(drawn.rng.sample(range(len(actions)), drawn.one(0, 3, 6))):
        newest = drawn.one({"newest_attempt": 1}, {"newest_attempt": None}, {})
        write("intent", incident, rollback=rollback, action=actions[action], **newest)
        end = drawn.one("done", "done", "done", "failed", None)
        if end is not None:
            write(end, incident, rollback=rollback, action=actions[action], reason="no room")
    if drawn.maybe(True, 0.8):
        write("applied", incident, rollback=rollback)
    if drawn.maybe(True, 0.7):
        check = {"what": "seed", "answer": drawn.one("confirmed", "contradicted", "not verified")}
        old = {"what": "lr", "holds": drawn.one(True, False), "reported": drawn.one(None, 1)}
        write(
            drawn.one("proved", "not_verified", "not_proved"),
            incident,
            rollback=rollback,
            attempt=2,
            checks=[check, old],
        )
    if drawn.maybe(True, 0.5):
        proof = drawn.one({}, {"proof": "confirmed", "doubts": []}, {"proof": "not verified", "doubts": ["lr"]})
        write("rung_failed", incident, rollback=rollback, reason="diverged again", **proof)
    if drawn.maybe(True, 0.2):
        undone = drawn.one(rollback, None)
        write("intent", incident, rollback=undone, action={"kind": "undo"})
        if drawn.maybe(True):
            write("done", incident, rollback=undone, action={"kind": "undo"})
            write("purged", incident)


def _of_queue(drawn: Drawn) -> Iterator[str]:
    jobs = [_job(drawn, number) for number in range(20, 20 + drawn.one(1, 3, 5, 6))]
    found = jobs_of_run(
        jobs,
        run="tr8",
        known=drawn.one((), ("20",), ("7_1", "22")),
        job_name=drawn.maybe("train", 0.7),
        but={"23"} if drawn.odd() else (),
    ).jobs
    yield f"queue: {short([short(job) for job in jobs])}"
    yield f"ours: {[(j.shown, j.waits, j.ended, j.broken_off, j.group) for j in found]}"
    yield f"marks: {[short(mark_in(job.comment)) for job in jobs]}"
    if found:
        again = resubmission(found, {"7": drawn.maybe(2)})
        yield f"again: {short([short(s) for s in again])} {[s.throttle for s in again]}"
        yield f"with a head: {short([short(s) for s in with_own_head(again)])}"


def _job(drawn: Drawn, number: int) -> SlurmJob:
    task = drawn.one(None, None, "1", "3", "2-4%1", "5,8-12:2")
    needs = drawn.one(
        "", "", "afterany:20(unfulfilled)", "afterok:7_*(unfulfilled)?afternotok:21+5(unfulfilled)", "singleton"
    )
    return SlurmJob(
        id=str(number),
        array=None if task is None else drawn.one("7", "7", "8"),
        tasks=task or "",
        state=drawn.one("RUNNING", "PENDING", "PENDING", "COMPLETING", "FAILED", "CANCELLED", "REQUEUE_HOLD"),
        name=drawn.one("train", "train", "other"),
        comment=drawn.one("", "mine", "mine sentinel:tr8:incident-1-r1:2", "sentinel:other:x:0"),
        dependency=needs,
    )


RECORD = Record("told_logs.txt", said)

if __name__ == "__main__":
    RECORD.write()
