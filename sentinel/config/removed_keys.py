"""Keys of older releases' configurations that say nothing any more: each is a warning, never an error."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple


class Removed(NamedTuple):
    """What a person who still has the key is told."""

    release: str  # the first that does not read it
    instead: str  # what to do, as a sentence


_RACE = "Rungs are tried one by one; a rung with `bisect = true` asks for the cause first."
_PRICE = "A spike is waited for as long as [judge] patience_steps says."
REMOVED: Mapping[str, Mapping[str, Removed]] = {  # table -> key
    "policy": {
        "race": Removed("0.1.0", _RACE),
        "race_steps": Removed("0.1.0", _RACE),
        "wait": Removed("0.1.0", _PRICE),
        "restart_s": Removed("0.1.0", _PRICE),
    },
}


def without_removed(document: Mapping[str, Any]) -> tuple[dict[str, Any], tuple[str, ...]]:
    """The document without these keys, and a sentence for each that stood there."""
    kept, said = dict(document), list[str]()
    for name, removed in REMOVED.items():
        if isinstance(table := document.get(name), dict):
            kept[name] = {key: value for key, value in table.items() if key not in removed}
            said += _said(name, removed, table)
    return kept, tuple(said)


def _said(name: str, removed: Mapping[str, Removed], table: Mapping[str, Any]) -> Iterator[str]:
    for key in (key for key in table if key in removed):
        release, instead = removed[key]
        yield f"[{name}] {key} was removed in {release} and is ignored: delete the line. {instead}"
