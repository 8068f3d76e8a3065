"""Our indexes in DeepSpeed's files, and DeepSpeed's in ours; its real analyzers and its real sampler on both."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from deepspeed.runtime.data_pipeline.data_sampling.indexed_dataset import MMapIndexedDataset

from sentinel.vocabulary.errors import DataError
from tests.hooks.data_made import index_of
from tests.hooks.torchrun import lines_of
from trainer_hooks.data.deepspeed_format import read_deepspeed, whole_numbers, write_deepspeed

pytestmark = pytest.mark.full


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    folder = tmp_path_factory.mktemp("analyzers")
    return {line["case"]: line for line in lines_of("data_analyzers.py", str(folder), ranks=1)}


def test_deepspeeds_distributed_analyzer_gives_our_values_in_our_order(told: dict[str, Any]) -> None:
    values = np.array(told["distributed"]["values"])
    assert np.array_equal(values, whole_numbers(np.array(told["distributed"]["ours"], dtype=np.float32)))
    assert told["distributed"]["order"] == np.argsort(values, kind="stable").tolist()


def test_what_is_written_is_what_deepspeeds_analyzer_writes(told: dict[str, Any]) -> None:
    assert all(told["written"]["same"].values()), told["written"]["same"]


def test_what_deepspeeds_analyzer_wrote_is_read(told: dict[str, Any]) -> None:
    index = read_deepspeed(Path(told["written"]["prefix"]))
    assert index.values.tolist() == told["distributed"]["values"]
    assert index.order.tolist() == told["distributed"]["order"]
    assert index.up_to_value(float(index.distinct[3])) == index.offsets[4]


@pytest.mark.parametrize("kind", ["percentile", "value"])
def test_deepspeeds_sampler_draws_by_our_files(told: dict[str, Any], kind: str) -> None:
    values = np.array(told["distributed"]["values"])
    (limit,) = told[kind]["limits"]
    allowed = np.quantile(values, min(limit / 100, 1)) + 1 if kind == "percentile" else limit
    drawn = np.array(told[kind]["drawn"])
    assert drawn.shape == (10, 8)
    assert values[drawn].max() <= allowed


@pytest.mark.parametrize("scale", [1.0, 10.0])
def test_our_files_hold_what_deepspeeds_reader_reads(tmp_path: Path, scale: float) -> None:
    index = index_of(np.random.default_rng(0).normal(500, 20, 1000).astype(np.float32))
    prefix = write_deepspeed(index, tmp_path, scale=scale)
    found = MMapIndexedDataset(f"{prefix}_index_to_sample", True)
    values = MMapIndexedDataset(f"{prefix}_index_to_metric", True)
    each = MMapIndexedDataset(f"{prefix}_sample_to_metric", True)
    whole = whole_numbers(index.values, scale)
    assert [int(each[n][0]) for n in range(1000)] == whole.tolist()
    assert [int(values[n][0]) for n in range(len(values))] == np.unique(whole).tolist()
    for n in range(len(found)):
        assert found[n].tolist() == np.flatnonzero(whole == values[n][0]).tolist()


@pytest.mark.parametrize(
    ("harm", "said"),
    [
        (lambda p: Path(f"{p}_sample_to_metric.idx").write_bytes(b"short"), "not an index of DeepSpeed's"),
        (lambda p: Path(f"{p}_sample_to_metric.bin").write_bytes(b"\1\2"), "2 numbers are not the 4"),
        (lambda p: Path(f"{p}_index_to_sample.bin").write_bytes(b"\0\2\1\3"), "another one in index_to_metric"),
        (lambda p: Path(f"{p}_index_to_sample.bin").write_bytes(b"\0\1\3\2"), "not in ascending order"),
        (lambda p: Path(f"{p}_index_to_sample.bin").write_bytes(b"\0\1\2\7"), "sample 7 of 4"),
        (lambda p: Path(f"{p}_index_to_metric.bin").unlink(), "No such file"),
    ],
)
def test_files_that_do_not_agree_are_refused(tmp_path: Path, harm: Any, said: str) -> None:
    prefix = write_deepspeed(index_of(np.array([5, 6, 9, 9])), tmp_path)
    harm(prefix)
    with pytest.raises(DataError, match=said):
        read_deepspeed(prefix)
