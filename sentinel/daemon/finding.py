"""What a check of `sentinel doctor` finds, what the checks share, and whether probes can write to the run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Literal

from sentinel.act.neighbours import Neighbours
from sentinel.adapters.read_only import held_by, words_alone
from sentinel.config import Config
from sentinel.daemon.wiring import neighbours_of

Near = Callable[[], Neighbours]


@dataclass(frozen=True, slots=True)
class Checked:
    """One line of the doctor: what was checked, what was found and, where it is not ok, what to do."""

    answer: Literal["ok", "note", "bad"]
    what: str
    sentence: str
    passes: bool = False
    """Whether it may pass by itself, or a recovery mends it: a watch begins all the same."""


def adapters_of(config: Config, progress: Callable[[float], None] | None = None) -> Near:
    """The run's adapters, built once for all checks: what one has looked at is not asked for by the next. `progress` is
    called with the share that is done of a look at the checkpoints."""

    @cache
    def near() -> Neighbours:
        made = neighbours_of(config)
        made.checkpoints.progress = progress
        return made

    return near


def probes(config: Config, _: Near) -> Iterator[Checked]:
    """Whether a probe of bisect or tune could write to the run's folders from here."""
    if config.launcher.kind == "elsewhere":
        return
    means, sentence = held_by()
    if means is None:
        yield Checked("note", "probes", f"the run's folders are {words_alone(sentence)}")
    else:
        where = "; each node of the cluster tries for itself" if config.launcher.kind == "slurm" else ""
        yield Checked("ok", "probes", f"{sentence}{where}")
