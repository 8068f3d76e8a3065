"""The hook's place in an engine: in DeepSpeed's around its backward and step, or around a pipeline's train_batch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from torch import Tensor

from trainer_hooks.sample.logits import TakesLogits, watch_outputs
from trainer_hooks.sample.own import has_own, own


class StepHook(TakesLogits, Protocol):
    """What an engine calls in each step; see `Hook`'s methods."""

    def loss_seen(self, loss: Any, *, of_many: bool) -> None: ...

    def gradients_whole(self) -> None: ...

    def update_coming(self) -> None: ...

    def step_made(self) -> None: ...

    def load_coming(self) -> None: ...

    def engine_saves_to(self, folder: str) -> None: ...

    def save_coming(self) -> None: ...


class _Slot:
    """The hook that an engine calls; none once it is closed. Engines are wrapped once, whatever hooks come after."""

    hook: StepHook | None = None

    def tells(self, what: Callable[..., None]) -> Callable[..., None]:
        """Calls `what` with the hook, where there is one, and the arguments."""

        def tell(*args: Any, **kwargs: Any) -> None:
            if self.hook is not None:
                what(self.hook, *args, **kwargs)

        return tell


_SLOT = "_sentinel_slot"  # the engine's attribute


def wrap_engine(engine: Any, hook: StepHook) -> Callable[[], None]:
    """Calls the hook from the engine's own methods, whose arguments and results stay unchanged; until what it returns
    is called, or another hook takes the place."""
    if has_own(engine, "watched_by"):  # no DeepSpeed engine, but what stands for one
        engine.watched_by(hook)
        return own(engine, "unwatched", lambda: None)  # type: ignore[no-any-return]
    slot = getattr(engine, _SLOT, None)
    if not isinstance(slot, _Slot):
        slot = _Slot()
        _wrap(engine, slot)
        setattr(engine, _SLOT, slot)
    slot.hook, outputs = hook, None
    if has_own(engine, "register_forward_hook"):
        outputs = watch_outputs(engine, hook)

    def unwrap() -> None:
        if slot.hook is hook:
            slot.hook = None
        if outputs is not None:
            outputs.remove()

    return unwrap


def _wrap(engine: Any, slot: _Slot) -> None:
    # there since DeepSpeed 0.3; a pipeline calls it as well
    before(engine, "_take_model_step", slot.tells(_update_coming))
    if has_own(engine, "load_checkpoint"):
        before(engine, "load_checkpoint", slot.tells(lambda hook, *_, **__: hook.load_coming()))
    if has_own(engine, "save_checkpoint"):
        before(engine, "save_checkpoint", slot.tells(_save_coming))
    made = slot.tells(lambda hook: hook.step_made())
    if has_own(engine, "train_batch"):

        def take_loss(hook: StepHook, result: Any) -> None:
            loss = own(engine, "dp_group_loss")  # this data-parallel rank's own; the result is their mean
            hook.loss_seen(loss if isinstance(loss, Tensor) else result, of_many=False)

        _watch_steps(engine, "train_batch", made, slot.tells(take_loss))
    else:
        before(engine, "backward", slot.tells(_take_loss))
        _watch_steps(engine, "step", made)


def await_saves(engine: Any) -> None:
    """Waits until what DeepSpeed saves beside the training is whole: a collective, on every rank. A save is awaited
    there at the next update as well."""
    saver = own(engine, "checkpoint_engine")
    if saver is not None and getattr(saver, "is_decoupled", lambda: False)():
        engine._commit_decoupled_checkpoint()


def _update_coming(hook: StepHook, *_: Any, **__: Any) -> None:
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
    hook.engine_saves_to(save_dir)
    hook.save_coming()


def _take_loss(hook: StepHook, loss: Any, *args: Any, **kwargs: Any) -> None:
    of_many = args[1] if len(args) > 1 else kwargs.get("scale_wrt_gas", True)  # (loss, retain_graph, scale_wrt_gas)
    hook.loss_seen(loss, of_many=bool(of_many))


def _watch_steps(
    engine: Any, name: str, made: Callable[[], None], result_of: Callable[[Any], None] = lambda _: None
) -> None:
    """From now on `made` is called after each step that the engine's method has counted; `result_of` first, with its
    result."""
    method = getattr(engine, name)

    def hooked(*args: Any, **kwargs: Any) -> Any:
        before = engine.global_steps
        result = method(*args, **kwargs)
        if engine.global_steps != before:
            result_of(result)
            made()
        return result

    setattr(engine, name, hooked)
