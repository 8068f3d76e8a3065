"""`sentinel rollback`: a person decides to go back to a checkpoint."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from functools import partial
from typing import Annotated, Any

import typer

from sentinel.act.following import anchor_at
from sentinel.act.observation import Observation
from sentinel.act.perform import carry_out, wait_until_quiet
from sentinel.act.undo import settle
from sentinel.cli.shared import (
    RUNS,
    ConfigDir,
    Json,
    Run,
    Yes,
    advise,
    confirmed,
    echo,
    looking_line,
    print_json,
    reading_bar,
    to_stderr,
)
from sentinel.config import Config
from sentinel.config.run_files import clock, find_config
from sentinel.daemon.paging import delivering
from sentinel.daemon.wiring import Parts, assemble_to_act
from sentinel.plan.choose.policy import Policy
from sentinel.plan.facts import Facts
from sentinel.plan.incident.events import closed, decided, opened
from sentinel.plan.incident.incident import Rollback, incident_id
from sentinel.plan.observation import Checkpoint, Life
from sentinel.plan.restart.actions import VerifyCheckpoint, describe, to_json
from sentinel.plan.restart.by_hand import ManualRollback, plan_by_hand, read_first
from sentinel.plan.restart.forecast import coming_saves, price, unconfirmed
from sentinel.plan.restart.in_place.way import Asked
from sentinel.plan.restart.liveness import life_of
from sentinel.plan.restart.rollback import Plan
from sentinel.reports.rungs import known_failures
from sentinel.vocabulary.errors import CheckpointError, ConfigError, ScriptRefused


def rollback(
    to: Annotated[str, typer.Option("--to", help="A tag, e.g. global_step3000, or memory:3050, or scratch.")],
    run: Run = None,
    config_dir: ConfigDir = RUNS,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the plan; change nothing.")] = False,
    rung: Annotated[str | None, typer.Option(help="Also apply this rung of the ladder.")] = None,
    seed: Annotated[int | None, typer.Option(help="New seed for the data not yet consumed.")] = None,
    start: Annotated[bool, typer.Option(help="Start the job again afterwards.")] = True,
    restart: Annotated[
        Asked | None,
        typer.Option(help="in_place: in the same processes; job: by a new job. Default: \\[policy] restart."),
    ] = None,
    force: Annotated[
        bool,
        typer.Option(
            "--force",
            help="Allow a target that contains the divergence or is not certified; free space is not checked.",
        ),
    ] = False,
    yes: Yes = False,
    as_json: Json = False,
) -> int:
    """`sentinel undo` reverts it. Exit 1: refused."""
    config = find_config(run, config_dir)
    wanted = ManualRollback(to=to, rung=rung, seed=seed, start=start, restart=restart, force=force)
    with looking_line() as progress:
        parts, lock = assemble_to_act(config, to_stderr, progress)
    look, plan = _planned(parts, config, wanted)
    for half in look.facts.unfinished:
        to_stderr(f"{half.id} is half done: its completed actions are reverted first")
    diff = None
    if plan.decision is not None and plan.decision.restart and not plan.decision.in_place:
        try:
            diff = parts.near.launcher.preview(parts.observer.started, plan.decision.overrides)
        except (ScriptRefused, ConfigError) as error:
            plan = Plan(refusal=str(error))
    if as_json:
        print_json(_document(plan, look.facts))
    else:
        _show(plan, look.facts, diff)
        _show_evidence(plan, config.policy)
    if plan.refusal is not None or plan.decision is None:
        return 1
    if dry_run:
        return 0
    if not yes and not confirmed("Do this?"):
        return 1
    with lock, delivering(parts.paging):
        wait = partial(wait_until_quiet, parts.observer, None, to_stderr)
        wait()
        look = parts.observer.look(clock(), fresh=True)  # the run may have changed since the plan was shown
        if look.facts.unfinished:
            settle(look.facts.unfinished, parts.near, parts.observer, parts.ledger, wait)
            parts.observer.folders.forget(tuple(c.tag for c in look.facts.folders.checkpoints))
        look, plan = _planned(parts, config, wanted, fresh=True)
        if plan.refusal is not None or plan.decision is None:
            to_stderr(f"refused: {plan.refusal}")
            advise(plan.refusal)
            return 1
        return _carry_out(parts, look, plan.decision, config.policy)


def _planned(parts: Parts, config: Config, wanted: ManualRollback, *, fresh: bool = False) -> tuple[Observation, Plan]:
    """The run as it is now, and the plan for it. Verifies the target, in a dry run too: reading changes nothing."""
    with looking_line() as parts.near.checkpoints.progress:
        look = parts.observer.look(clock(), fresh=fresh)
    while (target := read_first(wanted, look.facts)) is not None:
        with reading_bar(target.tag) as progress:
            read = parts.near.checkpoints.verify(target.tag, progress=progress)
        if read.verified is None:
            raise CheckpointError(f"{target.tag} is not verified: {read.problem}; try again")
        parts.observer.folders.verified(read)
        look = parts.observer.look(clock())
    with looking_line() as parts.near.checkpoints.progress:
        look = parts.observer.look(clock(), room=True, fresh=fresh)
    facts = _with_onset(look, config.policy.margin_steps)
    return look, plan_by_hand(wanted, facts if fresh else facts.changed(quiet_s=0.0), config.policy)


def _with_onset(look: Observation, margin_steps: int) -> Facts:
    """The run with the data positions of the steps from the onset on: a rung may skip their data."""
    attempt, onset = look.history.latest, look.verdict.onset_range
    if attempt is None or onset is None:
        return look.facts
    samples = [s for s in look.history.lineage(attempt, onset[1] - 1) if s.global_step <= onset[1] + margin_steps]
    of_onset = {s.global_step: anchor_at(s) for s in samples}
    return look.facts.changed(positions={**look.facts.readings.positions, **of_onset})


def _carry_out(parts: Parts, look: Observation, decision: Rollback, policy: Policy) -> int:
    attempt, ledger = look.history.latest, parts.ledger
    number, incident = look.facts.next_incident, incident_id(look.facts.next_incident)
    parts.observer.stop_probes(look.facts.incidents)  # before they are closed: then the probes' folders may be purged
    for other in look.facts.incidents:
        if other.status != "closed":
            ledger.record(closed(other.id, "superseded", f"{incident}, by a person, takes its place"))
    reason = f"a person asked for {decision.target_tag or 'scratch'}"
    of_attempt = attempt.number if attempt else 0
    ledger.record(opened(number, of_attempt, look.facts.settings.baseline, look.facts.folders.overrides, reason=reason))
    ledger.record(decided(incident, decision))
    carry_out(decision, parts.observer, parts.perform, policy, ledger, clock())
    if not decision.restart:
        ledger.record(closed(incident, "superseded", "rolled back; a person starts the job again"))
    then = "`sentinel watch` sees whether the restart begins and holds; " if decision.restart else ""
    to_stderr(f"{incident} is carried out; {then}`sentinel undo {incident}` reverts it")
    return 0


def _show(plan: Plan, facts: Facts, script_diff: str | None) -> None:
    if plan.refusal is not None or plan.decision is None:
        echo(f"refused: {plan.refusal}")
        advise(plan.refusal)
        return
    echo(f"{incident_id(facts.next_incident)}: {plan.reason}")
    if plan.way is not None:
        echo(f"  restart: {plan.way.why}")
    actions = [action for action in plan.actions if not isinstance(action, VerifyCheckpoint)]
    for number, action in enumerate(actions, 1):
        echo(f"  {number}. {describe(action)}")
    if (target := _target(plan.decision, facts)) is not None and target.verification is not None:
        echo(f"  {target.tag} is verified: {target.verification.sentence}")
    if (on_disk := plan.decision.on_disk) is not None:
        whence = f"from {on_disk.tag or 'scratch'}, by a new job"
        echo(f"  where {plan.decision.target_tag} is lost with its process: {whence}")
    for line in _priced(plan.decision, facts):
        echo(f"  {line}")
    if script_diff is not None:
        echo(script_diff)


def _show_evidence(plan: Plan, policy: Policy) -> None:
    """When the rung that was asked for is known to fail."""
    name = None if plan.decision is None else plan.decision.rung
    for rung in (rung for rung in policy.ladder if rung.name == name):
        for sentence in known_failures(rung):
            echo(f"  {sentence}")


def _document(plan: Plan, facts: Facts) -> dict[str, Any]:
    decision = plan.decision
    shown: dict[str, Any] = {"target": None}
    if decision is not None:
        target = _target(decision, facts)
        verification = None if target is None or target.verification is None else asdict(target.verification)
        shown = {
            "target": {
                "tag": decision.target_tag,
                "global_step": decision.target_step,
                "verification": verification,
            },
            "changes": decision.changes,
            "price": price(decision, facts).to_json(),
            "coming_saves": [coming.to_json() for coming in coming_saves(decision, facts)],
            "unconfirmed": unconfirmed(decision, facts),
        }
    if plan.way is not None:
        shown["restart"] = {"way": "in_place" if plan.way.in_place else "job", "why": plan.way.why}
    actions = [to_json(action) for action in plan.actions]
    return {"incident": incident_id(facts.next_incident), **shown, "actions": actions, "refusal": plan.refusal}


def _target(decision: Rollback, facts: Facts) -> Checkpoint | None:
    return None if decision.saved_tag is None else facts.folders.checkpoint(decision.saved_tag)


def _priced(decision: Rollback, facts: Facts) -> Iterator[str]:
    """What the rollback changes and costs, the settings at the coming saves, and what can't be confirmed."""
    if decision.changes:
        yield f"changes: {'; '.join(decision.changes)}"
    cost = price(decision, facts)
    yield f"{cost.lost_steps} steps are lost{_hours(cost.lost_gpu_hours)}; nothing is deleted"
    if cost.steps_to_next_save is not None and life_of(facts.liveness).life is not Life.GONE:
        yield f"waiting for one more save would take {cost.steps_to_next_save} steps{_hours(cost.waiting_gpu_hours)}"
    for coming in coming_saves(decision, facts):
        yield str(coming)
    for sentence in unconfirmed(decision, facts):
        yield f"can't be confirmed: {sentence}"


def _hours(gpu_hours: float | None) -> str:
    return "" if gpu_hours is None else f" ({gpu_hours:.3g} GPU-hours)"
