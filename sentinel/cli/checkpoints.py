"""`sentinel checkpoints`: each checkpoint's health record."""

from __future__ import annotations

from dataclasses import asdict

from sentinel.adapters.checkpoints.verify import MANIFESTS
from sentinel.cli.shared import RUNS, ConfigDir, Json, Run, echo, looking_line, print_json
from sentinel.config.run_files import clock, find_config
from sentinel.daemon.wiring import neighbours_of, observer_of
from sentinel.plan.restart.in_place.held import certified_in_memory
from sentinel.plan.starts.certificate import Certificate, certificates

_WIDTHS = (24, 10, 8, 10, 16, 8, 8)
_HEAD = ("checkpoint", "step", "whole", "healthy", "start", "read", "pinned")


def checkpoints(run: Run = None, config_dir: ConfigDir = RUNS, as_json: Json = False) -> int:
    """A restart goes back to the newest that is whole and healthy, before the onset; in place to memory:STEP too, a
    state that the trainer's processes keep. Reads no shard: `sentinel manifest` and a rollback do."""
    config = find_config(run, config_dir)
    near = neighbours_of(config)
    with looking_line() as near.checkpoints.progress:
        look = observer_of(config, near).look(clock())
    manifests = {path.stem for path in (near.state_dir / MANIFESTS).glob("*.json")}
    found = certificates(
        look.facts,
        look.history,
        look.series.events,
        look.events,
        pinned=near.checkpoints.pins.usable(),
        manifests=manifests,
    )
    in_memory = certified_in_memory(look.facts, look.series.events, look.events)
    found = tuple(sorted((*found, *in_memory), key=lambda one: one.global_step))
    if as_json:
        print_json([asdict(one) | {"certified": one.certified, "in_memory": one in in_memory} for one in found])
        return 0
    if not found:
        echo(f"{near.checkpoints.folder} has no checkpoint")
        return 0
    echo(_row(_HEAD))
    for one in found:
        echo(_row(_cells(one)))
        if one.why_not is not None:
            echo(f"    {one.why_not}")
    for note in near.checkpoints.pins.notes():
        echo(note)
    return 0


def _cells(one: Certificate) -> tuple[str, ...]:
    words = {True: "yes", False: "no", None: "unknown"}
    answers = (words[one.whole], words[one.healthy], one.start or "unknown", words[one.scanned], words[one.pinned])
    return (one.tag, str(one.global_step), *answers)


def _row(cells: tuple[str, ...]) -> str:
    return "".join(cell.ljust(width) for cell, width in zip(cells, _WIDTHS, strict=True)).rstrip()
