"""OLMo, Composer and fms-fsdp: a header with the step, then one `name=value` or `name: value` a line."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from sentinel.sources.checkpoint_lines import checkpoint_events
from sentinel.sources.events import Evaluated, Event, Reading
from sentinel.sources.numerals import number, whole
from sentinel.sources.prefixes import rank_of, time_of
from sentinel.vocabulary.errors import LineError

__all__ = ["Composer", "FmsFsdp", "Olmo"]

_MOST_ITEMS = 2_000
"""Lines of one block; a trainer that has more to say of a step is not heard."""


class _Blocks:
    """A block is complete where the next begins, or where the log is silent."""

    name: ClassVar[str]
    one_writer: ClassVar[bool] = False
    _sign: ClassVar[str] = "["
    """What every header has."""
    _header: ClassVar[re.Pattern[str]]
    _item: ClassVar[re.Pattern[str]]
    _losses: ClassVar[tuple[str, ...]]
    _fields: ClassVar[Mapping[str, str]]
    _evaluated: ClassVar[re.Pattern[str]]

    def __init__(self) -> None:
        self.note = ""
        self._step: int | None = None
        self._total: int | None = None
        self._rank: str | None = None
        self._time = 0.0
        self._items: dict[str, str] = {}

    def decode(self, line: str) -> Sequence[Event] | None:
        """What the line completes."""
        found = self._header.search(line) if self._sign in line else None
        if found is not None:
            events = self.end()
            head = line[: found.start()]
            self._step, self._time, self._rank = whole(found["step"]), time_of(head), rank_of(head)
            total = found.groupdict().get("total")
            self._total = whole(total) if total else None
            if self._step is None:
                raise LineError("a step that is no number")
            return events
        if self._step is None:
            return checkpoint_events(line)
        item = self._item.match(line)
        if item is None:
            return checkpoint_events(line)
        if len(self._items) < _MOST_ITEMS:
            name = re.split(r"\s{2,}|\t", item["name"].strip())[-1]  # behind a logger's columns
            self._items.setdefault(name, item["value"])
        return ()

    def end(self) -> Sequence[Event]:
        """The block that is open. What has no loss (a report of memory, of speed) is no step's readings."""
        step, items = self._step, self._items
        self._step, self._items = None, {}
        if step is None:
            return ()
        events: list[Event] = []
        loss = next((v for name in self._losses if name in items and (v := number(items[name])) is not None), None)
        if loss is not None:
            fields: dict[str, Any] = {"time_unix_s": self._time}
            for name, field in self._fields.items():
                if name in items and field not in fields:
                    count = field.startswith(("consumed", "global_batch"))
                    fields[field] = whole(items[name]) if count else number(items[name])
            if "skipped" in fields:
                fields["skipped"] = bool(fields["skipped"])
            events.append(Reading(step, loss, self._rank, fields, self._total))
        for name, text in items.items():
            if self._evaluated.search(name) and (value := number(text)) is not None:
                events.append(Evaluated(loss=value, step=step, time_unix_s=self._time))
                break
        return events


class Olmo(_Blocks):
    """OLMo and OLMo-core: `[step=1/739328,epoch=0]`, then `    train/CrossEntropyLoss=12.18`."""

    name: ClassVar[str] = "olmo"
    _header = re.compile(r"\[step=(?P<step>\d[\d,]*)(?:/(?P<total>\d[\d,]*))?[^\]]{0,200}\]")
    _item = re.compile(r"^[^=|{}]{0,120}?(?P<name>[A-Za-z_][\w/ ().-]{0,120}?)\s*=\s*(?P<value>\S+)\s*$")
    _losses = ("train/CrossEntropyLoss", "train/CE loss", "train/loss", "train/Loss")
    _fields: ClassVar[Mapping[str, str]] = {
        "optim/total_grad_norm": "grad_norm",
        "optim/total grad norm": "grad_norm",
        "optim/learning_rate_group0": "lr",
        "optim/LR (group 0)": "lr",
        "optim/LR": "lr",
        "optim/step skipped": "skipped",
        "throughput/total_tokens": "consumed_tokens",
        "throughput/total tokens": "consumed_tokens",
    }
    _evaluated = re.compile(r"^eval/.*(?:CrossEntropyLoss|CE loss)$")


class Composer(_Blocks):
    """Composer: `[batch=1/100]:`, then `Train loss/train/total: 10.9736`."""

    name: ClassVar[str] = "composer"
    _header = re.compile(r"\[batch=(?P<step>\d[\d,]*)(?:/(?P<total>\d[\d,]*))?\]")
    _item = re.compile(r"^.{0,120}?\b(?P<name>(?:Train|Eval) [A-Za-z][\w/ .-]{0,120}?)\s*:\s+(?P<value>\S+)\s*$")
    _losses = (
        "Train loss/train/total",
        "Train metrics/train/LanguageCrossEntropy",
        "Train LanguageCrossEntropy",
        "Train metrics/train/CrossEntropy",
        "Train CrossEntropy",
        "Train loss/train/ce_loss",
    )
    _fields: ClassVar[Mapping[str, str]] = {
        "Train l2_norm/grad/global": "grad_norm",
        "Train time/token": "consumed_tokens",
        "Train time/sample": "consumed_samples",
        "Train lr-DecoupledAdamW/group0": "lr",
        "Train lr-DecoupledLionW/group0": "lr",
        "Train lr-AdamW/group0": "lr",
        "Train lr-Adam/group0": "lr",
        "Train trainer/batch_size": "global_batch_samples",
        "Train trainer/global_batch_size": "global_batch_samples",
    }
    _evaluated = re.compile(r"^Eval .*CrossEntropy$")


class FmsFsdp(_Blocks):
    """fms-fsdp: a line `step: 100`, then `loss: 5.67`, `LR: 0.0003`, `tokens seen: 209715200`, `gradient norm: 0.5`."""

    name: ClassVar[str] = "fms_fsdp"
    _sign = "step: "
    _header = re.compile(r"(?:^|[\]\s])step: (?P<step>\d[\d,]*)\s*$")
    _item = re.compile(
        r"^(?:.*[\]:] ?)?(?P<name>(?:loss|LR|tokens seen|gradient norm|current step time)): (?P<value>\S+)\s*$"
    )
    _losses = ("loss",)
    _fields: ClassVar[Mapping[str, str]] = {
        "LR": "lr",
        "tokens seen": "consumed_tokens",
        "gradient norm": "grad_norm",
        "current step time": "step_time_s",
    }
    _evaluated = re.compile(r"(?!)")
