"""From bytes to lines: whatever the bytes are, and however they are cut up."""

from __future__ import annotations

__all__ = ["LineSplitter"]

_LONGEST = 1 << 20
"""Bytes of a line that are kept; the rest of it is dropped."""


_MARKS = (b"\xff\xfe", b"\xfe\xff", b"\xef\xbb\xbf")


def _unmarked(data: bytes) -> bytes:
    """Without the mark that editors and shells of Windows begin a file with; the zeros of UTF-16 are dropped later."""
    return next((data[len(mark) :] for mark in _MARKS if data.startswith(mark)), data)


class LineSplitter:
    """Gives whole lines with their numbers. A line ends with a newline or, as a progress bar's, a carriage return."""

    def __init__(self) -> None:
        self._rest = b""
        self._dropping = False
        self._number = 1
        self.cut = 0
        """Lines that were longer than a mebibyte, and cut."""

    def feed(self, data: bytes) -> list[tuple[int, str]]:
        """The lines that end in these bytes."""
        if self._number == 1:
            data = _unmarked(data)
        data = self._rest + data
        end = max(data.rfind(b"\n"), data.rfind(b"\r")) + 1
        self._rest = data[end:]
        lines = self._lines(data[:end]) if end else []
        if len(self._rest) > _LONGEST:
            if not self._dropping:
                lines.append((self._number, self._decoded(self._rest[:_LONGEST])))
                self.cut += 1
            self._rest, self._dropping = b"", True
        return lines

    def end(self) -> list[tuple[int, str]]:
        """What is left where nothing more comes: a last line without its newline."""
        rest, self._rest = self._rest, b""
        return self._lines(rest + b"\r") if rest else []

    def forget(self) -> None:
        """What is left belongs to nothing: the file was cut."""
        self._rest, self._dropping = b"", False

    def _lines(self, block: bytes) -> list[tuple[int, str]]:
        text = self._decoded(block)
        lines: list[tuple[int, str]] = []
        pieces = text.split("\n")
        for index, piece in enumerate(pieces):
            number = self._number + index
            for part in piece.split("\r") if "\r" in piece else (piece,):
                if self._dropping:  # the end of a line that was cut
                    self._dropping = False
                    continue
                if part:
                    if len(part) > _LONGEST:
                        part = part[:_LONGEST]  # noqa: PLW2901 - cut, and otherwise itself
                        self.cut += 1
                    lines.append((number, part))
        self._number += len(pieces) - 1
        return lines

    @staticmethod
    def _decoded(block: bytes) -> str:
        text = block.decode("utf-8", "replace")
        return text.replace("\0", "") if "\0" in text else text  # a hole that a truncated file was left with
