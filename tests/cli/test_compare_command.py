"""`sentinel compare`: the smoothed losses of runs at the same step, and who leads since when."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sentinel.judge.readings import Readings, descent
from sentinel.judge.reference import Reference, compare, smoothed
from sentinel.vocabulary.sample import Sample, encode
from tests.support.called import Sentinel
from tests.support.there import there

Losses = Callable[[int], float]


def stretch(first: int, last: int, loss: Losses, attempt: int = 1) -> Readings:
    steps = np.arange(first, last + 1)
    return Readings(attempt=attempt, steps=steps, columns={"loss": np.array([loss(s) for s in steps.tolist()])})


def test_a_curve_is_means_of_what_the_weights_descend_from() -> None:
    ill, healed = stretch(1, 1000, lambda s: 3.0 if s < 500 else 9.0), stretch(501, 2000, lambda _: 2.0, attempt=2)
    curve = smoothed("a", [ill, healed])
    assert {loss for _, loss in curve.points} <= {3.0, 2.0}
    assert curve.points == sorted(curve.points)
    assert there(curve.ends)[1] > 1900
    assert curve.loss(1000) == 2.0


def test_a_curve_of_millions_is_a_few_thousand_points() -> None:
    stretches = [stretch(n * 10_000 + 1, (n + 1) * 10_000, lambda s: 10 * s**-0.1) for n in range(100)]
    curve = smoothed("a", stretches, samples=4)
    assert 1000 < len(curve.points) <= 4097
    for step in (1000, 50_000, 999_000):
        assert curve.loss(step) == pytest.approx(10 * step**-0.1, rel=3e-3)


def test_losses_that_are_no_numbers_are_no_part_of_a_mean() -> None:
    curve = smoothed("a", [stretch(1, 640, lambda s: math.nan if s % 10 == 0 else math.inf if s % 11 == 0 else 2.0)])
    assert {loss for _, loss in curve.points} == {2.0}
    assert smoothed("a", [stretch(1, 10, lambda _: math.nan)]).ends is None


def test_who_leads_is_who_has_led_at_every_place_since() -> None:
    first = Reference("a", [(s, 4.0) for s in range(1, 1001)])
    second = Reference("b", [(s, 5.0 if s < 200 else 3.0) for s in range(1, 2001)])
    found = compare([first, second])
    assert (found.leader, found.leads_since) == ("b", 200)
    assert found.rows[-1].at == 1000
    assert found.rows[-1].ratios == (1.0, 0.75)
    even = compare([first, Reference("c", [(s, 4.01) for s in range(1, 1001)])])
    assert (even.leader, even.leads_since) == (None, None)
    assert compare([first, Reference("d", [(s, 4.0) for s in range(5000, 5010)])]).rows == ()


POINTS = st.lists(
    st.tuples(st.integers(1, 300), st.sampled_from((1.0, 1.001, 1.2, 0.0))), max_size=6, unique_by=lambda p: p[0]
)


@given(st.lists(POINTS, min_size=1, max_size=4))
def test_a_comparison_has_each_place_that_two_runs_know_and_who_leads_there(
    points: list[list[tuple[int, float]]],
) -> None:
    runs = [Reference(name, sorted(p)) for name, p in zip("abcd", points, strict=False)]
    found = compare(runs)
    ends = [run.ends[1] for run in runs if run.ends]
    grid = {n * 10**k for k in range(3) for n in (1, 2, 3, 5, 7) if ends and n * 10**k <= max(ends)}
    places = sorted(grid | ({min(ends)} if ends else set()))
    assert [row.at for row in found.rows] == [at for at in places if sum(r.loss(at) is not None for r in runs) >= 2]
    for row in found.rows:
        assert row.losses == tuple(run.loss(row.at) for run in runs)
        best, second, *_ = sorted(
            (loss, run.name) for run, loss in zip(runs, row.losses, strict=True) if loss is not None
        )
        assert row.leader == (best[1] if second[0] - best[0] > 0.005 * second[0] else None)
        first = row.losses[0]
        assert row.ratios == tuple(None if not first or loss is None else loss / first for loss in row.losses)
    whole = [row for row in found.rows if None not in row.losses]
    assert found.leader == (whole[-1].leader if whole else None)
    led = [row.leader == found.leader and row.leader is not None for row in whole]
    since = next((n for n in range(len(led)) if all(led[n:])), None)
    assert found.leads_since == (None if since is None else whole[since].at)


@given(n=st.integers(0, 90), samples=st.integers(1, 16), cut=st.integers(1, 90))
def test_each_point_is_the_mean_of_so_many_samples_and_stands_in_their_middle(n: int, samples: int, cut: int) -> None:
    losses = [float(s * s % 17) for s in range(1, n + 1)]
    whole = stretch(1, n, lambda s: losses[s - 1])
    blocks = [list(range(at, min(at + samples, n))) for at in range(0, n, samples)]
    expected = [
        (block[len(block) // 2] + 1, pytest.approx(sum(losses[i] for i in block) / len(block)))
        for block in blocks
        if 2 * len(block) >= samples
    ]
    assert smoothed("a", [whole], samples=samples).points == expected
    parts = [stretch(1, min(cut, n), lambda s: losses[s - 1]), stretch(cut + 1, n, lambda s: losses[s - 1])]
    assert smoothed("a", [p for p in parts if len(p)], samples=samples).points == expected


def test_what_would_be_too_many_points_is_thinned_out_by_two() -> None:
    points = smoothed("a", [stretch(1, 4097, float)], samples=1).points
    assert points == [*((2 * n + 1, 2 * n + 1.5) for n in range(2048)), (4097, 4097.0)]


@given(st.lists(st.tuples(st.integers(1, 40), st.integers(0, 12)), max_size=6))
def test_of_what_was_done_twice_the_last_counts(parts: list[tuple[int, int]]) -> None:
    made = [stretch(first, first + n - 1, lambda _: 2.0, attempt=k) for k, (first, n) in enumerate(parts, 1)]
    line: list[tuple[int, int]] = []
    for readings in made:
        steps = readings.steps.tolist()
        line = [(a, s) for a, s in line if not steps or s < steps[0]] + [(readings.attempt, s) for s in steps]
    kept = descent(made)
    assert [(r.attempt, s) for r in kept for s in r.steps.tolist()] == line
    assert all(len(r) for r in kept)


@pytest.fixture
def folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A run with journals that counts its tokens, one with a CSV that does not, and both are noisy."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    (tmp_path / "runs" / "state" / "attempts").mkdir(parents=True)
    (tmp_path / "runs" / "tr8.toml").write_text('[run]\nname = "tr8"\ncheckpoints = "c"\nstate_dir = "state"\n')
    noisy = [(s, 10 * s**-0.2 + 0.1 * float(rng.standard_normal())) for s in range(1, 3001)]
    for name, scale, tokens in (("0001", 1.0, 1000), ("other", 0.9, 4000)):
        lines = [
            encode(Sample(attempt=1, global_step=s, time_unix_s=0.0, loss=scale * loss, consumed_tokens=tokens * s))
            for s, loss in noisy
        ]
        (tmp_path / "runs" / "state" / "attempts" / f"{name}.jsonl").write_text("\n".join(lines) + "\n")
    (tmp_path / "a.csv").write_text("step,loss\n" + "".join(f"{s},{1.1 * loss}\n" for s, loss in noisy[:2000]))
    (tmp_path / "runs" / "state" / "attempts" / "other.jsonl").rename(tmp_path / "other.jsonl")
    return tmp_path


@pytest.fixture
def call(folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., Any]:
    def call(*arguments: str, code: int = 0) -> str:
        answer = Sentinel(monkeypatch, capsys, ("compare",))(*arguments)
        assert answer.code == code, answer.err
        return answer.err if code else answer.out

    return call


def test_runs_and_files_are_compared_at_the_same_step(call: Callable[..., str], folder: Path) -> None:
    told = json.loads(call("tr8", "other.jsonl", "a.csv", "--json", "--plot", "pictures/a.png"))
    assert (told["by"], told["runs"], told["leader"]) == ("step", ["tr8", "other.jsonl", "a.csv"], "other.jsonl")
    assert told["leads_since"] == told["rows"][0]["at"] == 10
    last = [row for row in told["rows"] if None not in row["losses"]][-1]
    assert last["ratios"] == pytest.approx([1.0, 0.9, 1.1], rel=0.01)
    assert (folder / "pictures" / "a.png").read_bytes().startswith(b"\x89PNG")
    shown = call("tr8", "other.jsonl")
    assert "other.jsonl leads since global step 10" in " ".join(shown.split())


def test_at_the_same_tokens_another_run_may_lead(call: Callable[..., str]) -> None:
    told = json.loads(call("tr8", "other.jsonl", "--by", "tokens", "--json"))
    assert told["leader"] == "tr8"  # 0.9 * 4^0.2 = 1.19: at the same tokens the other is at a quarter of the steps
    assert told["rows"][-1]["ratios"][1] == pytest.approx(0.9 * 4**0.2, rel=0.05)
    assert "a.csv has no consumed tokens" in call("tr8", "a.csv", "--by", "tokens", code=2)


def test_what_can_not_be_compared_is_said(call: Callable[..., str], folder: Path) -> None:
    assert "two runs or more" in call("tr8", code=2)
    assert "named twice" in call("tr8", "tr8", code=2)
    assert "no such file" in call("tr8", "nothing", code=2)
    (folder / "b.csv").write_text("step,loss\n1,2.0\n")
    assert "compare needs 8 or more with a loss, and b.csv has 1 sample" in call("tr8", "b.csv", code=2)


def test_lines_that_are_taken_for_steps_are_said(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = [f"{{'loss': {2 + 1 / n:.4f}, 'learning_rate': 1e-4, 'epoch': {n / 100}}}" for n in range(1, 200)]
    (folder / "trainer.log").write_text("\n".join(lines) + "\n")
    told = Sentinel(monkeypatch, capsys)("compare", "tr8", "trainer.log", "--json")
    (note,) = json.loads(told.out)["notes"]
    assert note.startswith("trainer.log: the lines name no step")
    assert f"warning: {note}" in told.err


def test_runs_of_the_same_name_have_columns_that_differ(call: Callable[..., str], folder: Path) -> None:
    far = folder / ("x" * 60)
    for name in ("first", "second"):
        (far / name).mkdir(parents=True)
        (far / name / "log.csv").write_text((folder / "a.csv").read_text())
    shown = call(str(far / "first" / "log.csv"), str(far / "second" / "log.csv"))
    head = shown.splitlines()[2]
    assert "first" in head
    assert "second" in head
    assert "x" * 8 not in head
