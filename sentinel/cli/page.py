"""`sentinel page`: the pages that are not delivered, and a test page through every channel."""

from __future__ import annotations

import os
from typing import Annotated

import typer

from sentinel.adapters.paging.channels import Channel
from sentinel.adapters.paging.delivery import Outbox
from sentinel.cli.shared import RUNS, ConfigDir, Run, echo, local_time
from sentinel.config import Config
from sentinel.config.run_files import clock, find_config, state_dir_of
from sentinel.plan.alerts.page import trial_page
from sentinel.vocabulary.errors import ConfigError, PagerError


def page(
    run: Run = None,
    config_dir: ConfigDir = RUNS,
    test: Annotated[bool, typer.Option("--test", help="Send a test page through every channel now.")] = False,
) -> int:
    """With --test: exit 3 when a channel did not accept the page."""
    config = find_config(run, config_dir)
    if not config.paging.channels:
        raise ConfigError("[paging] has no channel, so no page is sent; docs/CHANNELS.md shows how to add one")
    return _send_test(config) if test else _list(config)


def _send_test(config: Config) -> int:
    trial = trial_page(config.run.name, clock(), runbook=config.paging.runbook)
    failed = 0
    for settings in config.paging.channels:
        try:
            Channel(settings, os.environ).send(trial)
        except (PagerError, ConfigError) as error:
            failed += 1
            echo(f"{settings.name}: did not arrive: {error}")
        else:
            echo(f"{settings.name}: arrived")
    return 3 if failed else 0


def _list(config: Config) -> int:
    found = 0
    for settings in config.paging.channels:
        outbox = Outbox(state_dir_of(config) / "pages" / settings.name)
        pages, given_up = outbox.waiting(), outbox.given_up()
        found += len(pages) + given_up
        echo(f"{settings.name}: {len(pages)} wait, {given_up} were given up")
        for one in pages:
            echo(f"  {local_time(one.time_unix_s)}  {one.title}")
    return 1 if found else 0
