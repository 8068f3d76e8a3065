"""What sentinel decided for a restart: the schema of overrides.json and its codec. `standing` holds at every later
start of the run; `once` is applied only by an attempt that resumes exactly at the anchor and whose client state does
not hold the id yet, so that a requeue never repeats it. A trainer refuses to start on a key that it does not know."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Annotated

from sentinel.vocabulary.codec import Form, fields_of, read
from sentinel.vocabulary.errors import LineError, OverridesError
from sentinel.vocabulary.names import checked_name
from sentinel.vocabulary.numbers import COUNT, POSITIVE, SIXTY_FOUR_BITS, dump_json, load_object
from sentinel.vocabulary.training_settings import Free as Free
from sentinel.vocabulary.training_settings import Setting, settings_of
from sentinel.vocabulary.training_settings import TrainingSettings as TrainingSettings

# A trainer that does not know it refuses to start. It is raised when a key changes its meaning; a new key needs none: a
# trainer that does not know the key refuses it by its name.
SCHEMA = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Anchor:
    global_step: int  # 0 is from scratch
    consumed_samples: int | None = None  # None where the daemon does not know it; the checkpoint does
    consumed_tokens: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Once:
    id: str  # Recorded in the client state once applied
    # Permutes the data that is not yet consumed; None leaves the order.
    seed: Annotated[int | None, SIXTY_FOUR_BITS, Setting("seed", option="--seed")] = None
    # Leaves this many samples out, from the anchor's position on; a new seed permutes what is left. None skips none.
    skip_samples: Annotated[int | None, POSITIVE, Setting("skipping of data")] = None
    # Adam's exp_avg, exp_avg_sq and step count are set to 0; the weights stay.
    reset_moments: Annotated[bool, Setting("reset of Adam's moments")] = False
    # The fp16 loss scale that the first step is taken with; a dynamic one goes on from there. None leaves it.
    loss_scale: Annotated[float | None, POSITIVE, Setting("loss scale", option="--initial-loss-scale")] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Overrides:
    incident: str
    rollback: str  # Which restart of the incident this is; unique over the run's life
    anchor: Anchor
    standing: TrainingSettings  # Changes that hold from the anchor on, at every start; only fields of `STANDING`
    once: Once | None = None

    def __post_init__(self) -> None:
        for what in ("incident", "rollback"):
            checked_name(getattr(self, what), what)


# The settings that `standing` can change.
STANDING = tuple(name for name, setting in settings_of().items() if setting.standing)
# All that overrides.json can change, by its keys of `standing` and `once`: what `applies` of a RunStarted lists. Not
# `skipped`: it keeps out what an earlier `skip_samples` left out.
CHANGES = (*(name for name in STANDING if name != "skipped"), *(f.name for f in fields(Once) if f.name != "id"))


def words_of(key: str) -> str:
    return (dict(settings_of()) | dict(settings_of(Once)))[key].words


def encode_overrides(overrides: Overrides) -> str:
    once = {} if overrides.once is None else fields_of(overrides.once, without_none=True)
    if not once.get("reset_moments", True):
        del once["reset_moments"]  # as if it had none: a trainer that was frozen before it refuses it
    head = {"schema": SCHEMA, "incident": overrides.incident, "rollback": overrides.rollback}
    anchor, standing = fields_of(overrides.anchor), fields_of(overrides.standing, without_none=True)
    return dump_json(head | {"anchor": anchor, "standing": standing, "once": once}, indent=2) + "\n"


def decode_overrides(text: str) -> Overrides:
    """The decision that the text of overrides.json holds. OverridesError names the key that is wrong."""
    try:
        data = load_object(text)
        if (schema := data.pop("schema", None)) != SCHEMA:
            raise OverridesError(f"overrides.json has schema {schema!r}; this version reads {SCHEMA}")
        standing = data.get("standing") or {}
        if isinstance(standing, dict) and (odd := standing.keys() - set(STANDING)):
            raise OverridesError(f"standing has no key {min(odd)!r}; the right ones are {', '.join(STANDING)}")
        return read(Overrides, {"standing": {}} | data | {"once": data.get("once") or None}, form=_OVERRIDES)
    except LineError as error:
        raise OverridesError(f"overrides.json: {error}") from error


_OVERRIDES = Form(error=OverridesError, name="overrides.json", whole=COUNT)
