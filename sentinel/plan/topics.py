"""What an alert can be about, and how grave it is."""

from __future__ import annotations

from typing import Literal

Severity = Literal["warning", "critical"]
"""critical: nothing goes on before a person does something."""

AlertTopic = Literal[
    "watch_failing", "down", "stalled", "blind", "overlap", "unknown", "paging", "bad_start", "attention_logits"
]
"""Beside the incidents; what to do about each: `WHAT_TO_DO` of the pages."""

RemovedTopic = Literal["early_warning"]
"""Of older incident logs: ended, and told of no more."""
