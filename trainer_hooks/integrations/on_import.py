"""Watches the Trainers of a program that has no line of ours: when the program imports Hugging Face's Trainer or
Lightning's, its `train` or `fit` is wrapped, so that each training begins with a StabilityCallback. See
`python -m trainer_hooks.run --help`.

This module imports nothing but the standard library: every Python that the command starts loads it.
"""

from __future__ import annotations

import functools
import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

__all__ = ["VARIABLE", "look_for_trainers"]

VARIABLE = "SENTINEL_ATTACH"
"""Environment variable with what `trainer_hooks.run` was given, as JSON: `resume` (true: also where sentinel has not
restarted the program), and the callback's own arguments."""

_STARTED_BY_SENTINEL = "SENTINEL_ROLLBACK"
_said: set[str] = set()  # actions whose error was said


def look_for_trainers() -> None:
    """From now on an import of a module with a Trainer wraps it. Does nothing where VARIABLE is not set."""
    if VARIABLE in os.environ:
        options = json.loads(os.environ[VARIABLE])
        wraps = {name: functools.partial(wrap, options) for name, wrap in _WRAPS.items()}
        sys.meta_path.insert(0, _Finder(wraps))


class _Finder:
    """Finds the modules that are to be wrapped where the finders after it do, and wraps them once they are loaded."""

    def __init__(self, wraps: Mapping[str, Callable[[Any], None]]) -> None:
        self._wraps = wraps

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        """Python's protocol of sys.meta_path."""
        if name not in self._wraps:
            return None
        found = (finder.find_spec(name, path, target) for finder in sys.meta_path if finder is not self)
        spec = next((spec for spec in found if spec is not None), None)
        if spec is not None:
            with _or_say(f"wrap {name}"):
                _after_loading(spec.loader, self._wraps[name])
        return spec


def _after_loading(loader: Any, wrap: Callable[[Any], None]) -> None:
    load = loader.exec_module

    def exec_module(module: Any) -> None:
        load(module)
        with _or_say(f"wrap {module.__name__}"):
            wrap(module)

    loader.exec_module = exec_module


def _wrap_huggingface(options: Mapping[str, Any], module: Any) -> None:
    """`train` adds the callback first, and goes on from the newest checkpoint where it must."""
    train = module.Trainer.train

    @functools.wraps(train)
    def watched(trainer: Any, resume_from_checkpoint: Any = None, *args: Any, **kwargs: Any) -> Any:
        with _or_say("watch this training"):
            _add_callback(trainer, options)
            if not resume_from_checkpoint and _goes_on(trainer.args.output_dir, options):
                resume_from_checkpoint = True
        return train(trainer, resume_from_checkpoint, *args, **kwargs)

    module.Trainer.train = watched


def _add_callback(trainer: Any, options: Mapping[str, Any]) -> None:
    from trainer_hooks.integrations.huggingface import StabilityCallback

    if not any(isinstance(one, StabilityCallback) for one in trainer.callback_handler.callbacks):
        trainer.add_callback(StabilityCallback(trainer, **_of_callback(options)))


def _wrap_lightning(options: Mapping[str, Any], module: Any) -> None:
    """As of Hugging Face: `fit` adds the callback, and goes on from the newest checkpoint."""
    fit = module.Trainer.fit

    @functools.wraps(fit)
    def watched(trainer: Any, *args: Any, **kwargs: Any) -> Any:
        with _or_say("watch this training"):
            from trainer_hooks.integrations.lightning import StabilityCallback

            if not any(isinstance(one, StabilityCallback) for one in trainer.callbacks):
                trainer.callbacks.insert(0, StabilityCallback(**_of_callback(options)))
            if len(args) <= _CKPT_PATH and kwargs.get("ckpt_path") is None and _starts_from_newest(options):
                kwargs["ckpt_path"] = "last"  # Lightning's own word; without a last.ckpt it begins anew, and says so
        return fit(trainer, *args, **kwargs)

    module.Trainer.fit = watched


_CKPT_PATH = 4
"""Place of ckpt_path among the arguments of `fit`: model, three of data, ckpt_path."""

_WRAPS = {
    "transformers.trainer": _wrap_huggingface,
    "lightning.pytorch.trainer.trainer": _wrap_lightning,
    "pytorch_lightning.trainer.trainer": _wrap_lightning,
}


def _of_callback(options: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in options.items() if name != "resume"}


def _goes_on(output_dir: str, options: Mapping[str, Any]) -> bool:
    return _starts_from_newest(options) and any(path.is_dir() for path in Path(output_dir).glob("checkpoint-[0-9]*"))


def _starts_from_newest(options: Mapping[str, Any]) -> bool:
    """Whether a training that was not told to resume does: sentinel has restarted it, or the user said so."""
    return bool(options.get("resume")) or _STARTED_BY_SENTINEL in os.environ


@contextmanager
def _or_say(action: str) -> Iterator[None]:
    """What goes wrong is said on stderr, once for each action; the program goes on."""
    try:
        yield
    except Exception as error:  # noqa: BLE001 - a hook may lose a sample; it may never lose a step
        if action not in _said:
            _said.add(action)
            text = f"sentinel could not {action} ({type(error).__name__}: {error}); training goes on"
            print(text, file=sys.stderr, flush=True)  # noqa: T201 - the program's logging may not be configured yet
