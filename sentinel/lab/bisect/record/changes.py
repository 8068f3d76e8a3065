"""What the run's own record says has changed before an onset: at a start of the lineage, by the start reports. Pure.

Each change is a suspect without any probe. One that overrides.json can undo is undone by a probe of its own, first.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from sentinel.judge.history import Attempt
from sentinel.vocabulary.overrides import STANDING
from sentinel.vocabulary.reported_settings import reported_settings
from sentinel.vocabulary.sample import RunStarted
from sentinel.vocabulary.training_settings import settings_of

_SETTINGS = (*(name for name in STANDING if name not in ("skipped", "total_tokens")), "precision", "full_seqlen")
_SETTINGS = (*_SETTINGS, "parameters")
_WORDS = {"precision": "precision", "full_seqlen": "sequence length", "parameters": "size of the model"}
_CODE = ("code_version", "git_commit", "git_sha", "commit", "revision")  # of `settings`, as trainers name it


def undo_of(key: str) -> str:
    """The probe that sets it back."""
    return f"undo-{key.replace('_', '-')}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Changed:
    """One setting that a start of the lineage changed."""

    key: str  # A field of TrainingSettings, "world_size" or "code version"
    words: str  # What a person calls it: the cause that is named
    before: Any
    after: Any
    attempt: int  # The one that began with the new value
    resumed_from: int  # Its first step follows this one

    @property
    def probe(self) -> str | None:
        """The name of the probe that undoes it; None where overrides.json can't."""
        return undo_of(self.key) if self.key in STANDING else None

    @property
    def said(self) -> str:
        where = f"at the start of attempt {self.attempt}, after step {self.resumed_from}"
        if self.key == "lr":
            pairs = ((name, getattr(self.before, name), getattr(self.after, name)) for name in ("peak", "warmup"))
            said = ", ".join(f"{name} {before:g} -> {after:g}" for name, before, after in pairs if before != after)
            return f"{self.words} {said or f'{self.before} -> {self.after}'} {where}"
        shown = (f"{value:g}" if isinstance(value, float) else str(value) for value in (self.before, self.after))
        return f"{self.words} {' -> '.join(shown)} {where}"


def changes_before(
    descent: Sequence[tuple[Attempt, int | None]], base_step: int, onset_step: int
) -> tuple[Changed, ...]:
    """What the starts of the lineage, oldest first, changed: those after the base of the bisect, and the last before
    the onset, wherever it was; the newest first."""
    found = list[Changed]()
    starts = [
        (old.started, new.started, new.number)
        for (old, _), (new, _) in pairwise(descent)
        if old.started and new.started and (new.started.resumed_from or 0) < onset_step
    ]
    for old, new, number in reversed(starts):
        if (new.resumed_from or 0) >= base_step or number == starts[-1][2]:
            found += _changes(old, new, number)
    return tuple(found)


def _changes(old: RunStarted, new: RunStarted, attempt: int) -> Iterator[Changed]:
    at = {"attempt": attempt, "resumed_from": new.resumed_from or 0}
    was, now = reported_settings(old), reported_settings(new)
    words = {name: setting.words for name, setting in settings_of().items()} | _WORDS
    for name in _SETTINGS:
        before, after = getattr(was, name), getattr(now, name)
        if None not in (before, after) and before != after:
            yield Changed(key=name, words=words[name], before=before, after=after, **at)
    if old.world_size is not None and new.world_size is not None and old.world_size != new.world_size:
        yield Changed(key="world_size", words="number of ranks", before=old.world_size, after=new.world_size, **at)
    for name in _CODE:
        before, after = old.settings.get(name), new.settings.get(name)
        if before is not None and after is not None and before != after:
            yield Changed(key="code version", words="code version", before=before, after=after, **at)
