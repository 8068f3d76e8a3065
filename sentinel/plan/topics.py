"""What an alert can be about, and how grave it is."""

from __future__ import annotations

from typing import Literal

Severity = Literal["warning", "critical"]
"""critical: nothing goes on before a person does something."""

AlertTopic = Literal[
    "watch_failing", "down", "stalled", "blind", "overlap", "unknown", "paging", "bad_start", "early_warning"
]
"""Beside the incidents; what to do about each: `WHAT_TO_DO` of the pages."""
