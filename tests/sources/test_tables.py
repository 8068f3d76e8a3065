"""CSV, Parquet and JSONL: columns by name, gaps, what can't be read, ranks, and steps that go back."""

from __future__ import annotations

import gzip
import json
import math
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from sentinel.sources import column_source as source_module
from sentinel.sources.opening import open_columns, open_table
from sentinel.vocabulary.errors import ConfigError
from sentinel.vocabulary.sample import Validation
from tests.sources.readings import NAN, column, only, told


def written(path: Path, *lines: str) -> Path:
    path.write_text("\n".join(lines) + "\n")
    return path


def jsonl(path: Path, *rows: dict[str, Any]) -> Path:
    return written(path, *(json.dumps(row) for row in rows))


def test_a_csv_of_the_usual_names_is_read_and_its_format_said(tmp_path: Path) -> None:
    path = written(
        tmp_path / "run.csv",
        "step,loss,grad_norm,lr,loss_scale,tokens,extra",
        "10,2.5,1.25,1e-4,,4096,",
        "20,2.25,nan,1e-4,65536,8192,",
    )
    source = only(path)
    assert told(source) == [
        {"attempt": 1, "step": 10, "loss": 2.5, "grad_norm": 1.25, "lr": 1e-4},
        {"attempt": 1, "step": 20, "loss": 2.25, "grad_norm": NAN, "lr": 1e-4, "loss_scale": 65536.0},
    ]
    assert (source.format, source.samples, source.unreadable, source.path) == ("csv", 2, 0, path)


@pytest.mark.parametrize("delimiter", [",", ";", "\t"])
def test_the_delimiter_is_found_and_comments_and_blank_lines_are_passed_over(tmp_path: Path, delimiter: str) -> None:
    rows = ["# made by hand", "", "Iteration|lm loss|grad-norm", "1|2.5|0.5", "# a note", "", "2|2.25|0.25"]
    source = only(written(tmp_path / "a.txt", *(row.replace("|", delimiter) for row in rows)))
    assert column(told(source), "step", "loss", "grad_norm") == [(1, 2.5, 0.5), (2, 2.25, 0.25)]
    assert (source.format, source.unreadable) == ("csv", 0)


def test_every_spelling_of_what_is_not_finite_is_read_and_blank_is_not_logged(tmp_path: Path) -> None:
    spellings = ["NaN", "nan", "inf", "Infinity", "-inf", '"nan"', " nan ", "-Infinity", "1e400"]
    blanks = ["", "None", "null", "N/A"]
    lines = [f"{n},{text},{n}" for n, text in enumerate(spellings, 1)]
    lines += [f"{n},{text},5" for n, text in enumerate(blanks, 90)]
    samples = told(only(written(tmp_path / "a.csv", "step,loss,lr", *lines)))
    assert column(samples, "loss") == [NAN, NAN, math.inf, math.inf, -math.inf, NAN, NAN, -math.inf, math.inf]
    assert column(samples, "step") == [*range(1, 10)]


def test_a_row_that_cannot_be_read_is_counted_and_shown_with_its_line(tmp_path: Path) -> None:
    source = only(
        written(
            tmp_path / "a.csv", "# first", "step,loss", "1,2.0", "2,abc", "", "3,2.0,7", "4,2.5", "5.5,1", ",1", "-6,1"
        )
    )
    assert column(told(source), "step", "loss") == [(1, 2.0), (4, 2.5)]
    assert source.unreadable == 5
    assert source.first_unreadable == [
        *((4, "loss should be a number, not 'abc'"), (6, "3 cells where there should be 2")),
        *((8, "the step should be a whole number, not 5.5"), (9, "the step is not there")),
        (10, "the step should be a whole number, not -6"),
    ]


def test_a_row_in_another_encoding_is_counted_as_any_other(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes(b"step,loss,n\xf6te\n1,2.5,gr\xfc\xdfe\n2,\xff\xfe,a\n3,\xff,1,2\n4,2.25,\n")
    source = only(path)
    assert column(told(source), "step", "loss") == [(1, 2.5), (4, 2.25)]
    assert [line for line, _ in source.first_unreadable] == [3, 4]


def test_a_compressed_table_is_read_and_one_cut_short_is_read_to_there(tmp_path: Path) -> None:
    rows = "step,loss\n" + "".join(f"{n},{n / 7!r}\n" for n in range(1, 20001))
    whole, short = tmp_path / "a.csv.gz", tmp_path / "b.csv.gz"
    whole.write_bytes(gzip.compress(rows.encode()))
    short.write_bytes(whole.read_bytes()[:-2000])
    assert len(told(only(whole))) == 20000
    source = only(short)
    assert 10000 < len(told(source)) < 20000
    assert source.unreadable >= 1
    assert any("can't be read on" in why for _, why in source.first_unreadable)


def test_a_column_that_is_asked_for_wins_over_a_known_one(tmp_path: Path) -> None:
    path = written(tmp_path / "a.csv", "step,loss,my.loss,n", "1,5,2.5,10", "2,5,2.25,20")
    assert column(told(only(path, {"loss": "my.loss", "step": "n"})), "step", "loss") == [(10, 2.5), (20, 2.25)]
    assert column(told(only(path, {"loss": "my/loss"})), "loss") == [2.5, 2.25]


def test_a_column_that_is_not_there_is_refused_with_those_that_are(tmp_path: Path) -> None:
    path = written(tmp_path / "a.csv", "step,loss,kept", "1,5,2.5")
    with pytest.raises(ConfigError, match=r"no 'train/los' to take as loss; it has: step, loss, kept"):
        open_columns(path, {"loss": "train/los"})
    with pytest.raises(ConfigError, match=r"perplexity is nothing that is read from a column; there are: step, loss"):
        open_columns(path, {"perplexity": "kept"})
    nameless = written(tmp_path / "b.csv", "a,b", "1,2")
    with pytest.raises(ConfigError, match="say which with --column loss=NAME; it has: a, b"):
        open_columns(nameless, {})
    assert open_table(written(tmp_path / "b.log", "a,b", "1,2"), {}) is None


def test_wandbs_chart_export_is_read_and_further_runs_are_said(tmp_path: Path) -> None:
    path = written(
        tmp_path / "wandb.csv",
        '"Step","big run - train/loss","big run - train/loss__MIN","big run - train/loss__MAX","b - train/loss"',
        '"1","2.5","2.4","2.6","9"',
        '"2","","2.4","2.6","9"',
        '"3","2.25","2.2","2.3",""',
    )
    source = only(path)
    assert column(told(source), "step", "loss") == [(1, 2.5), (3, 2.25)]
    (note,) = source.notes
    assert "'big run - train/loss' was taken as loss" in note
    assert "b - train/loss" in note


def test_a_table_without_a_step_is_numbered_and_that_is_said(tmp_path: Path) -> None:
    source = only(written(tmp_path / "a.csv", "loss,lr", "2.5,1", ",1", "2.25,1"))
    assert column(told(source), "step", "loss") == [(1, 2.5), (3, 2.25)]
    assert source.notes == ["there is no column with the step: rows are numbered from 1"]


def test_what_an_extra_column_says_is_taken(tmp_path: Path) -> None:
    path = written(
        tmp_path / "a.csv",
        "step,loss,extra",
        "1,2.5,consumed_samples=4.7e7;skipped=0;gbs=2048",
        "2,2.25,consumed_samples=4.8e7;skipped=1;gbs=2048",
        "3,2.0,epoch=0.25",
        "4,2.0,",
    )
    assert told(only(path)) == [
        {"attempt": 1, "step": 1, "loss": 2.5, "global_batch_samples": 2048.0},
        {"attempt": 1, "step": 2, "loss": 2.25, "global_batch_samples": 2048.0, "skipped": True},
        {"attempt": 1, "step": 3, "loss": 2.0, "epoch": 0.25},
        {"attempt": 1, "step": 4, "loss": 2.0},
    ]


def test_neighbouring_rows_of_one_step_are_one_sample_with_the_mean_and_the_spread(tmp_path: Path) -> None:
    rows = ["1,2.0", "1,3.0", "1,2.5", "2,4.0", "3,1.0", "3,nan", "4,0.1", "4,0.1", "4,0.1", "5,inf", "5,1"]
    samples = told(only(written(tmp_path / "a.csv", "step,loss", *rows)))
    assert column(samples, "step", "loss", "loss_spread") == [
        (1, 2.5, 1.0), (2, 4.0, None), (3, NAN, NAN), (4, 0.1, 0.0), (5, math.inf, math.inf),
    ]  # fmt: skip


def test_a_step_logged_over_several_rows_is_one_sample(tmp_path: Path) -> None:
    path = jsonl(
        tmp_path / "wandb.jsonl",
        {"_step": 1, "train/loss": 2.5},
        {"_step": 1, "train/grad_norm": 0.5},
        {"_step": 2, "train/grad_norm": 0.75, "val/loss": 3.0},
        {"_step": 3, "train/loss": 2.25, "train/lr": 1e-4},
        {"_step": 3, "train/grad_norm": None, "system/gpu": 5},
    )
    source = only(path)
    assert told(source) == [
        {"attempt": 1, "step": 1, "loss": 2.5, "grad_norm": 0.5},
        {"attempt": 1, "step": 3, "loss": 2.25, "lr": 1e-4},
    ]
    (validation,) = source.others
    assert isinstance(validation, Validation)
    assert (validation.global_step, validation.loss, math.isnan(validation.time_unix_s)) == (2, 3.0, True)


def test_a_step_that_goes_back_begins_a_new_attempt(tmp_path: Path) -> None:
    steps = [1, 2, 3, 2, 3, 4, 1, 2]
    source = only(written(tmp_path / "a.csv", "step,loss", *(f"{step},2.5" for step in steps)))
    expected = [(1, 1), (1, 2), (1, 3), (2, 2), (2, 3), (2, 4), (3, 1), (3, 2)]
    assert column(told(source), "attempt", "step") == expected
    assert source.notes == ["the step goes back 2 times: a new attempt begins there"]


def test_ranks_that_lag_behind_one_another_are_no_restart(tmp_path: Path) -> None:
    order = [(0, 1), (0, 2), (1, 1), (1, 2), (0, 3), (1, 3), (0, 2), (0, 3), (1, 2), (1, 3)]
    lines = [f"{step},{rank},{step + rank}" for rank, step in order]
    samples = told(only(written(tmp_path / "a.csv", "step,rank,loss", *lines)))
    assert column(samples, "attempt", "step", "loss", "loss_spread") == [
        (1, 1, 1.5, 1.0), (1, 2, 2.5, 1.0), (1, 3, 3.5, 1.0), (2, 2, 2.5, 1.0), (2, 3, 3.5, 1.0),
    ]  # fmt: skip


def test_ranks_are_joined_over_many_chunks_and_a_rank_that_falls_silent_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sentinel.sources.row_merge.CHUNK_ROWS", 64)
    monkeypatch.setattr("sentinel.sources.arrow_tables._BLOCK_BYTES", 256)
    assert source_module.CHUNK_ROWS == 1 << 16
    rows = [f"{step},{rank},{rank}" for step in range(1, 1001) for rank in range(2 if step <= 500 else 1)]
    samples = told(only(written(tmp_path / "a.csv", "step,rank,loss", *rows)))
    assert column(samples, "step") == [*range(1, 1001)]
    assert column(samples, "loss") == [0.5] * 500 + [0.0] * 500


def test_a_loss_of_zero_beside_a_grad_norm_of_nan_is_nan(tmp_path: Path) -> None:
    samples = told(only(written(tmp_path / "a.csv", "step,loss,grad_norm", "1,0.0,nan", "2,0.0,1.0", "3,0.0,")))
    assert column(samples, "loss") == [NAN, 0.0, 0.0]


def test_jsonl_takes_nested_keys_python_s_nan_and_says_what_is_no_object(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(
        b'# a comment\n{"iter": 1, "train": {"loss": 2.5, "lr": [1e-4, 2e-4]}}\n'
        b'{"iter": 2, "train": {"loss": NaN}}\n{"iter": 3, "train": {"loss": "inf", "lr": "0.5"}}\n\n'
        b'[1]\n{"iter": 4, "tr\n{"iter": 5, "train": {"loss": true}, "x": "\xff"}\n{"iter": 6, "train": {"loss": {}}}'
    )
    source = only(path)
    assert column(told(source), "step", "loss", "lr") == [
        (1, 2.5, 1e-4), (2, NAN, None), (3, math.inf, 0.5), (5, 1.0, None),
    ]  # fmt: skip
    assert (source.format, source.unreadable) == ("jsonl", 2)
    assert [line for line, _ in source.first_unreadable] == [6, 7]


def test_a_log_of_json_lines_without_a_loss_is_left_to_others(tmp_path: Path) -> None:
    assert open_columns(jsonl(tmp_path / "a.log", {"message": "step 1 loss 2.5"}), {}) == []
    assert open_columns(jsonl(tmp_path / "a.jsonl", {"message": "step 1 loss 2.5"}), {}) == []
    with pytest.raises(ConfigError, match="it has: reward"):
        open_columns(jsonl(tmp_path / "a.jsonl", {"reward": 2.5}), {})


def test_parquet_keeps_nan_apart_from_null_and_takes_structures_and_texts(tmp_path: Path) -> None:
    table = pa.table(
        {
            "step": pa.array([1, 2, 3], pa.int64()),
            "train": pa.array([{"loss": 2.5}, {"loss": math.nan}, {"loss": None}]),
            "grad-norm": pa.array(["0.5", "nan", None]).dictionary_encode(),
            "lr": pa.array([1e-4, None, 1e-4], pa.float32()),
            "skipped": pa.array([False, True, False]),
            "note": pa.array(["a", "b", "c"]),
        }
    )
    pq.write_table(table, tmp_path / "data")
    source = only(tmp_path / "data")
    assert column(told(source), "step", "loss", "grad_norm", "skipped") == [(1, 2.5, 0.5, None), (2, NAN, NAN, True)]
    assert source.format == "parquet"


def test_a_damaged_parquet_file_is_refused_by_its_name(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"step": [1], "loss": [2.5]}), path)
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(ConfigError, match=r"a\.parquet is a Parquet file that can't be read"):
        open_columns(path, {})


def test_a_source_can_be_read_again_from_the_beginning(tmp_path: Path) -> None:
    source = only(written(tmp_path / "a.csv", "step,loss", "1,2", "x,y", "2,2"))
    assert told(source) == told(source)
    assert (source.samples, source.unreadable) == (2, 1)


def test_a_path_that_is_not_there_is_a_configuration_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="can't be read"):
        open_columns(tmp_path / "nothing.csv", {})
    assert open_columns(tmp_path, {}) == []


def test_rows_are_told_apart_wherever_a_block_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.csv"
    path.write_text("step,loss\n" + "".join(f"# {i}, of no use, {i}\n{i},{2 + i / 8}\n{i},x\n\n" for i in range(50)))
    for block_bytes in (16, 64, 1 << 21):
        monkeypatch.setattr("sentinel.sources.arrow_tables._BLOCK_BYTES", block_bytes)
        source = only(path)
        assert column(told(source), "step", "loss") == [(i, 2 + i / 8) for i in range(50)]
        assert [line for line, _ in source.first_unreadable] == [4 + 4 * i for i in range(20)]


def test_no_thread_of_pyarrow_needs_python_which_may_be_shutting_down(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.csv"
    path.write_text("step,loss\n1,2.5\n")
    monkeypatch.setattr("pyarrow.PythonFile", None)  # a thread that lets go of one as the process ends aborts it
    assert column(told(only(path)), "step", "loss") == [(1, 2.5)]
