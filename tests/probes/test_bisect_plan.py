"""Which probe comes next, and what the results speak for: tables."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from sentinel.judge.history import History
from sentinel.judge.thresholds import Thresholds
from sentinel.lab.bisect import causes as bisect
from sentinel.lab.bisect.answer import answer
from sentinel.lab.bisect.bad_start import BadStart
from sentinel.lab.bisect.bisect import question_about
from sentinel.lab.bisect.causes import Question, RecordEvidence, next_probes
from sentinel.lab.bisect.question import Means, question_of
from sentinel.lab.bisect.record.evidence import evidence_of, sound_until
from sentinel.lab.probes.probe import Probe, ProbeResult
from sentinel.plan.choose.policy import Policy
from sentinel.plan.observation import Checkpoint
from sentinel.plan.starts.audit import Continued, StartAudit
from sentinel.vocabulary.errors import ConfigError
from sentinel.vocabulary.overrides import Anchor, Once, Overrides, TrainingSettings
from sentinel.vocabulary.sample import CheckpointSaved, RunStarted
from tests.support.bisect_questions import (
    _AFTER,
    AGAIN,
    ANCHOR,
    BASELINE,
    BATCH,
    CONTROL,
    COUNTED,
    FP32,
    INCIDENT,
    LOWER,
    LR,
    MEANS,
    MOMENTS,
    NODE,
    ONSET,
    ORDER,
    OTHERS,
    RUN,
    SAVED,
    SKIP,
    SLW,
    WARMUP,
    question,
    result,
)
from tests.support.probe_trainers import ALARM, AT, TAG, WINDOW
from tests.support.there import there

_ALL = {"adam_variance_l1": 1.0, "adam_variance_max": 1.0, "momentum_l2": 1.0, "update_norm": 1.0, "param_norm": 50.0}
MEASURED = replace(COUNTED, after={n: replace(s, **_ALL) for n, s in _AFTER.items()})


def sequence(asked: Question, calm: set[str]) -> list[str]:
    """The probes that are run, one after the other, where the control diverges and these changes heal."""
    results: dict[str, ProbeResult] = {}
    while probes := next_probes(asked, results):
        (probe,) = probes
        results[probe.name] = result(probe.name, "calm" if probe.name in calm else "diverged")
    return list(results)


@pytest.mark.parametrize(
    ("calm", "evidence", "run", "first", "sure"),
    [
        ({SKIP}, {}, [CONTROL, SKIP, OTHERS], bisect.SAMPLES, "sure"),
        ({SKIP, ORDER}, {}, [CONTROL, SKIP, OTHERS], bisect.SAMPLES, "sure"),
        ({ORDER}, {}, [CONTROL, SKIP, ORDER, FP32, LOWER, SLW, MOMENTS, NODE], bisect.DATA_ORDER, "likely"),
        ({LOWER}, {}, [CONTROL, SKIP, ORDER, FP32, LOWER, WARMUP], bisect.RATE, "likely"),
        ({LOWER, WARMUP}, {}, [CONTROL, SKIP, ORDER, FP32, LOWER, WARMUP], bisect.SHORT_WARMUP, "likely"),
        ({LOWER}, {"lr_jump": 30.0}, [CONTROL, LOWER, SKIP, ORDER, WARMUP], bisect.RATE, "sure"),
        ({LOWER, WARMUP}, {"lr_jump": 30.0}, [CONTROL, LOWER, SKIP, ORDER, WARMUP], bisect.RATE, "sure"),
        # what has nothing to do with it prevents it as well: no change tells the cause
        ({SKIP, OTHERS, LOWER}, {}, [CONTROL, SKIP, OTHERS, FP32, LOWER, WARMUP], bisect.SAMPLES, "possible"),
        ({FP32}, {}, [CONTROL, SKIP, ORDER, FP32, LOWER], bisect.PRECISION, "likely"),
        ({SLW}, {}, [CONTROL, SKIP, ORDER, FP32, LOWER, SLW], bisect.LENGTH, "likely"),
        ({MOMENTS}, {}, [CONTROL, SKIP, ORDER, FP32, LOWER, SLW, MOMENTS], bisect.STALE_MOMENTS, "likely"),
        # another environment is other hardware by the configuration's word alone
        (
            *({NODE}, {"spread_growth": 40.0, "spread_of": "grad_norm_spread"}, [CONTROL, NODE]),
            *(bisect.BROKEN_NODE, "likely"),
        ),
    ],
)
def test_what_is_run_where_the_control_diverges_and_what_it_speaks_for(
    calm: set[str], evidence: dict[str, Any], run: list[str], first: str, sure: str
) -> None:
    asked = question(evidence=RecordEvidence(**evidence))
    assert sequence(asked, calm) == run
    found = answer(asked, {n: result(n, "calm" if n in calm else "diverged") for n in run})
    assert (found.ranked[0].cause, found.ranked[0].sure) == (first, sure)
    assert {name for name, _ in found.not_tried} == set(bisect.CHEAPEST_FIRST) - set(run)


@pytest.mark.parametrize(
    ("found", "evidence", "ranked"),
    [
        (
            {LOWER: "calm", ORDER: "calm", SKIP: "diverged"},
            {},
            [(bisect.RATE, "likely"), (bisect.DATA_ORDER, "possible")],
        ),
        ({LOWER: "calm"}, {"lr_jump": 30.0}, [(bisect.RATE, "likely")]),  # no samples could be skipped
        (
            {LOWER: "calm", WARMUP: "calm", SKIP: "diverged"},
            {"lr_jump": 30.0},
            [(bisect.RATE, "sure"), (bisect.SHORT_WARMUP, "possible")],
        ),
        (
            {LOWER: "calm", WARMUP: "calm"},
            {"in_risky_window": True},
            [(bisect.SHORT_WARMUP, "likely"), (bisect.RATE, "possible")],
        ),
    ],
)
def test_how_sure_a_cause_is_by_what_else_healed(
    found: dict[str, str], evidence: dict[str, Any], ranked: list[tuple[str, str]]
) -> None:
    results = {CONTROL: result(CONTROL, "diverged")} | {name: result(name, outcome) for name, outcome in found.items()}
    told = answer(question(evidence=RecordEvidence(**evidence)), results).ranked
    assert [(suspect.cause, suspect.sure) for suspect in told] == ranked
    assert ("the onset lies in the first three LR warmups" in told[0].why) is ("in_risky_window" in evidence)


@pytest.mark.parametrize(
    ("lrs", "onset", "jump"),
    [
        ({45: 30.0}, ONSET, (30.0, 45)),
        ({12: 30.0}, ONSET, (30.0, AT + 1)),  # long before, and a peak that the schedule does not have
        ({9: 30.0}, 14, (30.0, 9)),  # in the ramp, and not the ramp's own
        ({9: 1.2}, 14, (1.0, None)),  # the ramp's own steps
        ({13: 30.0}, 14, (30.0, 13)),
        ({45: 2.0}, ONSET, (2.0, 45)),  # it is lowered to where it was, and no further
        ({ONSET + 1: 30.0}, ONSET, (1.0, None)),  # what comes after the onset is no cause
    ],
)
def test_a_jump_of_the_lr_counts_near_the_onset_and_past_the_warmup(
    lrs: dict[int, float], onset: int, jump: tuple[float, int | None]
) -> None:
    ((at, factor),) = lrs.items()
    line = [
        replace(s, lr=1e-3 * (factor if s.global_step >= at else 1.0))
        for s in (*COUNTED.before, *COUNTED.after.values())
    ]
    after = {s.global_step: s for s in line if s.global_step > AT}
    window = replace(COUNTED, before=tuple(line[:AT]), after=after, onset_step=onset)
    shown = evidence_of(BASELINE, window)
    assert (round(shown.lr_jump, 6), shown.lr_jump_at) == (jump if jump[1] else (1.0, shown.lr_jump_at))
    assert shown.in_risky_window is (onset <= 30)
    lowered = question_of(INCIDENT, RUN, window, tag=TAG, anchor=ANCHOR, means=MEANS).probes[LOWER].overrides
    assert there(there(lowered).standing.lr).peak == pytest.approx(1e-3 / (jump[0] if jump[0] > 1.5 else 8))


def test_a_spread_over_the_ranks_counts_up_to_the_onset() -> None:
    for step, growth in ((ONSET - 2, 40.0), (ONSET + 1, 1.0), (ONSET - 30, 1.0)):
        line = [*COUNTED.before, *COUNTED.after.values()]
        line = [replace(s, grad_norm_spread=40.0 if s.global_step == step else 1.0) for s in line]
        after = {s.global_step: s for s in line if s.global_step > AT}
        shown = evidence_of(BASELINE, replace(COUNTED, before=tuple(line[:AT]), after=after))
        assert shown.spread_growth == growth


def test_where_nothing_heals_no_cause_is_named() -> None:
    asked = question()
    run = sequence(asked, set())
    assert run == [CONTROL, SKIP, ORDER, FP32, LOWER, SLW, MOMENTS, NODE]
    found = answer(asked, {n: result(n, "diverged") for n in run})
    assert found.ranked == ()
    assert "no change that was tried prevented it" in found.reason


@pytest.mark.parametrize(
    ("what", "cause"),
    [
        ("loss", bisect.MACHINE),  # the weights or the forward pass
        ("param_norm", bisect.WEIGHTS),
        ("grad_norm", bisect.GRADIENTS),
        ("grad_norm_spread", bisect.GRADIENTS),
        ("adam_variance_l1", bisect.ADAM),
        ("batch_digest", bisect.OTHER_INPUT),
    ],
)
def test_a_control_that_stays_calm_tells_where_the_run_left_it_once_a_second_one_agrees(what: str, cause: str) -> None:
    asked = question(window=MEASURED)
    control = result(CONTROL, "calm", (ONSET, what))
    assert [p.name for p in next_probes(asked, {CONTROL: control}, room=4)] == [AGAIN]
    alone = answer(asked, {CONTROL: control})
    assert (alone.ranked[0].cause, alone.ranked[0].sure) == (cause, "possible")
    both = {CONTROL: control, AGAIN: replace(control, name=AGAIN)}
    assert next_probes(asked, both) == ()
    assert (answer(asked, both).ranked[0].cause, answer(asked, both).ranked[0].sure) == (cause, "sure")


@pytest.mark.parametrize(
    ("what", "missing", "norm_then", "cause"),
    [
        ("adam_variance_l1", ("grad_norm",), 50.0, bisect.MACHINE),  # it may have been the gradients
        ("param_norm", ("momentum_l2",), 50.0, bisect.MACHINE),
        ("param_norm", (), 50.0, bisect.WEIGHTS),
        ("loss", (), 6e36, bisect.WEIGHTS),  # no update makes them so
        ("loss", (), 60.0, bisect.MACHINE),
        ("grad_norm", ("batch_digest",), 50.0, bisect.GRADIENTS),  # it may have read other samples
    ],
)
def test_the_part_of_a_machine_is_named_only_where_a_reading_tells_the_parts_apart(
    what: str, missing: tuple[str, ...], norm_then: float, cause: str
) -> None:
    after = {
        n: replace(s, **dict.fromkeys(missing), param_norm=norm_then if n >= ONSET else 50.0)
        for n, s in MEASURED.after.items()
    }
    asked = question(window=replace(MEASURED, after=after))
    control = result(CONTROL, "calm", (ONSET, what))
    found = answer(asked, {CONTROL: control, AGAIN: replace(control, name=AGAIN)}).ranked[0]
    assert (found.cause, found.sure) == (cause, "likely" if "batch_digest" in missing else "sure")
    assert all(name in found.why or name == "batch_digest" for name in missing)


def test_a_trainer_that_does_not_repeat_itself_leaves_chance_first() -> None:
    asked = question()
    results = {
        CONTROL: result(CONTROL, "calm", (AT + 1, "loss")),
        AGAIN: result(AGAIN, "calm", (AT + 1, "loss"), loss=3.25),
    }
    found = answer(asked, results)
    assert (found.ranked[0].cause, found.ranked[0].sure) == (bisect.CHANCE, "possible")
    assert "two controls differ by up to 0.25 nats" in found.repeats
    alike = {name: result(name, "calm", (AT + 1, "loss")) for name in (CONTROL, AGAIN)}
    first = answer(asked, alike).ranked[0]
    assert (first.cause, first.sure) == (bisect.CHANCE, "possible"), "they differ from the run from the first step on"
    late = {name: replace(one, differs_at=ONSET) for name, one in results.items()}
    assert answer(asked, late).ranked[0].cause == bisect.CHANCE, "controls that disagree leave chance, wherever they do"
    assert answer(asked, results | {AGAIN: result(AGAIN, "diverged")}).ranked[0].sure == "likely"


@pytest.mark.parametrize(("outcome", "says"), [("calm", "raise [bisect] window_steps"), ("unknown", "shows nothing")])
def test_a_control_that_shows_nothing_ends_it_without_a_cause(outcome: str, says: str) -> None:
    asked = question()
    results = {CONTROL: result(CONTROL, outcome)}
    assert next_probes(asked, results) == ()
    assert answer(asked, results).ranked == ()
    assert says in answer(asked, results).reason


def test_with_room_for_more_the_next_ones_run_beside_it_and_nothing_beside_the_control() -> None:
    asked = question()
    assert [p.name for p in next_probes(asked, {}, room=3)] == [CONTROL]
    control = {CONTROL: result(CONTROL, "diverged")}
    assert [p.name for p in next_probes(asked, control, room=3)] == [SKIP, ORDER, FP32]


def test_each_probe_changes_one_thing_from_the_checkpoint_on_and_stays_within_two_windows() -> None:
    probes = question().probes
    assert set(probes) == {CONTROL, AGAIN, *bisect.CHEAPEST_FIRST}
    assert {(p.tag, p.global_step) for p in probes.values()} == {(TAG, AT)}
    assert (probes[CONTROL].until_step, probes[CONTROL].overrides) == (ALARM, None)
    assert max(p.until_step for p in probes.values()) == probes[WARMUP].until_step == AT + 2 * (ALARM - AT)
    skipped = there(_standing(probes[SKIP]).skipped)
    first = BATCH * (ONSET - 5 - 1)
    assert (skipped[-1].begin, skipped[-1].end) == (first, BATCH * (ALARM + 4 * (ALARM - AT)))
    others = there(_standing(probes[OTHERS]).skipped)
    assert BATCH * AT == others[-1].begin < others[-1].end <= first, "what is skipped instead is not suspected"
    assert _standing(probes[LOWER]).lr == replace(LR, peak=1e-3 / 8)
    assert _standing(probes[WARMUP]).lr == replace(LR, anchor=AT, warmup=ALARM - AT)
    assert (probes[FP32].options, probes[NODE].environment) == (("--precision=fp32",), {"NODE": "other"})
    assert all(_standing(p).lr == LR for n, p in probes.items() if p.overrides and n not in (LOWER, WARMUP, SLW))


def test_the_rung_of_a_longer_warmup_is_as_many_times_the_runs_own_and_none_where_it_has_none() -> None:
    assert question().rungs[WARMUP] == {"lr_warmup_factor": 2.0}
    short = replace(BASELINE, lr=replace(LR, warmup=4))
    assert question(incident=replace(INCIDENT, baseline=short)).rungs[WARMUP] == {"lr_warmup_factor": (ALARM - AT) / 4}
    none = replace(BASELINE, lr=replace(LR, warmup=0))
    assert question(incident=replace(INCIDENT, baseline=none)).rungs[WARMUP] == {}


def _standing(probe: Probe) -> TrainingSettings:
    return there(probe.overrides).standing


def test_a_change_that_the_trainer_does_not_make_is_not_tried_and_the_reason_is_kept() -> None:
    asked = question(Means(), run=RUN.changed(applies=frozenset({"lr"})))
    assert set(asked.probes) == {CONTROL, AGAIN, LOWER, WARMUP}
    assert "does not apply" in asked.not_possible[ORDER]
    assert "skips no samples" in asked.not_possible[SKIP]
    assert "other_node_environment" in asked.not_possible[NODE]
    told = dict(answer(asked, {CONTROL: result(CONTROL, "diverged")}).not_tried)
    assert told[SKIP] == asked.not_possible[SKIP]
    assert question(replace(MEANS, nodes=("n[1-2]",))).probes[NODE].exclude_nodes == ("n[1-2]",)


def test_a_window_that_begins_at_a_one_shot_change_repeats_it_in_every_probe() -> None:
    before = Overrides(
        incident="incident-0",
        rollback="incident-0-r1",
        anchor=Anchor(global_step=AT, consumed_samples=BATCH * AT, consumed_tokens=8 * BATCH * AT),
        standing=TrainingSettings(),
        once=Once(id="incident-0-r1", reset_moments=True),
    )
    probes = question(incident=replace(INCIDENT, overrides_before=before)).probes
    assert probes[CONTROL].overrides == before
    onces = {name: probes[name].overrides for name in (SKIP, ORDER, LOWER)}
    assert all(o is not None and o.once is not None and o.once.reset_moments for o in onces.values())
    elsewhere = replace(before, anchor=replace(before.anchor, global_step=AT - 10))
    apart = question(incident=replace(INCIDENT, overrides_before=elsewhere)).probes
    assert all((o := apart[name].overrides) is not None and not (o.once and o.once.reset_moments) for name in onces)
    assert there(there(onces[ORDER]).once).seed == 8


def test_the_checkpoint_is_of_the_line_that_diverged_and_not_one_that_a_later_attempt_saved_under_its_name() -> None:
    history = History()
    for attempt, resumed, steps in ((1, None, (10, 20, 30, 40)), (2, 20, (30, 40))):
        first = (resumed or 0) + 1
        parent = 1 if resumed else None
        history.push(RunStarted(attempt=attempt, time_unix_s=0.0, resumed_from=resumed, parent_attempt=parent))
        for step in range(first, 70):
            sample = replace(WINDOW.before[0], attempt=attempt, global_step=step, consumed_samples=BATCH * step)
            history.push(replace(sample, loss=9.0 if step >= ONSET else 3.0))
            if step in steps:
                saved = {"tag": f"global_step{step}", "global_step": step}
                history.push(CheckpointSaved(attempt=attempt, time_unix_s=0.0, **saved))
    saves = (Checkpoint(tag=f"global_step{n}", global_step=n, complete=True) for n in (10, 20, 30, 40))
    run = RUN.changed(checkpoints=tuple(saves))
    of_first = question_about(INCIDENT, history, run, Thresholds(), Policy(), MEANS)
    assert of_first.probes[CONTROL].tag == "global_step20"
    of_second = question_about(replace(INCIDENT, attempt=2), history, run, Thresholds(), Policy(), MEANS)
    assert of_second.probes[CONTROL].tag == "global_step40"
    early = replace(INCIDENT, attempt=2, onset_range=(25, 25))
    of_restart = question_about(early, history, run, Thresholds(), Policy(), MEANS)
    assert of_restart.probes[CONTROL].tag == "global_step20", "no earlier than where the attempt began"


def test_a_checkpoint_that_was_saved_after_the_weights_had_left_all_proportion_is_not_begun_from() -> None:
    norms = {10: 50.0, 20: 51.0, 30: 52.0, 40: 6e36, 50: 6e36}
    line = [replace(s, param_norm=norms.get(s.global_step)) for s in (*WINDOW.before, *WINDOW.after.values())]
    assert sound_until(line, 60) == 30
    assert sound_until(line, 40) is None
    young = [replace(s, param_norm={10: 0.1, 20: 51.0, 30: 52.0, 40: 53.0}.get(s.global_step)) for s in line]
    assert sound_until(young, 60) is None, "the first readings tell nothing yet"
    history = History()
    history.push(RunStarted(attempt=1, time_unix_s=0.0))
    for sample in line:
        history.push(replace(sample, consumed_samples=BATCH * sample.global_step))
    saves = tuple(Checkpoint(tag=f"global_step{n}", global_step=n, complete=True) for n in (20, 30, 40, 50))
    asked = replace(INCIDENT, onset_range=(60, 60), alarm_step=70)
    made = question_about(asked, history, RUN.changed(checkpoints=saves), Thresholds(), Policy(), MEANS)
    assert made.probes[CONTROL].tag == "global_step30"
    assert sound_until([replace(s, param_norm=None) for s in line], 60) is None


def resumed_late(onset: int, *, parent: bool = True) -> History:
    """Attempt 2 goes on from step 50 of attempt 1, after the onset."""
    history = History()
    for attempt, steps in ((1, range(1, 61)), (2, range(51, 80))):
        from_parent = {"resumed_from": 50, "parent_attempt": 1 if parent else None} if attempt == 2 else {}
        if attempt == 1 and not parent:
            continue
        history.push(RunStarted(attempt=attempt, time_unix_s=0.0, **from_parent))
        for step in steps:
            sample = replace(WINDOW.before[0], attempt=attempt, global_step=step, consumed_samples=BATCH * step)
            history.push(replace(sample, loss=9.0 if step >= onset else 3.0))
        if attempt == 1:
            for step in (20, 40, 50, 60):
                history.push(CheckpointSaved(attempt=1, time_unix_s=0.0, tag=f"global_step{step}", global_step=step))
    return history


LATE = replace(INCIDENT, attempt=2, onset_range=(45, 46), alarm_step=70)


def test_after_a_late_resume_the_base_is_before_the_onset_in_the_lineage_or_there_is_no_bisect() -> None:
    made = question_about(LATE, resumed_late(45), SAVED, Thresholds(), Policy(margin_steps=1), MEANS)
    assert made.probes[CONTROL].tag == "global_step40", "attempt 2 began at 50, after the onset"
    assert min(made.window.after) == 41
    later = replace(LATE, onset_range=(65, 65))
    made = question_about(later, resumed_late(65), SAVED, Thresholds(), Policy(margin_steps=1), MEANS)
    assert made.probes[CONTROL].tag == "global_step50", "global_step60 was saved after the step that was resumed from"
    with pytest.raises(ConfigError, match="a bisect would begin after the onset"):
        question_about(LATE, resumed_late(45, parent=False), SAVED, Thresholds(), Policy(margin_steps=1), MEANS)


@pytest.mark.parametrize(
    ("resumed", "results", "first", "sure"),
    [
        (50, {}, bisect.BAD_START, "likely"),
        (50, {CONTROL: "calm"}, bisect.BAD_START, "likely"),
        (50, {CONTROL: "diverged", SKIP: "calm", OTHERS: "diverged"}, bisect.SAMPLES, "sure"),
        (50, {CONTROL: "diverged"}, bisect.BAD_START, "possible"),
        (AT - 5, {CONTROL: "diverged", SKIP: "calm", OTHERS: "diverged"}, bisect.BAD_START, "likely"),
    ],
)
def test_a_start_that_the_audit_found_bad_is_the_first_suspect_unless_the_control_diverged_without_it(
    resumed: int, results: dict[str, str], first: str, sure: str
) -> None:
    bad = BadStart(attempt=2, resumed_from=resumed, reason="optimizer state not loaded")
    asked = question(evidence=RecordEvidence(bad_start=bad))
    found = answer(asked, {name: result(name, outcome) for name, outcome in results.items()}).ranked
    assert (found[0].cause, found[0].sure) == (first, sure)
    assert sum(suspect.cause == bisect.BAD_START for suspect in found) == 1
    assert any("optimizer state not loaded" in suspect.why for suspect in found)


def test_the_bad_start_is_one_of_the_lineage_up_to_the_alarm() -> None:
    wrong = {"verdict": Continued.NO, "reason": "wrong checkpoint"}
    audits = {
        2: StartAudit(attempt=2, resumed_from=50, **wrong),  # type: ignore[arg-type]
        7: StartAudit(attempt=7, resumed_from=30, **wrong),  # type: ignore[arg-type]
    }
    made = question_about(LATE, resumed_late(45), SAVED, Thresholds(), Policy(margin_steps=1), MEANS, audits)
    assert made.evidence.bad_start == BadStart(attempt=2, resumed_from=50, reason="wrong checkpoint")
    unknown = {2: StartAudit(attempt=2, resumed_from=50, verdict=Continued.UNKNOWN, reason="")}
    for others in (unknown, {7: audits[7]}):
        made = question_about(LATE, resumed_late(45), SAVED, Thresholds(), Policy(margin_steps=1), MEANS, others)
        assert made.evidence.bad_start is None
