"""`sentinel data`: which samples the run was trained on, once, again, never or out of order, and by which attempt."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import Annotated, Any

import typer

from sentinel.act.source import RereadSource, SampleCache, read_all
from sentinel.cli.shared import RUNS, ConfigDir, Json, Run, echo, print_json
from sentinel.config.run_files import find_config, incident_log_of, state_dir_of
from sentinel.daemon.sources import source_of
from sentinel.judge.history import History
from sentinel.plan.account.account import Account, Counts
from sentinel.plan.account.lineage import account_of
from sentinel.plan.incident.events import fold
from sentinel.plan.starts.certificate import standing_attempt
from sentinel.vocabulary.errors import ConfigError

_COUNTED: Mapping[str, str] = {
    "once": "once",
    "again": "again in one epoch",
    "never": "never",
    "out_of_order": "out of order",
}


def data(
    run: Run = None,
    attempt: Annotated[
        int | None, typer.Option(help="The lineage of this attempt; default: the lineage in force.")
    ] = None,
    config_dir: ConfigDir = RUNS,
    as_json: Json = False,
) -> int:
    """The lineage is the attempt and those that it goes on from, up to the step that each was left at. What the
    trainer does not report is unknown, and is no fault: docs/DATA_ACCOUNT.md.
    """
    config = find_config(run, config_dir)
    source = source_of(config, state_dir_of(config))
    told = source if isinstance(source, RereadSource) else SampleCache(source)
    history = History(again=told.again)
    for record in read_all(told):
        history.push(record)
    incidents = fold(incident_log_of(config).read())
    chosen = standing_attempt(history, incidents) if attempt is None else history.attempts.get(attempt)
    if chosen is None and attempt is not None:
        raise ConfigError(f"{config.run.name} has no attempt {attempt}")
    rollbacks = [rollback for incident in incidents for rollback in incident.rollbacks]
    account = Account(attempts=()) if chosen is None else account_of(history, chosen, rollbacks)
    if as_json:
        print_json(_document(config.run.name, account))
    else:
        for line in _lines(config.run.name, account):
            echo(line)
    return int(not account.closes)


def _document(run: str, account: Account) -> dict[str, Any]:
    found = asdict(account)
    faults = [{"attempt": one.attempt, "first_step": one.first_step, "what": one.what} for one in account.faults]
    return {"run": run, **found, "faults": faults, "closes": account.closes, "reason": account.why}


def _lines(run: str, account: Account) -> Iterator[str]:
    if account.last_step is None:
        yield f"{run}: no step is reported"
        return
    line = ", ".join(map(str, account.attempts))
    yield f"{run}: attempts {line}, steps {account.first_step} to {account.last_step} ({account.steps} reported)"
    for name, words in _COUNTED.items():
        count = getattr(account.samples, name)
        yield f"  samples {words}: {'unknown' if count is None else f'{count:,}'}"
    if account.left_out:
        yield f"  samples left out by a mitigation, as decided: {account.left_out:,}"
    for by, counts in (("positions", account.positions), ("digests", account.batches)):
        if counts is not None:
            yield f"  by {by}: {_told(counts)}"
    for one in account.faults:
        yield f"  attempt {one.attempt}, from step {one.first_step}: {one.what}"
    for why in account.unknown:
        yield f"  unknown: {why}"
    yield f"  {account.why}"


def _told(counts: Counts) -> str:
    known = ((words, getattr(counts, name)) for name, words in _COUNTED.items())
    return ", ".join(f"{count:,} {words}" for words, count in known if count is not None)
