"""What a rollback costs, what it would cost to wait, and what nobody will be able to confirm. For the dry run."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from itertools import pairwise
from statistics import median
from typing import Any

from sentinel.plan.incident import Incident, Rollback
from sentinel.plan.observation import RunState
from sentinel.plan.proof import unreported

__all__ = ["Price", "gpu_hours", "lost_so_far", "lost_steps", "price", "save_interval", "unconfirmed"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Price:
    """Steps and GPU-hours. None where the run's pace, its size or its save interval is not known."""

    lost_steps: int
    """Steps of training that are thrown away: from the target to the last one made."""

    lost_gpu_hours: float | None
    """What those steps took: lost_steps x median step time x world size."""

    steps_to_next_save: int | None
    """Steps until the run would save again, at the interval of its last checkpoints."""

    waiting_gpu_hours: float | None
    """What waiting for that save would take; it throws away nothing if the run heals, and all of it if not."""

    def to_json(self) -> dict[str, Any]:
        """For the dry run's JSON."""
        return asdict(self)


def price(decision: Rollback, run: RunState) -> Price:
    """What carrying the decision out costs, against waiting for one more save."""
    last, lost = _newest_checkpoint(run), lost_steps(decision.target_step, run)
    interval = save_interval(run)
    left = None if interval is None else interval - (_last_trained(run) - last) % interval
    return Price(
        lost_steps=lost,
        lost_gpu_hours=gpu_hours(lost, run),
        steps_to_next_save=left,
        waiting_gpu_hours=None if left is None else gpu_hours(left, run),
    )


def lost_steps(target_step: int, run: RunState) -> int:
    """Optimizer steps that a rollback to the target throws away: from there to the newest attempt's last step."""
    return max(0, _last_trained(run) - target_step)


def lost_so_far(incidents: Iterable[Incident]) -> int:
    """Optimizer steps that the incidents' rollbacks have thrown away."""
    return sum(r.lost_steps for i in incidents for r in i.rollbacks)


def _last_trained(run: RunState) -> int:
    """The newest attempt's last step; its newest checkpoint's where the attempt has reported no step yet."""
    return run.last_step if run.last_step is not None else _newest_checkpoint(run)


def _newest_checkpoint(run: RunState) -> int:
    return max((c.global_step for c in run.checkpoints), default=0)


def save_interval(run: RunState) -> int | None:
    """Median distance of the last checkpoints, in steps; None for fewer than two."""
    gaps = [b.global_step - a.global_step for a, b in pairwise(run.checkpoints[-10:])]
    return max(1, round(median(gaps))) if gaps else None


def unconfirmed(decision: Rollback, run: RunState) -> tuple[str, ...]:
    """What the new attempt will not be able to prove, going by what the trainer has reported so far; sentences."""
    said = []
    overrides = decision.overrides
    if not run.last_step:
        said.append("the trainer has reported nothing so far: that it restarts at all will show in its first report")
    said += dict.fromkeys(unreported(overrides, run.baseline).values())
    if decision.target_step and overrides.anchor.consumed_samples is None:
        said.append(f"the first sample: consumed_samples at step {decision.target_step} stands in no journal")
    return tuple(said)


def gpu_hours(steps: int, run: RunState) -> float | None:
    """What so many steps take; None where nobody measured the pace, or the run's size is not known."""
    if run.step_time_s is None or run.world_size is None:
        return None
    return steps * run.step_time_s * run.world_size / 3600
