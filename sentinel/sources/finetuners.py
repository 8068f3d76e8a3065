"""litgpt, mlx and DLLogger: one line a step, each in its own words."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, ClassVar

from sentinel.sources.checkpoint_lines import checkpoint_events
from sentinel.sources.events import Evaluated, Event, Reading
from sentinel.sources.numerals import number, whole
from sentinel.sources.prefixes import rank_of, time_of
from sentinel.vocabulary.errors import LineError

__all__ = ["DlLogger", "LitGpt", "Mlx"]

_LITGPT = re.compile(r"\biter\s+(\d[\d,]*)\s+step\s+(\d[\d,]*)\s*[|:]\s*(?:loss train|train loss|loss):?\s*([^\s,|]+)")
_LITGPT_VALID = re.compile(r"\biter\s+(\d+):\s*val loss:?\s*([^\s,|]+)")
_ITER_TIME = re.compile(r"\biter time:\s*([\d.,]+)\s*ms")


class LitGpt:
    """`Epoch 1 | iter 2 step 1 | loss train: 1.660, val: n/a | iter time: 548.72 ms (step)`.

    Several iterations make a step; the loss at its end is litgpt's mean over them, and the one that is taken.
    """

    name: ClassVar[str] = "litgpt"
    one_writer: ClassVar[bool] = False

    def __init__(self) -> None:
        self.note = ""
        self._last_step = 0
        self._last_iteration = 0

    def decode(self, line: str) -> Sequence[Event] | None:
        """What the line tells."""
        if "iter " not in line or "loss" not in line:
            return checkpoint_events(line)
        if (valid := _LITGPT_VALID.search(line)) is not None:
            value = number(valid[2])
            return None if value is None else (Evaluated(loss=value, time_unix_s=time_of(line[: valid.start()])),)
        found = _LITGPT.search(line)
        if found is None:
            return None
        iteration, step, loss = whole(found[1]), whole(found[2]), number(found[3])
        if iteration is None or step is None or loss is None:
            raise LineError("an iteration without its step or its loss")
        ends_a_step = "(step)" in line or step != self._last_step or iteration <= self._last_iteration
        self._last_step, self._last_iteration = step, iteration
        if not ends_a_step or step == 0:
            return ()
        head = line[: found.start()]
        epoch = re.search(r"Epoch (\d+)", head)
        fields: dict[str, Any] = {"time_unix_s": time_of(head), "epoch": number(epoch[1]) if epoch else None}
        return (Reading(step, loss, rank_of(head), fields),)

    def end(self) -> Sequence[Event]:
        """Nothing is buffered."""
        return ()


_MLX = re.compile(r"\bIter (\d[\d,]*): (Train|Val) loss ([^\s,]+)")
_MLX_LR = re.compile(r"\bLearning Rate ([^\s,]+)")
_MLX_TOKENS = re.compile(r"\bTrained Tokens ([^\s,]+)")


class Mlx:
    """`Iter 25: Train loss 1.593, Learning Rate 7.000e-05, …, Trained Tokens 9699, …`."""

    name: ClassVar[str] = "mlx"
    one_writer: ClassVar[bool] = False

    def __init__(self) -> None:
        self.note = ""

    def decode(self, line: str) -> Sequence[Event] | None:
        """What the line tells."""
        found = _MLX.search(line) if "Iter " in line else None
        if found is None:
            if "Saved adapter" in line or "heckpoint" in line:
                return checkpoint_events(line)
            return None
        step, loss = whole(found[1]), number(found[3])
        if step is None or loss is None:
            raise LineError("an iteration without its loss")
        head = line[: found.start()]
        at = time_of(head)
        if found[2] == "Val":
            return (Evaluated(loss=loss, step=step, time_unix_s=at),)
        lr, tokens = _MLX_LR.search(line), _MLX_TOKENS.search(line)
        fields: dict[str, Any] = {
            "time_unix_s": at,
            "lr": number(lr[1]) if lr else None,
            "consumed_tokens": whole(tokens[1]) if tokens else None,
        }
        return (Reading(step, loss, rank_of(head), fields),)

    def end(self) -> Sequence[Event]:
        """Nothing is buffered."""
        return ()


_DLL_STEP = re.compile(r"\bIteration\s*:\s*(\d[\d,]*)|[-:]\s*\((?:\d+,\s*)*(\d+),?\s*\)")
_DLL_FIELD = re.compile(r"(\w{1,64})\s*:\s*([-+]?(?:\d[\d.,eE+-]*|nan|inf|NaN|Infinity))")
_DLL_JSON_STEP = re.compile(r'"step"\s*:\s*\[?(?:\s*\d+\s*,)*\s*(\d+)')
_DLL_JSON_FIELD = re.compile(r'"(\w{1,64})"\s*:\s*"?([-+]?(?:\d[\d.eE+-]*|NaN|Infinity|nan|inf))')
_DLL_LOSSES = ("step_loss", "loss", "train_loss", "lm_loss", "train_lm_loss", "training_loss", "average_loss")


class DlLogger:
    """NVIDIA's DLLogger: `DLL 2020-05-29 11:31:45.763470 - Training Epoch: 0 Training Iteration: 1787  step_loss : …`.

    Its JSON lines (`DLLL {"type": "LOG", "step": [0, 1787], "data": {…}}`) are read as well.
    """

    name: ClassVar[str] = "dllogger"
    one_writer: ClassVar[bool] = False

    def __init__(self) -> None:
        self.note = ""

    def decode(self, line: str) -> Sequence[Event] | None:
        """What the line tells."""
        begin = line.find("DLL")
        if begin < 0 or "loss" not in line:
            return None
        as_json = '"step"' in line
        found = (_DLL_JSON_STEP if as_json else _DLL_STEP).search(line, begin)
        told: dict[str, str] = dict((_DLL_JSON_FIELD if as_json else _DLL_FIELD).findall(line, begin))
        if found is None:  # the sum of an epoch, or the parameters
            return ()
        step = whole(next((g for g in found.groups() if g), ""))
        at = time_of(line[begin:])
        valid = next((number(told[n]) for n in ("val_loss", "valid_loss", "eval_loss") if n in told), None)
        name = next((n for n in _DLL_LOSSES if n in told), None)
        loss = None if name is None else number(told[name])
        if step is None or (loss is None and valid is None):
            raise LineError("an iteration without its loss")
        if loss is None:
            return () if valid is None else (Evaluated(loss=valid, step=step, time_unix_s=at),)
        lr = told.get("learning_rate", told.get("lr", ""))
        fields: dict[str, Any] = {"time_unix_s": at, "lr": number(lr), "grad_norm": number(told.get("grad_norm", ""))}
        return (Reading(step, loss, rank_of(line[:begin]), fields),)

    def end(self) -> Sequence[Event]:
        """Nothing is buffered."""
        return ()
