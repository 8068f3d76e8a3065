"""Simulated runs from a divergence, a crash or a hang to their ends."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from sentinel.plan.choose.ladder import Rung
from sentinel.plan.choose.policy import Policy
from sentinel.plan.observation import BisectSeen
from sentinel.plan.outcome import Outcome
from sentinel.vocabulary.overrides import Anchor, Once, Overrides
from tests.plan.simulated_run import Story
from tests.support.recovery_plans import BASELINE

RESEED = Rung(name="reseed", hypothesis="the order of the data did it", reseed=True)
EARLIER = Rung(name="earlier", hypothesis="it began before", target="earlier", reseed=True)
PATIENCE = Rung(name="patience", hypothesis="it heals by itself", wait_steps=20)
SKIP = Rung(name="clip", hypothesis="a gradient did it", clip_grad_factor=0.5)
CAUSE = Rung(name="the cause", hypothesis="its bisect finds it", bisect=True)
FOUND = BisectSeen(
    over=True,
    reason="the order of the data (likely): another one prevents it",
    tag="global_step20",
    global_step=20,
    gpu_hours=2.0,
    overrides=Overrides(
        incident="incident-1",
        rollback="probe-other-order",
        anchor=Anchor(global_step=20, consumed_samples=320),
        standing=BASELINE.standing,
        once=Once(id="probe-other-order", seed=4),
    ),
)


PAGE = Rung(name="the model", hypothesis="its shape is wrong", page=True)


def policy(*ladder: Rung, **changed: Any) -> Policy:
    return Policy(**{"mode": "act", "ladder": ladder or (RESEED, EARLIER, PAGE), "start_budget": 5, **changed})


CRASH, HANG = {"restart_on_crash": True}, {"restart_on_hang": True}


STORIES = {
    "recovers": (Story(policy=policy(), process_states=("diverges", "recovers")), Outcome.FINISHED, "recovered"),
    "is prepared": (
        Story(policy=policy(), process_states=("diverges", "recovers"), prepares=True),
        Outcome.FINISHED,
        "recovered",
    ),
    "needs the second rung": (
        Story(policy=policy(), process_states=("diverges", "diverges", "recovers")),
        Outcome.FINISHED,
        "recovered",
    ),
    "ends with a person": (
        Story(policy=policy(), process_states=("diverges", "diverges", "diverges")),
        Outcome.PERSON_NEEDED,
        None,
    ),
    "has no budget": (
        Story(policy=policy(rollback_budget=0), process_states=("diverges",)),
        Outcome.PERSON_NEEDED,
        None,
    ),
    "skips a rung": (
        Story(policy=policy(SKIP, RESEED), process_states=("diverges", "recovers")),
        Outcome.FINISHED,
        "recovered",
    ),
    "heals while it waits": (
        Story(policy=policy(PATIENCE, RESEED), process_states=("heals",)),
        Outcome.FINISHED,
        "healed",
    ),
    "is not cured by waiting": (
        Story(policy=policy(PATIENCE, RESEED), process_states=("diverges", "recovers")),
        Outcome.FINISHED,
        "recovered",
    ),
    "takes no effect": (
        Story(policy=policy(), process_states=("diverges", "ignores")),
        Outcome.PERSON_NEEDED,
        None,
    ),
    "takes no effect, and the next rung does": (
        Story(policy=policy(), process_states=("diverges", "ignores", "recovers")),
        Outcome.FINISHED,
        "recovered",
    ),
    "takes no effect, and stops": (
        Story(policy=policy(on_contradicted="stop"), process_states=("diverges", "ignores")),
        Outcome.PERSON_NEEDED,
        None,
    ),
    "never reports": (
        Story(policy=policy(), process_states=("diverges", "silent")),
        Outcome.PERSON_NEEDED,
        None,
    ),
    "trains and does not report": (
        Story(policy=policy(), process_states=("diverges", "unlabelled")),
        Outcome.PERSON_NEEDED,
        None,
    ),
    "crashes while it is held": (
        Story(policy=policy(**CRASH), process_states=("diverges", "crashes", "recovers")),
        Outcome.FINISHED,
        "recovered",
    ),
    "hangs while it is held": (
        Story(policy=policy(**HANG), process_states=("diverges", "hangs", "recovers")),
        Outcome.FINISHED,
        "recovered",
    ),
    "is approved": (
        Story(policy=policy(mode="approve"), process_states=("diverges", "recovers")),
        Outcome.FINISHED,
        "recovered",
    ),
    "is not approved": (
        Story(policy=policy(mode="approve", approve_within_s=300.0), process_states=("diverges",), approves=False),
        None,
        None,
    ),
    "is only watched": (
        Story(policy=policy(mode="observe"), process_states=("diverges",)),
        Outcome.NOT_WELL,
        None,
    ),
    "recovers in place": (
        Story(policy=policy(), process_states=("diverges", "recovers"), parks="obeys"),
        Outcome.FINISHED,
        "recovered",
    ),
    "needs the second rung, in place as the first": (
        Story(policy=policy(), process_states=("diverges", "diverges", "recovers"), parks="obeys"),
        Outcome.FINISHED,
        "recovered",
    ),
    "does not park in time": (
        Story(policy=policy(), process_states=("diverges", "recovers"), parks="is late", prepares=True),
        Outcome.FINISHED,
        "recovered",
    ),
    "dies while it is parked": (
        Story(policy=policy(), process_states=("diverges", "recovers"), parks="dies parked"),
        Outcome.FINISHED,
        "recovered",
    ),
    "dies while it is resumed": (
        Story(policy=policy(), process_states=("diverges", "recovers"), parks="dies resuming"),
        Outcome.FINISHED,
        "recovered",
    ),
    "recovers in place, from memory": (
        Story(policy=policy(), process_states=("diverges", "recovers"), parks="obeys", memory=(25, 35, 65)),
        Outcome.FINISHED,
        "recovered",
    ),
    "dies while it is resumed from memory": (
        Story(policy=policy(), process_states=("diverges", "recovers"), parks="dies resuming", memory=(25, 35, 65)),
        Outcome.FINISHED,
        "recovered",
    ),
    "is approved, in place, from memory": (
        Story(policy=policy(mode="approve"), process_states=("diverges", "recovers"), parks="obeys", memory=(35,)),
        Outcome.FINISHED,
        "recovered",
    ),
    "takes no RESUME": (
        Story(policy=policy(), process_states=("diverges", "recovers"), parks="deaf"),
        Outcome.FINISHED,
        "recovered",
    ),
    "is resumed and never reports": (
        Story(policy=policy(), process_states=("diverges", "silent", "recovers"), parks="obeys"),
        Outcome.FINISHED,
        "recovered",
    ),
    "is approved, in place": (
        Story(policy=policy(mode="approve"), process_states=("diverges", "recovers"), parks="obeys"),
        Outcome.FINISHED,
        "recovered",
    ),
    "is undone halfway": (
        Story(policy=policy(), process_states=("diverges", "recovers"), undoing=True),
        None,
        "undone",
    ),
    "takes over what healed in its bisect": (
        Story(policy=policy(CAUSE, RESEED), process_states=("diverges", "recovers"), cause=FOUND),
        Outcome.FINISHED,
        "recovered",
    ),
    "finds no cause, then tries the next rung": (
        Story(
            policy=policy(CAUSE, RESEED), process_states=("diverges", "recovers"), cause=replace(FOUND, overrides=None)
        ),
        Outcome.FINISHED,
        "recovered",
    ),
    "finds a broken node": (
        Story(policy=policy(CAUSE, RESEED), process_states=("diverges",), cause=replace(FOUND, needs_person=True)),
        Outcome.PERSON_NEEDED,
        None,
    ),
    "crashes": (Story(policy=policy(**CRASH), process_states=("crashes", "finishes")), Outcome.FINISHED, None),
    "hangs": (Story(policy=policy(**HANG), process_states=("hangs", "finishes")), Outcome.FINISHED, None),
    "crashes again and again": (
        Story(policy=policy(**CRASH, max_starts_per_hour=60), process_states=("crashes", "silent")),
        None,
        None,
    ),
}
