"""A sequence length warmup that has begun."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from trainer_hooks.seqlen_warmup import SeqlenWarmup

B, T = 3, 32


class At:
    """A schedule of whatever the test wants."""

    def __init__(self, length: int | Callable[[int], int]) -> None:
        self.seqlen = length if callable(length) else lambda _: length


def begun(length: int, shorten: str = "truncate", full: int = T, **more: Any) -> SeqlenWarmup:
    warmup = SeqlenWarmup(At(length), shorten, full=full, global_batch_samples=B, **more)
    assert warmup.begin(1) == length
    return warmup
