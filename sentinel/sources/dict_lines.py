"""A JSON object on a line: fairseq's and metaseq's after `| INFO | train_inner |`, MLPerf's, and JSONL."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from sentinel.sources.column_names import SPLITS, is_of_training, is_of_validation
from sentinel.sources.line_events import (
    CHECKPOINT_WORDS,
    FROM_ZERO,
    Decoder,
    Evaluated,
    Event,
    LineReading,
    checkpoint_events,
    fields_of,
)
from sentinel.sources.line_text import number, rank_of, time_of, whole
from sentinel.vocabulary.errors import LineError

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


class Fairseq(Decoder):
    """fairseq's json log: values are strings, and losses are in bits (base 2), as its `ppl` = 2^loss shows."""

    note = "losses are written in bits (base 2) and given in nats"
    words = ("num_updates", "train_inner", "gradient overflow detected", *CHECKPOINT_WORDS)
    has_updates = False  # lines of single updates; without them the sums of epochs are all that there is

    def learn(self, other: Decoder) -> None:
        self.has_updates = isinstance(other, Fairseq) and other.has_updates

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
        """`train_inner | epoch 001: 10 / 1000 loss=16.4, ppl=…, num_updates=10, …`, its format `simple`. Its
        validations, and the sum of an epoch, stand between bars: `| valid_loss 8.1 | num_updates 600`."""
        if "num_updates=" not in line:
            values = dict(_BETWEEN_BARS.findall(line))
            if "num_updates" not in values:
                return None
            return self._read(line, values)
        values = dict(_PAIR.findall(line))
        if "| train" not in line and "| valid" not in line and "gnorm" not in values:
            return None
        return self._read(line if "| valid" in line else line + "| train_inner", values)

    def _read(self, head: str, data: dict[str, Any]) -> Sequence[Event]:
        fields = fields_of(data.items())
        at = fields["time_unix_s"] = time_of(head)
        loss, validated, step = (fields.pop(name, None) for name in ("loss", "validation_loss", "step"))
        if "| valid" in head:
            loss = loss if validated is None else validated
            if loss is None:
                raise LineError("a validation without its loss")
            updates = whole(str(data.get("valid_num_updates", "")))
            return (Evaluated(loss=loss * _LN2, step=step if updates is None else updates, time_unix_s=at),)
        of_epoch = "| train_inner" not in head
        self.has_updates |= not of_epoch
        if of_epoch and (self.has_updates or loss is None or step is None):  # its updates have been values
            return ()
        if loss is None or step is None:
            raise LineError("an update without its loss or its number")
        if of_epoch:
            self.note = f"{Fairseq.note}; a step here is the mean of an epoch"
        return (LineReading(step, loss * _LN2, rank_of(head), fields),)


class Metaseq(Fairseq):
    """metaseq's, which adds norms of activations and memory; Slurm's process id before each line."""

    def decode(self, line: str) -> Sequence[Event] | None:
        of_fairseq = "actv_norm" not in line and "cuda_gb" not in line
        if of_fairseq and ("num_updates=" in line or ("num_updates" in line and "| train_inner" in line)):
            return None
        return super().decode(line)


_TIMES = ("time_unix_s", "timestamp", "_timestamp", "time", "ts")
_EARLIEST_UNIX_S = 1e9  # September 2001: a smaller "time" is a duration


class JsonLines(Decoder):
    """One JSON object a line with a step and a loss under any of their usual names."""

    takes_columns = True
    words = ("{", *CHECKPOINT_WORDS)

    def decode(self, line: str) -> Sequence[Event] | None:
        begin = line.find("{")
        if begin < 0 or ("loss" not in line.lower() and "tep" not in line) or '"' not in line or "| train" in line:
            return checkpoint_events(line)
        end, starts_line = line.rfind("}"), not line[:begin].strip()
        if end < begin:
            if starts_line and "loss" in line:
                raise LineError("not JSON, or cut")
            return None
        try:
            data = _object(line[begin : end + 1])
        except LineError:
            if starts_line and '"' in line[begin : begin + 4]:
                raise
            return None
        for inner in ("data", "metrics", "logs"):
            if isinstance(data.get(inner), dict):
                data = {**data, **data[inner]}
        return self._read(data, line[:begin])

    def _read(self, data: Mapping[str, Any], head: str) -> Sequence[Event] | None:
        fields = fields_of(data.items(), self.names)
        step, loss, validated = (fields.pop(name, None) for name in ("step", "loss", "validation_loss"))
        split = next((data[key] for key in SPLITS if key in data), None)
        if not is_of_training(split):
            loss, validated = None, loss if is_of_validation(split) else validated
        if step is None and loss is None:
            return None
        times = (number(str(data[name])) for name in _TIMES if name in data)
        at = next((time for time in times if time is not None and time > _EARLIEST_UNIX_S), None)
        if at is None:
            at = time_of(head or str(data.get("datetime", data.get("time", ""))))
        events: list[Event] = []
        if loss is not None:
            if step is None:
                raise LineError("a loss without its step")
            total = whole(str(data.get("total_steps", "")))
            events.append(LineReading(step, loss, rank_of(head), {"time_unix_s": at} | fields, total))
        if validated is not None:
            events.append(Evaluated(loss=validated, step=step, time_unix_s=at))
        return events


class MlPerf(Decoder):
    """MLPerf's `:::MLLOG {"key": "train_loss", "value": 2.5, "metadata": {"samples_count": 64, "lr": 1e-4}}`. Where the
    metadata have the count of samples and no step, a step is that count over the global batch size that the log names,
    and the count itself where it names none."""

    words = (":::MLLOG {",)
    _batch = 0  # samples
    _from_zero = False

    def decode(self, line: str) -> Sequence[Event] | None:
        begin = line.find(":::MLLOG {")
        if begin < 0:
            return None
        data = _object(line[line.index("{", begin) : line.rfind("}") + 1])
        inner = [data[name] for name in ("metadata", "value") if isinstance(data.get(name), dict)]
        values = {str(data.get("key")): data.get("value")} | {key: each[key] for each in inner for key in each} | data
        if data.get("key") == "global_batch_size":
            self._batch = whole(str(data.get("value"))) or 0
        fields = fields_of((values | {"step": values.get("step", values.get("step_num"))}).items())
        loss, step, validated = (fields.pop(name, None) for name in ("loss", "step", "validation_loss"))
        milliseconds = number(str(data.get("time_ms", "")))
        at = fields["time_unix_s"] = math.nan if milliseconds is None else milliseconds / 1000
        if step is None and (samples := whole(str(values.get("samples_count", "")))) is not None:
            step = samples // (self._batch or 1)
            self.note = "" if self._batch else "the log names no step and no batch size: a step here is a sample"
        if validated is not None:
            return (Evaluated(loss=validated, step=step, time_unix_s=at),)
        if loss is None:
            return ()
        if step is None:
            raise LineError("a loss without its step")
        if step == 0 or self._from_zero:
            self._from_zero, self.note = True, FROM_ZERO
        return (LineReading(step + self._from_zero, loss, rank_of(line[:begin]), fields),)
