"""What sentinel decided for a restart: the schema of overrides.json and its codec.

`standing` holds at every later start of the run (schedules, with their anchors; Adam's settings); `once` is applied
only by an attempt that resumes exactly at the anchor and whose client state does not hold the id yet, so that a requeue
never repeats it. A trainer refuses to start on a key that it does not know: one that is silently ignored costs weeks.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from sentinel.vocabulary.errors import ConfigError, LineError, OverridesError
from sentinel.vocabulary.numbers import dump_json, load_object, to_number
from sentinel.vocabulary.pacing import LrSchedule, SeqlenSchedule
from sentinel.vocabulary.skipping import SkippedRange

__all__ = ["SCHEMA", "Anchor", "Free", "Once", "Overrides", "Standing", "decode_overrides", "encode_overrides"]

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
class Free:
    """Changes that sentinel has no word for: the trainer gets them as they are, and echoes those that it has made."""

    environment: Mapping[str, str] = field(default_factory=dict)
    """Name -> value of environment variables."""

    options: tuple[str, ...] = ()
    """Options of the trainer's command line, each with its value: `--flag=value`."""

    def to_json(self) -> dict[str, Any]:
        """As overrides.json holds it, and as run_started echoes it."""
        return {"environment": dict(self.environment), "options": list(self.options)}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Free:
        """What to_json gave. OverridesError names what is wrong."""
        _only(data, "free", {"environment", "options"})
        environment, options = _table(data, "environment"), data.get("options", [])
        if not all(isinstance(value, str) for value in environment.values()):
            raise OverridesError(f"environment should hold strings, not {environment!r}")
        if not isinstance(options, list) or not all(isinstance(option, str) for option in options):
            raise OverridesError(f"options should be a list of strings, not {options!r}")
        return cls(environment=environment, options=tuple(options))


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """Changes that hold from the anchor on, at every start; None leaves what the trainer's own settings say."""

    lr: LrSchedule | None = None
    """Replaces the run's LR schedule."""

    seqlen: SeqlenSchedule | None = None
    """Replaces the run's sequence-length schedule."""

    adam_beta1: float | None = None
    """Decay of Adam's first moment, dimensionless, for all parameters. What the checkpoint brings back gives way."""

    adam_beta2: float | None = None
    """Decay of Adam's second moment, dimensionless, for all parameters. What the checkpoint brings back gives way."""

    weight_decay: float | None = None
    """Weight decay of the parameters that are decayed at all; those at 0 stay there."""

    clip_grad: float | None = None
    """Largest global L2 norm of the gradient; above it, it is scaled down. 0 does not clip."""

    skipped: tuple[SkippedRange, ...] = ()
    """Samples that earlier decisions left out: they stay out, also when the run is rolled back to before them."""

    free: Free | None = None
    """None is no such change."""


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
        "standing": _standing_to_json(overrides.standing),
        "once": {} if overrides.once is None else _once_to_json(overrides.once),
    }
    return dump_json(document, indent=2) + "\n"


def _standing_to_json(standing: Standing) -> dict[str, Any]:
    told: dict[str, Any] = {
        "lr": standing.lr and standing.lr.to_json(),
        "seqlen": standing.seqlen and standing.seqlen.to_json(),
        **{key: getattr(standing, key) for key in _ADAM},
        "skipped": [r.to_json() for r in standing.skipped] or None,
        "free": standing.free and standing.free.to_json(),
    }
    return {key: value for key, value in told.items() if value is not None}


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
        _only(data, "overrides.json", {"schema", "incident", "rollback", "anchor", "standing", "once"})
        if data.get("schema") != SCHEMA:
            raise OverridesError(f"overrides.json has schema {data.get('schema')!r}; this version reads {SCHEMA}")
        anchor = _only(_table(data, "anchor"), "anchor", {"global_step", "consumed_samples", "consumed_tokens"})
        once = _table(data, "once")
        return Overrides(
            incident=_string(data, "incident"),
            rollback=_string(data, "rollback"),
            anchor=Anchor(
                global_step=_required_whole(anchor, "global_step"),
                consumed_samples=_whole(anchor, "consumed_samples"),
                consumed_tokens=_whole(anchor, "consumed_tokens"),
            ),
            standing=_standing(_table(data, "standing")),
            once=_once(once) if once else None,
        )
    except OverridesError:
        raise
    except (LineError, ConfigError) as error:
        raise OverridesError(f"overrides.json: {error}") from error


_ADAM = {
    "adam_beta1": (0.0, 1.0),
    "adam_beta2": (0.0, 1.0),
    "weight_decay": (0.0, math.inf),
    "clip_grad": (0.0, math.inf),
}
"""Key of `standing` -> the least that it may be, and what it has to stay below."""


def _standing(data: dict[str, Any]) -> Standing:
    _only(data, "standing", {"lr", "seqlen", *_ADAM, "skipped", "free"})
    lr, seqlen, skipped = data.get("lr"), data.get("seqlen"), data.get("skipped", [])
    if not isinstance(skipped, list):
        raise OverridesError(f"skipped should be a list, not {skipped!r}")
    return Standing(
        lr=None if lr is None else LrSchedule.from_json(_table(data, "lr")),
        seqlen=None if seqlen is None else SeqlenSchedule.from_json(_table(data, "seqlen")),
        adam_beta1=_number(data, "adam_beta1", *_ADAM["adam_beta1"]),
        adam_beta2=_number(data, "adam_beta2", *_ADAM["adam_beta2"]),
        weight_decay=_number(data, "weight_decay", *_ADAM["weight_decay"]),
        clip_grad=_number(data, "clip_grad", *_ADAM["clip_grad"]),
        skipped=tuple(SkippedRange.from_json(r) for r in skipped),
        free=Free.from_json(_table(data, "free")) if "free" in data else None,
    )


def _once(data: dict[str, Any]) -> Once:
    _only(data, "once", {"id", "seed", "skip_samples", "reset_moments", "loss_scale"})
    skip_samples, reset_moments = _whole(data, "skip_samples"), data.get("reset_moments", False)
    if skip_samples is not None and skip_samples < 1:
        raise OverridesError(f"skip_samples should be above 0, not {skip_samples}")
    if not isinstance(reset_moments, bool):
        raise OverridesError(f"reset_moments should be true or false, not {reset_moments!r}")
    loss_scale = _number(data, "loss_scale", 0.0, math.inf)
    if loss_scale == 0:
        raise OverridesError("loss_scale should be above 0")
    return Once(
        id=_string(data, "id"),
        seed=_whole(data, "seed"),
        skip_samples=skip_samples,
        reset_moments=reset_moments,
        loss_scale=loss_scale,
    )


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


def _number(data: dict[str, Any], key: str, least: float, below: float) -> float | None:
    number = to_number(data.get(key), key)
    if number is not None and not least <= number < below:
        raise OverridesError(f"{key} should be at least {least:g} and below {below:g}, not {number:g}")
    return number


def _required_whole(data: dict[str, Any], key: str) -> int:
    value = _whole(data, key)
    if value is None:
        raise OverridesError(f"{key} is missing")
    return value
