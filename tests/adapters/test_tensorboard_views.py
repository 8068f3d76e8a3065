"""After a rollback and the training that follows it, TensorBoard shows each step once, whichever way it reads."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest

from sentinel.adapters.event_files import frames
from sentinel.adapters.tensorboard import TensorBoard
from sentinel.vocabulary.overrides import Anchor
from tests.adapters.boards import (
    AT,
    TAG,
    WHERE,
    Event,
    Shown,
    SummaryWriter,
    accumulated,
    axes,
    multiplexed,
    read,
    scalar,
    served,
    write,
    write_everything,
    write_file,
)

VIEWS: dict[str, Callable[[Path, Shown], Shown]] = {
    "EventAccumulator": lambda logdir, _: accumulated(logdir),
    "plugin loader": lambda logdir, _: multiplexed(logdir),
    "data server": served,
}


def everything(run: str, steps: range, *texts_at: int) -> Shown:
    """What TensorBoard should show of `write_everything`, whatever the files."""
    fifth = [s for s in steps if s % 5 == 0]
    shown: Shown = {(run, tag): list(on_axis) for tag, on_axis in axes(steps).items()}
    shown |= {(f"{run}/group_{name}", "group"): list(steps) for name in "ab"}
    shown |= {(run, "weights"): fifth, (run, "attention"): fifth, (run, "sample/text_summary"): fifth}
    return shown | {(run, "arguments/text_summary"): list(texts_at)}


@pytest.fixture(scope="module")
def logdir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three attempts of 20 steps; a rollback to step 30; an attempt from 31 to 50.

    Each as if in a second of its own: a file's name has the second and a running number in it, and 10 sorts before 9.
    """
    logdir = tmp_path_factory.mktemp("logdir")

    def trained(steps: range, attempt: int) -> None:
        write_everything(logdir / "tb", steps, f".{attempt}")
        for path in logdir.rglob(f"*tfevents*.{attempt}"):
            path.rename(path.with_name(re.sub(r"tfevents\.\d+", f"tfevents.{1_700_000_000 + attempt}", path.name)))

    for attempt, steps in enumerate((range(1, 21), range(21, 41), range(41, 61)), 1):
        trained(steps, attempt)
    TensorBoard(logdir / "tb").cut(AT, **WHERE)
    trained(range(31, 51), 4)
    return logdir


@pytest.mark.parametrize("view", VIEWS)
def test_each_step_is_shown_once_of_scalars_histograms_images_and_text(logdir: Path, view: str) -> None:
    expected = everything("tb", range(1, 51), 1, 21, 31) | everything("tb-incident-1-r1", range(31, 61), 41)
    shown = VIEWS[view](logdir, expected)
    if view == "EventAccumulator":  # it shows text as tensors among others
        shown = {place: steps for place, steps in shown.items() if place in expected}
    assert shown == expected


def test_a_session_that_begins_at_the_target_takes_nothing_away(tmp_path: Path) -> None:
    """purge_step makes the writer begin with a session start, which has TensorBoard forget later steps."""
    for steps, suffix in ((range(1, 21), ".1"), (range(21, 41), ".2")):
        writer = SummaryWriter(str(tmp_path / "tb"), filename_suffix=suffix, purge_step=steps.start)
        for step in steps:
            writer.add_scalar(TAG, step, step)
        writer.close()
    TensorBoard(tmp_path / "tb").cut(AT, **WHERE)
    writer = SummaryWriter(str(tmp_path / "tb"), filename_suffix=".3", purge_step=31)
    for step in range(31, 51):
        writer.add_scalar(TAG, step, step)
    writer.close()
    expected: Shown = {("tb", TAG): list(range(1, 51)), ("tb-incident-1-r1", TAG): list(range(31, 41))}
    for view in VIEWS.values():
        assert view(tmp_path, expected) == expected


def test_a_session_that_began_after_the_cut_is_not_left_behind(tmp_path: Path) -> None:
    """A file in which the trainer went back by itself: its second session start would purge what is retrained."""
    start = Event(wall_time=1.7e9, step=35)
    start.session_log.status = 1
    version = Event(wall_time=1.7e9, file_version="brain.Event:2")
    steps = [*range(21, 31)], [*range(35, 46)]
    first, again = ([scalar(TAG, step) for step in some] for some in steps)
    write_file(tmp_path / "tb" / "events.out.tfevents.1.a", [version, *first, start, *again])
    TensorBoard(tmp_path / "tb").cut(AT, **WHERE)
    live = (tmp_path / "tb" / "events.out.tfevents.1.a").read_bytes()
    assert start.SerializeToString() not in live
    assert read(tmp_path / "tb", purge=True) == {TAG: list(range(21, 31))}
    assert read(tmp_path / "tb-incident-1-r1", purge=True) == {TAG: list(range(35, 46))}


def test_hyperparameters_stay(tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        writer = SummaryWriter(str(tmp_path / "tb"), filename_suffix=".1")
        writer.add_hparams({"lr": 6e-5}, {"hparam/loss": 2.0}, run_name="hparams", global_step=0)
        writer.close()
    write(tmp_path / "tb", range(1, 41), ".2")
    report = TensorBoard(tmp_path / "tb").cut(AT, **WHERE)
    assert [name for name in report.cut if "hparams" in name] == []
    assert any("hparams" in run for run, _ in multiplexed(tmp_path))


def test_what_deepspeeds_own_monitor_writes_is_counted_in_samples(tmp_path: Path) -> None:
    path = tmp_path / "tb" / "events.out.tfevents.1.a"
    write_file(path, [scalar(tag, 16 * n) for n in range(1, 41) for tag in ("Train/Samples/lr", "Train/Samples/loss")])
    board = TensorBoard(tmp_path / "tb")
    assert (board.last_step(), board.last_samples()) == (0, 640)
    board.cut(AT, **WHERE)
    assert read(tmp_path / "tb")["Train/Samples/lr"] == [16 * n for n in range(1, 31)]
    assert board.last_samples() == 480


@pytest.mark.parametrize("stretch_bytes", [50, 300, 1 << 20])
@pytest.mark.parametrize("at", [AT, Anchor(global_step=30)], ids=["known", "unknown"])
def test_megatrons_steps_over_samples_are_cut_where_the_iterations_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: Anchor, stretch_bytes: int
) -> None:
    """They are written before the step's other tags; their value is the iteration."""
    monkeypatch.setattr(frames, "_STRETCH_BYTES", stretch_bytes)
    over = "steps-vs-samples/y=steps,x=samples"
    back = "steps-vs-samples/y=samples,x=steps"
    events = [
        (scalar(over, 16 * n, n), scalar(back, n, 16 * n), scalar("x vs gigaflos", n * 10**6)) for n in range(1, 41)
    ]
    write_file(tmp_path / "tb" / "events.out.tfevents.1.a", [event for step in events for event in step])
    board = TensorBoard(tmp_path / "tb")
    assert board.last_step() == 40
    board.cut(at, **WHERE)
    kept = range(1, 31)
    assert read(tmp_path / "tb") == {
        over: [16 * n for n in kept],
        back: list(kept),
        "x vs gigaflos": [n * 10**6 for n in kept],
    }


def test_what_a_file_begins_with_on_an_unknown_axis_goes_with_its_first_iteration(tmp_path: Path) -> None:
    """In a file whose trainer went back, what was written before its first iteration is after the cut all the same."""
    early, late = (scalar("x vs gigaflos", n) for n in (35, 20))
    written = [early, *(scalar(TAG, n) for n in range(35, 40)), *(scalar(TAG, n) for n in range(20, 25)), late]
    write_file(tmp_path / "tb" / "events.out.tfevents.1.a", written)
    TensorBoard(tmp_path / "tb").cut(Anchor(global_step=30), **WHERE)
    assert read(tmp_path / "tb") == {TAG: list(range(20, 25)), "x vs gigaflos": [20]}


@pytest.mark.parametrize("stretch_bytes", [50, 1 << 20])
def test_what_follows_a_start_from_scratch_on_an_unknown_axis_goes_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stretch_bytes: int
) -> None:
    """A trainer that went back to iteration 0 in the same file, or forward from it."""
    monkeypatch.setattr(frames, "_STRETCH_BYTES", stretch_bytes)
    written = [scalar(TAG, 40), scalar("x vs gigaflos", 400), scalar(TAG, 0), scalar("x vs gigaflos", 1)]
    for number, events in enumerate((written, written[2:] + written[:2])):
        folder = tmp_path / str(number) / "tb"
        write_file(folder / "events.out.tfevents.1.a", events)
        TensorBoard(folder).cut(Anchor(global_step=30), **WHERE)
        assert read(folder) == {TAG: [0], "x vs gigaflos": [1]}
        assert read(folder.with_name("tb-incident-1-r1")) == {TAG: [40], "x vs gigaflos": [400]}
