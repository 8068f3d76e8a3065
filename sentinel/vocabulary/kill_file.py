"""STATE_DIR/KILL: a person's word, or sentinel's, that the trainer is to stop after the step under way.

A person's file stops every attempt as long as it is there, whatever it says; most are empty. Sentinel's says who wrote
it, when, and for which attempt and job: an attempt that began later goes on.
"""

from __future__ import annotations

from dataclasses import dataclass

from sentinel.vocabulary.errors import LineError
from sentinel.vocabulary.numbers import dump_json, load_object

__all__ = ["StopOrder", "decode_stop_order", "encode_stop_order", "stops"]

_BY = "sentinel"


@dataclass(frozen=True, slots=True, kw_only=True)
class StopOrder:
    """What sentinel writes into the file."""

    time_unix_s: float
    attempt: int | None
    """The newest attempt that was known; None before the first."""

    job: str
    """The scheduler's id of the job or array that has to stop."""

    reason: str


def encode_stop_order(order: StopOrder) -> str:
    """One JSON object, with a newline."""
    facts = {"time_unix_s": order.time_unix_s, "attempt": order.attempt, "job": order.job, "reason": order.reason}
    return dump_json({"by": _BY, **facts}) + "\n"


def decode_stop_order(text: str) -> StopOrder | None:
    """Sentinel's order; None for a person's file."""
    try:
        facts = load_object(text)
        if facts["by"] != _BY:
            return None
        attempt = facts["attempt"]
        return StopOrder(
            time_unix_s=float(facts["time_unix_s"]),
            attempt=None if attempt is None else int(attempt),
            job=str(facts["job"]),
            reason=str(facts["reason"]),
        )
    except (LineError, KeyError, TypeError, ValueError):
        return None


def stops(text: str, attempt: int) -> bool:
    """Whether the attempt has to stop; its number is 0 where it has none."""
    order = decode_stop_order(text)
    return order is None or order.attempt is None or attempt <= order.attempt
