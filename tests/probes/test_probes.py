"""Probes on trainers that are a few lines of a journal: what is placed, compared, recorded and taken up again."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sentinel.adapters.checkpoints.probes import place_checkpoint
from sentinel.judge.thresholds import Thresholds
from sentinel.lab.probes.at_work import COPIES, ProbeJob, ProbeRecord, Probes
from sentinel.lab.probes.probe import Limits, Probe, over, result_of
from sentinel.vocabulary.errors import CheckpointError, ConfigError, SlurmUnavailable
from sentinel.vocabulary.overrides import Anchor, Once, Overrides, TrainingSettings
from sentinel.vocabulary.sample import Sample
from tests.adapters.checkpoint_files import deepspeed, digests, hugging_face
from tests.support.probe_trainers import ALARM, AT, ONSET, TAG, WINDOW, Trainers, readings


def ramp(first: float, last: float) -> list[Sample]:
    """A loss that rises along a line from the onset to the alarm."""
    share = {step: max(0, step - ONSET) / (ALARM - ONSET) for step in range(AT + 1, ALARM + 1)}
    return [replace(s, loss=first + (last - first) * share[s.global_step]) for s in readings(range(AT + 1, ALARM + 1))]


def probe(name: str, **others: Any) -> Probe:
    return Probe(name=name, **{"tag": TAG, "global_step": AT, "until_step": ALARM, **others})


def probes(root: Path, trainers: Trainers, **limits: Any) -> Probes:
    checkpoint = root / "run" / TAG
    if not checkpoint.exists():
        checkpoint.mkdir(parents=True)
        (checkpoint / "weights.pt").write_bytes(b"weights")
        (root / "run" / "latest").write_text("global_step80")
    return Probes(
        root / "probes",
        root / "run",
        trainers.job,
        lambda one, attempt: over(one, attempt, WINDOW),
        lambda one, attempt, ended, s: result_of(one, attempt, WINDOW, ended=ended, seconds=s),
        record=ProbeRecord(root / "probes"),
        limits=Limits(**limits),
        clock=lambda: 0.0,
    )


def run(these: Probes, *wanted: Probe) -> dict[str, str]:
    found = these.run(lambda _: wanted, sleep=lambda _: None)
    return {name: result.outcome for name, result in found.items()}


def test_a_probe_begins_from_a_copy_that_its_trainer_can_overwrite_and_the_next_one_gets_the_runs_bytes(
    tmp_path: Path,
) -> None:
    trainers, these = Trainers(), probes(tmp_path, Trainers())
    run(replace_job(these, trainers), probe("control"))
    own = tmp_path / "probes" / "control" / "checkpoints"
    assert (own / "latest").read_text() == TAG
    assert (own / TAG / "weights.pt").read_bytes() == b"weights"
    (own / TAG / "weights.pt").write_bytes(b"saved over")  # truncates the file that all its names stand for
    assert (tmp_path / "run" / TAG / "weights.pt").read_bytes() == b"weights"
    run(replace_job(these, trainers), probe("control"), probe("next"))
    assert (tmp_path / "probes" / "next" / "checkpoints" / TAG / "weights.pt").read_bytes() == b"weights"
    assert (tmp_path / "run" / "latest").read_text() == "global_step80"


def replace_job(these: Probes, trainers: Trainers) -> Probes:
    these.job_of = trainers.job
    return these


def test_a_checkpoint_with_folders_in_it_is_placed_whole_and_placed_again(tmp_path: Path) -> None:
    tag = hugging_face(tmp_path / "run", 10)
    deepspeed(tag, 10)
    for _ in range(2):
        place_checkpoint(tmp_path / "run", tag.name, tmp_path / "copies", tmp_path / "own")
    assert digests(tmp_path / "own" / tag.name) == digests(tag)


def test_a_copy_that_was_cut_short_is_made_again_and_a_checkpoint_that_is_not_there_is_refused(tmp_path: Path) -> None:
    probes(tmp_path, Trainers())
    (tmp_path / COPIES / f".{TAG}.unfinished").mkdir(parents=True)
    place_checkpoint(tmp_path / "run", TAG, tmp_path / COPIES, tmp_path / "own")
    assert (tmp_path / "own" / TAG / "weights.pt").read_bytes() == b"weights"
    with pytest.raises(CheckpointError, match="global_step7"):
        place_checkpoint(tmp_path / "run", "global_step7", tmp_path / COPIES, tmp_path / "other")
    (tmp_path / "run" / TAG).rename(tmp_path / "moved")  # into a quarantine
    place_checkpoint(tmp_path / "run", TAG, tmp_path / COPIES, tmp_path / "later")
    assert (tmp_path / "later" / TAG / "weights.pt").read_bytes() == b"weights"


def test_a_checkpoint_that_the_run_saved_anew_under_the_same_name_is_never_taken_for_the_copied_one(
    tmp_path: Path,
) -> None:
    probes(tmp_path, Trainers())
    place = [tmp_path / "run", TAG, tmp_path / COPIES]
    place_checkpoint(*place, tmp_path / "own")  # type: ignore[arg-type]
    (tmp_path / "run" / TAG / "weights.pt").write_bytes(b"of another attempt, after a rollback")
    place_checkpoint(*place, tmp_path / "later")  # type: ignore[arg-type]
    assert (tmp_path / "later" / TAG / "weights.pt").read_bytes() == b"weights"
    (tmp_path / "own" / TAG / "weights.pt").write_bytes(b"saved over by a probe")
    with pytest.raises(CheckpointError, match="a probe has changed the copy of global_step40, and the run has another"):
        place_checkpoint(*place, tmp_path / "last")  # type: ignore[arg-type]


def test_what_is_stopped_refused_or_mended_begins_anew_as_often_as_it_takes(tmp_path: Path) -> None:
    trainers = Trainers()
    for _ in range(4):  # Ctrl-C
        these = probes(tmp_path, trainers)
        these.turn([probe("control")])
        these.stop_all()
    assert not trainers.alive
    for _ in range(4):  # a command that names the run's folders

        def refused(*_: object) -> ProbeJob:
            raise ConfigError("the checkpoints would be the run's")

        these = probes(tmp_path, trainers)
        these.job_of = refused
        with pytest.raises(ConfigError):
            run(these, probe("control"))
    trainers.dies_at_once = True
    assert run(probes(tmp_path, trainers), probe("control")) == {"control": "unknown"}
    trainers.dies_at_once = False
    mended = probes(tmp_path, trainers)
    assert run(mended, probe("control")) == {"control": "diverged"}
    assert trainers.started[-1] == "control-life6"
    assert run(probes(tmp_path, trainers), probe("control")) == {"control": "diverged"}
    assert trainers.started[-1] == "control-life6", "what has shown something is not run again"


def test_a_probe_on_record_from_another_checkpoint_or_to_another_step_tells_nothing(tmp_path: Path) -> None:
    trainers = Trainers()
    run(probes(tmp_path, trainers), probe("control"))
    longer = probe("control", until_step=ALARM + 2)  # a person has raised [bisect] window_steps
    later = probes(tmp_path, trainers)
    later.asked = lambda one: one.until_step == longer.until_step
    assert later.results == {}
    assert run(later, longer) == {"control": "diverged"}
    assert trainers.started == ["control", "control-life2"]


def test_what_was_asked_for_is_run_within_the_limits_and_is_on_record(tmp_path: Path) -> None:
    trainers = Trainers()
    changed = Overrides(
        incident="incident-1",
        rollback="p",
        anchor=Anchor(global_step=AT),
        standing=TrainingSettings(adam_beta2=0.95),
        once=Once(id="p", skip_samples=8),
    )
    wanted = (probe("control"), probe("skip", overrides=changed), probe("third"))
    these = probes(tmp_path, trainers, parallel=2, count=2)
    assert run(these, *wanted) == {"control": "diverged", "skip": "calm"}
    assert "max_probes" in str(these.refusal)
    assert trainers.alive == set()
    again = ProbeRecord(tmp_path / "probes")
    assert again.results(lambda _: True) == these.results, "the record gives back what was shown"
    assert [life.probe for life in again.lives] == list(wanted[:2])
    assert (tmp_path / "probes" / "skip" / "overrides.json").exists()
    control = these.results["control"]
    assert (control.exact, control.compared, control.steps) == (True, ALARM - AT, ALARM - AT)


def test_a_probe_that_still_runs_is_followed_on_and_one_that_was_lost_begins_anew(tmp_path: Path) -> None:
    trainers = Trainers()
    these = probes(tmp_path, trainers, parallel=2)
    these.turn([probe("control"), probe("second")])
    trainers.alive.discard(tmp_path / "probes" / "second")
    journal = tmp_path / "probes" / "second" / "attempts" / "0001.jsonl"
    journal.write_text("".join(journal.read_text().splitlines(keepends=True)[:3]))  # killed after two steps
    later = probes(tmp_path, trainers, parallel=2)
    assert run(later, probe("control"), probe("second")) == {"control": "diverged", "second": "calm"}
    assert trainers.started == ["control", "second", "second-life2"]


def test_what_may_pass_leaves_the_probes_and_a_trainer_that_ends_by_itself_is_a_failure(tmp_path: Path) -> None:
    trainers = Trainers()
    trainers.away = True
    with pytest.raises(SlurmUnavailable):
        run(probes(tmp_path, trainers), probe("control"))
    assert [life.name for life in ProbeRecord(tmp_path / "probes").running] == ["control"]
    trainers.away, trainers.dies_at_once = False, True
    these = probes(tmp_path, trainers)
    assert run(these, probe("control")) == {"control": "unknown"}
    assert these.results["control"].ended == "failed"
    assert "job.log" in these.results["control"].why
    assert ProbeRecord(tmp_path / "probes", anew=False).results(lambda _: True) == these.results
    assert ProbeRecord(tmp_path / "probes").results(lambda _: True) == {}, "a person who asks again has mended it"


def test_the_first_reading_that_differs_is_named_and_what_was_not_measured_is_not_compared() -> None:
    for change, differs in (
        ({"loss": 3.5, "grad_norm": 2.0}, (43, ("loss", "grad_norm"))),
        ({"batch_digest": 1, "loss": 3.5}, (43, ("batch_digest", "loss"))),
        ({"grad_norm": None}, (None, ())),
    ):
        attempt_samples = readings(range(AT + 1, ALARM + 1), ONSET)
        attempt_samples[2] = replace(attempt_samples[2], **change)
        found = result_of(probe("one"), _attempt(attempt_samples), WINDOW)
        assert (found.differs_at, found.differs_in) == differs


@pytest.mark.parametrize(
    ("samples", "outcome"),
    [
        (readings(range(AT + 1, ALARM + 1), ONSET), "diverged"),
        (readings(range(AT + 1, ALARM + 1)), "calm"),
        (readings(range(AT + 1, ALARM + 1), ONSET, loss=float("nan")), "diverged"),
        (readings(range(AT + 1, ONSET - 1)), "unknown"),
        (readings(range(AT + 1, ALARM + 1), loss=5.5), "unknown"),  # nearer to the healthy, and not healthy
        (ramp(3.0, 3.05), "calm"),
        (ramp(2.90, 3.02), "unknown"),  # within the healthy band, and rising
        (readings(range(AT + 1, ALARM + 1), loss=7.5), "diverged"),
        (readings(range(AT + 1, ALARM + 1), loss=2.0, seqlen=4), "unknown"),  # shorter: another quantity
        (readings(range(AT + 1, ALARM - 2), loss=2.0, seqlen=4) + readings(range(ALARM - 2, ALARM + 1)), "unknown"),
        (readings(range(AT + 1, ONSET), seqlen=4) + readings(range(ONSET, ALARM + 1)), "calm"),
        (readings(range(AT + 1, ALARM + 1), loss=float("inf"), seqlen=4), "diverged"),
    ],
)
def test_an_outcome(samples: list[Sample], outcome: str) -> None:
    window = replace(WINDOW, thresholds=Thresholds(patience_steps=100))
    if outcome == "diverged" and samples[-1].loss == 9.0:
        window = WINDOW
    assert result_of(probe("one"), _attempt(samples), window).outcome == outcome


@pytest.mark.parametrize(
    ("ill", "loss", "outcome"),
    [
        (3.30, 3.20, "diverged"),  # 10 % above: the two levels can be told apart, and it is nearer to the run's
        (3.30, 3.10, "unknown"),  # above the healthy trend, by more than its 2 %
        (3.30, 3.05, "calm"),
        (3.15, 3.20, "unknown"),  # 5 % above: the two levels can't be told apart
        (float("nan"), 3.20, "unknown"),
        (float("nan"), 3.05, "calm"),
        (float("nan"), 3.30, "diverged"),
    ],
)
def test_the_outcome_beside_a_run_that_rose_by_little(ill: float, loss: float, outcome: str) -> None:
    after = {step: replace(s, loss=ill if step >= ONSET else s.loss) for step, s in WINDOW.after.items()}
    window = replace(WINDOW, after=after, thresholds=Thresholds(patience_steps=100))
    samples = readings(range(AT + 1, ALARM + 1), loss=loss)
    assert result_of(probe("one"), _attempt(samples), window).outcome == outcome


@pytest.mark.parametrize(("rises", "outcome"), [(True, "diverged"), (False, "calm")])
def test_of_a_run_that_came_back_the_losses_up_to_its_alarm_are_compared(rises: bool, outcome: str) -> None:
    def loss(step: int) -> float:
        return 4.5 if ONSET <= step < ALARM - 6 else 3.05

    after = {step: replace(s, loss=loss(step)) for step, s in WINDOW.after.items()}
    window = replace(WINDOW, after=after, thresholds=Thresholds(patience_steps=100))
    samples = [replace(s, loss=loss(s.global_step) if rises else 3.05) for s in readings(range(AT + 1, ALARM + 1))]
    assert result_of(probe("one"), _attempt(samples), window).outcome == outcome


def test_a_probe_that_came_past_the_onset_and_not_to_its_end_shows_nothing_unless_it_diverged() -> None:
    calm, ill = readings(range(AT + 1, ALARM - 1)), readings(range(AT + 1, ALARM - 1), ONSET)
    for ended in ("failed", "stopped"):
        assert result_of(probe("one"), _attempt(calm), WINDOW, ended=ended).outcome == "unknown"  # type: ignore[arg-type]
        assert result_of(probe("one"), _attempt(ill), WINDOW, ended=ended).outcome == "diverged"  # type: ignore[arg-type]


@pytest.mark.parametrize(("seconds", "wanted", "runs"), [(99.0, True, True), (101.0, True, False), (1.0, False, False)])
def test_a_probe_is_stopped_when_its_time_is_over_or_it_is_not_needed_any_more(
    tmp_path: Path, seconds: float, wanted: bool, runs: bool
) -> None:
    trainers = Trainers()
    these = probes(tmp_path, trainers, probe_s=100.0)
    these.over, said = lambda *_: None, list[str]()
    these.say, wanted_one = said.append, probe("control", until_step=ALARM + 10)
    for _ in range(3):
        these.turn([wanted_one])
    assert said.count("  control: at step 64 of 70") == 1, "how far it has come, once for each quarter"
    these.clock = lambda: seconds
    these.turn([wanted_one] if wanted else [])
    assert bool(trainers.alive) is runs
    assert ("control" in these.results) is not runs


def _attempt(samples: list[Sample]) -> Any:
    from sentinel.judge.history import Attempt

    return Attempt(1, samples=samples)


@pytest.mark.parametrize(("gpu_hours", "running", "refused"), [(2.9, 0, True), (3.1, 0, False), (3.1, 1, True)])
def test_a_budget_of_gpu_hours_is_never_exceeded_by_what_runs_already(
    gpu_hours: float, running: int, refused: bool
) -> None:
    ended = [result_of(probe(name), None, WINDOW) for name in ("a", "b")]
    ended = [replace(one, gpu_hours=1.0) for one in ended]
    assert (Limits(gpu_hours=gpu_hours).refusal(ended, running) is not None) is refused
