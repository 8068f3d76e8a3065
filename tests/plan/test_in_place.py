"""A restart in the same processes: who is asked, in which order, when it is given up, and what is never done."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import replace
from functools import reduce

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sentinel.plan.choose.ladder import Rung
from sentinel.plan.choose.policy import Policy
from sentinel.plan.facts import Facts
from sentinel.plan.incident.events import fold
from sentinel.plan.incident.incident import Rollback, digest_of
from sentinel.plan.incident.log_events import Decided
from sentinel.plan.incident.log_lines import event_of
from sentinel.plan.incident.log_outcomes import InPlaceGivenUp, Intent
from sentinel.plan.observation import AttemptSeen, JobsSeen, Life, ProcessState, StartSeen, WriterSeen
from sentinel.plan.outcome import Memory
from sentinel.plan.readings_seen import JournalFacts
from sentinel.plan.restart.actions import (
    MOVES_FILES,
    Park,
    Release,
    Resume,
    StartJob,
    StopJob,
    describe,
)
from sentinel.plan.restart.by_hand import ManualRollback, plan_by_hand
from sentinel.plan.restart.decision import decide_rung
from sentinel.plan.restart.in_place.stage import WAITS_PARKED_S
from sentinel.plan.restart.in_place.way import way_of
from sentinel.plan.restart.liveness import life_of
from sentinel.plan.restart.rollback import plan_rollback
from sentinel.plan.turn import decide
from sentinel.vocabulary.errors import ConfigError
from tests.plan.simulated_run import World
from tests.support.parked_runs import HERE, ROLLBACK, WRITERS, after, gone, in_place, parked, resumed, training
from tests.support.recovery_plans import POLICY, incident
from tests.support.stories import STORIES

WHOLE = plan_rollback(in_place(), training(), POLICY).actions
SHORT = (replace(WRITERS[0], remaining_s=900.0),)


def decided(**changed: object) -> Rollback:
    return replace(in_place(), **changed)  # type: ignore[arg-type]


def carried_out(state: Facts, decision: Rollback) -> Facts:
    """The run of an incident that is being carried out."""
    return state.changed(incidents=(incident(status="decided", rollbacks=[decision]),))


# which way


@pytest.mark.parametrize(
    ("facts", "policy", "rung", "asked", "places", "why"),
    [
        (training(), POLICY, None, None, True, "in the same processes: attempt 1 has declared that it can park"),
        (training(), POLICY, "job", None, False, "a new job: the rung asks for it"),
        (training(), POLICY, "job", "in_place", True, "in the same processes: attempt 1 has declared that it can park"),
        (training(), POLICY, None, "job", False, "a new job: a person asked for it"),
        (training(), Policy(restart="job"), None, None, False, 'a new job: [policy] restart is "job"'),
        (
            training(journals=(JournalFacts(number=1, reported=True),)),
            POLICY,
            None,
            None,
            False,
            "a new job: attempt 1 has not declared that it can park",
        ),
        (
            training(journals=(JournalFacts(number=1, reported=True, can_park=True, finished=True),)),
            POLICY,
            None,
            None,
            False,
            "a new job: attempt 1 does not run any more",
        ),
        (
            parked(training(), "incident-9-r1"),  # by a command that was killed
            POLICY,
            None,
            None,
            False,
            "a new job: attempt 1 is parked for incident-9-r1, which `sentinel watch` carries on",
        ),
        (gone(training()), POLICY, None, None, False, "a new job: attempt 1 does not run any more"),
        (training(journals=()), POLICY, None, None, False, "a new job: no attempt has reported its start"),
        (
            training(attempts=(AttemptSeen(number=1, process_state=HERE), AttemptSeen(number=2, reported=False))),
            POLICY,
            None,
            None,
            False,
            "a new job: no attempt has reported its start",
        ),
        (
            training(jobs=JobsSeen(writers=WRITERS, start=StartSeen(rewrites_script=True))),
            POLICY,
            None,
            None,
            False,
            "a new job: its changes are made in the job script, which a trainer reads only when it starts",
        ),
        (
            training(jobs=JobsSeen(writers=SHORT)),
            POLICY,
            None,
            None,
            False,
            "a new job: 900 s are left of the time limit of process 41, and [policy] min_remaining_s is 3600",
        ),
        (
            training(jobs=JobsSeen(writers=(replace(WRITERS[0], remaining_s=math.nan),))),
            POLICY,
            None,
            None,
            False,
            "a new job: the scheduler does not say how much is left of the time limit of process 41",
        ),
        (
            training(jobs=JobsSeen(writers=(replace(WRITERS[0], remaining_s=3600.0),))),
            POLICY,
            None,
            None,
            True,
            "in the same processes: attempt 1 has declared that it can park",
        ),
    ],
)
def test_which_way_a_rollback_restarts_and_why(
    facts: Facts, policy: Policy, rung: str | None, asked: str | None, places: bool, why: str
) -> None:
    way = way_of(facts, policy, rung=rung, asked=asked)  # type: ignore[arg-type]
    assert (way.in_place, way.why, way.refused) == (places, why, False)


def test_in_place_or_not_at_all_is_refused_where_a_trainer_can_not() -> None:
    """Asked for by a person, or by the policy: then the job is not ended for it."""
    can_not = training(journals=(JournalFacts(number=1, reported=True),))
    told = "not in the same processes: attempt 1 has not declared that it can park"
    by_hand = plan_by_hand(ManualRollback(to="global_step30", restart="in_place"), can_not, POLICY)
    assert by_hand.refusal == f"{told}; `--restart job` starts a new job"
    rung = decide_rung(incident(), can_not, Policy(mode="act", restart="in_place"))
    assert rung.refusal == f'[policy] restart is "in_place": {told}'
    assert not by_hand.actions
    assert not rung.actions


def test_what_is_gone_is_started_by_a_new_job_whatever_the_policy_prefers() -> None:
    way = way_of(gone(training()), Policy(restart="in_place"))
    assert (way.in_place, way.refused) == (False, False)


def test_a_rung_that_suspects_the_machine_gets_a_new_job() -> None:
    policy = Policy(mode="act", ladder=(Rung(name="reseed", hypothesis="a node", reseed=True, restart="job"),))
    plan = decide_rung(incident(), training(), policy)
    assert plan.decision is not None
    assert not plan.decision.in_place
    assert isinstance(plan.actions[0], StopJob)
    with pytest.raises(ConfigError, match="changes nothing"):
        Rung(name="again", hypothesis="a node", restart="job")


def test_a_persons_word_decides_and_the_plan_says_why() -> None:
    for asked, kind in (("in_place", Park), ("job", StopJob), (None, Park)):
        plan = plan_by_hand(ManualRollback(to="global_step30", restart=asked), training(), POLICY)  # type: ignore[arg-type]
        assert isinstance(plan.actions[0], kind)
        assert plan.way is not None
        assert plan.way.in_place == (kind is Park)
    refused = plan_by_hand(ManualRollback(to="global_step30", restart="job", start=False), training(), POLICY)
    assert refused.refusal == "--restart says how the job is started again, and --no-start that it is not"


# the plan


def test_the_plan_differs_from_that_of_a_new_job_in_its_first_and_its_last_action_alone() -> None:
    by_job = plan_rollback(decided(in_place=False), training(), POLICY).actions
    assert WHOLE[1:-1] == by_job[1:-1]
    assert WHOLE[0] == Park(1, ROLLBACK, 2000.0 + 120.0 + WAITS_PARKED_S)
    assert WHOLE[-1] == Resume(1, ROLLBACK, "global_step30", 30)
    assert (type(by_job[0]), type(by_job[-1])) == (StopJob, StartJob)
    assert [describe(action) for action in (WHOLE[0], WHOLE[-1])] == [
        "park attempt 1 at a step boundary and see that it writes nothing more",
        "resume attempt 1 in its own processes from global_step30 as incident-1-r1",
    ]


@pytest.mark.parametrize("done", range(len(WHOLE) + 1))
def test_a_plan_in_place_that_is_cut_short_is_taken_up_where_it_stopped(done: int) -> None:
    state = reduce(after, WHOLE[:done], training())
    assert plan_rollback(in_place(), state, POLICY).actions == WHOLE[done:]


def test_a_trainer_that_was_resumed_and_has_not_reported_yet_is_let_load() -> None:
    """Its journal is ended, its next one not begun: nothing moves, and it is not asked to park once more."""
    loading = training(journals=(JournalFacts(number=1, reported=True, can_park=True, finished=True),))
    decision = decided(resumed=True, starts=1, last_start_unix_s=1990.0, last_start_attempt=1)
    plan = plan_rollback(decision, loading, POLICY)
    assert (plan.actions, plan.refusal, plan.gives_up) == ((), None, None)


def test_what_was_resumed_saves_and_none_of_it_is_moved() -> None:
    saved = resumed(training())
    assert len(saved.folders.checkpoints) == 8
    assert plan_rollback(in_place(), saved, POLICY).actions == ()


SAYS = "attempt 1 is parked at step 88: it writes nothing, and waits for incident-1-r1"
OWN_CHILD = WriterSeen(id="process 43", group="41", rollback=ROLLBACK)


@pytest.mark.parametrize("state", [resumed(training()), training(journals=(JournalFacts(number=1, finished=True),))])
def test_what_a_resumed_process_starts_is_no_second_job_beside_which_it_would_be_stopped(state: Facts) -> None:
    """A worker of its data loader has the rollback in its environment, and the process itself that of its own start."""
    with_child = state.changed(jobs=replace(state.jobs, writers=(*WRITERS, OWN_CHILD)))
    decision = decided(resumed=True, starts=1, last_start_unix_s=1990.0, last_start_attempt=1)
    assert plan_rollback(decision, with_child, POLICY).actions == ()
    given_up = replace(decision, in_place=False, given_up="it was resumed 900 s ago and has not reported its start")
    actions = plan_rollback(given_up, with_child, POLICY).actions
    assert actions == () if state.started_rollbacks else actions[0] == StopJob(("process 41", "process 42"))


ASKED = {"park_asked_unix_s": 1990.0}
RESUMED = {"resumed": True, "starts": 1, "last_start_attempt": 1}
NO = "rank 1 could not close its files (OSError: [Errno 28] No space left on device)"
SAYS_NO = JournalFacts(number=1, reported=True, can_park=True, not_parked_for=ROLLBACK, why_not_parked=NO)
OVER = {"journals": (JournalFacts(number=1, reported=True, can_park=True, finished=True),)}


@pytest.mark.parametrize(
    ("decision", "state", "why"),
    [
        (
            decided(park_asked_unix_s=1870.0),
            training(),
            "attempt 1 is not parked within 120 s: the newest record of the newest attempt is not `parked`",
        ),
        (decided(**ASKED), training(journals=(SAYS_NO,)), f"attempt 1 could not be parked: {NO}"),
        (
            decided(**ASKED),
            gone(training()),
            "the trainer of attempt 1 is gone: process 41 of attempt 1 on n1 is not there any more",
        ),
        (
            decided(),
            training(jobs=JobsSeen(writers=SHORT)),
            "900 s are left of the time limit of process 41, and [policy] min_remaining_s is 3600",
        ),
        (
            decided(**RESUMED, last_start_unix_s=1000.0),
            training(**OVER),
            "it was resumed 1000 s ago and has not reported its start",
        ),
        (
            decided(**RESUMED, last_start_unix_s=1990.0),
            gone(training(**OVER)),
            "the trainer of attempt 1 is gone: process 41 of attempt 1 on n1 is not there any more",
        ),
        (
            decided(**RESUMED, last_start_unix_s=1900.0),
            parked(training()).changed(parked=replace(parked(training()).liveness.parked, resume_asked=True)),
            f"{SAYS}, and has not taken RESUME within 100 s",
        ),
    ],
)
def test_when_the_way_in_place_is_given_up_and_that_a_new_job_follows_as_the_same_rollback(
    decision: Rollback, state: Facts, why: str
) -> None:
    facts = carried_out(state, decision)
    turn = decide(facts, POLICY, Memory())
    assert turn.records == (InPlaceGivenUp(incident="incident-1", rollback=ROLLBACK, reason=why),)
    assert turn.actions == ()
    goes_on = plan_rollback(replace(decision, in_place=False, given_up=why), state, POLICY).actions
    assert not any(isinstance(action, Park | Resume) for action in goes_on)
    assert goes_on[-1] == StartJob("incident-1", ROLLBACK)


def test_a_trainer_that_is_parked_is_not_given_up_for_being_slow() -> None:
    """However long the files take: it waits until its deadline."""
    plan = plan_rollback(decided(park_asked_unix_s=500.0), parked(training()), POLICY)
    assert plan.gives_up is None
    assert plan.actions == WHOLE[1:]


def test_park_within_s_counts_from_the_first_time_that_it_was_asked() -> None:
    plan = plan_rollback(decided(**ASKED), training(), POLICY)
    assert plan.actions[0] == Park(1, ROLLBACK, 1990.0 + 120.0 + WAITS_PARKED_S)


def test_a_resume_counts_as_a_start() -> None:
    spent = plan_rollback(decided(starts=3), training(), POLICY)
    assert spent.refusal == "the job was started 3 times for incident-1-r1 and never reported a start"
    hour = plan_rollback(in_place(), training(starts_unix_s=(1999.0,) * 6), POLICY)
    assert hour.waits
    assert "sentinel has started the job 6 times in the last hour" in (hour.refusal or "")


@pytest.mark.parametrize("begun", [False, True])
@pytest.mark.parametrize("held", [{"paused": True}, {"target": "damaged"}])
def test_a_trainer_of_which_nothing_has_moved_is_released_where_the_plan_goes_no_further(
    held: dict[str, object], begun: bool
) -> None:
    state = parked(training())
    if "paused" in held:
        state = state.changed(paused=True)
    else:
        damaged = (replace(c, verified=False, problem="a shard is torn") for c in state.folders.checkpoints)
        state = state.changed(checkpoints=tuple(damaged))
    facts = carried_out(state, decided(**ASKED, begun=begun))
    turn = decide(facts, POLICY, Memory())
    assert any(isinstance(action, Release) for action in turn.actions) is not begun
    assert not any(isinstance(action, Resume | StartJob | StopJob) for action in turn.actions)


@pytest.mark.parametrize("of", [ROLLBACK, None])
def test_a_watch_that_observes_says_that_nobody_resumes_the_trainer_that_is_parked(of: str | None) -> None:
    """As after a person's rollback whose command was killed: in modes approve and act it is carried on."""
    facts, observing = carried_out(training() if of is None else parked(training(), of), decided(**ASKED)), Policy()
    turn = decide(facts, observing, Memory())
    assert (turn.actions, turn.records) == ((), ())
    assert ("attempt 1 is parked for it until its deadline, and ends then" in (turn.message or "")) == (of is not None)
    assert of is None or "no watch carries on in mode observe" in way_of(facts, observing).why
    assert of is None or "`sentinel watch` carries on" in way_of(facts, POLICY).why


# what is on record


def test_a_decision_keeps_its_way_and_an_older_log_has_none() -> None:
    told = Decided.of("incident-1", in_place()).to_json() | {"time_unix_s": 1.0}
    assert told["in_place"] is True
    by_job = Decided.of("incident-1", decided(in_place=False)).to_json()
    assert "in_place" not in by_job
    assert event_of(told).to_json() == told


def test_a_yes_to_a_new_job_is_none_to_a_restart_in_place() -> None:
    assert digest_of(in_place()) != digest_of(decided(in_place=False))


def test_the_story_of_a_way_that_was_given_up_is_told() -> None:
    story, *_ = STORIES["dies while it is resumed"]
    world = World(story)
    deque(world.follow(), maxlen=0)
    (made,) = fold(world.events)
    (rollback,) = made.rollbacks
    assert (rollback.in_place, rollback.resumed, rollback.starts, made.outcome) == (False, False, 2, "recovered")
    assert rollback.given_up is not None
    kinds = [e.action.kind for e in world.events if isinstance(e, Intent)]
    assert kinds.index("park") < kinds.index("resume") < kinds.index("start_job")
    assert kinds.count("quarantine_checkpoints") == 1  # what was moved stays moved


def test_a_run_that_parks_recovers_without_an_end_of_its_job() -> None:
    story, *_ = STORIES["needs the second rung, in place as the first"]
    world = World(story)
    deque(world.follow(), maxlen=0)
    kinds = [e.action.kind for e in world.events if isinstance(e, Intent)]
    assert kinds.count("resume") == 2
    assert not {"stop_job", "start_job", "prepare_job"} & {*kinds}


# what is never done


@st.composite
def situations(draw: st.DrawFn) -> tuple[Rollback, Facts]:
    """A decision and a run, each in any state, also such as never come together."""
    state = training()
    for change in draw(st.permutations(range(6)))[: draw(st.integers(0, 4))]:
        match change:
            case 0:
                state = parked(state, draw(st.sampled_from((ROLLBACK, "incident-1-r2"))))
            case 1:
                state = gone(state)
            case 2:
                can_park, over = draw(st.booleans()), draw(st.booleans())
                journal = JournalFacts(number=1, reported=True, can_park=can_park, finished=over)
                state = state.changed(journals=(journal,))
            case 3:
                other = WriterSeen(id="process 77", pending=draw(st.booleans()))
                state = state.changed(jobs=replace(state.jobs, writers=(*state.jobs.writers, other)))
            case 4:
                state = state.changed(jobs=replace(state.jobs, known=False))
            case _:
                process_state = ProcessState(life=draw(st.sampled_from(Life)), sentence="asked")
                state = state.changed(
                    attempts=(AttemptSeen(number=1, process_state=process_state, finished=draw(st.booleans())),)
                )
    decision = decided(
        in_place=draw(st.booleans()),
        resumed=draw(st.booleans()),
        starts=draw(st.integers(0, 3)),
        last_start_unix_s=draw(st.sampled_from((1000.0, 1990.0))),
        park_asked_unix_s=draw(st.sampled_from((None, 1000.0, 1990.0))),
        begun=draw(st.booleans()),
    )
    return decision, state


@given(situations())
def test_the_first_action_moves_files_only_where_all_that_writes_is_gone_or_parked_for_it(
    situation: tuple[Rollback, Facts],
) -> None:
    decision, state = situation
    first = next(iter(plan_rollback(decision, state, POLICY).actions), None)
    known = life_of(state.liveness, except_for=decision.id).life
    if isinstance(first, MOVES_FILES):
        assert known is Life.GONE or (known is Life.PARKED and decision.in_place)
    if isinstance(first, StartJob):
        assert known is Life.GONE
    if isinstance(first, Resume):
        assert known is Life.PARKED


@given(situations())
def test_no_trainer_is_asked_to_park_that_has_not_declared_that_it_can(situation: tuple[Rollback, Facts]) -> None:
    _, state = situation
    plan = decide_rung(incident(), state, POLICY)
    asked = any(isinstance(action, Park | Resume) for action in plan.actions)
    assert not asked or (state.latest is not None and state.latest.can_park and not state.latest.finished)


@given(situations(), st.integers(0, 12))
def test_whatever_was_done_of_a_plan_the_rest_leads_to_the_same_run(
    situation: tuple[Rollback, Facts], done: int
) -> None:
    decision, state = situation
    whole = plan_rollback(decision, state, POLICY).actions
    if not any(isinstance(action, Resume) for action in whole):
        return
    cut = reduce(after, whole[:done], state)
    rest = plan_rollback(decision, cut, POLICY).actions
    assert reduce(after, rest, cut) == reduce(after, whole, state)
