"""What a checkpoint layout answers about itself: names, files, completeness, trackers, and how a restart chooses."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from sentinel.adapters.checkpoints.declared import Declared, distributed
from sentinel.adapters.checkpoints.walk import Contents
from sentinel.durable import link_atomically, write_atomically
from sentinel.vocabulary.names import shown

STEP = "(?P<step>[0-9]{1,15})"
PLAIN = r"[A-Za-z0-9_.=+-]{0,100}?"  # what a person may write into a name, and a shell leaves alone
PIECES = re.compile(r"(?:[^/]*/){0,2}[^/]*\.distcp|(?:[^/]*/){0,2}\.metadata", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Tracker:
    """An entry beside the checkpoints that names the one to resume from."""

    name: str
    by_step: bool = False  # a file that holds the number of a step, not a tag
    is_link: bool = False  # a link to the checkpoint, not a file

    def stands_for(self, text: str, named: Named) -> bool:
        """Whether its text means this checkpoint."""
        return named.global_step == int(text) if self.by_step and is_number(text) else named.tag == text

    def write(self, path: Path, text: str) -> None:
        """In the place of a link, not through it."""
        if self.is_link:
            link_atomically(path, text)
        else:
            write_atomically(path, text, alone=True)


class Layout(ABC):
    """How one kind of trainer names its checkpoints, what it puts into them, and how it finds the one to resume.

    A checkpoint is a folder, or files of one name beside others. A grid of ranks has no holes: where the shard of rank
    3 is, those of 0, 1 and 2 have to be. Names can't tell that the last ranks' shards are all missing; the siblings can
    (`shards_of_ranks`), and what the checkpoint itself declares (`declared`).
    """

    title: str
    """Its row in docs/CHECKPOINTS.md."""
    tag: re.Pattern[str]
    """Of an entry of the save folder; the group `step` is the step, none is step 0. Where a checkpoint may be several
    entries, the group `tag` is its name without what tells them apart."""
    shard: re.Pattern[str]
    """Of the files that each save writes, as relative paths: compared with the siblings'."""
    below: tuple[str, ...] = ()
    """What every whole one has below its top: looked for where only the top is listed."""
    trackers: tuple[Tracker, ...] = ()
    """The first is the one that loading goes by: written where there is none."""
    links: re.Pattern[str] | None = None
    """Names of links, or copies, that a trainer resumes by; a group is what the linked file's name ends with."""
    resumes_newest = True
    """Whether the newest is resumed from where nothing names one: what is newer than the target is moved away."""
    is_conversion = False
    """Whether it is made from a run's checkpoints, not saved by the run."""

    @property
    def in_files(self) -> bool:
        """Whether its checkpoints may be several entries of the save folder."""
        return "tag" in self.tag.groupindex

    def recognise(self, name: str) -> Named | None:
        """The checkpoint of this layout that an entry of this name is, or is a file of."""
        if (match := self.tag.fullmatch(name)) is None:
            return None
        return Named(match["tag"] if self.in_files else name, self.step_of(int(match["step"] or 0)), self)

    def step_of(self, number: int) -> int:
        """The completed optimizer updates of a checkpoint whose name holds this number."""
        return number

    @abstractmethod
    def missing(self, names: frozenset[str], deep: bool) -> str | None:
        """What a whole checkpoint would have and this one lacks, as a sentence.

        names: paths of files and folders below the checkpoint; deep: whether those below its top are among them.
        """

    def refused(self, entries: Sequence[str]) -> str | None:
        """Why a checkpoint that has these entries in the save folder is no target, as a sentence."""
        return None

    def unused(self, texts: Mapping[str, str]) -> str | None:
        """Why its checkpoints are no targets of this run, by what the trackers say, as a sentence."""
        return None

    def shards_of_ranks(self, names: Iterable[str]) -> int:
        """How many ranks' shards are there; fewer than a sibling has are too few, unless `declared_ranks` knows."""
        return 0

    def declared_ranks(self, folder: Path, names: frozenset[str]) -> Declared:
        """What a checkpoint says of its number of ranks, read from one small part of it. OSError, UnsoundError."""
        return Declared()

    def declared(self, folder: Path, contents: Contents) -> Declared:
        """Compares the files that are there with what the checkpoint declares about itself. OSError, UnsoundError,
        PickleError."""
        return distributed(folder, contents, self.beside_pieces)

    def beside_pieces(self, folder: Path, contents: Contents, below: str, keys: frozenset[str]) -> str | None:
        """Which file is missing beside the pieces in `below`, by the saved keys `args` and `common_state…`."""
        return None

    def named_by(self, texts: Mapping[str, str], listed: Sequence[Named]) -> str | None:
        """The tag that its trackers name, "" for a torn one; None where there is none. texts: of all trackers."""
        return texts.get(self.trackers[0].name) if self.trackers else None

    def texts_for(self, folder: Path, tag: str, global_step: int) -> dict[str, str]:
        """What each of its trackers says where that checkpoint is resumed from, by the tracker's name."""
        return {}

    def newest(self, folder: Path, own: Sequence[Named]) -> Named | None:
        """Of its checkpoints, by step, the one that a restart takes where nothing names one."""
        taken = (named for named in reversed(own) if self.resumes_newest and self.takes(folder / named.tag))
        return next(taken, None)

    def takes(self, path: Path) -> bool:
        """Whether the trainer takes it for a checkpoint."""
        return self.in_files or path.exists()

    def step_in(self, copy: Path) -> object:
        """The step of a copy that has one of the `links`' names; None where it can't be read."""
        return None


@dataclass(frozen=True, slots=True)
class Named:
    """A checkpoint, as far as its name tells."""

    tag: str
    global_step: int
    layout: Layout

    @property
    def order(self) -> tuple[int, bool, str]:
        """By step; of one step the plain checkpoint after its conversion, which is not what a run saves."""
        return (self.global_step, not self.layout.is_conversion, self.tag)


def is_number(text: str) -> bool:
    return text.isascii() and text.isdigit()


def missing_of_torch(names: frozenset[str]) -> str | None:
    """torch.distributed.checkpoint: .metadata is written last, and names the files that there have to be."""
    if ".metadata" not in names:
        return ".metadata, which a save writes last, is missing"
    return None if any(name.endswith(".distcp") for name in names) else "__0_0.distcp is missing"


def inside(folder: str, names: Iterable[str]) -> frozenset[str]:
    """Paths below the folder, relative to it."""
    return frozenset(name.removeprefix(f"{folder}/") for name in names if name.startswith(f"{folder}/"))


def matches(pattern: re.Pattern[str], names: Iterable[str]) -> Iterator[re.Match[str]]:
    return (match for name in names if (match := pattern.fullmatch(name)) is not None)


def end_of(numbers: Iterable[int]) -> int:
    return max(numbers, default=-1) + 1


def first_missing(expected: Iterable[str], names: frozenset[str]) -> str | None:
    return next((f"{shown(name)} is missing" for name in expected if name not in names), None)
