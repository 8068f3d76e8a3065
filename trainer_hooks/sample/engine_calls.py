"""The hook's place in an engine: in DeepSpeed's around its backward and step, or around a pipeline's train_batch."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

from torch import Tensor

from trainer_hooks.sample.logits import TakesLogits, watch_outputs


class StepHook(TakesLogits, Protocol):
    """What an engine calls in each step; see `Hook`'s methods."""

    def loss_seen(self, loss: Any, *, of_many: bool) -> None: ...

    def gradients_whole(self) -> None: ...

    def update_coming(self) -> None: ...

    def step_made(self) -> None: ...

    def load_coming(self) -> None: ...

    def saves_to(self, folder: str) -> None: ...

    def save_coming(self) -> None: ...


def wrap_engine(engine: Any, hook: StepHook) -> None:
    """Calls the hook from the engine's own methods, whose arguments and results stay unchanged."""
    if hasattr(engine, "watched_by"):  # no DeepSpeed engine, but what stands for one
        engine.watched_by(hook)
        return
    # there since DeepSpeed 0.3; a pipeline calls it as well
    before(engine, "_take_model_step", lambda *_, **__: _update_coming(hook))
    if hasattr(engine, "load_checkpoint"):
        before(engine, "load_checkpoint", lambda *_, **__: hook.load_coming())
    if hasattr(engine, "save_checkpoint"):
        before(engine, "save_checkpoint", partial(_save_coming, hook))
    if hasattr(engine, "register_forward_hook"):
        watch_outputs(engine, hook)
    if hasattr(engine, "train_batch"):

        def take_loss(result: Any) -> None:
            loss = getattr(engine, "dp_group_loss", None)  # this data-parallel rank's own; the result is their mean
            hook.loss_seen(loss if isinstance(loss, Tensor) else result, of_many=False)

        _watch_steps(engine, "train_batch", hook, take_loss)
    else:
        before(engine, "backward", partial(_take_loss, hook))
        _watch_steps(engine, "step", hook)


def _update_coming(hook: StepHook) -> None:
    hook.gradients_whole()
    hook.update_coming()


def before(owner: Any, name: str, what: Callable[..., None]) -> None:
    """From now on each call of the owner's method calls `what` first, with its arguments."""
    method = getattr(owner, name)

    def hooked(*args: Any, **kwargs: Any) -> Any:
        what(*args, **kwargs)
        return method(*args, **kwargs)

    setattr(owner, name, hooked)


def _save_coming(hook: StepHook, save_dir: Any, *_: Any, **__: Any) -> None:
    hook.saves_to(save_dir)
    hook.save_coming()


def _take_loss(hook: StepHook, loss: Any, *args: Any, **kwargs: Any) -> None:
    of_many = args[1] if len(args) > 1 else kwargs.get("scale_wrt_gas", True)  # (loss, retain_graph, scale_wrt_gas)
    hook.loss_seen(loss, of_many=bool(of_many))


def _watch_steps(engine: Any, name: str, hook: StepHook, made: Callable[[Any], None] = lambda _: None) -> None:
    """From now on the hook hears of each step that the engine's method has counted; `made` gets its result first."""
    method = getattr(engine, name)

    def hooked(*args: Any, **kwargs: Any) -> Any:
        before = engine.global_steps
        result = method(*args, **kwargs)
        if engine.global_steps != before:
            made(result)
            hook.step_made()
        return result

    setattr(engine, name, hooked)
