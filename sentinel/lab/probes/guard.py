"""Whether what a probe is started with still names a path of the run, in any spelling; a probe is refused then.

A word or a variable is read as a shell, a URL or a JSON reader would read it: percent escapes, JSON's escapes, quotes
and backslashes, `~`, `$NAME`, and what a `NAME=value` in one of the words sets. Each part of it (between quotes, blanks
and `: , ; =` and the like) is looked at as a path from the working directory, from each folder that a word names and a
path of the run lies in (`cd /run && train --save ckpt`), and through symbolic links. What only runs the trainer, or is
read by its code, is not seen: there the probe's own mount of the run's folders has to hold (adapters.read_only).
"""

from __future__ import annotations

import contextlib
import fnmatch
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from urllib.parse import unquote

SEARCHED = frozenset(
    [
        *("PATH", "PYTHONPATH", "LD_LIBRARY_PATH", "LIBRARY_PATH", "CPATH", "MANPATH", "VIRTUAL_ENV", "CONDA_PREFIX"),
        *("SHELL", "HOME", "PWD", "OLDPWD", "_"),
    ]
)
"""Variables in which programs and libraries are only looked for, and those that the launcher sets by itself."""

_BETWEEN = (r"[\"'`\n]+", r"[\"'`\s]+", r"[\"'`\s,;|&<>(){}\[\]]+", r"[\"'`\s,;|&<>(){}\[\]=:@#?+]+")
_VARIABLE = re.compile(r"\$(?:(?P<plain>\w+)|\{(?P<braced>\w+)(?::?[-=](?P<default>[^{}]*))?\})")
_HOME = re.compile(r"(?:(?<=[\s=:,;\"'`({\[])|^)~(?=[\w/]|$)")
_SET = re.compile(r"(?:^|[\s;&|(\"'`])(?P<name>[A-Za-z_]\w*)=(?P<value>\"[^\"]*\"|'[^']*'|[^\s;&|\"'`]*)")
_JSON = re.compile(r"\\u([0-9a-fA-F]{4})|\\(/)")
_HOST = re.compile(r"\bfile://[^/\s]*", re.IGNORECASE)
_QUOTES = re.compile(r"[\"'\\]")
_NAME = re.compile(r"[\w.\-+]")
_MOST = 48  # spellings of one word that are looked at


@dataclass(frozen=True)
class Guard:
    """`theirs`: the run's paths. `own`: the probe's folder. `inputs`: what of the run's the probe is meant to read."""

    theirs: tuple[Path, ...]
    own: Path
    working_directory: Path
    inputs: tuple[Path, ...] = ()

    def named_in(self, words: Iterable[str], variables: Mapping[str, str]) -> tuple[str, Path] | None:
        """(the first word or `NAME=value` that names a path of the run, that path); None where none does.
        `variables`: the whole environment that the probe gets."""
        words = list(words)
        given = {**variables, "PWD": str(self.working_directory), "SLURM_SUBMIT_DIR": str(self.working_directory)}
        for word in words:
            given |= {found["name"]: _QUOTES.sub("", found["value"]) for found in _SET.finditer(word)}
        values = [f"{name}={value}" for name, value in variables.items() if name not in SEARCHED]
        parts = {word: list(dict.fromkeys(_parts(word, given))) for word in (*words, *values)}
        bases = [str(self.working_directory), *self._above(part for word in words for part in parts[word])]
        for word, found in parts.items():
            if (theirs := self._first(found, bases) or self._written_out(word, given)) is not None:
                return word, theirs
        return None

    def _first(self, parts: Iterable[str], bases: Sequence[str]) -> Path | None:
        for part in parts:
            for base in bases[:1] if part.startswith("/") else bases:
                if (theirs := self._at(part, base)) is not None:
                    return theirs
        return None

    def _at(self, part: str, base: str) -> Path | None:
        """The run's path that the part names from there."""
        place = f"{base}/{part}" if not part.startswith("/") else part
        if "/" not in part and part not in (".", "..") and self._holds(base) is not None and not Path(place).is_dir():
            return None  # a bare word, in a working directory that is the run's: `python`, `train`
        with contextlib.suppress(OSError, ValueError):
            for spelled in (os.path.normpath(place), os.path.realpath(place)):
                if (theirs := self._holds(spelled)) is not None:
                    return theirs
        if re.search(r"[*?\[]", part):
            pattern = os.path.normpath(place)
            return next((Path(one) for one in self._spelled if _fits(one, pattern)), None)
        return None

    def _holds(self, place: str) -> Path | None:
        # a part between two quotes may be several words: what follows the blank is looked at by itself
        if any(_within(place, mine) or place.startswith(f"{mine} ") for mine in self._mine):
            return None
        return next((Path(one) for one in self._spelled if _within(place, one)), None)

    def _written_out(self, word: str, variables: Mapping[str, str]) -> Path | None:
        """A path that stands in the word as it is: its name may hold what else parts a word."""
        for text in _spellings(word, variables):
            once = re.sub(r"/+", "/", text)
            for one in self._spelled:
                for found in re.finditer(rf"(?<![\w.~/\-]){re.escape(one)}(?![\w.\-])", once):
                    if not any(_within_text(once[found.start() :], mine) for mine in self._mine):
                        return Path(one)
        return None

    def _above(self, parts: Iterable[str]) -> Iterator[str]:
        """The folders among the parts that a path of the run lies in."""
        seen = set[str]()
        for part in parts:
            with contextlib.suppress(OSError, ValueError):
                place = os.path.normpath(self.working_directory / part)
                for spelled in (place, os.path.realpath(place)):
                    if spelled == "/" or spelled in seen or self._holds(spelled) is not None:
                        continue
                    if any(_within(one, spelled) for one in self._spelled):
                        seen.add(spelled)
                        yield spelled

    @cached_property
    def _spelled(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(text for path in self.theirs for text in _both(path, self.working_directory)))

    @cached_property
    def _mine(self) -> tuple[str, ...]:
        own = (self.own, *self.inputs)
        return tuple(dict.fromkeys(text for path in own for text in _both(path, self.working_directory)))


def _both(path: Path, base: Path) -> tuple[str, str]:
    place = os.path.normpath(base / path)
    return place, os.path.realpath(place)


def _within(place: str, folder: str) -> bool:
    return place == folder or place.startswith(folder.rstrip("/") + "/")


def _within_text(text: str, folder: str) -> bool:
    return text.startswith(folder) and not _NAME.match(text[len(folder) :])


def _fits(place: str, pattern: str) -> bool:
    """Whether the pattern names the place, part by part, or something in it."""
    parts, given = place.split("/"), pattern.split("/")
    return len(parts) <= len(given) and all(
        fnmatch.fnmatchcase(part, one) for part, one in zip(parts, given, strict=False)
    )


def _parts(word: str, variables: Mapping[str, str]) -> Iterator[str]:
    for text in _spellings(word, variables):
        for between in _BETWEEN:
            for part in map(str.strip, re.split(between, text)):
                if part and not part.isdigit():
                    yield part
                    if part.startswith("-") and (attached := re.search(r"[/~.]", part)) is not None:  # `-o/run/ckpt`
                        yield part[attached.start() :]


def _spellings(word: str, variables: Mapping[str, str]) -> tuple[str, ...]:
    return _spelled_out(word, tuple(sorted(_used(word, variables).items())))


def _used(word: str, variables: Mapping[str, str]) -> dict[str, str]:
    """Those that the word may name, by themselves or through another one."""
    if "$" not in word and "~" not in word and "%" not in word and "\\" not in word:
        return {}
    return dict(variables)


@lru_cache(maxsize=4096)
def _spelled_out(word: str, given: tuple[tuple[str, str], ...]) -> tuple[str, ...]:
    variables = dict(given)
    found, at = [word], 0
    while at < len(found) < _MOST:
        text = found[at]
        at += 1
        for other in (
            _HOST.sub("", text),
            unquote(text),
            _JSON.sub(lambda m: m[2] or chr(int(m[1], 16)), text),
            _QUOTES.sub("", text),
            _HOME.sub(lambda _: variables.get("HOME", "~"), text),
            _VARIABLE.sub(lambda m: variables.get(m["plain"] or m["braced"], m["default"] or m[0]), text),
        ):
            if other not in found and len(other) < 1 << 16:
                found.append(other)
    return tuple(found)
