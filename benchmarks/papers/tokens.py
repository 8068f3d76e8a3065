"""A token file of a text corpus, made with nothing but the standard library: its words, and bytes for what is rare."""

from __future__ import annotations

import re
import sysconfig
from array import array
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

__all__ = ["make_token_file"]

VOCABULARY = 50304
"""As GPT-2's, rounded up to a multiple of 64: the reference trainer's default for a token file."""

LARGEST_BYTES = 60_000_000

_BYTES = 256
_WORD = re.compile(rb" ?[A-Za-z]+| ?[0-9]|[\r\n]+|[ \t]+|[^A-Za-z0-9\s]")


def make_token_file(path: Path) -> Path:
    """uint16 tokens of Python's standard library, at most 60 MB; what is there is taken as it is.

    Tokens 0 to 255 are bytes; the others the most frequent words, each with the space before it.
    """
    if path.is_file():
        return path
    counted = Counter(word for text in _texts() for word in _WORD.findall(text) if len(word) > 1)
    known = {word: _BYTES + place for place, (word, _) in enumerate(counted.most_common(VOCABULARY - _BYTES))}
    tokens = array("H")
    for text in _texts():
        for word in _WORD.findall(text):
            number = known.get(word)
            if number is None:
                tokens.extend(word)
            else:
                tokens.append(number)
        if len(tokens) * tokens.itemsize >= LARGEST_BYTES:
            break
    beside = path.with_suffix(".new")
    beside.write_bytes(tokens[: LARGEST_BYTES // tokens.itemsize].tobytes())
    return beside.replace(path)


def _texts() -> Iterator[bytes]:
    """The library's own modules, tests included; not what is installed beside them."""
    library = Path(sysconfig.get_paths()["stdlib"])
    for file in sorted(library.rglob("*.py")):
        if "site-packages" not in file.parts and "dist-packages" not in file.parts:
            yield file.read_bytes()
