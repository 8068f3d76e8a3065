"""The three values of a proof, as events of the incident log hold them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Any

__all__ = ["PROOFS", "Proof", "answer_of", "failure", "proof_of"]


class Proof(StrEnum):
    """What is known of one change."""

    CONFIRMED = "confirmed"
    CONTRADICTED = "contradicted"
    NOT_VERIFIED = "not verified"


PROOFS = ("proved", "not_verified", "not_proved")
"""Events that say what an attempt has shown of a rollback's changes."""


def failure(reason: str, proof: Proof | None, doubts: Iterable[str]) -> str:
    """A failed restart as a phrase: only a rung whose every change is confirmed can be said not to have helped."""
    if proof is Proof.CONFIRMED:
        return f"did not help: {reason}"
    return f"failed, and it is not verified that {', '.join(doubts) or 'the change'} took effect: {reason}"


def proof_of(event: Mapping[str, Any]) -> tuple[Proof, tuple[str, ...]]:
    """What an event of a proof says, and the checks that it leaves in doubt.

    Older logs have `proved` where a change was never reported, as long as the plan had foreseen that.
    """
    checks = event.get("checks") or ()
    if event["event"] == "not_proved":
        return Proof.CONTRADICTED, tuple(c["what"] for c in checks if answer_of(c) is Proof.CONTRADICTED)
    silent = [c["what"] for c in checks if c.get("changed", True) and answer_of(c) is Proof.NOT_VERIFIED]
    return (Proof.NOT_VERIFIED if silent else Proof.CONFIRMED), tuple(silent)


def answer_of(check: Mapping[str, Any]) -> Proof:
    """The answer of a check as a log holds it; older logs have `holds`, true for a silence that was foreseen."""
    if "answer" in check:
        return Proof(check["answer"])
    if not check.get("holds", True):
        return Proof.CONTRADICTED
    return Proof.NOT_VERIFIED if "reported" in check and check["reported"] is None else Proof.CONFIRMED
