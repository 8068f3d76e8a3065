"""What trainers say of checkpoints in words of their own: that one was loaded, or is whole now."""

from __future__ import annotations

import re
from collections.abc import Sequence

from sentinel.sources.events import Announced, Event, Saved
from sentinel.sources.numerals import whole
from sentinel.sources.prefixes import time_of

__all__ = ["checkpoint_events"]

_STEP = r"(?:global[_ ]?step|step|iteration|iter|updates?|ba)\s*[:=_@-]?\s*(\d{1,15})"
_LOADED = re.compile(rf"\b(?:load|restor|resum)(?:ed|ing|es|e)\b[^|]{{0,400}}?{_STEP}", re.IGNORECASE)
_SAVED = re.compile(rf"\b(?:saved|finished saving|wrote)\b[^|]{{0,400}}?{_STEP}", re.IGNORECASE)
_UPDATES = re.compile(r"(?:loaded|saved) checkpoint .{0,400}?@ (\d{1,15}) updates", re.IGNORECASE)
_LONGEST = 2_000


def checkpoint_events(line: str) -> Sequence[Event] | None:
    """The start or the save that a line speaks of; None where it speaks of neither."""
    if ("heckpoint" not in line and "esum" not in line) or len(line) > _LONGEST:
        return None
    if (found := _UPDATES.search(line) or _SAVED.search(line)) is not None and "aved" in line:
        step = whole(found[1])
        return None if step is None else (Saved(step=step, tag=f"global_step{step}", time_unix_s=time_of(line)),)
    if (found := _UPDATES.search(line) or _LOADED.search(line)) is not None:
        step = whole(found[1])
        return None if step is None else (Announced(facts={"resumed_from": step or None}, time_unix_s=time_of(line)),)
    return None
