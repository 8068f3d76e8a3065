"""Hugging Face's Trainer, parked and resumed in place: in place of `trainer.train(…)`

    train_in_place(trainer, resume_from_checkpoint=…)

A resume is a further call of `trainer.train`, with what a new process would begin with: its optimizer and scheduler are
made anew, unless they were given to it, and its generators are seeded, before the checkpoint is loaded."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Iterator, Mapping
from copy import deepcopy
from pathlib import Path
from typing import Any, NoReturn

from sentinel.vocabulary.errors import CheckpointError, OverridesError
from sentinel.vocabulary.overrides import Overrides
from sentinel.vocabulary.parking import EXIT_PARKED_TOO_LONG, PARKED_TOO_LONG, ResumeRequest
from trainer_hooks.control.parking import Parking, ParkLostError
from trainer_hooks.control.watched_files import Accepts
from trainer_hooks.errors import Guard
from trainer_hooks.hook import Hook
from trainer_hooks.sample.engine_calls import await_saves


class ResumedInPlace(BaseException):
    """Ends `trainer.train` between two steps, past all that it does at an end: that may save, or delete."""

    def __init__(self, resume: ResumeRequest) -> None:
        super().__init__(f"resumed in place for {resume.rollback}")
        self.resume = resume


class ParkedTrainer:
    """The callback's part in it, on one rank."""

    def __init__(
        self, trainer: Any, close_files: Callable[[], None] | None, open_files: Callable[[], None] | None = None
    ) -> None:
        self._trainer, self._close_files, self._open_files = trainer, close_files, open_files
        self._closed = False  # Whether `close_files` was called since `open_files` was
        self._parking: Parking | None = None
        self._hook: Hook | None = None
        self.resume: ResumeRequest | None = None  # What the attempt under way has begun from

    @property
    def in_place(self) -> bool:
        return self.resume is not None

    def begin(self, folder: Path, guard: Guard, decided: Overrides | None, state: Any) -> Accepts:
        """An attempt begins, its checkpoint is loaded. Raises where that is not what RESUME says."""
        if (resume := self.resume) is not None:
            rollback = None if decided is None else decided.rollback
            if rollback != resume.rollback:
                raise OverridesError(f"RESUME is for {resume.rollback}, and overrides.json is of {rollback or 'none'}")
            if int(state.global_step) != resume.global_step:
                raise CheckpointError(f"RESUME is to step {resume.global_step}, and step {state.global_step} is loaded")
        self._hook, self._closed = None, False
        self._parking = Parking(folder, guard, self._attempt, self._cannot)
        return self._parking.file.accepts

    def follow(self, hook: Hook) -> None:
        """The attempt has its hook."""
        self._hook = hook

    def wait(self, engine: Any, control: Any, end: Callable[[str], None]) -> None:
        """At the boundary where all ranks park; returns where the training goes on, or ends by a signal or KILL."""
        hook, parking = self._hook, self._parking
        if hook is None or parking is None:
            return
        try:
            close = lambda: self._close(hook, engine)  # noqa: E731
            after = parking.park(close=close, report=hook.report_park, stop=lambda: 0)
        except ParkLostError as error:
            _leave(f"error: {error}", end)
        if after.ends == PARKED_TOO_LONG:
            _leave(PARKED_TOO_LONG, end)
        if after.resume is not None:
            end(str(after.ends))
            raise ResumedInPlace(after.resume)
        if after.ends is not None:
            control.should_training_stop, control.should_save = True, False  # checkpoints may be on the move
        if self._closed and self._open_files is not None:  # Trainer logs once more, also where it ends
            self._open_files()
        self._closed = False

    def _cannot(self, resume: ResumeRequest) -> str | None:
        if resume.target is None and getattr(self._trainer, "model_init", None) is None:
            return "it is to step 0, and this Trainer has no model_init: its model can't begin anew in its process"
        return None

    def _attempt(self) -> int:
        return 0 if self._hook is None else self._hook.attempt

    def _close(self, hook: Hook, engine: Any) -> None:
        await_saves(engine)
        hook.await_readings()
        for callback in self._trainer.callback_handler.callbacks:
            if (writer := getattr(callback, "tb_writer", None)) is not None:
                writer.close()  # the next scalar opens a new file
        self._closed = True
        if self._close_files is not None:
            self._close_files()


def train_in_place(
    trainer: Any,
    *,
    close_files: Callable[[], None] | None = None,
    open_files: Callable[[], None] | None = None,
    **train_options: Any,
) -> Any:
    """`trainer.train(**train_options)`, of a trainer that has a StabilityCallback and may meanwhile be parked, and
    resumed in place. On every rank. `close_files` closes what else this rank writes to, before the training is parked;
    `open_files` opens it again where this call of `train` goes on: it was released, or not parked after all, or ends by
    KILL. Where it is resumed another call of `train` begins, with `on_train_begin`; the first one's `on_train_end` is
    not called. TensorBoard's files are closed and opened by themselves. TypeError without that callback."""
    callbacks = trainer.callback_handler.callbacks
    callback = next((one for one in callbacks if hasattr(one, "park") and hasattr(one, "hook")), None)
    if callback is None:
        raise TypeError("train_in_place needs a StabilityCallback: trainer.add_callback(StabilityCallback(trainer, …))")
    given, exported = (trainer.optimizer, trainer.lr_scheduler), dict(_exported(trainer))
    callback.park = park = ParkedTrainer(trainer, close_files, open_files)
    try:
        while True:
            try:
                return trainer.train(**train_options)
            except ResumedInPlace as resumed:
                park.resume = resume = resumed.resume
            _as_before_a_start(trainer, given, exported)
            train_options["resume_from_checkpoint"] = _checkpoint(trainer, resume)
    finally:
        callback.park = None


def _exported(trainer: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    """What callbacks export of themselves, as the patience that EarlyStoppingCallback has lost."""
    from transformers.trainer_callback import ExportableState

    for callback in trainer.callback_handler.callbacks:
        if isinstance(callback, ExportableState):
            yield type(callback).__name__, deepcopy(callback.state().get("attributes", {}))


def _as_before_a_start(trainer: Any, given: tuple[Any, Any], exported: Mapping[str, dict[str, Any]]) -> None:
    from transformers import set_seed

    trainer.optimizer, trainer.lr_scheduler = given
    for callback in trainer.callback_handler.callbacks:
        for name, value in exported.get(type(callback).__name__, {}).items():
            setattr(callback, name, deepcopy(value))
    if (noise := getattr(trainer, "neftune_hook_handle", None)) is not None:
        noise.remove()  # each call of train adds one, and takes away its own at its end alone
    if getattr(trainer, "is_deepspeed_enabled", False):  # its engine is made anew, of the model itself
        trainer.model_wrapped = trainer.model
    set_seed(trainer.args.seed)  # as Trainer does where it is made
    gc.collect()


def _checkpoint(trainer: Any, resume: ResumeRequest) -> str | None:
    return None if resume.target is None else str(Path(trainer.args.output_dir) / resume.target)


def _leave(reason: str, end: Callable[[str], None]) -> NoReturn:
    end(reason)
    print(f"sentinel: {reason}; the process ends with exit code {EXIT_PARKED_TOO_LONG}", file=sys.stderr)  # noqa: T201
    raise SystemExit(EXIT_PARKED_TOO_LONG)
