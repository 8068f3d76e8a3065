"""Mode approve: what a person is asked to agree to, and how it is known to be still the same."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from sentinel.plan.incident import Rollback, overrides_to_json
from sentinel.vocabulary.numbers import dump_json

__all__ = ["Approval", "digest_of"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Approval:
    """A person's yes."""

    digest: str
    """Of the decision that they saw."""

    by: str
    time_unix_s: float


def digest_of(decision: Rollback) -> str:
    """SHA-256 of all that a person agrees to, in hex: rung, target, every override, and what of it
    can't be confirmed. Not of the time it was made at,
    nor of the steps that are lost meanwhile."""
    document = {
        "rollback": decision.id,
        "rung": decision.rung,
        "target": decision.target_tag,
        "target_step": decision.target_step,
        "overrides": overrides_to_json(decision.overrides),
        "unconfirmed": decision.unconfirmed,
        "restart": decision.restart,
    }
    return hashlib.sha256(dump_json(document).encode()).hexdigest()
