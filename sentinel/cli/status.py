"""`sentinel status`: the run's verdict, step, loss and budget; or a line for each of several runs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from sentinel.act.kept_ancestor import KeptAncestor
from sentinel.act.observation import Observation
from sentinel.act.starts import Starts
from sentinel.cli.incident import incident_json
from sentinel.cli.shared import RUNS, ConfigDir, Json, Run, echo, fields_of, looking_line, print_json
from sentinel.config import Config, load_config
from sentinel.config.run_files import Chosen, clock, find_config
from sentinel.daemon.wiring import UNHEALTHY, neighbours_of, observer_of
from sentinel.judge.analysis.departures import FirstMoved
from sentinel.judge.detectors.attention_logits import LogitWarning
from sentinel.judge.detectors.early_warning import EarlyWarning
from sentinel.plan.incident.baseline import onset_readings
from sentinel.plan.restart.forecast import lost_so_far
from sentinel.plan.restart.liveness import Liveness, life_of
from sentinel.plan.restart.restart import newest_audit
from sentinel.plan.restart.rollback import KILL_FILE, PAUSED
from sentinel.plan.starts.certificate import taken_back
from sentinel.vocabulary.errors import SentinelError

_OF_EACH = ("run", "mode", "verdict", "reason", "global_step", "loss", "incident")  # of one of several runs
_LAST_EVENTS = 5  # `replay` prints all events


def status(
    run: Run = None,
    every: Annotated[bool, typer.Option("--all", help="One line for each run of --config-dir.")] = False,
    config_dir: ConfigDir = RUNS,
    as_json: Json = False,
) -> int:
    """Of several runs, without --run: one line each, and the largest exit code."""
    if every or (run is None and len(list(config_dir.glob("*.toml"))) > 1):
        paths = Chosen(runs=() if run is None else (run,), everything=True, config_dir=config_dir).paths()
        return _show_all(paths, as_json=as_json)
    return show(find_config(run, config_dir), as_json=as_json)


def show(config: Config, *, as_json: bool) -> int:
    """Prints the run's status; 1 where it has diverged, stalled or is down."""
    document, look = _looked(config)
    if as_json:
        print_json(document)
    else:
        _print(document, look)
    return int(look.verdict.kind in UNHEALTHY)


def _show_all(paths: tuple[Path, ...], *, as_json: bool) -> int:
    """A run that can't be looked at is told on its line, and hides no other."""
    rows, worst = list[dict[str, Any]](), 0
    for path in paths:
        row: dict[str, Any] = {**dict.fromkeys(_OF_EACH), "run": path.stem, "file": str(path), "problem": None}
        try:
            document, look = _looked(load_config(path))
            found = look.facts.open_incident
            row |= {key: document.get(key) for key in _OF_EACH} | {"incident": found.id if found is not None else None}
            code = int(look.verdict.kind in UNHEALTHY)
        except SentinelError as error:
            row["problem"], code = str(error), error.exit_code
        rows.append(row)
        worst = max(worst, code)
        if not as_json:
            echo(_line(row))
    if as_json:
        print_json(rows)
    return worst


def _line(row: Mapping[str, Any]) -> str:
    if row["problem"] is not None:
        return f"{row['run']}: can't be looked at: {row['problem']}"
    at = "" if row["global_step"] is None else f" at step {row['global_step']}, loss {row['loss']:.4f}"
    incident = "" if row["incident"] is None else f", {row['incident']} is open"
    name = row["run"] if row["run"] == Path(row["file"]).stem else f"{row['run']} ({row['file']})"
    return f"{name}: {row['verdict']}{at} (mode {row['mode']}{incident})"


def _looked(config: Config) -> tuple[dict[str, Any], Observation]:
    near = neighbours_of(config)
    with looking_line() as near.checkpoints.progress:
        look = observer_of(config, near).look(clock())
    kept = KeptAncestor(near.state_dir, near.source, config.run.name)
    look = look.known(start=Starts(kept).audit(look))
    return _document(config, look, life_of(look.facts.liveness), unreadable_lines=near.source.unreadable), look


def _document(config: Config, look: Observation, job: Liveness, *, unreadable_lines: int) -> dict[str, Any]:
    start, moved = look.facts.on_demand.start or newest_audit(look.facts), _moved_first(look)
    last, verdict, policy = look.series.last, look.verdict, config.policy
    rollbacks = [rollback for incident in look.facts.incidents for rollback in incident.rollbacks]
    return {
        "run": config.run.name,
        "mode": policy.mode,
        "verdict": str(verdict.kind),
        "reason": verdict.reason,
        "job": {"state": str(job.life), "reason": job.sentence},
        "attempt": look.history.latest.number if look.history.latest else None,
        "global_step": last.global_step if last else None,
        "loss": last.loss if last else None,
        "loss_ratio": last.loss_ratio if last else None,
        "start": None if start is None else fields_of(start, "verdict", "resumed_from", "fault", "reason"),
        "attention_logits": _warned(look.series.logit_warning),
        "early_warning": _warned(look.series.early_warning),
        "onset_range": verdict.onset_range,
        "led_by": [] if moved is None else moved.led_by,
        "moved_first": None if moved is None else moved.to_json(),
        "events": [
            {"kind": str(e.kind), "onset_step": e.onset_step, "end_step": e.end_step, "reason": e.reason}
            for e in look.series.events[-_LAST_EVENTS:]
        ],
        "incidents": [incident_json(i) for i in look.facts.incidents],
        "budget": {
            "rollbacks_left": max(0, policy.rollback_budget - len(rollbacks)),
            "lost_steps_left": policy.lost_steps_budget - lost_so_far(look.facts.incidents),
        },
        "unreadable_lines": unreadable_lines,
        "latest": look.facts.folders.latest_tag,
        "trackers_problem": look.facts.folders.disagreement,
    }


def _moved_first(look: Observation) -> FirstMoved | None:
    """As the open incident has recorded it; by the same analysis while none is open. None without an onset."""
    incident, attempt, onset = look.facts.open_incident, look.history.latest, look.verdict.onset_range
    if incident is not None and incident.moved_first is not None:
        return incident.moved_first
    if attempt is None or onset is None:
        return None
    clip = look.facts.settings.baseline.clip_grad
    return onset_readings(look.history.lineage(attempt), onset, None, clip).moved_first


def _warned(warning: EarlyWarning | LogitWarning | None) -> dict[str, Any] | None:
    return None if warning is None else fields_of(warning, "since_step", "step", "reason")


def _print(document: dict[str, Any], look: Observation) -> None:
    last, job = look.series.last, document["job"]
    at = f" at step {last.global_step}, loss {last.loss:.4f}" if last else ""
    attempt = document["attempt"] or "none yet"
    echo(f"{document['run']}: {document['verdict']}{at} (attempt {attempt}, mode {document['mode']})")
    echo(f"  {document['reason']}")
    if (moved := document["moved_first"]) is not None:
        echo(f"  {FirstMoved.from_json(moved).sentence}")
    if (start := document["start"]) is not None:
        echo(f"  start: {start['verdict']}: {start['reason']}")
    for name in ("attention_logits", "early_warning"):
        if (warning := document[name]) is not None:
            echo(f"  {name.replace('_', ' ')}: {warning['reason']}")
    if job["state"] != "unknown":
        echo(f"  job {job['state']}: {job['reason']}")
    elif job["reason"] != document["reason"]:
        echo(f"  {job['reason']}")
    if look.facts.open_incident:
        standing = ": its cause is looked for by bisect" if look.facts.open_incident.bisecting else ""
        echo(f"  {look.facts.open_incident.id} is {look.facts.open_incident.status}{standing}")
    if look.facts.person.paused:
        echo(f"  {PAUSED}, until `sentinel resume`")
    if look.facts.person.kill_file:
        echo(f"  {KILL_FILE}")
    for incident in taken_back(look.history, look.facts.incidents):
        goes_on = f"a restart resumes from {look.facts.folders.latest_tag or 'scratch'}"
        echo(f"  {incident.id} was undone: attempt {attempt} belongs to what was taken back; {goes_on}")
    if look.facts.folders.disagreement is not None:
        echo(f"  checkpoints: {look.facts.folders.disagreement}; a rollback or a restart rewrites the trackers")
    echo(f"  rollbacks left: {document['budget']['rollbacks_left']}")
