"""`pin` and `manifest`: what makes a checkpoint safe to come back to."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import typer
from rich.console import Console
from rich.progress import DownloadColumn, Progress, TransferSpeedColumn

from sentinel.adapters.checkpoints import write_manifest
from sentinel.config import Config
from sentinel.daemon import wiring
from sentinel.vocabulary.errors import ConfigError

__all__ = ["manifest", "pin", "reading_bar"]


def pin(config: Config, tag: str | None, *, release: bool) -> int:
    """Pins a checkpoint, or lets a pin go; without a tag, lists what is pinned."""
    pins = wiring.neighbours_of(config).checkpoints.pins
    if tag is None:
        typer.echo("\n".join(pins.tags()) or "nothing is pinned")
        return 0
    if not release:
        pins.pin(tag)
        typer.echo(f"{tag} is pinned: no retention can take it; it takes no space while the checkpoint is there")
        return 0
    if tag not in pins.tags():
        raise ConfigError(f"{tag} is not pinned; pinned are {', '.join(pins.tags()) or 'none'}")
    if pins.let_go(tag):
        typer.echo(f"{tag} is not pinned any more; its files are all there under their other names")
    else:
        typer.echo(f"{tag} lives on only as a pin: it was moved to {pins.unpin(tag)}; delete it there if it may go")
    return 0


@contextmanager
def reading_bar(tag: str) -> Iterator[Callable[[int, int], None]]:
    """A bar on stderr while a checkpoint is read whole: bytes done and in all go into what it gives."""
    columns = (*Progress.get_default_columns()[:2], DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(f"reading {tag}", total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def manifest(config: Config, tag: str | None) -> int:
    """Digests a checkpoint (the last whole one if none is named) into STATE_DIR/manifests."""
    near = wiring.neighbours_of(config)
    there = near.checkpoints.list()
    whole = [c.tag for c in there if c.complete]
    chosen = tag or (whole[-1] if whole else None)
    if chosen is None:
        raise ConfigError(f"{near.checkpoints.folder} holds no whole checkpoint")
    near.state_dir.mkdir(parents=True, exist_ok=True)
    with reading_bar(chosen) as progress:
        path = write_manifest(near.checkpoints.folder, chosen, near.state_dir, progress=progress)
    typer.echo(f"wrote {path}")
    return 0
