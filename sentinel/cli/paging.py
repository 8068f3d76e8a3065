"""`page`: what waits to be delivered, and a test of every channel."""

from __future__ import annotations

import os
from datetime import datetime

import typer

from sentinel.adapters.paging.channels import channel_of
from sentinel.adapters.paging.outbox import Outbox
from sentinel.config import Config
from sentinel.daemon import wiring
from sentinel.plan.page import trial_page
from sentinel.vocabulary.errors import ConfigError, PagerError

__all__ = ["test", "waiting"]


def test(config: Config) -> int:
    """One test page through each channel, past the outbox; 3 when it did not arrive everywhere."""
    _some(config)
    page = trial_page(config.run.name, wiring.clock(), runbook=config.paging.runbook)
    failed = 0
    for described in config.paging.channels:
        try:
            channel_of(described, os.environ).send(page)
        except (PagerError, ConfigError) as error:
            failed += 1
            typer.echo(f"{described.name}: did not arrive: {error}")
        else:
            typer.echo(f"{described.name}: arrived")
    return 3 if failed else 0


def waiting(config: Config) -> int:
    """What each channel has still to deliver, or gave up; 1 when there is any."""
    _some(config)
    folder = wiring.state_dir_of(config) / "pages"
    found = 0
    for described in config.paging.channels:
        outbox = Outbox(folder / described.name)
        pages, given_up = outbox.waiting(), outbox.given_up()
        found += len(pages) + given_up
        typer.echo(f"{described.name}: {len(pages)} wait, {given_up} were given up")
        for page in pages:
            when = datetime.fromtimestamp(page.time_unix_s).astimezone()
            typer.echo(f"  {when:%Y-%m-%d %H:%M:%S}  {page.title}")
    return 1 if found else 0


def _some(config: Config) -> None:
    if not config.paging.channels:
        raise ConfigError("[paging] has no channel: nobody is paged; docs/PAGING.md shows how to add one")
