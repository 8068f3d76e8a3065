"""Runs as `wandb` keeps them beside the training: recorded files of two of its versions, and one written here."""

from __future__ import annotations

import gzip
import math
import subprocess
import sys
from pathlib import Path

import pytest

from sentinel.sources.column_source import ColumnSource
from sentinel.sources.opening import one_source, open_table
from sentinel.sources.wandb_runs import open_wandb
from sentinel.vocabulary.errors import ConfigError
from sentinel.vocabulary.sample import Validation
from tests.support.there import there

RECORDED = Path(__file__).parents[1] / "data" / "wandb_files"
"""400 steps, each logged as WRITER does below; run.log counts from 0, the trainer by twos from 2."""

WRITER = """
import math, sys, wandb
settings = wandb.Settings(silent=True, console="off", x_disable_stats=True, x_disable_meta=True)
with wandb.init(mode="offline", project="pretraining", id="abc123", dir=sys.argv[1], settings=settings) as run:
    for i in range(1, 401):
        row = {"train/loss": 5 - i / 100, "iteration": 2 * i, "note": "x" * 60}
        row |= {"nested": {"depth": i}, "flag": i % 2 == 0}
        if i == 300:
            row["train/loss"] = math.nan
        if i == 200:
            row["long"] = "y" * 70_000
        if i % 100 == 0:
            row["val/loss"] = 4.0
        run.log(row)
"""


def losses(source: ColumnSource) -> dict[int, float]:
    found = {}
    for readings in source:
        found |= dict(zip(readings.steps.tolist(), readings.columns["loss"].tolist(), strict=True))
    return found


@pytest.fixture(params=sorted(RECORDED.glob("*.wandb.gz")), ids=lambda path: path.name)
def recorded(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """Unpacked, in a folder as wandb leaves one behind."""
    folder = tmp_path / "offline-run-20260101_000000-abc123"
    (folder / "files").mkdir(parents=True)
    (folder / "run-abc123.wandb").write_bytes(gzip.decompress(request.param.read_bytes()))
    return folder


def said(found: dict[int, float]) -> None:
    """That it is what was logged, step for step."""
    assert list(found) == list(range(2, 802, 2))
    assert math.isnan(found.pop(600))
    assert found == {2 * i: 5 - i / 100 for i in range(1, 401) if i != 300}


def test_a_folder_of_an_offline_run_is_read_as_it_was_logged(recorded: Path) -> None:
    source = one_source(recorded, {})
    said(losses(source))
    assert source.format == "wandb"
    assert source.unreadable == 0
    validations = [each for each in source.others if isinstance(each, Validation)]
    assert [(each.global_step, each.loss) for each in validations] == [(step, 4.0) for step in (200, 400, 600, 800)]
    assert all(each.time_unix_s > 1.7e9 for each in validations)


def test_the_file_alone_is_known_by_its_content_and_not_by_its_name(recorded: Path, tmp_path: Path) -> None:
    plain = tmp_path / "log"
    plain.write_bytes((recorded / "run-abc123.wandb").read_bytes())
    assert losses(one_source(plain, {})) == pytest.approx(losses(one_source(recorded, {})), nan_ok=True)


def test_another_column_is_taken_where_it_is_asked_for(recorded: Path) -> None:
    assert losses(one_source(recorded, {"loss": "nested.depth", "step": "_step"}))[7] == 8.0
    with pytest.raises(ConfigError, match=r"has no 'train/perplexity' to take as loss; it has: .*train/loss"):
        one_source(recorded, {"loss": "train/perplexity"})


def test_a_file_that_is_still_written_is_read_up_to_its_torn_end(recorded: Path) -> None:
    file = recorded / "run-abc123.wandb"
    whole = file.read_bytes()
    for cut in (len(whole) // 2, len(whole) // 2 + 3, len(whole) - 1):
        file.write_bytes(whole[:cut])
        source = one_source(recorded, {})
        found = losses(source)
        assert list(found) == list(range(2, 2 * len(found) + 1, 2))
        assert len(found) > 100
        assert source.unreadable == 0


def test_a_damaged_block_costs_its_own_steps_and_is_told(recorded: Path) -> None:
    file = recorded / "run-abc123.wandb"
    data = bytearray(file.read_bytes())
    place = data.index(b"3.77")  # the loss of step 246
    data[place] ^= 1
    file.write_bytes(data)
    source = one_source(recorded, {})
    found = losses(source)
    assert source.unreadable == 1
    assert source.first_unreadable == [(place // 32768 + 1, "a block whose checksum does not hold")]
    assert 250 < len(found) < 400
    assert {2, 800} <= found.keys()
    assert 246 not in found
    assert all(math.isnan(loss) or loss == pytest.approx(5 - step / 200) for step, loss in found.items())


def test_bytes_of_another_file_are_none_of_it(tmp_path: Path) -> None:
    other = tmp_path / "run-abc123.wandb"
    other.write_text("step,loss\n1,2.0\n")
    assert open_wandb(other, {}) is None
    assert there(open_table(other, {})).format == "csv"


def test_a_folder_with_two_runs_is_not_guessed_at(recorded: Path) -> None:
    (recorded / "run-other.wandb").write_bytes((recorded / "run-abc123.wandb").read_bytes())
    with pytest.raises(ConfigError, match=r"holds 2 \.wandb files, and one is wanted"):
        one_source(recorded, {})


def test_what_the_installed_library_writes_is_read(tmp_path: Path) -> None:
    pytest.importorskip("wandb", reason="W&B's client has an environment of its own: make wandb")
    subprocess.run([sys.executable, "-c", WRITER, str(tmp_path)], check=True, timeout=120, capture_output=True)
    (folder,) = (tmp_path / "wandb").glob("offline-run-*")
    said(losses(one_source(folder, {})))
