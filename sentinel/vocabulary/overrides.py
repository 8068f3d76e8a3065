"""What sentinel decided for a restart: the schema of overrides.json and its codec.

`standing` holds at every later start of the run (schedules, with their anchors); `once` is applied only by an attempt
that resumes exactly at the anchor and whose client state does not hold the id yet, so that a requeue never repeats it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sentinel.vocabulary.errors import ConfigError, LineError, OverridesError
from sentinel.vocabulary.numbers import dump_json, load_object
from sentinel.vocabulary.pacing import LrSchedule, SeqlenSchedule

__all__ = ["SCHEMA", "Anchor", "Once", "Overrides", "Standing", "decode_overrides", "encode_overrides"]

SCHEMA = 1
"""Version of overrides.json; a trainer that does not know it refuses to start rather than ignore it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Anchor:
    """Where the restart resumes: the target's position."""

    global_step: int
    """0 is from scratch."""

    consumed_samples: int | None = None
    """None where the daemon does not know it; the checkpoint does."""

    consumed_tokens: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """Changes that hold from the anchor on, at every start."""

    lr: LrSchedule | None = None
    """Replaces the run's LR schedule; None leaves it."""

    seqlen: SeqlenSchedule | None = None
    """Replaces the run's sequence-length schedule; None leaves it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Once:
    """Changes that are made a single time, at the anchor."""

    id: str
    """Recorded in the client state once applied."""

    seed: int | None = None
    """Permutes the data that is not yet consumed; None leaves the order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Overrides:
    """One decision, whole."""

    incident: str
    rollback: str
    """Which restart of the incident this is; unique over the run's life."""

    anchor: Anchor
    standing: Standing
    once: Once | None = None


def encode_overrides(overrides: Overrides) -> str:
    """The text of overrides.json."""
    standing: dict[str, Any] = {}
    if overrides.standing.lr is not None:
        standing["lr"] = overrides.standing.lr.to_json()
    if overrides.standing.seqlen is not None:
        standing["seqlen"] = overrides.standing.seqlen.to_json()
    once: dict[str, Any] = {}
    if overrides.once is not None:
        once = {"id": overrides.once.id}
        if overrides.once.seed is not None:
            once["seed"] = overrides.once.seed
    document = {
        "schema": SCHEMA,
        "incident": overrides.incident,
        "rollback": overrides.rollback,
        "anchor": {
            "global_step": overrides.anchor.global_step,
            "consumed_samples": overrides.anchor.consumed_samples,
            "consumed_tokens": overrides.anchor.consumed_tokens,
        },
        "standing": standing,
        "once": once,
    }
    return dump_json(document, indent=2) + "\n"


def decode_overrides(text: str) -> Overrides:
    """The decision that the text of overrides.json holds. OverridesError names the key that is wrong."""
    try:
        data = load_object(text)
        _only(data, "overrides.json", {"schema", "incident", "rollback", "anchor", "standing", "once"})
        if data.get("schema") != SCHEMA:
            raise OverridesError(f"overrides.json has schema {data.get('schema')!r}; this version reads {SCHEMA}")
        anchor = _only(_table(data, "anchor"), "anchor", {"global_step", "consumed_samples", "consumed_tokens"})
        standing = _only(_table(data, "standing"), "standing", {"lr", "seqlen"})
        once = _only(_table(data, "once"), "once", {"id", "seed"})
        lr, seqlen = standing.get("lr"), standing.get("seqlen")
        return Overrides(
            incident=_string(data, "incident"),
            rollback=_string(data, "rollback"),
            anchor=Anchor(
                global_step=_required_whole(anchor, "global_step"),
                consumed_samples=_whole(anchor, "consumed_samples"),
                consumed_tokens=_whole(anchor, "consumed_tokens"),
            ),
            standing=Standing(
                lr=None if lr is None else LrSchedule.from_json(_table(standing, "lr")),
                seqlen=None if seqlen is None else SeqlenSchedule.from_json(_table(standing, "seqlen")),
            ),
            once=Once(id=_string(once, "id"), seed=_whole(once, "seed")) if once else None,
        )
    except LineError as error:
        raise OverridesError(f"overrides.json: {error}") from error
    except OverridesError:
        raise
    except ConfigError as error:
        raise OverridesError(f"overrides.json: {error}") from error


def _only(table: dict[str, Any], where: str, known: set[str]) -> dict[str, Any]:
    if unknown := table.keys() - known:
        # An override that is silently ignored is the costliest kind: refuse it.
        raise OverridesError(f"{where} has an unknown key {min(unknown)!r}; known are {', '.join(sorted(known))}")
    return table


def _table(data: dict[str, Any], key: str) -> dict[str, Any]:
    value = data.get(key, {})
    if not isinstance(value, dict):
        raise OverridesError(f"{key} should be an object, not {value!r}")
    return value


def _string(data: dict[str, Any], key: str) -> str:
    value = data.get(key)
    if not isinstance(value, str) or not value:
        raise OverridesError(f"{key} should be a non-empty string, not {value!r}")
    return value


def _whole(data: dict[str, Any], key: str) -> int | None:
    value = data.get(key)
    if value is not None and (not isinstance(value, int) or isinstance(value, bool)):
        raise OverridesError(f"{key} should be a whole number or null, not {value!r}")
    return value


def _required_whole(data: dict[str, Any], key: str) -> int:
    value = _whole(data, key)
    if value is None:
        raise OverridesError(f"{key} is missing")
    return value
