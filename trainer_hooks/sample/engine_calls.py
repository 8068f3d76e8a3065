"""The hook's place in an engine: in DeepSpeed's around its backward and step, or around a pipeline's train_batch."""

from __future__ import annotations

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
    update = engine._take_model_step  # there since DeepSpeed 0.3; a pipeline calls it as well

    def hooked_update(*args: Any, **kwargs: Any) -> Any:
        hook.update_coming()
        return update(*args, **kwargs)

    engine._take_model_step = hooked_update
    if hasattr(engine, "register_forward_hook"):
        watch_outputs(engine, hook)
    if hasattr(engine, "train_batch"):
        _wrap_pipeline(engine, hook)
    else:
        _wrap_backward_and_step(engine, hook)


def _wrap_backward_and_step(engine: Any, hook: Hook) -> None:
    backward, step = engine.backward, engine.step

    def hooked_backward(loss: Any, *args: Any, **kwargs: Any) -> Any:
        of_many = args[1] if len(args) > 1 else kwargs.get("scale_wrt_gas", True)  # (loss, retain_graph, scale_wrt_gas)
        hook.loss_seen(loss, of_many=bool(of_many))
        return backward(loss, *args, **kwargs)

    def hooked_step(*args: Any, **kwargs: Any) -> Any:
        before = engine.global_steps
        result = step(*args, **kwargs)
        if engine.global_steps != before:
            hook.step_made()
        return result

    engine.backward, engine.step = hooked_backward, hooked_step


def _wrap_pipeline(engine: Any, hook: Hook) -> None:
    train_batch = engine.train_batch

    def hooked_train_batch(*args: Any, **kwargs: Any) -> Any:
        before = engine.global_steps
        result = train_batch(*args, **kwargs)
        if engine.global_steps != before:
            loss = getattr(engine, "dp_group_loss", None)  # this data-parallel rank's own; the result is their mean
            hook.loss_seen(loss if isinstance(loss, Tensor) else result, of_many=False)
            hook.step_made()
        return result

    engine.train_batch = hooked_train_batch
