"""What a failure or a rollback costs: how often the run saves."""

from __future__ import annotations

import math
from collections.abc import Iterator

from sentinel.jobscript.facts import ScriptFacts
from sentinel.lint.finding import Remark, error, note, warning

_DAY_S = 86400.0


def saves_at_all(save_interval: int, total: float | None = None) -> Iterator[Remark]:
    """A save interval above 0, and below the run's steps.

    Source: tr8-104B chronicle: every recovery in it begins with a checkpoint.
    """
    if save_interval == 0:
        yield error(
            "the run never saves: a crash or a divergence takes it back to its first step; say --save and "
            "--save-interval"
        )
    elif total is not None and save_interval > total:
        yield warning(f"the run ends after {total:.0f} steps, before its first save at {save_interval}")


def work_at_stake(facts: ScriptFacts, save_interval: int, step_time_s: float) -> Iterator[Remark]:
    """Expected loss of work of a failure or a rollback: half a save interval, interval x step time / 2.

    More than two hours is a warning. tr11-176B left 250 steps of 2 minutes (8 hours between saves) for 100 (3 hours)
    after a crash had cost it a night; tr8 went from 1500 to 300.

    Source: tr8-104B chronicle, experiment 2; tr11-176B README, "Checkpoints".
    """
    between_s = save_interval * step_time_s
    if between_s / 2 > 2 * 3600:
        gpus = f", {between_s / 7200 * facts.world_size:.0f} GPU-hours" if facts.world_size else ""
        at_most = max(1, int(4 * 3600 / step_time_s))
        yield warning(
            f"{save_interval} steps of {step_time_s:.3g} s are {between_s / 3600:.1f} hours between "
            f"saves: a crash or a rollback loses {between_s / 7200:.1f} hours on average{gpus}; "
            f"save every {at_most} steps or more often"
        )


def interval_for_failures(facts: ScriptFacts) -> Iterator[Remark]:
    """Save interval against Young's: sqrt(2 x save time x time between failures), where saving and losing cost alike.

    The share of time that is lost is save / interval + interval / (2 x time between failures), to the first order. At
    twice or half of the best interval it is a quarter more: outside of that it is said, if it is more than 1 % of the
    time. Without the save's time only the loss is known: more than 5 % of the time is a warning.

    Source: Young 1974 (doi:10.1145/361147.361115); Daly 2006 (doi:10.1016/j.future.2004.11.016).
    """
    if not facts.save_interval or facts.step_time_s is None or not facts.node_failures_per_day:
        return
    interval_s = facts.save_interval * facts.step_time_s
    between_failures_s = _DAY_S / facts.node_failures_per_day
    lost = interval_s / (2 * between_failures_s)
    failing = f"{facts.node_failures_per_day:.2g} failures a day and {interval_s / 3600:.2g} hours between saves"
    if facts.save_time_s is None:
        if lost > 0.05:
            steps = max(1, int(0.1 * between_failures_s / facts.step_time_s))
            yield warning(f"{failing} lose {lost:.0%} of the time: save every {steps} steps or more often")
        return
    best_s = math.sqrt(2 * facts.save_time_s * between_failures_s)
    share, best_share = facts.save_time_s / interval_s + lost, math.sqrt(2 * facts.save_time_s / between_failures_s)
    if share - best_share <= 0.01:
        return
    said = f"{failing} lose {share:.1%} of the time, with saves of {facts.save_time_s:.3g} s"
    best = f"every {max(1, round(best_s / facts.step_time_s))} steps would lose {best_share:.1%}"
    if interval_s > 2 * best_s:
        yield warning(f"{said}: {best}")
    elif interval_s < best_s / 2:
        yield note(f"{said}, most of it by saving: {best}")


def exits_before_the_limit(leaves: float, limit: float, save_time_s: float | None = None) -> Iterator[Remark]:
    """Minutes after which the trainer saves and ends, against Slurm's limit: at least the time of a save before it.

    tr8 left 10 minutes of 20 hours.

    Source: tr8-104B job script (--exit-duration-in-mins 1190); tr11-176B README, on saving before Slurm ends the job.
    """
    needed = max(5.0, (save_time_s or 0) / 60 + 2)
    if leaves >= limit:
        yield error(
            f"the trainer would save and end after {leaves:.0f} minutes, and Slurm ends it after {limit:.0f}: what "
            f"it did since its last save is lost; say --exit-duration-in-mins {max(1, limit - needed):.0f} or less"
        )
    elif limit - leaves < needed:
        yield warning(
            f"{limit - leaves:.0f} minutes are left for the last save before Slurm ends the job: "
            f"say --exit-duration-in-mins {max(1, limit - needed):.0f} or less"
        )
