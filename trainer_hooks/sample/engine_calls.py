"""The hook's place in an engine: in DeepSpeed's around its backward and step, or around a pipeline's train_batch."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from torch import Tensor

from trainer_hooks.sample.logits import watch_outputs

if TYPE_CHECKING:
    from trainer_hooks.hook import Hook


def wrap_engine(engine: Any, hook: Hook) -> None:
    """Calls the hook from the engine's own methods, whose arguments and results stay unchanged."""
    if hasattr(engine, "watched_by"):  # no DeepSpeed engine, but what stands for one
        engine.watched_by(hook)
        return
    # there since DeepSpeed 0.3; a pipeline calls it as well
    before(engine, "_take_model_step", lambda *_, **__: hook.update_coming())
    if hasattr(engine, "register_forward_hook"):
        watch_outputs(engine, hook)
    if hasattr(engine, "train_batch"):
        _wrap_pipeline(engine, hook)
    else:
        _wrap_backward_and_step(engine, hook)


def before(owner: Any, name: str, what: Callable[..., None]) -> None:
    """From now on each call of the owner's method calls `what` first, with its arguments."""
    method = getattr(owner, name)

    def hooked(*args: Any, **kwargs: Any) -> Any:
        what(*args, **kwargs)
        return method(*args, **kwargs)

    setattr(owner, name, hooked)


def _wrap_backward_and_step(engine: Any, hook: Hook) -> None:
    step = engine.step

    def loss_seen(loss: Any, *args: Any, **kwargs: Any) -> None:
        of_many = args[1] if len(args) > 1 else kwargs.get("scale_wrt_gas", True)  # (loss, retain_graph, scale_wrt_gas)
        hook.loss_seen(loss, of_many=bool(of_many))

    def hooked_step(*args: Any, **kwargs: Any) -> Any:
        made = engine.global_steps
        result = step(*args, **kwargs)
        if engine.global_steps != made:
            hook.step_made()
        return result

    before(engine, "backward", loss_seen)
    engine.step = hooked_step


def _wrap_pipeline(engine: Any, hook: Hook) -> None:
    train_batch = engine.train_batch

    def hooked_train_batch(*args: Any, **kwargs: Any) -> Any:
        made = engine.global_steps
        result = train_batch(*args, **kwargs)
        if engine.global_steps != made:
            loss = getattr(engine, "dp_group_loss", None)  # this data-parallel rank's own; the result is their mean
            hook.loss_seen(loss if isinstance(loss, Tensor) else result, of_many=False)
            hook.step_made()
        return result

    engine.train_batch = hooked_train_batch
