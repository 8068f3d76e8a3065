"""The metrics journals: written by the trainer, only ever read here."""

from __future__ import annotations

import logging
import re
from pathlib import Path

import msgspec

from sentinel.vocabulary.errors import LineError
from sentinel.vocabulary.sample import Record, Sample, decode

__all__ = ["Journals", "decode_line"]

log = logging.getLogger(__name__)

_NAME = re.compile(r"\d{4,}\.jsonl")
_CHUNK_BYTES = 1 << 20

_PLAIN_SAMPLE = re.compile(rb'\{"kind": "sample", "[^{}\[\]\\\x00-\x1f\x7f-\xff]{1,4000}\}')
"""A sample's line as `encode` writes it: nothing nested or escaped, and no number that Python thinks too long."""

_decode_sample = msgspec.json.Decoder(Sample).decode


class Journals:
    """Follows all attempts/NNNN.jsonl of a run's state folder."""

    def __init__(self, state_dir: Path) -> None:
        self._folder = state_dir / "attempts"
        self._offsets: dict[str, int] = {}
        self.unreadable = 0
        """Lines that could not be read, so far; they are passed over."""

    def poll(self) -> list[Record]:
        """What was appended since the last poll: by attempt, then in order. An unfinished last line waits for its end.

        A folder that is not there yet is nothing yet; OSError when what is there can't be read.
        """
        if not self._folder.is_dir():
            return []
        names = sorted((p.name for p in self._folder.iterdir() if _NAME.fullmatch(p.name)), key=lambda n: int(n[:-6]))
        return [record for name in names for record in self._appended(name)]

    def _appended(self, name: str) -> list[Record]:
        records = []
        with (self._folder / name).open("rb") as file:
            file.seek(self._offsets.get(name, 0))
            rest = b""
            while chunk := file.read(_CHUNK_BYTES):
                *lines, rest = (rest + chunk).split(b"\n")
                for line in lines:
                    self._offsets[name] = self._offsets.get(name, 0) + len(line) + 1
                    if (record := self._decoded(name, line)) is not None:
                        records.append(record)
        return records

    def _decoded(self, name: str, line: bytes) -> Record | None:
        if not line.strip():
            return None
        try:
            return decode_line(line)
        except LineError as error:
            self.unreadable += 1
            log.warning("%s: a line that can't be read: %s", name, error)
            return None


def decode_line(line: bytes) -> Record | None:
    """What `decode` says of the line; many times faster for a sample in which all is a number."""
    if line.count(b'"kind"') == 1 and _PLAIN_SAMPLE.fullmatch(line):
        try:
            return _decode_sample(line)
        except msgspec.MsgspecError:
            pass  # "nan", or not right: decode knows
    return decode(line.decode("utf-8", "replace"))
