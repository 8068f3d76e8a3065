"""The recorded curves: what INDEX.csv says of each file is so, and a recipe makes the same curve twice."""

from __future__ import annotations

import math
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "benchmarks"))

from recorded.curves import COLUMNS, INDEX_COLUMNS, REFERENCE_COLUMNS, held_out, read_curve, read_index  # noqa: E402
from recorded.generate import RECIPES, make  # noqa: E402
from recorded.index import write_index  # noqa: E402
from recorded.label import label  # noqa: E402
from recorded.recipe import Act, Recipe  # noqa: E402

RECORDED = ROOT / "benchmarks" / "recorded"
INDEX = read_index(RECORDED)
ILL = ("diverged", "nan")


@pytest.mark.parametrize("row", INDEX, ids=lambda row: row["name"])
def test_a_file_holds_what_the_index_says(row: dict[str, str]) -> None:
    curve = read_curve(RECORDED / row["path"])
    steps = [int(step) for step in curve["step"] if step is not None]
    assert tuple(curve) == (*COLUMNS, *REFERENCE_COLUMNS)
    assert len(steps) == int(row["n_points"])
    assert (steps[0], steps[-1]) == (int(row["first_step"]), int(row["last_step"]))
    assert sum(value is None or not math.isfinite(value) for value in curve["loss"]) == int(row["n_nonfinite_loss"])
    assert all(value is not None for value in curve["adam_variance_l1"])
    assert row["held_out"] == ("yes" if held_out(row["cause"]) else "no")
    for event in row["events"].split():
        _, _, where = event.partition(":")
        onset, peak, end = map(int, where.split("-"))
        assert min(steps) <= onset <= peak <= end <= max(steps), event


@pytest.mark.full
def test_the_index_is_what_the_label_rule_says_of_the_files(tmp_path: Path) -> None:
    write_index(RECIPES.values(), RECORDED / "curves", tmp_path / "INDEX.csv")
    assert (tmp_path / "INDEX.csv").read_text() == (RECORDED / "INDEX.csv").read_text()


def test_there_are_enough_of_both_kinds_and_they_are_small() -> None:
    assert tuple(INDEX[0]) == INDEX_COLUMNS
    assert {path.name for path in (RECORDED / "curves").iterdir()} == {Path(row["path"]).name for row in INDEX}
    healthy = [row for row in INDEX if row["label"] not in (*ILL, "ambiguous")]
    ill = [row for row in INDEX if row["label"] in ILL]
    assert len(ill) >= 36
    assert len(healthy) >= 36
    for kind in (ill, healthy):
        assert 0.2 < sum(row["held_out"] == "yes" for row in kind) / len(kind) < 0.47
    assert sum(path.stat().st_size for path in (RECORDED / "curves").iterdir()) < 20_000_000


def test_a_recipe_makes_the_same_curve_twice(tmp_path: Path) -> None:
    recipe = _short(Act(kind="garbage", start=30, stop=32))
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        folders = [tmp_path / "once", tmp_path / "twice"]
        for folder in folders:
            folder.mkdir()
        once, twice = (make(recipe, folder).read_bytes() for folder in folders)
    finally:
        torch.set_num_threads(threads)
    assert once == twice
    curve = read_curve(folders[0] / "short.csv.xz")
    assert curve["loss"][:29] == curve["reference_loss"][:29]
    assert curve["loss"][29] != curve["reference_loss"][29]


def test_the_label_is_what_became_of_the_loss_and_not_what_was_done_to_it() -> None:
    level = [2.0 + 0.1 * math.sin(7 * step) for step in range(400)]
    recipe = _short(Act(kind="garbage", start=200))
    assert label(recipe, _curve(level, level)).label == "stable"
    healed = [loss * (2 if 199 <= at < 230 else 1) for at, loss in enumerate(level)]
    assert label(recipe, _curve(healed, level)).label == "spikes_recovered"
    assert label(recipe, _curve(healed, level)).events == ("spike:200-200-230",)
    lasting = [loss * (1.3 if at >= 249 else 1) for at, loss in enumerate(level)]
    judged = label(recipe, _curve(lasting, level))
    assert judged.label == "diverged"
    assert 245 <= int(judged.events[0].split(":")[1].split("-")[0]) <= 255
    assert label(recipe, _curve([*level[:300], *[math.nan] * 100], level)).label == "nan"


def _short(*acts: Act) -> Recipe:
    return Recipe(name="short", cause="bad_data_burst", steps=40, width=16, batch=2, heads=2, acts=acts)


def _curve(loss: list[float], reference: list[float]) -> dict[str, list[float | None]]:
    steps: list[float | None] = [*range(1, len(loss) + 1)]
    return {
        "step": steps,
        "loss": list(loss),
        "reference_loss": list(reference),
        "validation_loss": [None] * len(loss),
    }
