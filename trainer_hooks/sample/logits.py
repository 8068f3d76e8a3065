"""The largest logits of a forward pass. A model gives them where it has them: `Hook.report_logits`."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from trainer_hooks.sample.adam_state import local

if TYPE_CHECKING:
    from trainer_hooks.hook import Hook

__all__ = ["Logits", "every_few_positions", "largest_magnitude", "watch_outputs"]

Logits = Tensor | float | Callable[[], Tensor | float]
"""Before any mask: a masked logit of -inf would be the largest. A function is called only where the step is read."""

_POSITIONS_APART = 4  # of the output's logits (B, T, V) every fourth position is read: the largest are alike there


def largest_magnitude(logits: Logits) -> Tensor:
    """() float64, on the logits' device; inf where one is nan: a maximum over the ranks may lose a nan."""
    with torch.no_grad():
        given = local(torch.as_tensor(logits() if callable(logits) else logits).detach())
        least, most = torch.aminmax(given)
        return torch.maximum(most, -least).double().nan_to_num(nan=math.inf, posinf=math.inf)


def every_few_positions(logits: Tensor) -> Tensor:
    """Of (B, T, V) a quarter of the positions; whatever has fewer dimensions is left whole."""
    return logits[:, ::_POSITIONS_APART] if logits.ndim > 2 else logits


def watch_outputs(module: Any, hook: Hook) -> Any:
    """Reports `output.logits`, which Hugging Face's models have, while the model trains. Returns torch's handle."""

    def seen(called: Any, _args: Any, output: Any) -> None:
        with hook.guard("take the logits"):
            logits = getattr(output, "logits", None)
            if isinstance(logits, Tensor) and getattr(called, "module", called).training:
                hook.report_logits(output=lambda: every_few_positions(logits))

    return module.register_forward_hook(seen)
