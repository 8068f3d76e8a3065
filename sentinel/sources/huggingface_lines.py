"""Hugging Face's Trainer: one Python dict a line, without the step.

`{'loss': 1.36, 'grad_norm': 0.24, 'learning_rate': 5e-05, 'epoch': 0.01}`. The lines are counted: one line is one step
here, whatever `logging_steps` was. Where the epoch goes back, the run was resumed: counting goes on after the last line
of an earlier epoch. A loss that is exactly 0.0 beside a grad norm of nan is nan: the Trainer shows it so.
"""

from __future__ import annotations

import math
import re
from array import array
from bisect import bisect_left
from collections.abc import Sequence
from typing import Any

from sentinel.sources.line_events import Evaluated, Event, ProgramEnded, ProgramStarted, Reading
from sentinel.sources.line_text import number, rank_of, time_of, whole
from sentinel.vocabulary.errors import LineError

__all__ = ["HuggingFace"]

_PAIR = re.compile(
    r"""['"]([\w/ .-]{1,80})['"]\s*:\s*"""
    r"""(?:(?:np\.|numpy\.|torch\.)?(?:float(?:16|32|64)|tensor)\()?['"]?([^\s'",}{)]+)"""
)
"""Newer versions write the numbers as texts; numpy's and torch's show what they are."""

_LONGEST_OPEN = 4_000
"""Characters of a dict over several lines that are waited for."""


class HuggingFace:
    """The Trainer's dict lines (its trainer_state.json is read as a file of its own)."""

    def __init__(self) -> None:
        self.note = "the lines name no step: they are counted, so a step here is one logged line"
        self._epochs = array("d")
        self._count = 0
        self._last = ""
        self._open = ""
        """The beginning of a dict that goes on on the next line."""

    def decode(self, line: str) -> Sequence[Event] | None:
        """The events of one dict, or of several between the pieces of a progress bar."""
        if self._open:
            line = self._gone_on(line)
        pieces = [piece + "}" for piece in line.split("}")] if line.count("{") > 1 and "'loss'" in line else [line]
        if len(pieces) > 1:
            pieces[-1] = pieces[-1][:-1]
        events: list[Event] | None = None
        for piece in pieces:
            values = self._of_one(piece)
            if values is not None:
                events = [*(events or []), *values]
        return events

    def _gone_on(self, line: str) -> str:
        """The dict that was open, with this line; the line alone where it does not go on with it."""
        whole_of_it, self._open = f"{self._open} {line.strip()}", ""
        if line.lstrip().startswith(("'", '"', "}")) and len(whole_of_it) <= _LONGEST_OPEN:
            return whole_of_it
        return line

    def _of_one(self, line: str) -> Sequence[Event] | None:
        begin = line.find("{")
        if begin >= 0 and '"learning_rate"' in line and '"step"' not in line:
            line = line.replace('"', "'")
        if begin >= 0 and line.rstrip().endswith(",") and "'" in line[begin : begin + 2] and "}" not in line:
            self._open = line
            return ()
        if begin < 0 or "loss'" not in line or ("'epoch'" not in line and "'learning_rate'" not in line):
            if begin >= 0 and "'loss'" in line and line.lstrip().startswith("{"):
                raise LineError("cut before its epoch or learning rate")
            return None
        if "}" not in line[begin:]:
            raise LineError("cut before its end")
        values = dict(_PAIR.findall(line, begin))
        head = line[:begin]
        at = time_of(head)
        if "train_runtime" in values:
            return (ProgramEnded(time_unix_s=at),)
        if "loss" not in values:
            evaluated = next((number(text) for name, text in values.items() if name.endswith("eval_loss")), None)
            return None if evaluated is None else (Evaluated(loss=evaluated, time_unix_s=at),)
        loss, norm = number(values["loss"]), number(values.get("grad_norm") or values.get("gradient_norm") or "")
        if loss is None:
            raise LineError("a loss that is not a number")
        if loss == 0.0 and norm is not None and not math.isfinite(norm):
            loss = math.nan
        epoch = number(values.get("epoch", ""))
        fields: dict[str, Any] = {
            "time_unix_s": at,
            "grad_norm": norm,
            "lr": number(values.get("learning_rate", "")),
            "epoch": epoch,
            "consumed_tokens": _tokens(values),
        }
        if line[begin:] == self._last:
            return ()  # another rank's
        self._last = line[begin:]
        before = self._count
        reading = Reading(self._step(values, epoch), loss, rank_of(head), fields)
        if self._count > before or not self._epochs:
            return (reading,)
        resumed = {"resumed_from": reading.step - 1 or None}
        return (ProgramStarted(facts=resumed, certain=True, time_unix_s=at), reading)

    def end(self) -> Sequence[Event]:
        return ()

    def _step(self, values: dict[str, str], epoch: float | None) -> int:
        for name in ("step", "global_step", "global_step/max_steps", "iteration"):
            if (step := whole(values.get(name, "").partition("/")[0])) is not None:
                self.note = ""
                return step
        if epoch is not None and math.isfinite(epoch):
            if self._epochs and epoch < self._epochs[-1]:
                self._count = bisect_left(self._epochs, epoch)
                del self._epochs[self._count :]
            self._epochs.append(epoch)
        elif self._epochs:
            self._epochs.append(self._epochs[-1])
        self._count += 1
        return self._count


def _tokens(values: dict[str, str]) -> int | None:
    """As the Trainer counts them (`include_num_input_tokens_seen`), or TRL."""
    text = values.get("num_input_tokens_seen") or values.get("num_tokens")
    return None if text is None else whole(text)
