"""What a start finds: in the state folder overrides.json, which sentinel decided for it; in the checkpoint the
decisions so far."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from sentinel.vocabulary.errors import OverridesError
from sentinel.vocabulary.overrides import STANDING, Once, Overrides, decode_overrides, words_of
from sentinel.vocabulary.training_settings import SkippedRange
from trainer_hooks.regular_files import read_regular


def read_overrides(state_dir: Path) -> Overrides | None:
    """None where nothing was decided. OverridesError names what is wrong with it."""
    text = overrides_text(state_dir)
    return None if text is None else decode_overrides(text)


def overrides_text(state_dir: Path) -> str | None:
    """overrides.json as it stands; None where there is none. OverridesError where it can't be read."""
    path = state_dir / "overrides.json"
    try:
        return read_regular(path).decode()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise OverridesError(f"{path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise OverridesError(f"{path}: byte {error.start} is not UTF-8") from error


@dataclass(slots=True, kw_only=True)
class Decisions:
    """By which decisions a run got where it is: what any trainer's checkpoint holds of them for the next attempt."""

    attempt: int | None = None  # The attempt that saved it; None from scratch
    loss_minimum: tuple[tuple[int | None, float], ...] = ()  # As LossMinimum.state() gives it
    applied_once: tuple[str, ...] = ()  # Ids of the one-shot overrides that were applied
    moments_reset_steps: tuple[int, ...] = ()  # The steps after which Adam's moments were set to 0
    reseeds: tuple[tuple[int, int], ...] = ()  # (position in the data order, seed in force from there on)
    skipped: tuple[SkippedRange, ...] = ()  # What was left out of the data

    def left_out(self, standing: Sequence[SkippedRange] | None) -> tuple[SkippedRange, ...]:
        """With what sentinel has left out beside it."""
        return (*self.skipped, *(part for part in standing or () if part not in self.skipped))


def due(overrides: Overrides | None, made: Decisions, global_step: int) -> Once | None:
    """The one-shot changes, where this start resumes exactly at the anchor and the run has not had them yet."""
    if overrides is None or overrides.once is None or overrides.once.id in made.applied_once:
        return None
    return overrides.once if global_step == overrides.anchor.global_step else None


def wanted(overrides: Overrides | None, once: Once | None) -> dict[str, Any]:
    """{key of `applies`: its value} of each change that a start has to apply; not of one that leaves all as it is."""
    if overrides is None:
        return {}
    standing = {name: value for name in STANDING if (value := getattr(overrides.standing, name)) is not None}
    asked = {f.name: getattr(once, f.name) for f in fields(Once) if once is not None and f.name != "id"}
    changes = {**standing, **{key: value for key, value in asked.items() if value not in (None, False)}}
    made = {key: value for key, value in changes.items() if not (key in _OFF and _OFF[key](value))}
    if (skipped := made.pop("skipped", None)) is not None:  # who can leave samples out can leave them out again
        made.setdefault("skip_samples", skipped)
    return made


# Whether a key's value says that all is as it is without it.
_OFF: dict[str, Callable[[Any], bool]] = {
    "seqlen": lambda value: not value.warms_up,
    "shorten": lambda value: value == "truncate",  # the one way in which a loop's batches are shortened
    "batch_size": lambda value: not value.warms_up,
    "random_ltd": lambda value: not value.drops,
    "curriculum": lambda value: not value.metrics,
    "skipped": lambda value: not value,
    "qk_clip": lambda value: not value,
    "lr_factor_of": lambda value: not value,
}


def cannot_be_applied(key: str, to: str, why: str | None, file: str | Path = "overrides.json") -> OverridesError:
    """The refusal of one change, before the first step. `why`: a phrase; `file`: where it is decided."""
    reason = f": {why}" if why else ""
    return OverridesError(f"{file}: {words_of(key)} ({key}) can't be applied to {to}{reason}; nothing was trained")


def decision_facts(overrides: Overrides | None, made: Decisions) -> dict[str, Any]:
    """{field of RunStarted: value} of what is in force at a start."""
    return {
        "incident": overrides.incident if overrides is not None else None,
        "rollback": overrides.rollback if overrides is not None else None,
        "applied_once": made.applied_once,
        "moments_reset_steps": made.moments_reset_steps,
    }
