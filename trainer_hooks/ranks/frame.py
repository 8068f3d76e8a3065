"""What the ranks send: rows of one fixed length, whatever they carry. gloo ends the process where the two sides of a
collective disagree about its length; here they cannot."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

FRAME = 128  # numbers (float64) of a frame: 1 KiB
SUMS, TOPS = 80, 40  # numbers of a frame that are added, and numbers of which the largest is taken
_HEAD = FRAME - SUMS - TOPS
_ADDED, _LARGEST = slice(_HEAD, _HEAD + SUMS), slice(_HEAD + SUMS, FRAME)
BYTES = 8 * (FRAME - _HEAD)  # bytes of a frame that carries text

# What a frame is of. Two that meet have the same four numbers, or what they carry is refused.
KIND, CHANNEL, NUMBER, PART = range(4)
_REFUSED = 4  # how many of the rows so far were of something else

STEP, EXCHANGE, SIZE, TEXT, STATE = range(1, 6)  # the kinds


def frame_of(kind: int, channel: int, number: int, part: int) -> Tensor:
    """(FRAME,) float64: the head, and zeros."""
    frame = torch.zeros(FRAME, dtype=torch.float64)
    frame[:4] = torch.tensor([kind, channel, number, part], dtype=torch.float64)
    return frame


def filled(frame: Tensor, sums: Sequence[float], tops: Sequence[float]) -> Tensor:
    """The same frame with at most SUMS numbers to add and at most TOPS numbers to take the largest of."""
    frame[_ADDED][: len(sums)] = torch.tensor(sums, dtype=torch.float64)
    frame[_LARGEST][: len(tops)] = torch.tensor(tops, dtype=torch.float64)
    return frame


def combined(rows: Tensor) -> Tensor:
    """(FRAME,) of the (ranks, FRAME) rows of one group. nan stays nan, in the largest as well."""
    frame = rows[0].clone()
    others = int((rows[:, :_REFUSED] != rows[0, :_REFUSED]).any(dim=1).sum())
    frame[_REFUSED] = rows[:, _REFUSED].sum() + others
    frame[_ADDED] = rows[:, _ADDED].sum(dim=0)
    frame[_LARGEST] = rows[:, _LARGEST].amax(dim=0)
    return frame


def refused(frame: Tensor) -> int:
    """How many groups' or ranks' rows were of another kind, channel, step or part."""
    return int(frame[_REFUSED])


def contents(frame: Tensor, sums: int, tops: int) -> tuple[list[float], list[float]]:
    """The first `sums` numbers that were added, and the first `tops` largest ones."""
    return frame[_ADDED][:sums].tolist(), frame[_LARGEST][:tops].tolist()


def text_into(frame: Tensor, piece: bytes) -> Tensor:
    """The same frame, carrying at most BYTES bytes."""
    if piece:
        frame.view(torch.uint8)[8 * _HEAD :][: len(piece)] = torch.frombuffer(bytearray(piece), dtype=torch.uint8)
    return frame


def text_of(frame: Tensor) -> bytes:
    """All BYTES bytes of a frame, padding included."""
    return bytes(frame.view(torch.uint8)[8 * _HEAD :].tolist())
