"""What the entries of a save folder are, by their names: checkpoints, their files, links. Reads nothing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from sentinel.adapters.checkpoints.layouts import LAYOUTS, Layout, Named, recognise
from sentinel.listings import Kind


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Entries:
    """The entries of one folder."""

    kinds: Mapping[str, Kind] = field(default_factory=dict)  # by name
    checkpoints: tuple[Named, ...] = ()  # by step
    files: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # tag -> names of a checkpoint's own entries
    links: Mapping[str, Layout] = field(default_factory=dict)  # names that a trainer resumes by; see `trackers`


def entries_of(kinds: Mapping[str, Kind]) -> Entries:
    """What these entries are."""
    names: dict[str, list[str]] = {}
    for name in kinds:
        if (named := recognise(name)) is not None:
            names.setdefault(named.tag, []).append(name)
    return Entries(
        kinds=kinds,
        checkpoints=named_in(kinds),
        files={tag: tuple(sorted(of_tag)) for tag, of_tag in names.items()},
        links={name: layout for name in sorted(kinds) if (layout := linking_layout(name)) is not None},
    )


def named_in(names: Iterable[str]) -> tuple[Named, ...]:
    """The checkpoints that entries of these names are, or are files of; by step."""
    found = {named.tag: named for name in names if (named := recognise(name)) is not None}
    return tuple(sorted(found.values(), key=lambda named: named.order))


def linking_layout(name: str) -> Layout | None:
    """Whose name for the checkpoint to resume from it is."""
    return next((each for each in LAYOUTS.values() if each.links is not None and each.links.fullmatch(name)), None)
