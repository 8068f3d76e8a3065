"""Where the hook sits in a DeepSpeed engine: around its backward and step, or around a pipeline's train_batch."""

from __future__ import annotations

from typing import Any, Protocol

from torch import Tensor

__all__ = ["Listener", "take_place"]


class Listener(Protocol):
    """What is told of the training loop. None of it may raise."""

    def loss_seen(self, loss: Any, *, of_many: bool) -> None:
        """A micro-batch's loss is about to be differentiated; `of_many`: DeepSpeed will take the micro-batches' mean.

        Otherwise the caller has divided it already, or it is a pipeline's, of the whole step: the sum is the step's.
        """

    def update_coming(self) -> None:
        """All gradients are there and reduced over the ranks, not yet clipped."""

    def step_made(self) -> None:
        """The engine has counted a step, whether its update was applied or skipped."""


def take_place(engine: Any, listener: Listener) -> None:
    """Puts the listener around the engine's own methods; what they take and return stays as it is."""
    _around_update(engine, listener)
    if hasattr(engine, "train_batch"):
        _around_pipeline(engine, listener)
    else:
        _around_backward_and_step(engine, listener)


def _around_update(engine: Any, listener: Listener) -> None:
    update = engine._take_model_step  # there since DeepSpeed 0.3; a pipeline calls it as well

    def hooked_update(*args: Any, **kwargs: Any) -> Any:
        listener.update_coming()
        return update(*args, **kwargs)

    engine._take_model_step = hooked_update


def _around_backward_and_step(engine: Any, listener: Listener) -> None:
    backward, step = engine.backward, engine.step

    def hooked_backward(loss: Any, *args: Any, **kwargs: Any) -> Any:
        of_many = args[1] if len(args) > 1 else kwargs.get("scale_wrt_gas", True)  # (loss, retain_graph, scale_wrt_gas)
        listener.loss_seen(loss, of_many=bool(of_many))
        return backward(loss, *args, **kwargs)

    def hooked_step(*args: Any, **kwargs: Any) -> Any:
        before = engine.global_steps
        result = step(*args, **kwargs)
        if engine.global_steps != before:
            listener.step_made()
        return result

    engine.backward = hooked_backward
    engine.step = hooked_step


def _around_pipeline(engine: Any, listener: Listener) -> None:
    train_batch = engine.train_batch

    def hooked_train_batch(*args: Any, **kwargs: Any) -> Any:
        before = engine.global_steps
        result = train_batch(*args, **kwargs)
        if engine.global_steps != before:
            loss = getattr(engine, "dp_group_loss", None)  # this data-parallel rank's own; the result is their mean
            listener.loss_seen(loss if isinstance(loss, Tensor) else result, of_many=False)
            listener.step_made()
        return result

    engine.train_batch = hooked_train_batch
