"""What neither the trainer nor its job script applies is known, and said, before anything is done."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sentinel.jobscript.script_changes import CARRIED
from sentinel.plan.choose.ladder import Rung
from sentinel.plan.choose.mitigation import changed_keys, plain_overrides
from sentinel.plan.choose.policy import Policy
from sentinel.plan.incident.baseline import Baseline
from sentinel.plan.observation import JobsSeen, StartSeen, WriterSeen
from sentinel.plan.restart.by_hand import ManualRollback, plan_by_hand
from sentinel.plan.restart.decision import decide_rung
from sentinel.vocabulary.overrides import CHANGES, Anchor, Once
from tests.support.recovery_plans import DIVERGED, incident, run

CALLBACK = "Hugging Face's Trainer (StabilityCallback)"
LOWER = Rung(name="lower lr", hypothesis="…", lr_factor=0.5, options=("--max_grad_norm=0.3",))
FREE = Rung(name="lower lr", hypothesis="…", options=("--learning_rate=1e-5",))
SKIP = Rung(name="skip", hypothesis="…", skip_samples=64)
SWITCH = Rung(name="switch", hypothesis="…", options=("--no-load-rng=true",))
RESEED = Rung(name="reseed", hypothesis="…", reseed=True)
WRITERS = (WriterSeen(id="job 41"),)


@pytest.mark.parametrize(
    ("rung", "applies", "carries", "said"),
    [
        (LOWER, (), None, f"{CALLBACK} does not apply LR schedule (lr), --max_grad_norm=0.3: it would train on as"),
        (LOWER, ("lr",), None, f"{CALLBACK} does not apply --max_grad_norm=0.3: it would train on as before"),
        (LOWER, ("lr", "free"), None, None),
        (LOWER, CHANGES, None, None),
        (LOWER, None, None, None),  # nobody has declared anything: the proof will tell
        (FREE, ("free",), None, None),
        (RESEED, (), None, "does not apply seed (seed)"),
        (LOWER, (), CARRIED, None),  # the observing callback, and a job script that carries it
        (SKIP, None, CARRIED, f"neither {CALLBACK} nor a changed job script applies skipping of data (skip_"),
        (SKIP, ("skip_samples",), CARRIED, None),
        (SWITCH, None, CARRIED, 'no value for a switch, as in --no-load-rng=true: write options = ["--no-load-rng"]'),
        (SWITCH, None, None, None),
    ],
)
def test_a_rung_that_would_be_ignored_is_skipped_in_one_sentence_and_refused_by_hand(
    rung: Rung, applies: tuple[str, ...] | None, carries: frozenset[str] | None, said: str | None
) -> None:
    jobs = JobsSeen(
        writers=WRITERS, start=StartSeen(carries=carries or frozenset(), rewrites_script=carries is not None)
    )
    state = run(jobs=jobs, applies=None if applies is None else frozenset(applies), trainer=CALLBACK)
    policy = Policy(mode="act", ladder=(rung, RESEED))
    plan = decide_rung(incident(), state, policy)
    by_hand = plan_by_hand(ManualRollback(to="global_step30", rung=rung.name), state, policy)
    if said is None:
        assert (plan.skip, by_hand.refusal) == (None, None)
        assert plan.decision is not None
        assert by_hand.decision is not None
        return
    assert plan.skip is not None
    assert by_hand.refusal == plan.skip.reason
    assert said in plan.skip.reason
    assert (plan.decision, plan.actions, by_hand.actions) == (None, (), ())


def test_what_stands_as_it_was_needs_no_applying() -> None:
    """Each decision names all that the run runs with; a trainer that applies nothing still runs with it."""
    state = run(applies=frozenset({"seed"}))
    assert decide_rung(incident(), state, Policy(mode="act", ladder=(RESEED,))).decision is not None
    observed = state.changed(applies=frozenset())
    assert plan_by_hand(ManualRollback(to="global_step30"), observed, Policy()).refusal is None


@pytest.mark.parametrize(
    ("to", "refusal"),
    [
        ("global_step30", None),
        ("scratch", None),
        ("global_step999", "there is no checkpoint 'global_step999'; the last ones are global_step40, "),
        ("global_step50", "global_step50 is after the onset (step 47)"),
    ],
)
def test_a_person_rolls_back_to_what_is_there_and_lies_before_the_onset(to: str, refusal: str | None) -> None:
    said = plan_by_hand(
        ManualRollback(to=to), run().changed(verdict=replace(DIVERGED, onset_range=(47, 49))), Policy()
    ).refusal
    assert said is None if refusal is None else said is not None and said.startswith(refusal)


@pytest.mark.parametrize(
    ("once", "keys"),
    [
        (None, ()),
        (Once(id="r"), ()),
        (Once(id="r", seed=0), ("seed",)),
        (Once(id="r", seed=5, skip_samples=3), ("seed", "skip_samples")),
        (Once(id="r", reset_moments=True, loss_scale=8.0), ("reset_moments", "loss_scale")),
    ],
)
def test_what_is_done_once_is_a_change_and_a_seed_of_0_is_a_seed(once: Once | None, keys: tuple[str, ...]) -> None:
    plain = plain_overrides(Baseline(seed=3), incident="i", rollback="r", anchor=Anchor(global_step=1))
    assert changed_keys(replace(plain, once=once), Baseline(seed=3)) == keys
