"""Which checkpoint a restart goes back to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sentinel.judge.events import Event
from sentinel.plan.choose.ladder import Rung
from sentinel.plan.choose.policy import Policy
from sentinel.plan.incident.baseline import Baseline, lr_warmup_steps
from sentinel.plan.incident.incident import Incident
from sentinel.plan.observation import Checkpoint, FoldersSeen
from sentinel.plan.readings_seen import ReadingsSeen
from sentinel.vocabulary.parking import memory_tag


def rollback_to(event: Event, saved_steps: Sequence[int], margin_steps: int) -> int | None:
    """The last saved step at or before onset - margin; 0 is from scratch, None where no rollback is recommended. Where
    nothing is known of what was saved, onset - margin itself: any checkpoint at or before it will do."""
    if not event.recommend_rollback:
        return None
    limit = max(0, event.onset_step - margin_steps)
    return max((step for step in saved_steps if step <= limit), default=0) if saved_steps else limit


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """What is rolled back to."""

    tag: str | None  # None is from scratch
    global_step: int
    reason: str
    on_disk: Target | None = None  # of a state in memory: the checkpoint in its place, where it is lost


def choose_target(
    incident: Incident,
    rung: Rung,
    folders: FoldersSeen,
    readings: ReadingsSeen,
    policy: Policy,
    *,
    in_memory: Sequence[int] = (),
) -> Target:
    """The largest complete checkpoint at or before the onset, less a margin that the rung and its number decide. near:
    onset - margin; earlier: the margin is doubled by each rung that failed before, and while the run is in its risky
    window (the first 3 LR warmups; Conglong Li in tr8-104B's chronicle) at or before the upper half of the LR ramp;
    before_risky_window: that, at any time; scratch: no checkpoint. Never later than the last rung's target. Left out,
    and named in the reason, is a checkpoint of a step at which the run's own readings were unhealthy, or whose start
    loaded another state than was saved (`certificates` shows both). A state in memory (`in_memory`: of these steps)
    by the same criteria, where it is later than that."""
    if rung.target == "scratch":
        return Target(tag=None, global_step=0, reason="from scratch")
    newest = folders.checkpoints[-1].global_step if folders.checkpoints else 0
    onset = incident.onset_range[0] if incident.onset_range else newest
    margin = policy.margin_steps * (2**incident.failed_restarts if rung.target == "earlier" else 1)
    limit, why = onset - margin, f"{margin} steps before the onset at {onset}"
    if rung.target != "near":
        ramp = _risky_from(incident.baseline, onset, anyway=rung.target == "before_risky_window")
        if ramp is not None and ramp < limit:
            limit, why = ramp, f"before the upper half of the LR ramp, which begins at step {ramp}"
    if incident.rollbacks and incident.rollbacks[-1].target_step < limit:
        limit, why = incident.rollbacks[-1].target_step, "no later than the last target"
    found = _on_disk(limit, why, folders, readings)
    held = healthy_in_memory(limit, in_memory, readings)
    if not held or held[-1] <= found.global_step:
        return found
    tag = memory_tag(held[-1])
    return Target(
        tag=tag, global_step=held[-1], reason=f"{tag} is the last healthy state in memory {why}", on_disk=found
    )


def _on_disk(limit: int, why: str, folders: FoldersSeen, readings: ReadingsSeen) -> Target:
    whole, passed = healthy_until(limit, folders, readings)
    why = "; ".join([why, *passed[:1], *([f"{len(passed) - 1} more passed over too"] if len(passed) > 1 else [])])
    if not whole:
        none = "no healthy checkpoint" if passed else "no checkpoint"
        return Target(tag=None, global_step=0, reason=f"{none} lies {why}: from scratch")
    last = "the last healthy one" if passed else "the last"
    return Target(tag=whole[-1].tag, global_step=whole[-1].global_step, reason=f"{whole[-1].tag} is {last} {why}")


def healthy_until(limit: int, folders: FoldersSeen, readings: ReadingsSeen) -> tuple[list[Checkpoint], list[str]]:
    """The complete checkpoints up to that step, without the last ones of steps with unhealthy readings; and what was
    wrong with those, as sentences."""
    whole = [c for c in folders.checkpoints if c.complete and c.verified is not False and c.global_step <= limit]
    passed: list[str] = []
    while whole and (unhealthy := readings.unhealthy_at(whole[-1].global_step)) is not None:
        passed.append(f"{whole.pop().tag} {unhealthy.sentence}")
    return whole, passed


def healthy_in_memory(limit: int, steps: Sequence[int], readings: ReadingsSeen) -> list[int]:
    """Of the states in memory the steps up to that one, ascending, without those of unhealthy readings."""
    return [step for step in sorted(steps) if step <= limit and readings.unhealthy_at(step) is None]


def on_disk_before(step: int, folders: FoldersSeen, readings: ReadingsSeen) -> Target:
    """The newest healthy checkpoint that is not later than a state in memory; from scratch where there is none."""
    return _on_disk(step, f"at or before step {step}", folders, readings)


def latest_targets(baseline: Baseline, onset: int, policy: Policy) -> tuple[int, ...]:
    """The steps that a first rung may take a checkpoint at or before, ascending: what a log that names no save allows
    to say."""
    ramp = _risky_from(baseline, onset, anyway=True)
    return tuple(sorted({step for step in (onset - policy.margin_steps, ramp) if step is not None and step > 0}))


def _risky_from(baseline: Baseline, onset: int, *, anyway: bool) -> int | None:
    """The step that the upper half of the LR ramp begins at, or None where that is not known or not of interest."""
    if (warmup := lr_warmup_steps(baseline)) is None:
        return None
    begin, end = warmup
    return begin + (end - begin) // 2 if anyway or onset <= begin + 3 * (end - begin) else None
