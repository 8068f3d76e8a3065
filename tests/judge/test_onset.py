"""The onset and the target are of the divergence, not of its last symptom."""

from __future__ import annotations

import lzma
import math
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from sentinel.judge.detectors.skipped_updates import SkippedUpdates
from sentinel.judge.readings import Samples
from sentinel.judge.series import Series
from sentinel.judge.thresholds import Thresholds
from sentinel.judge.unhealthy_spans import UnhealthySpan, UnhealthySpans
from sentinel.plan.choose.policy import Policy
from sentinel.plan.restart.by_hand import ManualRollback, plan_by_hand
from sentinel.plan.restart.decision import decide_rung
from sentinel.vocabulary.sample import CheckpointSaved, Sample, ScrapedSample, decode
from tests.support.recovery_plans import POLICY, checkpoint, incident, run, target_of
from tests.support.there import there

PATIENT = Thresholds(outright_factor=math.inf)
"""No verdict before the last symptom's."""

LLAMA = Path(__file__).parents[1] / "data" / "journals" / "llama_zero1_fp32.jsonl.xz"


def sample(step: int, loss: float, *, skipped: bool = False, **readings: float | None) -> Sample:
    return Sample(attempt=1, global_step=step, time_unix_s=0.0, loss=loss, skipped=skipped, **readings)  # type: ignore[arg-type]


def well(steps: int) -> list[Sample]:
    rng = random.Random(3)
    return [sample(s, 2.5 * (1 + rng.gauss(0, 0.01))) for s in range(1, steps + 1)]


LAST_SYMPTOMS: dict[str, Callable[[int], Sample]] = {
    "nan and skipped, as with ZeRO-1 in fp32": lambda s: sample(s, math.nan, skipped=True),
    "skipped alone": lambda s: sample(s, 9.0, skipped=True),
    "nan in the weights": lambda s: sample(s, math.nan),
    "nan in Adam's state": lambda s: sample(s, 9.0, adam_variance_l1=math.nan),
    "nan that the trainer hides": lambda s: sample(s, 0.0),
}


@pytest.mark.parametrize("symptom", LAST_SYMPTOMS)
@pytest.mark.parametrize("thresholds", [PATIENT, Thresholds()], ids=["patient", "default"])
def test_the_verdict_on_the_last_symptom_keeps_the_onset_of_the_open_episode(
    symptom: str, thresholds: Thresholds
) -> None:
    """The loss leaves its band at step 372; from 385 on the updates are skipped, or nothing is a number."""
    blown_up = [sample(s, 2.5 * 1.5 ** (s - 370)) for s in range(372, 385)]
    symptoms = [LAST_SYMPTOMS[symptom](s) for s in range(385, 420)]
    alarm = Series(thresholds, [*well(371), *blown_up, *symptoms]).alarm
    early, late = there(alarm).onset_range
    assert 365 <= early <= late == 372


def test_an_onset_of_skipped_updates_alone_is_the_first_of_them() -> None:
    skipped = [sample(s, 2.5, skipped=True) for s in range(110, 400, 10)]
    assert there(Series(Thresholds(), [*well(100), *skipped]).alarm).onset_range == (101, 110)


def test_nan_in_the_weights_takes_over_the_onset_of_the_divergence_before_it() -> None:
    stands = [sample(s, 4.0) for s in range(372, 520)]
    series = Series(Thresholds(), [*well(371), *stands])
    assert series.alarm is not None
    known = series.alarm.onset_range
    for s in range(520, 523):
        series.push(sample(s, math.nan))
    assert (series.alarm.kind, series.alarm.onset_range) == ("nan", known)


def climbing(noise: float, every: int, seed: int, *, climbs: float = 0.02, spike: tuple[int, int] = (0, 0)) -> Series:
    """2.5 nats until step 1200, then a climb over 500 steps that ends in nan; between two steps a spike."""
    rng = random.Random(seed)
    series = Series(Thresholds())
    for step in range(every, 1700, every):
        level = 2.5 * (1 + climbs * max(0, step - 1200) / 500) * (1.5 if spike[0] <= step < spike[1] else 1.0)
        series.push(sample(step, level * (1 + rng.gauss(0, noise))))
    for step in (1700, 1700 + every):
        series.push(sample(step, math.nan))
    return series


@pytest.mark.parametrize(
    ("noise", "every", "seed", "target"),
    [
        *((0.002, 10, 2, 900), (0.005, 10, 0, 1200), (0.005, 10, 1, 1200), (0.005, 10, 2, 900)),
        *((0.005, 5, 0, 1200), (0.005, 5, 1, 1200), (0.005, 5, 2, 1200), (0.015, 1, 1, 1200)),
    ],
)
def test_a_nan_after_a_slow_climb_is_rolled_back_to_before_the_climb(
    noise: float, every: int, seed: int, target: int
) -> None:
    """To a block of 32 readings; what the climb has gained until then is inside the noise."""
    alarm = there(climbing(noise, every, seed).alarm)
    assert (alarm.kind, alarm.verdict_step) == ("nan", 1700 + every)
    opened = replace(incident(), onset_range=alarm.onset_range)
    saved = run(checkpoints=tuple(checkpoint(step) for step in range(100, 1800, 100)))
    assert target_of(opened, POLICY.ladder_for(None)[0], saved, POLICY).global_step == target


@pytest.mark.parametrize("every", [1, 5, 10])
@pytest.mark.parametrize("seed", range(3))
def test_a_nan_without_a_climb_before_it_keeps_its_own_step(every: int, seed: int) -> None:
    assert there(climbing(0.01, every, seed, climbs=0.0).alarm).onset_range == (1701 - every, 1700)


def test_a_climb_into_nan_that_began_with_a_spike_keeps_the_onset_of_the_spike() -> None:
    series = climbing(0.005, 5, 0, spike=(1300, 1320))
    ((spike, _),) = series.known.findings.healed
    assert there(series.alarm).onset_range == spike
    assert spike[1] == 1300


def after_a_spike(noise: float, seed: int, course: Callable[[int], float]) -> Series:
    """2.5 nats, times what `course` says of the steps since 600."""
    rng, series = random.Random(seed), Series(Thresholds())
    for step in range(1, 2000):
        level = 2.5 * (course(step - 600) if step >= 600 else 1.0)
        series.push(sample(step, level * (1 + rng.gauss(0, noise))))
    return series


COURSES: dict[str, Callable[[int], float]] = {
    "falls back to 2 % above": lambda s: 1.02 + 0.8 * math.exp(-s / 15),
    "falls back by half": lambda s: 1.5 if s < 20 else 1.2,
    "is back, and drifts up by 3 % from there": lambda s: 1.5 if s < 20 else 1 + 0.03 * min(1, s / 400),
}


@pytest.mark.parametrize("course", COURSES)
@pytest.mark.parametrize("seed", range(4))
def test_a_divergence_that_began_as_a_spike_keeps_its_onset(course: str, seed: int) -> None:
    assert there(after_a_spike(0.005, seed, COURSES[course]).alarm).onset_range == (600, 600)


def test_a_spike_that_was_back_for_longer_than_a_patience_is_no_onset() -> None:
    alarm = after_a_spike(0.005, 0, lambda s: 1.5 if s < 20 else 1 + 0.03 * max(0, min(1, (s - 400) / 400))).alarm
    assert there(alarm).onset_range[0] > 900


@pytest.mark.parametrize(
    ("losses", "alarm_step"),
    [
        ([300.0, 310.0], 102),
        ([30.0, 300.0, 310.0], 103),
        ([300.0, 2.5, 310.0], None),  # one broken batch at a time
        ([200.0, 210.0], None),  # 80 times
    ],
)
def test_a_loss_100_times_its_level_is_known_at_the_second_step(losses: list[float], alarm_step: int | None) -> None:
    series = Series(Thresholds(), [*well(100), *(sample(101 + i, loss) for i, loss in enumerate(losses))])
    assert (series.alarm.verdict_step if series.alarm else None) == alarm_step
    assert alarm_step is None or (series.alarm is not None and "times its level" in series.alarm.reason)


def test_a_loss_that_is_almost_nothing_may_rise_100_times() -> None:
    samples = [*(sample(s, 0.01) for s in range(1, 100)), *(sample(s, 2.0) for s in range(100, 110))]
    assert Series(Thresholds(), samples).alarm is None


@pytest.fixture(scope="module")
def llama() -> list[Sample | CheckpointSaved]:
    """A Llama on Hugging Face's Trainer with ZeRO-1 in fp32; see the data's README."""
    lines = lzma.decompress(LLAMA.read_bytes()).decode().splitlines()
    return [r for line in lines if isinstance(r := decode(line), Sample | CheckpointSaved)]


def test_a_real_zero_1_run_in_fp32_leaves_its_band_and_skips_its_updates_later(
    llama: list[Sample | CheckpointSaved],
) -> None:
    samples = [r for r in llama if isinstance(r, Sample)]
    skipped = [s.global_step for s in samples if s.skipped]
    patient = there(Series(PATIENT, samples).alarm)
    assert "skipped" in patient.reason
    assert patient.onset_range[1] < 372 < skipped[0] < patient.verdict_step
    at_once = there(Series(Thresholds(), samples).alarm)
    assert (at_once.onset_range, at_once.verdict_step) == (patient.onset_range, 374)


def test_checkpoints_of_a_real_run_after_its_blow_up_are_no_targets(llama: list[Sample | CheckpointSaved]) -> None:
    ill, series = UnhealthySpans(PATIENT), Series(PATIENT)
    for record in llama:
        if isinstance(record, Sample):
            series.push(record)
            ill.push(record, well=series.alarm is None and series.episode is None)
    state = run(unhealthy_spans=ill.spans)
    saved = [r.global_step for r in llama if isinstance(r, CheckpointSaved)]
    assert [s for s in saved if state.readings.unhealthy_at(s) is not None] == [375, 400, 420]
    sums = [s for s in ill.spans if s.words == "the sum of sqrt(v)"]
    assert [(s.worst > 1e8, s.usual is not None and s.usual < 100) for s in sums] == [(True, True)]


def spans(samples: list[Sample], *, well: bool = True) -> list[tuple[str, int, int]]:
    folded = UnhealthySpans(Thresholds())
    for s in samples:
        folded.push(s, well=well)
    return [(s.words, s.first_step, s.last_step) for s in folded.spans]


def l1(step: int, value: float, **readings: float | None) -> Sample:
    return sample(step, 2.5, adam_variance_l1=value, **readings)


@pytest.mark.parametrize(
    ("samples", "found"),
    [
        pytest.param(
            [l1(s, 2e10 if 372 <= s < 400 else 1e2) for s in range(1, 500)],
            [("the sum of sqrt(v)", 372, 399)],
            id="2e10 where 1e2 is usual",
        ),
        pytest.param(
            [l1(s, math.nan if s >= 90 else 1.0) for s in range(10, 120, 10)],
            [("the sum of sqrt(v)", 81, 110)],
            id="nan, at a step between the last two readings",
        ),
        pytest.param([l1(s, 1e-3 * s**2) for s in range(1, 3000)], [], id="early growth"),
        pytest.param([l1(s, 50 * math.sqrt(1 - 0.999**s)) for s in range(1, 3000)], [], id="Adam's own beginning"),
        pytest.param([l1(s, 1.0) for s in range(1, 20)] + [l1(20, 1e9)], [], id="no history"),
        pytest.param(
            [*well(300), *(sample(s, 9.0) for s in range(301, 306)), *(sample(s, 2.5) for s in range(306, 350))],
            [("the loss", 301, 305)],
            id="five losses in a row",
        ),
        pytest.param(
            [*well(300), *(sample(s, 9.0) for s in range(301, 305)), *(sample(s, 2.5) for s in range(305, 350))],
            [],
            id="four losses in a row",
        ),
        pytest.param([*well(300), *(sample(s, math.nan, skipped=True) for s in (301, 302))], [], id="two overflows"),
        pytest.param(
            [sample(s, 2.5, grad_norm=math.inf if s % 10 < 7 else 1.0, skipped=s % 10 < 7) for s in range(1, 99)],
            [],
            id="the gradient norm of skipped updates",
        ),
        pytest.param(
            [sample(s, 2.5, grad_norm=1.0, seqlen=2048) for s in range(1, 300)]
            + [
                sample(s, 7.9, grad_norm=60.0, adam_variance_l1=1.0, seqlen=64 + 8 * (s // 20)) for s in range(300, 600)
            ],
            [],
            id="sequence length warmup: another loss and more noise at short lengths",
        ),
        pytest.param(
            [l1(s, 1.0, seqlen=2048) for s in range(1, 300)] + [l1(s, 1e4, seqlen=64) for s in range(300, 310)],
            [("the sum of sqrt(v)", 300, 309)],
            id="too far for a short length to explain",
        ),
    ],
)
def test_steps_out_of_proportion_to_the_run_before_them(
    samples: list[Sample], found: list[tuple[str, int, int]]
) -> None:
    assert spans(samples) == found


def test_what_lasts_in_a_healthy_run_becomes_usual_and_in_an_ill_one_never_does() -> None:
    samples = [l1(s, 1.0 if s < 300 else 20.0) for s in range(1, 2000)]
    assert spans(samples) == [("the sum of sqrt(v)", 300, 811)]
    assert spans(samples, well=False) == [("the sum of sqrt(v)", 300, 1999)]


ILL = UnhealthySpan(first_step=22, last_step=45, words="the sum of sqrt(v)", worst=2e10, usual=1e2)


def test_an_ill_checkpoint_is_passed_over_for_an_earlier_one_and_the_reason_says_so() -> None:
    """The onset is known too late: 47, where the readings were ill from 22 on."""
    state = run(unhealthy_spans=(ILL,))
    target = target_of(incident(), POLICY.ladder_for(None)[0], state, POLICY)
    assert target.tag == "global_step20"
    assert (
        "global_step30 contains the divergence: the sum of sqrt(v) was 2e+10 between the steps 22 and 45, "
        "where 100 was usual before" in target.reason
    )
    plan = decide_rung(incident(), state, POLICY)
    assert (there(plan.decision).target_tag, "2e+10" in plan.reason) == ("global_step20", True)


def test_where_every_checkpoint_is_ill_it_starts_from_scratch_and_says_why() -> None:
    target = target_of(
        incident(), POLICY.ladder_for(None)[0], run(unhealthy_spans=(replace(ILL, first_step=5),)), POLICY
    )
    assert target.tag is None
    assert target.reason.startswith("no healthy checkpoint lies")
    assert "2e+10" in target.reason
    assert "2 more passed over too" in target.reason


def test_a_person_rolls_back_to_an_ill_checkpoint_only_with_force() -> None:
    state = run(unhealthy_spans=(ILL,))
    refused = plan_by_hand(ManualRollback(to="global_step30"), state, Policy())
    assert refused.decision is None
    assert refused.refusal is not None
    assert "global_step30 contains the divergence" in refused.refusal
    assert "--force" in refused.refusal
    assert plan_by_hand(ManualRollback(to="global_step20"), state, Policy()).refusal is None
    forced = plan_by_hand(ManualRollback(to="global_step30", force=True), state, Policy())
    assert forced.decision is not None


@pytest.mark.parametrize(("step", "ill"), [(374, False), (375, True), (400, True), (401, False)])
def test_a_checkpoint_at_either_end_of_an_illness_has_it(step: int, ill: bool) -> None:
    span = UnhealthySpan(first_step=375, last_step=400, words="the loss", worst=12.0, usual=3.0)
    assert (run(unhealthy_spans=(span,)).readings.unhealthy_at(step) is not None) is ill


KNOWN = Series(Thresholds()).known


def seen(step: int, skipped: bool, loss: float | None, scale: float | None, after: int) -> Samples:
    return Samples.of(step, {"loss": loss, "loss_scale": scale}, skipped=skipped, after=after)


def scraped(step: int, unseen_steps: int, unseen_skipped: int) -> ScrapedSample:
    return ScrapedSample(
        attempt=1, global_step=step, time_unix_s=0.0, loss=2.0, unseen_steps=unseen_steps, unseen_skipped=unseen_skipped
    )


@pytest.mark.parametrize(("skipped", "row", "onset"), [(3, 4, (10, 10)), (2, 0, None), (0, 0, None)])
def test_steps_that_no_sample_tells_of_continue_a_row_of_skipped_updates_where_all_were_skipped(
    skipped: int, row: int, onset: tuple[int, int] | None
) -> None:
    detector = SkippedUpdates(Thresholds())
    detector.push(seen(10, True, None, None, 9), KNOWN)
    assert detector.excludes
    detector.push_unseen(scraped(14, 3, skipped), KNOWN)
    assert (detector.run, detector.onset_range) == (row, onset)


@pytest.mark.parametrize(
    ("skipped", "loss", "scale_before", "scale", "counted"),
    [
        (True, 2.0, None, None, True),  # it says so
        (False, math.inf, 8.0, 4.0, True),  # its loss scale does
        (False, None, 8.0, 4.0, True),
        (False, 2.0, 8.0, 4.0, False),  # lowered by hand
        (False, math.nan, 8.0, 8.0, False),  # a nan that nobody has skipped
        (False, math.nan, 4.0, 8.0, False),
        (False, math.nan, None, 8.0, False),
        (False, math.nan, 8.0, None, False),
    ],
)
def test_an_update_was_skipped_if_it_says_so_or_its_loss_scale_fell_at_a_loss_that_is_none(
    skipped: bool, loss: float | None, scale_before: float | None, scale: float | None, counted: bool
) -> None:
    detector = SkippedUpdates(Thresholds(skipped_run_steps=2))
    assert detector.push(seen(10, True, 2.0, scale_before, 9), KNOWN) is None
    finding = detector.push(seen(20, skipped, loss, scale, 10), KNOWN)
    assert detector.excludes is counted
    assert (detector.run, detector.onset_range) == ((2, (10, 10)) if counted else (0, None))
    assert (finding is not None) is counted
    detector.push_unseen(scraped(31, 10, 9 if counted else 10), KNOWN)
    assert (detector.run, detector.onset_range) == ((0, None) if counted else (10, (21, 21)))
