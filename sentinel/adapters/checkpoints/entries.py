"""What the entries of a save folder are, by their names: checkpoints, their files, links; and everything in one of
them. Opens nothing."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from sentinel.adapters.checkpoints.layouts import LAYOUTS, Layout, Named, recognise
from sentinel.adapters.checkpoints.walk import Contents, walk
from sentinel.listings import Kind
from sentinel.vocabulary.errors import QuarantineError, SentinelError


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
    return next((each for each in LAYOUTS if each.links is not None and each.links.fullmatch(name)), None)


def checkpoints_in(folder: Path) -> list[Named]:
    """Every checkpoint of the folder, by step; none where it is not there. Reads nothing but the entries' names."""
    try:
        return list(named_in(entry.name for entry in folder.iterdir()))
    except (FileNotFoundError, NotADirectoryError):
        return []


def checkpoint_named(tag: str, error_class: type[SentinelError] = QuarantineError) -> Named:
    """The checkpoint whose whole name the tag is; else the error."""
    named = recognise(tag)
    if named is None or named.tag != tag:
        raise error_class(f"{tag!r} is not the name of a checkpoint")
    return named


def names_of(folder: Path, named: Named) -> list[str]:
    """The entries of the folder that the checkpoint consists of, those that are there; by name."""
    if not named.layout.in_files:
        return [named.tag] if os.path.lexists(folder / named.tag) else []
    names = (entry.name for entry in folder.iterdir())
    return sorted(name for name in names if (other := recognise(name)) is not None and other.tag == named.tag)


def walk_checkpoint(folder: Path, named: Named) -> Contents:
    """Everything that the checkpoint consists of; what its layout refuses is not looked at."""
    names = names_of(folder, named)
    if (why := named.layout.refused(names)) is not None:
        return Contents(tag=named.tag, root=folder / named.tag, refusal=why)
    is_folder = not named.layout.in_files or (folder / named.tag).is_dir()
    contents = walk(folder / named.tag) if is_folder else walk(folder, names)
    return replace(contents, tag=named.tag)
