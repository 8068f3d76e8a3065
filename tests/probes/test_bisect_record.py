"""What the record shows is a suspect before any probe, and the samples are halved while the budget lasts: tables."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from sentinel.judge.history import History
from sentinel.judge.thresholds import Thresholds
from sentinel.lab.bisect import causes as bisect
from sentinel.lab.bisect.answer import answer
from sentinel.lab.bisect.bisect import question_about
from sentinel.lab.bisect.causes import RecordEvidence, next_probes
from sentinel.lab.bisect.question import question_of
from sentinel.lab.bisect.record.changes import Changed, changes_before
from sentinel.lab.bisect.seen import seen_of
from sentinel.lab.probes.probe import ProbeResult
from sentinel.plan.choose.policy import Policy
from sentinel.vocabulary.sample import RunStarted
from tests.support.bisect_questions import (
    ANCHOR,
    BATCH,
    CONTROL,
    COUNTED,
    FP32,
    INCIDENT,
    LOWER,
    LR,
    MEANS,
    ONSET,
    ORDER,
    OTHERS,
    RUN,
    SAVED,
    SKIP,
    WARMUP,
    question,
    result,
)
from tests.support.probe_trainers import ALARM, AT, TAG, readings
from tests.support.there import there


def changed(key: str, words: str, before: Any, after: Any) -> Changed:
    return Changed(key=key, words=words, before=before, after=after, attempt=2, resumed_from=AT)


DECAY = changed("weight_decay", "weight decay", 0.01, 20.0)
RATE = changed("lr", "LR schedule", replace(LR, peak=1e-4), LR)
DTYPE = changed("precision", "precision", "fp32", "bf16")
CODE = changed("code version", "code version", "1a2b", "3c4d")
UNDO, UNDO_LR = "undo-weight-decay", "undo-lr"


def asked(*changes: Changed) -> bisect.Question:
    return question_of(INCIDENT, RUN, COUNTED, tag=TAG, anchor=ANCHOR, means=MEANS, changes=changes)


def history(**second: Any) -> History:
    """Attempt 2 resumes from step 50 of attempt 1, with other settings; the onset is at 60."""
    made = History()
    own = {"weight_decay": 0.01, "adam_beta2": 0.999, "precision": "fp32", "settings": {"git_commit": "1a2b"}}
    made.push(RunStarted(attempt=1, time_unix_s=0.0, world_size=8, lr_schedule=LR.to_json(), **own))
    for sample in readings(range(1, 51)):
        made.push(replace(sample, consumed_samples=BATCH * sample.global_step, global_batch_samples=BATCH))
    begun: dict[str, Any] = {**own, "world_size": 8, "lr_schedule": LR.to_json(), **second}
    made.push(RunStarted(attempt=2, time_unix_s=0.0, resumed_from=50, parent_attempt=1, **begun))
    for sample in readings(range(51, 80), 60, attempt=2):
        made.push(replace(sample, consumed_samples=BATCH * sample.global_step, global_batch_samples=BATCH))
    return made


@pytest.mark.parametrize(
    ("second", "said"),
    [
        ({}, []),
        ({"weight_decay": 20.0}, ["weight decay 0.01 -> 20 at the start of attempt 2, after step 50"]),
        ({"adam_beta2": 0.5}, ["Adam's beta2 0.999 -> 0.5 at the start of attempt 2, after step 50"]),
        ({"precision": "bf16"}, ["precision fp32 -> bf16 at the start of attempt 2, after step 50"]),
        ({"world_size": 4}, ["number of ranks 8 -> 4 at the start of attempt 2, after step 50"]),
        ({"settings": {"git_commit": "3c"}}, ["code version 1a2b -> 3c at the start of attempt 2, after step 50"]),
        (
            {"lr_schedule": replace(LR, peak=0.04, warmup=1).to_json()},
            ["LR schedule peak 0.001 -> 0.04, warmup 10 -> 1 at the start of attempt 2, after step 50"],
        ),
        ({"weight_decay": None, "precision": None}, []),  # not reported is not changed
    ],
)
def test_what_a_start_changed_before_the_onset_is_read_from_the_start_reports(
    second: dict[str, Any], said: list[str]
) -> None:
    made = history(**second)
    descent = made.descent(made.attempts[2])
    assert [change.said for change in changes_before(descent, 50, 60)] == said
    assert [change.said for change in changes_before(descent, 55, 60)] == said, "the last start before the onset"
    assert changes_before(descent, 40, 50) == (), "a start after the onset changed nothing before it"


def test_a_change_of_the_record_reaches_the_question_and_is_undone_first() -> None:
    incident = replace(INCIDENT, attempt=2, onset_range=(60, 60), alarm_step=70)
    run = question_about(incident, history(weight_decay=20.0), SAVED, Thresholds(), Policy(margin_steps=1), MEANS)
    assert run.undoing == (UNDO,)
    assert there(run.probes[UNDO].overrides).standing.weight_decay == 0.01
    assert [p.name for p in next_probes(run, {CONTROL: result(CONTROL, "diverged")}, room=2)] == [UNDO, SKIP]


@pytest.mark.parametrize(
    ("changes", "outcomes", "ranked"),
    [
        ((DECAY,), {}, [("weight decay", "possible")]),
        ((DECAY,), {CONTROL: "diverged", UNDO: "calm"}, [("weight decay", "likely")]),
        ((DECAY,), {CONTROL: "diverged", UNDO: "calm", SKIP: "diverged"}, [("weight decay", "sure")]),
        (
            (DECAY,),
            {CONTROL: "diverged", UNDO: "calm", SKIP: "calm", OTHERS: "diverged"},
            [("samples of the data", "likely"), ("weight decay", "likely")],
        ),
        ((DECAY,), {CONTROL: "diverged", UNDO: "diverged"}, []),
        ((DECAY,), {CONTROL: "diverged", UNDO: "not tried"}, [("weight decay", "possible")]),
        ((DECAY,), {CONTROL: "not tried"}, [("weight decay", "possible")]),
        ((CODE,), {CONTROL: "diverged", SKIP: "diverged"}, [("code version", "possible")]),
        ((DTYPE,), {CONTROL: "diverged", FP32: "calm"}, [("precision", "likely")]),
        ((RATE,), {CONTROL: "diverged", UNDO_LR: "calm", SKIP: "diverged"}, [("learning rate", "likely")]),
        (
            (RATE,),
            {CONTROL: "diverged", UNDO_LR: "calm", SKIP: "diverged", WARMUP: "diverged"},
            [("learning rate", "sure")],
        ),
        (
            (RATE,),
            {CONTROL: "diverged", UNDO_LR: "calm", SKIP: "diverged", WARMUP: "calm"},
            [("LR warmup too short", "likely"), ("learning rate", "possible")],
        ),
        (
            (RATE,),
            {CONTROL: "diverged", UNDO_LR: "calm", SKIP: "diverged", WARMUP: "not tried"},
            [("learning rate", "likely")],  # a longer warmup might have prevented it as well
        ),
    ],
)
def test_what_changed_is_a_suspect_without_any_probe_and_by_its_undoing_more(
    changes: tuple[Changed, ...], outcomes: dict[str, str], ranked: list[tuple[str, str]]
) -> None:
    found = answer(asked(*changes), {name: result(name, outcome) for name, outcome in outcomes.items()})
    assert [(suspect.cause, suspect.sure) for suspect in found.ranked] == ranked
    shown = [suspect.why for suspect in found.ranked if suspect.cause not in ("samples of the data", "learning rate")]
    assert all(any(change.said in why for change in changes) for why in shown)


def test_nothing_is_sure_of_a_trainer_that_does_not_repeat_the_run() -> None:
    control = result(CONTROL, "diverged", (ONSET, "loss"))
    for outcomes in ({UNDO: "calm", SKIP: "diverged"}, {UNDO: "diverged", SKIP: "calm", OTHERS: "diverged"}):
        results = {CONTROL: control} | {name: result(name, outcome) for name, outcome in outcomes.items()}
        assert answer(asked(DECAY), results).ranked[0].sure == "likely"


def test_a_restart_sets_back_what_was_undone() -> None:
    question_ = asked(DECAY)
    results = {n: result(n, o) for n, o in ((CONTROL, "diverged"), (UNDO, "calm"), (SKIP, "diverged"))}
    found = seen_of(question_, results, running=False, refusal=None)
    assert there(found.overrides).standing.weight_decay == 0.01
    assert found.reason.startswith("weight decay (sure)")


def test_an_lr_that_could_not_be_lowered_stays_a_suspect_by_its_own_series() -> None:
    evidence = RecordEvidence(lr_jump=40.0, lr_jump_at=45)
    lost = replace(result(LOWER, "calm"), outcome="not tried", why="its LR is the run's own")
    results = {CONTROL: result(CONTROL, "diverged"), LOWER: lost, SKIP: result(SKIP, "diverged")}
    (found,) = answer(question(evidence=evidence), results).ranked
    assert (found.cause, found.sure) == (bisect.RATE, "possible")
    assert found.why == "the LR rose 40-fold at step 45; lower-lr shows nothing: its LR is the run's own"
    ruled_out = results | {LOWER: result(LOWER, "diverged")}
    assert answer(question(evidence=evidence), ruled_out).ranked == ()


BEGIN, END = BATCH * (ONSET - 6), BATCH * (ALARM + 4 * (ALARM - AT))
DATA = {CONTROL: "diverged", SKIP: "calm", OTHERS: "diverged"}


def halved(spoilt: set[int], budget: int, **others: str) -> tuple[list[str], tuple[int, int]]:
    """The probes that halve the range where these samples do it, and the range that is left."""
    made, results = question(), dict[str, ProbeResult]()
    results |= {name: result(name, outcome) for name, outcome in (DATA | others).items()}
    names = list[str]()
    while len(names) < budget and (probes := next_probes(made, results, narrow=True)):
        skipped = there((probes[0].overrides.standing.skipped or ())[-1] if probes[0].overrides else None)
        calm = spoilt <= set(range(skipped.begin, skipped.end))
        names.append(probes[0].name)
        results[names[-1]] = result(names[-1], "calm" if calm else "diverged")
    known, _ = bisect.smallest_range(made, results)
    return names, there(known)


@pytest.mark.parametrize(
    ("spoilt", "budget", "known"),
    [
        ({190}, 0, (BEGIN, END)),
        ({190}, 1, (BEGIN, BATCH * ALARM)),  # what the run had read at its alarm
        ({190}, 2, (BEGIN, 208)),
        ({190}, 99, (190, 191)),
        ({239}, 99, (239, 240)),
        ({180, 181}, 99, (180, 182)),
        ({190, 230}, 99, (BEGIN, BATCH * ALARM)),  # of both halves
        ({190, 300}, 99, (BEGIN, 368)),  # a shard that is longer than the run has read
    ],
)
def test_the_suspected_samples_are_halved_while_the_budget_lasts(
    spoilt: set[int], budget: int, known: tuple[int, int]
) -> None:
    assert halved(spoilt, budget)[1] == known


def test_the_range_is_named_and_is_halved_for_a_person_alone() -> None:
    names, known = halved({190}, 3)
    results = {name: result(name, outcome) for name, outcome in DATA.items()}
    assert next_probes(question(), results) == (), "a restart does not wait for it"
    results |= {name: result(name, "calm") for name in names}
    assert f"skipping samples {known[0]} to {known[1] - 1} alone does, too" in answer(question(), results).ranked[0].why
    assert answer(question(), results).ranked[0].sure == "sure"


@pytest.mark.parametrize("others", [{SKIP: "diverged"}, {OTHERS: "calm"}, {SKIP: "not tried"}])
def test_samples_that_are_not_found_are_not_halved(others: dict[str, str]) -> None:
    results = {name: result(name, outcome) for name, outcome in (DATA | others).items()}
    made = question()
    wanted = next_probes(made, results, narrow=True)
    assert not any(probe.name.startswith("skip-") for probe in wanted), wanted
    assert ORDER in made.probes
