"""Whatever a file holds, no reader of columns raises anything that is not ours; and nothing is lost on the way."""

from __future__ import annotations

import importlib.util
import json
import math
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sentinel.sources import arrow_tables
from sentinel.sources.opening import open_columns
from sentinel.vocabulary.errors import SentinelError
from sentinel.vocabulary.numbers import to_json
from tests.sources.readings import NAN, only, told, unpacked_here

NAMES = (
    *("a", "a.csv", "a.csv.gz", "a.jsonl", "0001.jsonl", "trainer_state.json", "events.out.tfevents.1.a"),
    "a.parquet",
)
HEADS = (
    *(b"", b"step,loss\n", b"\x1f\x8b\x08\0\0\0\0\0\0\xff", b'{"loss": 1}\n', b"PAR1", b'{"log_history": ['),
    b"step\tloss\n1\t2\n",
)
FUZZER = Path(__file__).with_name("fuzz_tables.py")
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module", autouse=True)
def _without_a_process_for_each_table() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(arrow_tables, "_unpacked", unpacked_here)
        yield


@settings(deadline=None)  # files are written
@given(st.sampled_from(NAMES), st.sampled_from(HEADS), st.binary(max_size=400))
def test_any_bytes_are_read_or_refused_with_an_error_of_ours(
    tmp_path_factory: pytest.TempPathFactory, name: str, head: bytes, rest: bytes
) -> None:
    folder = tmp_path_factory.mktemp("any")
    (folder / name).write_bytes(head + rest)
    for path in (folder, folder / name):
        try:
            for source in open_columns(path, {}):
                assert len(told(source)) == source.samples
                assert bool(source.unreadable) == bool(source.first_unreadable)
        except SentinelError:
            continue


READINGS = ("loss", "grad_norm", "lr", "seqlen", "epoch", "adam_variance_l1")
VALUES = st.floats() | st.integers(0, 4096).map(float)
ROWS = st.lists(
    st.fixed_dictionaries({"loss": VALUES.filter(bool)}, optional=dict.fromkeys(READINGS[1:], VALUES)),
    min_size=1,
    max_size=20,
)


@settings(deadline=None)  # files are written
@given(ROWS)
def test_what_is_written_to_a_table_is_what_is_read_nan_and_gaps_included(
    tmp_path_factory: pytest.TempPathFactory, rows: list[dict[str, float]]
) -> None:
    folder = tmp_path_factory.mktemp("tables")
    names = ["step", *READINGS]
    numbered: list[dict[str, Any]] = [{"step": step, **row} for step, row in enumerate(rows)]
    cells = [",".join("" if name not in row else repr(row[name]) for name in names) for row in numbered]
    (folder / "a.csv").write_text("\n".join([",".join(names), *cells]))
    (folder / "a.jsonl").write_text("\n".join(json.dumps(to_json(row)) for row in numbered))
    (folder / "python.jsonl").write_text("\n".join(json.dumps(row) for row in numbered))
    table = {n: pa.array([row.get(n) for row in numbered], None if n == "step" else pa.float64()) for n in names}
    pq.write_table(pa.table(table), folder / "a.parquet")
    expected = [
        {"attempt": 1} | {name: NAN if math.isnan(value) else value for name, value in row.items()} for row in numbered
    ]
    for name in ("a.csv", "a.jsonl", "python.jsonl", "a.parquet"):
        assert told(only(folder / name)) == expected, name


@pytest.mark.full
@pytest.mark.parametrize("runs", [3000, pytest.param(1_000_000, marks=[pytest.mark.soak, pytest.mark.timeout(14400)])])
def test_a_coverage_guided_fuzzer_finds_nothing_that_is_not_ours(tmp_path: Path, runs: int) -> None:
    if importlib.util.find_spec("atheris") is None:
        pytest.skip("atheris has no build for this Python")
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, str(FUZZER), f"-runs={runs}", "-seed=1"],
        cwd=tmp_path, env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]
    assert f"Done {runs}" in done.stderr
