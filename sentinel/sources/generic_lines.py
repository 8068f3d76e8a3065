"""nanoGPT's `iter 10: loss 3.1680, time 444.91ms`, and whoever else writes a step and a loss on one line."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

from sentinel.sources.line_events import FROM_ZERO, Decoder, Evaluated, Event, Reading, checkpoint_events
from sentinel.sources.line_text import number, rank_of, time_of
from sentinel.sources.loss_words import (
    EVALUATES,
    Counted,
    counted_in,
    fields_in,
    training_loss_in,
    validation_loss_in,
)
from sentinel.vocabulary.errors import LineError

__all__ = ["Generic", "NanoGpt"]

_ITER = re.compile(r"\biter (\d+)\s*:\s*(?:train )?loss", re.IGNORECASE)
_JSON = ('{"', "[{")
_LONGEST = 4_000
"""Characters of a line that is looked at: these patterns are tried at every place of it."""

_SAYS_A_LOSS = ("oss", "OSS", "xent")
_IN_EPOCHS = "steps are counted anew in each epoch of the log, and over all epochs here"
_ROUNDED = "steps are rounded to three digits, as the log has them"


class _Epochs:
    """Makes of steps that begin anew in each epoch those of the whole run."""

    def __init__(self) -> None:
        self._before: dict[int, int] = {}
        """Updates before each epoch."""
        self._epoch: int | None = None
        self._step = 0
        """The newest of the epoch."""
        self.anew = False

    def over_all(self, counted: Counted, step: int) -> int:
        """The update."""
        epoch = counted.epoch
        if epoch is None:
            return step
        if self._epoch is None or epoch < self._epoch:  # the log's first, or a restart
            self._before.setdefault(epoch, 0)
        elif epoch > self._epoch:
            before = self._before[self._epoch]
            if step <= self._step:
                self.anew = True
                passed = self._step if counted.total is None else counted.total * (epoch - self._epoch)
                self._before[epoch] = before + passed
            else:
                self._before[epoch] = before
        self._epoch, self._step = epoch, step
        return self._before[epoch] + step


class Generic(Decoder):
    """Any line with a step and a loss. Recognised only where no format of its own is."""

    def __init__(self) -> None:
        self.note = ""
        self._from_zero = False
        self._epochs = _Epochs()
        self._bar: Reading | None = None
        """What a progress bar showed last. It is drawn anew for a step first with the loss of the one before."""

    def decode(self, line: str) -> Sequence[Event] | None:
        if len(line) > _LONGEST or not any(word in line for word in _SAYS_A_LOSS):
            return checkpoint_events(line)
        counted = counted_in(line)
        if counted is None:
            return None
        if counted.step is None:
            raise LineError("a step that is not a number")
        head, rest = line[: counted.begin], line[counted.end :]
        evaluated = EVALUATES.search(head)
        if evaluated is not None:
            return (
                ()
                if evaluated[2]
                else self._evaluated(counted, head, training_loss_in(rest) or validation_loss_in(rest))
            )
        text = training_loss_in(rest)
        if text is None and not line.lstrip().startswith(_JSON) and (text := training_loss_in(head)) is not None:
            rest = head + rest  # the step stands last
        if text is None:
            return self._evaluated(counted, head, validation_loss_in(rest))
        if "train loss" in rest and "time" not in rest and (valid := validation_loss_in(rest)) is not None:
            return self._evaluated(counted, head, valid)  # nanoGPT's estimates are both over many batches
        reading = self._reading(counted, head, rest, text)
        if not counted.redrawn:
            return (reading,)
        before, self._bar = self._bar, reading
        return () if before is None or before.step == reading.step else (before,)

    def end(self) -> Sequence[Event]:
        """A progress bar's last step."""
        bar, self._bar = self._bar, None
        return () if bar is None else (bar,)

    def _reading(self, counted: Counted, head: str, rest: str, text: str) -> Reading:
        loss, step = number(text.replace(",", "")), counted.step or 0
        if loss is None:
            raise LineError("a loss that is not a number")
        self._from_zero |= step == 0
        update = self._epochs.over_all(counted, step + self._from_zero)
        if self._from_zero or self._epochs.anew or counted.rounded:
            self.note = FROM_ZERO if not self._epochs.anew else _IN_EPOCHS
            self.note = _ROUNDED if counted.rounded else self.note
        fields = {"time_unix_s": time_of(head), **fields_in(rest)}
        return Reading(update, loss, rank_of(head), fields, None if self._epochs.anew else counted.total)

    def _evaluated(self, counted: Counted, head: str, text: str | None) -> Sequence[Event] | None:
        """A validation loss: nanoGPT's `step 0: train loss 4.28, val loss 4.28`; other trainers' evaluations."""
        loss = None if text is None else number(text.replace(",", ""))
        if loss is None or math.isinf(loss):
            return None
        step = None if counted.of_batches else counted.step
        return (Evaluated(loss=loss, step=step, time_unix_s=time_of(head)),)


class NanoGpt(Generic):
    """nanoGPT and its descendants. Its iteration 0 is the first update: one is added where a log begins with 0."""

    def decode(self, line: str) -> Sequence[Event] | None:
        if "oss" not in line:
            return checkpoint_events(line)
        if _ITER.search(line) is not None:
            return super().decode(line)
        valid = validation_loss_in(line)
        counted = None if valid is None else counted_in(line)
        return None if counted is None else self._evaluated(counted, line[: counted.begin], valid)
