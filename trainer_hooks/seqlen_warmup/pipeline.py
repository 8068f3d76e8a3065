"""DeepSpeed's PipelineEngine, led by a SeqlenWarmup: batches and activation shapes change length together."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Protocol

__all__ = ["follow"]


class Warmup(Protocol):
    """What the engine follows."""

    def __call__(self, batch: Any) -> Any: ...

    def validation(self) -> AbstractContextManager[None]: ...


def follow(engine: Any, warmup: Warmup) -> Callable[[], None]:
    """Has a PipelineEngine take its training batches through the warmup, and validate at full length.

    Returns what has the stages agree on their activations' shapes anew, to be called on all of them where the length
    changes. The first and the last stage load a batch each, so it can't tell the ones between: the length must be known
    before it. Any other engine, or none, is left as it is.
    """
    if not hasattr(engine, "reset_activation_shape"):
        return _nothing
    then = engine.batch_fn
    engine.set_batch_fn(warmup if then is None else lambda batch: warmup(then(batch)))
    evaluate = engine.eval_batch

    def eval_batch(*args: Any, **kwargs: Any) -> Any:
        with warmup.validation():
            return evaluate(*args, **kwargs)

    engine.eval_batch = eval_batch
    reset: Callable[[], None] = engine.reset_activation_shape
    return reset


def _nothing() -> None:
    """An engine without stages has no shapes to agree on."""
