"""What sentinel decided for a restart: the schema of overrides.json and its codec.

`standing` holds at every later start of the run (schedules, with their anchors; Adam's settings); `once` is applied
only by an attempt that resumes exactly at the anchor and whose client state does not hold the id yet, so that a requeue
never repeats it. A trainer refuses to start on a key that it does not know: one that is silently ignored costs weeks.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import Any

from sentinel.vocabulary.errors import ConfigError, LineError, OverridesError
from sentinel.vocabulary.names import checked_name
from sentinel.vocabulary.numbers import dump_json, load_object
from sentinel.vocabulary.overrides_keys import number, only, required_whole, string, table, whole
from sentinel.vocabulary.standing import Free, Standing

__all__ = [
    "CHANGES",
    "SCHEMA",
    "Anchor",
    "Free",
    "Once",
    "Overrides",
    "Standing",
    "decode_overrides",
    "encode_overrides",
]

SCHEMA = 1
"""Version of overrides.json; a trainer that does not know it refuses to start rather than ignore it.

It is raised when a key changes its meaning. A new key needs none: who does not know it refuses it by its name, and a
file without it is still read by a trainer that was frozen before it was thought of.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Anchor:
    """Where the restart resumes: the target's position."""

    global_step: int
    """0 is from scratch."""

    consumed_samples: int | None = None
    """None where the daemon does not know it; the checkpoint does."""

    consumed_tokens: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Once:
    """Changes that are made a single time, at the anchor."""

    id: str
    """Recorded in the client state once applied."""

    seed: int | None = None
    """Permutes the data that is not yet consumed; None leaves the order."""

    skip_samples: int | None = None
    """Leaves this many samples out, from the anchor's position on; a new seed permutes what is left. None skips none.
    """

    reset_moments: bool = False
    """Adam's exp_avg, exp_avg_sq and step count are set to 0; the weights stay."""

    loss_scale: float | None = None
    """The fp16 loss scale that the first step is taken with; a dynamic one goes on from there. None leaves it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Overrides:
    """One decision, whole."""

    incident: str
    rollback: str
    """Which restart of the incident this is; unique over the run's life."""

    anchor: Anchor
    standing: Standing
    once: Once | None = None


CHANGES = tuple(f.name for kind in (Standing, Once) for f in fields(kind) if f.name not in ("id", "skipped"))
"""All that overrides.json can change, by its keys of `standing` and `once`: what `applies` of a RunStarted lists.

Not `skipped`: it keeps out what an earlier `skip_samples` left out.
"""


def encode_overrides(overrides: Overrides) -> str:
    """The text of overrides.json."""
    document = {
        "schema": SCHEMA,
        "incident": overrides.incident,
        "rollback": overrides.rollback,
        "anchor": {
            "global_step": overrides.anchor.global_step,
            "consumed_samples": overrides.anchor.consumed_samples,
            "consumed_tokens": overrides.anchor.consumed_tokens,
        },
        "standing": overrides.standing.to_json(),
        "once": {} if overrides.once is None else _once_to_json(overrides.once),
    }
    return dump_json(document, indent=2) + "\n"


def _once_to_json(once: Once) -> dict[str, Any]:
    told = {
        "id": once.id,
        "seed": once.seed,
        "skip_samples": once.skip_samples,
        "reset_moments": once.reset_moments or None,
        "loss_scale": once.loss_scale,
    }
    return {key: value for key, value in told.items() if value is not None}


def decode_overrides(text: str) -> Overrides:
    """The decision that the text of overrides.json holds. OverridesError names the key that is wrong."""
    try:
        data = load_object(text)
        only(data, "overrides.json", {"schema", "incident", "rollback", "anchor", "standing", "once"})
        if data.get("schema") != SCHEMA:
            raise OverridesError(f"overrides.json has schema {data.get('schema')!r}; this version reads {SCHEMA}")
        anchor = only(table(data, "anchor"), "anchor", {"global_step", "consumed_samples", "consumed_tokens"})
        once = table(data, "once")
        return Overrides(
            incident=checked_name(string(data, "incident"), "incident"),
            rollback=checked_name(string(data, "rollback"), "rollback"),
            anchor=Anchor(
                global_step=required_whole(anchor, "global_step"),
                consumed_samples=whole(anchor, "consumed_samples"),
                consumed_tokens=whole(anchor, "consumed_tokens"),
            ),
            standing=Standing.from_json(table(data, "standing")),
            once=_once(once) if once else None,
        )
    except OverridesError:
        raise
    except (LineError, ConfigError) as error:
        raise OverridesError(f"overrides.json: {error}") from error


def _once(data: dict[str, Any]) -> Once:
    only(data, "once", {"id", "seed", "skip_samples", "reset_moments", "loss_scale"})
    skip_samples, reset_moments = whole(data, "skip_samples"), data.get("reset_moments", False)
    if skip_samples is not None and skip_samples < 1:
        raise OverridesError(f"skip_samples should be above 0, not {skip_samples}")
    if not isinstance(reset_moments, bool):
        raise OverridesError(f"reset_moments should be true or false, not {reset_moments!r}")
    loss_scale = number(data, "loss_scale", 0.0, math.inf)
    if loss_scale == 0:
        raise OverridesError("loss_scale should be above 0")
    return Once(
        id=string(data, "id"),
        seed=whole(data, "seed"),
        skip_samples=skip_samples,
        reset_moments=reset_moments,
        loss_scale=loss_scale,
    )
