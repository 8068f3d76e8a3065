"""The largest logits of a forward pass. A model gives them where it has them: `Hook.report_logits`."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any, Protocol

import torch
from torch import Tensor

from trainer_hooks.errors import Guard
from trainer_hooks.sample.owners import local

__all__ = ["Logits", "TakesLogits", "every_few_positions", "largest_magnitude", "watch_outputs"]

Logits = Tensor | float | Callable[[], Tensor | float]
"""Before any mask: a masked logit of -inf would be the largest. A function is called only where the step is read."""


class TakesLogits(Protocol):
    """What takes the logits of a forward pass: the hook."""

    @property
    def guard(self) -> Guard: ...

    def report_logits(self, *, output: Logits | None = None) -> None: ...


_AT_ONCE = 1 << 22  # elements: 8 MB of scratch in bfloat16; 8,192 positions of 128,000 words take 64 launches

_POSITIONS_APART = 4  # of the output's logits (B, T, V) every fourth position is read: the largest are alike there


def largest_magnitude(logits: Logits) -> Tensor:
    """() float64, on the logits' device; inf where one is nan: a maximum over the ranks may lose a nan."""
    with torch.no_grad():
        given = local(torch.as_tensor(logits() if callable(logits) else logits).detach())
        extremes = [torch.stack(torch.aminmax(part)) for part in _parts(given)]
        return torch.stack(extremes).abs().max().double().nan_to_num(nan=math.inf, posinf=math.inf)


def _parts(logits: Tensor) -> Iterator[Tensor]:
    """Views of all of it, none of more elements than `_AT_ONCE` if a single row is not: aminmax copies what does not
    lie in one piece."""
    if logits.numel() <= _AT_ONCE or not logits.ndim:
        yield logits
        return
    rows = max(1, _AT_ONCE * len(logits) // logits.numel())
    for part in torch.split(logits, rows):
        if rows == 1 and part.numel() > _AT_ONCE and logits.ndim > 1:
            yield from _parts(part[0])
        else:
            yield part


def every_few_positions(logits: Tensor) -> Tensor:
    """Of (B, T, V) a quarter of the positions; whatever has fewer dimensions is left whole."""
    return logits[:, ::_POSITIONS_APART] if logits.ndim > 2 else logits


def watch_outputs(module: Any, hook: TakesLogits) -> Any:
    """Reports `output.logits`, which Hugging Face's models have, while the model trains. Returns torch's handle."""

    def seen(called: Any, _args: Any, output: Any) -> None:
        if torch.compiler.is_compiling():
            return
        with hook.guard("take the logits"):
            logits = getattr(output, "logits", None)
            if isinstance(logits, Tensor) and getattr(called, "module", called).training:
                hook.report_logits(output=lambda: every_few_positions(logits))

    return module.register_forward_hook(seen)
