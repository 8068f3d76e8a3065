"""A JSON object on a line: fairseq's and metaseq's behind `| INFO | train_inner |`, and those of anybody's JSONL."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from sentinel.sources.column_names import SPLITS, is_of_training, is_of_validation
from sentinel.sources.line_events import Evaluated, Event, Reading, checkpoint_events
from sentinel.sources.line_text import number, rank_of, time_of, whole
from sentinel.vocabulary.errors import LineError

__all__ = ["Fairseq", "JsonLines", "Metaseq"]

_PAIR = re.compile(r"\b(\w{1,40})=([^\s,|]{1,64})")
_BETWEEN_BARS = re.compile(r"\|\s*(\w{1,40}) ([^\s|]{1,64})(?=\s*(?:\||$))")
_LN2 = math.log(2.0)


def _object(text: str) -> dict[str, Any]:
    try:
        data = json.loads(text)
    except (ValueError, RecursionError):
        raise LineError("not JSON, or cut") from None
    if not isinstance(data, dict):
        raise LineError("not a JSON object")
    return data


def _number(value: Any) -> float | None:
    """A JSON number, or a string that is one; None for anything else."""
    if isinstance(value, bool) or value is None:
        return None
    if isinstance(value, str):
        return number(value)
    try:
        return float(value) if isinstance(value, int | float) else None
    except OverflowError:
        return None


def _whole(value: Any) -> int | None:
    read = _number(value)
    return None if read is None else whole(str(value) if isinstance(value, str | int) else repr(read))


def _first(data: Mapping[str, Any], names: Sequence[str], read: Any = _number) -> Any:
    return next((value for name in names if name in data and (value := read(data[name])) is not None), None)


class Fairseq:
    """fairseq's json log: values are strings, and losses are in bits (base 2), as its `ppl` = 2^loss shows."""

    def __init__(self) -> None:
        self.note = "losses are written in bits (base 2) and given in nats"

    def decode(self, line: str) -> Sequence[Event] | None:
        """The events of the line. fairseq does not count an update that overflowed, and writes no line for it."""
        begin = line.find("{")
        if begin < 0 and "num_updates" in line:
            return self._in_words(line)
        if begin < 0 or ("| train" not in line and "| valid" not in line) or "num_updates" not in line:
            if begin >= 0 and "| train_inner |" in line[:begin]:
                raise LineError("cut before its num_updates")
            return () if "gradient overflow detected" in line else checkpoint_events(line)
        return self._read(line[:begin], _object(line[begin : line.rfind("}") + 1]))

    def _in_words(self, line: str) -> Sequence[Event] | None:
        """`train_inner | epoch 001: 10 / 1000 loss=16.4, ppl=…, num_updates=10, …`, its format `simple`.

        Its validations, and the sum of an epoch, stand between bars: `| valid_loss 8.1 | num_updates 600`.
        """
        if "num_updates=" not in line:
            values = dict(_BETWEEN_BARS.findall(line))
            if "num_updates" not in values:
                return None
            return self._read(line, values) if "| valid" in line else ()
        values = dict(_PAIR.findall(line))
        if "| train" not in line and "| valid" not in line and "gnorm" not in values:
            return None
        return self._read(line if "| valid" in line else line + "| train_inner", values)

    def _read(self, head: str, data: dict[str, Any]) -> Sequence[Event]:
        at = time_of(head)
        if "| valid" in head:
            loss, step = (
                _first(data, ("valid_loss", "loss")),
                _first(data, ("valid_num_updates", "num_updates"), _whole),
            )
            if loss is None:
                raise LineError("a validation without its loss")
            return (Evaluated(loss=loss * _LN2, step=step, time_unix_s=at),)
        if "| train_inner" not in head:  # the sum of an epoch: its steps have been values
            return ()
        loss, step = _number(data.get("loss")), _whole(data.get("num_updates"))
        if loss is None or step is None:
            raise LineError("an update without its loss or its number")
        fields: dict[str, Any] = {
            "time_unix_s": at,
            "grad_norm": _number(data.get("gnorm")),
            "loss_scale": _number(data.get("loss_scale")),
            "lr": _number(data.get("lr")),
            "global_batch_samples": _whole(data.get("bsz")),
            "epoch": _number(data.get("epoch")),
        }
        return (Reading(step, loss * _LN2, rank_of(head), fields),)

    def end(self) -> Sequence[Event]:
        return ()


class Metaseq(Fairseq):
    """metaseq's, which adds norms of activations and memory; Slurm's process id before each line."""

    def decode(self, line: str) -> Sequence[Event] | None:
        of_fairseq = "actv_norm" not in line and "cuda_gb" not in line
        if of_fairseq and ("num_updates=" in line or ("num_updates" in line and "| train_inner" in line)):
            return None
        return super().decode(line)


_STEPS = (
    *("step", "global_step", "train/global_step", "trainer/global_step", "iteration", "iter", "train/step"),
    *("num_updates", "current_steps", "_step", "steps", "update", "batch"),
)
_LOSSES = (
    *("train/loss", "loss", "train_loss", "lm_loss", "lm loss", "training_loss", "train/lm_loss", "train/lm loss"),
    *("train/CrossEntropyLoss", "train/CE loss", "loss/train", "loss/train/total", "reduced_train_loss", "train-loss"),
    "loss/out",
)
_VALIDATIONS = ("val/loss", "eval/loss", "val_loss", "valid_loss", "eval_loss", "validation_loss", "validation/loss")
_OTHERS: Mapping[str, Sequence[str]] = {
    "grad_norm": (
        *("train/grad_norm", "grad_norm", "grad-norm", "gnorm", "gradient_norm", "optim/total_grad_norm"),
        "grad/norm/total",
    ),
    "lr": ("train/lr", "lr", "learning_rate", "train/learning_rate", "learning-rate", "optim/learning_rate"),
    "loss_scale": ("loss_scale", "train/loss_scale", "loss-scale"),
    "epoch": ("epoch", "train/epoch"),
}
_COUNTS: Mapping[str, Sequence[str]] = {
    "consumed_samples": ("consumed_samples", "samples", "train/consumed_samples"),
    "consumed_tokens": (
        *("consumed_tokens", "tokens", "total_tokens", "tokens_seen", "train/tokens", "train/total_tokens"),
        "optim/total_tokens",
    ),
    "global_batch_samples": ("global_batch_size", "batch_size"),
    "seqlen": ("seqlen", "seq_len", "sequence_length"),
}
_TIMES = ("time_unix_s", "timestamp", "_timestamp", "time", "ts")
_EARLIEST_UNIX_S = 1e9
"""September 2001: a smaller "time" is a duration."""


class JsonLines:
    """One JSON object a line with a step and a loss under any of their usual names."""

    def __init__(self) -> None:
        self.note = ""

    def decode(self, line: str) -> Sequence[Event] | None:
        begin = line.find("{")
        if begin < 0 or ("loss" not in line.lower() and "tep" not in line) or '"' not in line or "| train" in line:
            return checkpoint_events(line)
        end = line.rfind("}")
        if end < begin:
            if line[:begin].strip() == "" and "loss" in line:
                raise LineError("not JSON, or cut")
            return None
        try:
            data = _object(line[begin : end + 1])
        except LineError:
            if line[:begin].strip() == "" and '"' in line[begin : begin + 4]:
                raise
            return None
        return self._read(data, line[:begin])

    def end(self) -> Sequence[Event]:
        return ()

    def _read(self, data: dict[str, Any], head: str) -> Sequence[Event] | None:
        for inner in ("data", "metrics", "logs"):
            if isinstance(data.get(inner), dict):
                data = {**data, **data[inner]}
        step, loss = _first(data, _STEPS, _whole), _first(data, _LOSSES)
        validated = _first(data, _VALIDATIONS)
        split = next((data[key] for key in SPLITS if key in data), None)
        if not is_of_training(split):
            loss, validated = None, loss if is_of_validation(split) else validated
        if step is None and loss is None:
            return None
        at = next((t for name in _TIMES if (t := _number(data.get(name))) is not None and t > _EARLIEST_UNIX_S), None)
        events: list[Event] = []
        moment = at if at is not None else time_of(head or str(data.get("datetime", data.get("time", ""))))
        if loss is not None:
            if step is None:
                raise LineError("a loss without its step")
            fields: dict[str, Any] = {"time_unix_s": moment}
            fields |= {name: _first(data, keys) for name, keys in _OTHERS.items()}
            fields |= {name: _first(data, keys, _whole) for name, keys in _COUNTS.items()}
            events.append(Reading(step, loss, rank_of(head), fields, _whole(data.get("total_steps"))))
        if validated is not None:
            events.append(Evaluated(loss=validated, step=step, time_unix_s=moment))
        return events
