"""Names that some ranks know: all of them, on every rank."""

from __future__ import annotations

import json
import threading
from collections.abc import Sequence

from torch import Tensor

from trainer_hooks.ranks.frame import (
    BYTES,
    KIND,
    SIZE,
    TEXT,
    combined,
    contents,
    filled,
    frame_of,
    refused,
    text_into,
    text_of,
)
from trainer_hooks.ranks.groups import Level, Levels


class Union:
    """The names of all ranks, each once, in the order of the ranks; the same list on every rank. None is a rank that
    does not take part: then nobody gets any."""

    def __init__(self, names: Sequence[str] | None, channel: int) -> None:
        self._names = None if names is None else list(names)
        self.channel = channel
        self._ended = threading.Event()
        self.names: list[str] | None = None

    def wait(self, timeout_s: float) -> list[str] | None:
        self._ended.wait(timeout_s)
        return self.names

    def run(self, levels: Levels) -> None:
        """On the ranks' thread: up the levels, and down again."""
        known = self._names
        for level in levels:
            texts = self._gathered(level, json.dumps(known).encode())
            if texts is None:
                break
            lists = [json.loads(text) for text in texts]
            known = None if None in lists else list(dict.fromkeys(name for some in lists for name in some))
        for level in reversed(list(levels)):
            known = json.loads(self._broadcast(level, json.dumps(known).encode()))
        self.names = known
        self._ended.set()

    def give_up(self) -> None:
        self._ended.set()

    def _gathered(self, level: Level, text: bytes) -> list[bytes] | None:
        """Every rank's text, on the first rank. All send as many frames as the longest text takes."""
        rows = level.gather(filled(frame_of(SIZE, self.channel, 0, 0), [], [len(text)]))
        longest = combined(rows) if rows is not None else frame_of(SIZE, self.channel, 0, 0)
        level.broadcast(longest)
        size = self._size(longest)
        pieces = []
        for part in range(0, size, BYTES):
            rows = level.gather(text_into(self._text_frame(part), text[part : part + BYTES]))
            if rows is not None:
                pieces.append([text_of(row) for row in rows])
        if level.index:
            return None
        return [b"".join(piece[i] for piece in pieces).rstrip(b"\0") for i in range(level.size)]

    def _broadcast(self, level: Level, text: bytes) -> bytes:
        """The first rank's text."""
        frame = filled(frame_of(SIZE, self.channel, 0, 0), [], [len(text)])
        level.broadcast(frame)
        size, pieces = self._size(frame), []
        for part in range(0, size, BYTES):
            frame = text_into(self._text_frame(part), text[part : part + BYTES] if not level.index else b"")
            level.broadcast(frame)
            pieces.append(text_of(frame))
        return b"".join(pieces)[:size]

    def _text_frame(self, part: int) -> Tensor:
        return frame_of(TEXT, self.channel, 0, part)

    def _size(self, frame: Tensor) -> int:
        if refused(frame) or int(frame[KIND]) != SIZE:
            raise RuntimeError("the ranks do not do the same thing in the same order")
        return int(contents(frame, 0, 1)[1][0])
