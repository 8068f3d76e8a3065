"""`pause` and `resume`: a person's word that sentinel watches, speaks and does not act."""

from __future__ import annotations

import getpass
import socket
from datetime import datetime

import typer

from sentinel import bounded
from sentinel.config import Config
from sentinel.daemon import wiring
from sentinel.durable import write_atomically

__all__ = ["pause", "resume"]


def pause(config: Config, reason: str | None) -> int:
    """Puts PAUSED into the state folder; watch sees it at its next turn, before its next action."""
    state_dir = wiring.state_dir_of(config)
    state_dir.mkdir(parents=True, exist_ok=True)
    who = f"{getpass.getuser()}@{socket.gethostname()}, {datetime.now().astimezone().isoformat(timespec='seconds')}"
    write_atomically(state_dir / "PAUSED", f"{who}: {reason or 'no reason given'}\n")
    typer.echo(f"{config.run.name} is paused: sentinel watches and speaks, and does not act, until `sentinel resume`")
    return 0


def resume(config: Config) -> int:
    """Takes PAUSED away; 1 when the run was not paused."""
    path = wiring.state_dir_of(config) / "PAUSED"
    try:
        said = bounded.read_text(path).strip()
        path.unlink()
    except FileNotFoundError:
        typer.echo(f"{config.run.name} was not paused")
        return 1
    typer.echo(f"{config.run.name} goes on; it was paused by {said or 'somebody'}")
    return 0
