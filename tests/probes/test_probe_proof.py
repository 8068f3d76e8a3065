"""A probe that was not what it says is no evidence: tables of journals beside the run's."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from sentinel.judge.history import Attempt
from sentinel.lab.bisect import causes as bisect
from sentinel.lab.bisect.answer import answer
from sentinel.lab.bisect.causes import next_probes
from sentinel.lab.bisect.proof.proving import contradicted, shown_by
from sentinel.lab.bisect.question import question_of
from sentinel.lab.bisect.record.changes import Changed
from sentinel.lab.probes.probe import Probe
from sentinel.vocabulary.sample import RunStarted, Sample
from tests.support.bisect_questions import (
    ANCHOR,
    BASELINE,
    CONTROL,
    COUNTED,
    FP32,
    INCIDENT,
    LOWER,
    LR,
    MEANS,
    MOMENTS,
    NODE,
    ORDER,
    RUN,
    SKIP,
    SLW,
    WARMUP,
    result,
)
from tests.support.probe_trainers import ALARM, AT, ONSET, TAG, fed, readings
from tests.support.there import there

DECAY = Changed(key="weight_decay", words="weight decay", before=0.01, after=20.0, attempt=2, resumed_from=AT)
UNDO = "undo-weight-decay"
AFTER = {n: replace(s, lr=LR.lr(step=n), adam_variance_l1=1.0) for n, s in COUNTED.after.items()}
WINDOW = replace(COUNTED, after=AFTER)
DECAYED = replace(INCIDENT, baseline=replace(BASELINE, weight_decay=20.0))
ASKED = question_of(DECAYED, RUN, WINDOW, tag=TAG, anchor=ANCHOR, means=MEANS, changes=(DECAY,))
REPORTED: dict[str, dict[str, Any]] = {  # what an honest trainer reports of the probe's change
    FP32: {"precision": "fp32"},
    MOMENTS: {"moments_reset_steps": (AT,)},
    UNDO: {"weight_decay": 0.01},
}


def honest(probe: Probe, ill_from: int = 10**9) -> list[Sample]:
    """The journal of a trainer that does what the probe asks for."""
    standing = probe.overrides.standing if probe.overrides else None
    lr = standing.lr if standing and standing.lr else LR
    samples = fed(probe, readings(range(AT + 1, probe.until_step + 1), ill_from))
    other = 1000 if probe.name == ORDER else 0
    return [replace(s, lr=lr.lr(step=s.global_step), batch_digest=(s.batch_digest or 0) + other) for s in samples]


def told(name: str, change: Callable[[Sample], Sample] = lambda s: s, **started: Any) -> tuple[str, str]:
    """(outcome, why) of a probe that does not diverge, with what its trainer did otherwise."""
    probe = ASKED.probes[name]
    begun = RunStarted(attempt=1, time_unix_s=0.0, **{"resumed_from": AT, **REPORTED.get(name, {}), **started})
    attempt = Attempt(1, started=begun, samples=[change(s) for s in honest(probe)])
    found = shown_by(probe, attempt, ASKED)
    return found.outcome, found.why


@pytest.mark.parametrize("name", [CONTROL, SKIP, "skip-others", ORDER, FP32, LOWER, WARMUP, MOMENTS, NODE, UNDO])
def test_a_probe_that_its_journal_confirms_counts(name: str) -> None:
    assert told(name)[0] == "calm", told(name)[1]


def own_lr(sample: Sample) -> Sample:
    return replace(sample, lr=LR.lr(step=sample.global_step))


def own_samples(sample: Sample) -> Sample:
    return replace(sample, batch_digest=sample.global_step)


def unread(sample: Sample) -> Sample:
    return replace(sample, batch_digest=None, consumed_samples=None)


def blind(sample: Sample) -> Sample:
    return replace(sample, batch_digest=None)


@pytest.mark.parametrize(
    ("name", "change", "started", "says"),
    [
        (LOWER, own_lr, {}, "where 0.00012"),
        (LOWER, lambda s: replace(s, lr=None), {}, "whether it was changed is not known"),
        (WARMUP, own_lr, {}, "was asked for"),
        (WARMUP, lambda s: replace(s, lr=min(s.lr, 4e-4)), {}, "was asked for"),
        (SKIP, own_samples, {}, "was trained on the samples of the run's step 45"),
        (SKIP, unread, {}, "neither digests"),
        (SKIP, lambda s: replace(s, lr=s.lr / 2), {}, "the LR would explain its outcome too"),
        (SKIP, lambda s: replace(s, global_batch_samples=2), {}, "its global batch is 2"),
        (ORDER, own_samples, {}, "their order is the same"),
        (ORDER, unread, {}, "nor its seed"),
        (FP32, own_lr, {"precision": "bf16"}, "its trainer reports bf16"),
        (FP32, own_lr, {"precision": None}, "no precision"),
        (FP32, own_lr, {"precision": "fp32", "from_arguments": ("precision",)}, "no precision"),
        (MOMENTS, own_lr, {"moments_reset_steps": ()}, "does not report a reset"),
        (MOMENTS, own_lr, {"moments_reset_steps": None}, "neither the trainer's report"),
        (MOMENTS, lambda s: replace(s, adam_variance_l1=1.0), {}, "is the run's own"),
        (SLW, own_lr, {}, "its sequence length is the run's own"),
        (UNDO, own_lr, {"weight_decay": 20.0}, "weight_decay was to be 0.01, and is 20.0"),
        (UNDO, own_lr, {"weight_decay": None}, "does not show which is in force"),
        (UNDO, own_lr, {"resumed_from": AT - 10}, "it resumed from step 30"),
        (UNDO, lambda s: replace(s, batch_digest=7), {}, "are others than the run's"),
        (CONTROL, lambda s: replace(s, lr=s.lr / 2), {}, "it does not repeat the run: lr of step 41"),
    ],
)
def test_what_is_contradicted_or_not_confirmed_was_not_tried(
    name: str, change: Callable[[Sample], Sample], started: dict[str, Any], says: str
) -> None:
    outcome, why = told(name, change, **started)
    assert outcome == "not tried"
    assert says in why


@pytest.mark.parametrize(
    ("name", "change", "started"),
    [
        (SKIP, blind, {}),  # its position has gone past them
        (ORDER, unread, {"seed": 8}),
        (MOMENTS, lambda s: replace(s, adam_variance_l1=0.1), {"moments_reset_steps": None}),
    ],
)
def test_where_one_reading_is_missing_another_confirms_it(
    name: str, change: Callable[[Sample], Sample], started: dict[str, Any]
) -> None:
    assert told(name, change, **started)[0] == "calm"


def test_a_longer_warmup_counts_as_borne_only_at_the_peak_and_as_not_borne_before_it() -> None:
    made = ASKED.probes[WARMUP]
    assert made.overrides is not None
    slow = replace(there(made.overrides.standing.lr), warmup=10 * (made.until_step - AT))
    standing = replace(made.overrides.standing, lr=slow)
    probe = replace(made, overrides=replace(made.overrides, standing=standing))
    calm, ill = (Attempt(1, samples=honest(probe, ill_from)) for ill_from in (10**9, ONSET + 10))
    found = shown_by(probe, calm, ASKED)
    assert found.outcome == "not tried"
    assert "it did not reach the peak" in found.why
    assert shown_by(probe, ill, ASKED).outcome == "diverged"


@pytest.mark.parametrize(
    ("name", "change", "over"),
    [(LOWER, own_lr, True), (ORDER, own_samples, True), (LOWER, lambda s: s, False), (SKIP, blind, False)],
)
def test_a_probe_is_over_as_soon_as_no_later_step_can_make_it_what_it_says(
    name: str, change: Callable[[Sample], Sample], over: bool
) -> None:
    begun = RunStarted(attempt=1, time_unix_s=0.0, resumed_from=AT)
    attempt = Attempt(1, started=begun, samples=[change(s) for s in honest(ASKED.probes[name])[:2]])
    assert (contradicted(ASKED.probes[name], attempt, ASKED) is not None) is over
    assert shown_by(ASKED.probes[name], attempt, ASKED).outcome == ("not tried" if over else "unknown")


@pytest.mark.parametrize(("host", "outcome"), [("n2.cluster", "not tried"), ("n4", "calm"), (None, "not tried")])
def test_other_nodes_are_other_hosts(host: str | None, outcome: str) -> None:
    probe = replace(ASKED.probes[NODE], exclude_nodes=("m1,n[1-3]",))
    started = RunStarted(attempt=1, time_unix_s=0.0, resumed_from=AT, host=host)
    assert shown_by(probe, Attempt(1, started=started, samples=honest(probe)), ASKED).outcome == outcome


def test_what_was_not_tried_is_no_evidence_and_is_not_asked_for_again() -> None:
    lost = replace(result(SKIP, "calm"), outcome="not tried", why="step 44 was trained on them")
    results = {CONTROL: result(CONTROL, "diverged"), UNDO: result(UNDO, "diverged"), SKIP: lost}
    assert [probe.name for probe in next_probes(ASKED, results)] == [ORDER]
    found = answer(ASKED, results)
    assert found.ranked == ()
    assert (SKIP, "step 44 was trained on them") in found.not_tried
    found = answer(ASKED, {CONTROL: replace(lost, name=CONTROL)})
    assert "the control shows nothing: step 44" in found.reason
    assert next_probes(ASKED, {CONTROL: replace(lost, name=CONTROL)}) == ()


def test_a_probe_that_would_end_before_its_peak_is_refused() -> None:
    by_samples = replace(LR, unit="samples", warmup=4 * 10, decay_end=4 * 400, decay_start=4 * 10)
    baseline = replace(BASELINE, lr=replace(by_samples, warmup=4 * (AT + 2)), lr_from_start=True)
    made = question_of(replace(INCIDENT, baseline=baseline), RUN, WINDOW, tag=TAG, anchor=ANCHOR, means=MEANS)
    assert "would not reach its peak" in made.not_possible[WARMUP]
    assert WARMUP not in made.probes


def test_the_end_of_the_run_is_where_the_suspects_are_halved_from() -> None:
    assert (ASKED.read_until, ASKED.batch_samples) == (4 * ALARM, 4)
    assert bisect.SKIP in ASKED.probes
