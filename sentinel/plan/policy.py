"""What sentinel may do by itself: mode, ladder, budgets."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from sentinel.plan.rung import DEFAULT_LADDER, Rung

__all__ = ["Mode", "Policy"]

Mode = Literal["observe", "approve", "act"]
"""observe: watch, speak, log what would be done; approve: ask a person (`sentinel approve`), then do it; act: do it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """The `[policy]` table of a run's configuration."""

    mode: Mode = "observe"
    """observe is the default: acting is switched on per run, by a person."""

    approve_within_s: float = 14_400.0
    """Mode approve: seconds after which a proposal that nobody has answered expires, and nothing is done."""

    ladder: tuple[Rung, ...] = DEFAULT_LADDER
    margin_steps: int = 10
    """Optimizer steps that a target keeps away from the early end of the onset; doubled by each rung that failed."""

    rollback_budget: int = 3
    """Rollbacks over the run's life; when they are spent, sentinel stops and asks for a person."""

    start_budget: int = 3
    """Starts of the job for one rollback, and restarts after crashes in a row without a new checkpoint."""

    lost_steps_budget: int = 100_000
    """Optimizer steps that rollbacks may throw away over the run's life."""

    cooldown_s: float = 0.0
    """Seconds between the decision for one rollback and the next."""

    confirm_within_s: float = 900.0
    """Seconds from the start of the job until it has to have confirmed the mitigation."""

    hold_steps: int = 500
    """Steps past onset and warmup by which a restart has to have recovered, or its rung has failed."""

    restart_on_crash: bool = False
    """Start the job again, from `latest`, when it has gone without a word. A crash is not a divergence."""
