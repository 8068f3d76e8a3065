"""`sentinel pause` and `sentinel resume`: while PAUSED is in the state folder, sentinel does not act."""

from __future__ import annotations

import contextlib
from datetime import datetime
from typing import Annotated

import typer

from sentinel import bounded
from sentinel.adapters.state_files import PAUSED, holds
from sentinel.cli.shared import RUNS, ConfigDir, Run, echo, this_person
from sentinel.config.run_files import find_config, state_dir_of
from sentinel.durable import write_atomically


def pause(
    run: Run = None,
    config_dir: ConfigDir = RUNS,
    reason: Annotated[str | None, typer.Option(help="Why, for others who find it paused.")] = None,
) -> int:
    config = find_config(run, config_dir)
    state_dir = state_dir_of(config)
    state_dir.mkdir(parents=True, exist_ok=True)
    when = datetime.now().astimezone().isoformat(timespec="seconds")
    write_atomically(state_dir / PAUSED, f"{this_person()}, {when}: {reason or 'no reason given'}\n")
    echo(f"{config.run.name} is paused: sentinel watches and pages, and does not act until `sentinel resume`")
    return 0


def resume(run: Run = None, config_dir: ConfigDir = RUNS) -> int:
    config = find_config(run, config_dir)
    state_dir = state_dir_of(config)
    if not holds(state_dir, PAUSED):
        echo(f"{config.run.name} was not paused")
        return 1
    note = ""
    with contextlib.suppress(OSError):  # a link that leads nowhere pauses too
        note = bounded.read_text(state_dir / PAUSED).strip()
    (state_dir / PAUSED).unlink(missing_ok=True)
    echo(f"{config.run.name} is resumed; it was paused by {note or 'an unknown person'}")
    return 0
