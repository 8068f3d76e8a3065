"""`sentinel approve`: a person approves the plan that watch proposed."""

from __future__ import annotations

from sentinel.adapters.state_files import Approvals
from sentinel.cli.incident import incident_named
from sentinel.cli.shared import RUNS, ConfigDir, IncidentName, Run, Yes, confirmed, echo, this_person
from sentinel.config import Config
from sentinel.config.run_files import clock, find_config, incident_log_of, state_dir_of
from sentinel.daemon.wiring import neighbours_of, observer_of
from sentinel.plan.alerts.sentences import sentence
from sentinel.plan.incident.events import proposed_in
from sentinel.plan.incident.incident import Approval
from sentinel.plan.incident.log_events import Proposed
from sentinel.plan.restart.forecast import price


def approve(name: IncidentName, run: Run = None, config_dir: ConfigDir = RUNS, yes: Yes = False) -> int:
    """Exit 1: no plan waits for approval."""
    config = find_config(run, config_dir)
    events = incident_log_of(config).read()
    incident = incident_named(events, name)
    proposal = incident.proposal
    if proposal is None or incident.status != "open":
        echo(f"{incident.id} waits for no approval: it is {incident.outcome or incident.status}")
        return 1
    if proposal.expired:
        echo(f"the proposal for {incident.id} has expired; `sentinel rollback` does it by hand")
        return 1
    event = next(e for e in reversed(events) if isinstance(e, Proposed) and e.incident == incident.id)
    echo(f"{incident.id}: {sentence(event)}")
    echo(f"  hypothesis: {event.hypothesis}\n  {_price(config, event)}")
    if not yes and not confirmed("Do this? Type yes", typed="yes"):
        return 1
    approval = Approval(digest=proposal.digest, by=this_person(), time_unix_s=clock())
    Approvals(state_dir_of(config) / "approvals").write(incident.id, approval)
    echo("approved; watch verifies the target again, and proposes anew if the plan has changed")
    return 0


def _price(config: Config, event: Proposed) -> str:
    """What the rollback loses as of now: the run may have trained on for hours since it was proposed."""
    facts = observer_of(config, neighbours_of(config)).look(clock()).facts
    cost = price(proposed_in(event), facts)
    hours = "" if cost.lost_gpu_hours is None else f" ({cost.lost_gpu_hours:.3g} GPU-hours)"
    return f"lost as of now: {cost.lost_steps} steps{hours}; when it was proposed: {event.lost_steps}"
