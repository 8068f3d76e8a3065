"""An index is the same however it was made: by how many workers and ranks, and however often it was killed."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from sentinel.vocabulary.errors import DataError, TemporaryError
from tests.hooks.data_made import job, megatron_file, padded_file, token_file
from tests.support.rarities import rarities
from trainer_hooks.data.analyze import ProgressBar, Ranks, analyze
from trainer_hooks.data.index import Index

pytestmark = pytest.mark.full

COMMAND = [sys.executable, "-m", "trainer_hooks.data", "analyze"]


def environment(**more: str) -> dict[str, str]:
    return dict(os.environ, OMP_NUM_THREADS="1", PYTHONPATH=os.pathsep.join(sys.path), **more)


def arguments(data: Path, output: Path, *more: str) -> list[str]:
    return ["--data", str(data), "--seqlen", "20", "--metric", "voc", "--output", str(output), *more]


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.parametrize("make", [token_file, megatron_file, padded_file])
def test_an_index_says_how_difficult_each_sample_is_and_which_come_first(tmp_path: Path, make: type) -> None:
    asked = job(make(tmp_path), tmp_path / "out")
    rows = asked.rows()
    index = Index.load(analyze(asked), rows.fingerprint)
    assert index.values == pytest.approx(rarities(rows), rel=1e-6)
    assert np.array_equal(index.order, np.argsort(index.values, kind="stable"))
    assert isinstance(index.order, np.memmap)
    middle = float(np.median(index.values))
    assert index.up_to_value(middle) == np.count_nonzero(index.values <= middle)
    assert index.up_to_value(index.manifest.smallest - 1) == 0
    assert [index.up_to_percentile(p) for p in (0, 50, 100, 120)] == [1, len(rows) // 2, len(rows), len(rows)]
    assert index.up_to_value(float("nan")) == index.up_to_percentile(float("nan")) == 0


def test_text_is_indexed_as_the_trainer_reads_it(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("".join(f"line {n}: {'spam' * (n % 7)}\n" for n in range(200)))
    asked = job(tmp_path / "text", tmp_path / "out")
    assert Index.load(analyze(asked)).values == pytest.approx(rarities(asked.rows()), rel=1e-6)


def test_workers_and_shards_change_nothing(tmp_path: Path) -> None:
    data = token_file(tmp_path)
    alone = contents(analyze(job(data, tmp_path / "alone")))
    assert contents(analyze(job(data, tmp_path / "shards", shard_samples=7))) == alone
    assert contents(analyze(job(data, tmp_path / "workers", shard_samples=40), workers=2)) == alone
    assert {"values.npy", "samples.npy", "distinct.npy", "offsets.npy", "manifest.json"} < alone.keys()
    assert not list((tmp_path / "alone").glob(".*"))


KILLED = """
import os, signal, sys
from trainer_hooks.data import analyze as mapping
from trainer_hooks.data.__main__ import main

left, completed = int(sys.argv.pop(1)), mapping.as_completed

def killed_after_the_last(shards):
    global left
    for shard in completed(shards):
        left -= 1
        if left < 0:
            os.kill(os.getpid(), signal.SIGKILL)
        yield shard

mapping.as_completed = killed_after_the_last
sys.exit(main())
"""
"""An analysis that is killed once its workers have told of so many shards."""


def test_a_killed_analysis_goes_on_where_it_was_and_ends_the_same(tmp_path: Path) -> None:
    data = token_file(tmp_path, count=400_001)
    small = ["--shard-samples", "100", "--workers", "2", "--quiet"]
    whole = contents(analyze(job(data, tmp_path / "whole")))
    output = tmp_path / "killed"
    done_before = set[Path]()
    for shards in (40, 80, 100, 120):  # of 196 of each stage: killed twice while it counts, twice while it measures
        command = [sys.executable, "-c", KILLED, str(shards), "analyze", *arguments(data, output, *small)]
        assert subprocess.run(command, env=environment(), timeout=200, check=False).returncode == -signal.SIGKILL
        done = set(output.glob(".*/[cv]*-*.npy"))
        assert done_before <= done
        assert len(done) >= len(done_before) + shards
        done_before = done
    assert len(list(output.glob(".*/values-*.npy"))) > 100
    before = {path.name: path.stat().st_ino for path in done_before}
    process = subprocess.Popen([*COMMAND, *arguments(data, output, *small)], env=environment())
    redone = set()
    while process.poll() is None:
        for path in output.glob(".*/[cv]*-*.npy"):
            try:
                if before.get(path.name, path.stat().st_ino) != path.stat().st_ino:
                    redone.add(path.name)
            except FileNotFoundError:
                break
        time.sleep(0.01)
    assert process.returncode == 0
    assert len(redone) <= 2  # what a worker that outlived its parent was still at
    assert contents(output / "voc") == whole


def test_ranks_share_the_work_through_a_folder(tmp_path: Path) -> None:
    data = token_file(tmp_path)
    whole = contents(analyze(job(data, tmp_path / "whole")))
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2"]
    options = arguments(data, tmp_path / "shared", "--shard-samples", "40", "--workers", "1")
    command = [*torchrun, "-m", "trainer_hooks.data", "analyze", *options]
    ran = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=200, check=False)
    assert ran.returncode == 0, ran.stderr[-3000:]
    assert contents(tmp_path / "shared" / "voc") == whole
    assert "voc, counts, rank 0: 160 of 160 samples" in ran.stderr
    assert "voc, counts, rank 1: 134 of 134 samples" in ran.stderr


def test_a_rank_that_never_comes_is_said(tmp_path: Path) -> None:
    with pytest.raises(TemporaryError, match="3 files are missing"):
        analyze(
            job(token_file(tmp_path), tmp_path / "out", shard_samples=50),
            ranks=Ranks(rank=0, world=2, patience_s=0.01),
        )


def test_what_is_there_is_not_made_again(tmp_path: Path) -> None:
    asked = job(token_file(tmp_path), tmp_path / "out")
    before = (analyze(asked) / "values.npy").stat()
    assert (analyze(asked) / "values.npy").stat() == before


def test_an_index_of_other_data_is_refused_by_analysis_and_by_loading(tmp_path: Path) -> None:
    asked = job(token_file(tmp_path), tmp_path / "out")
    folder = analyze(asked)
    token_file(tmp_path, seed=1)
    with pytest.raises(DataError, match=r"the index belongs to other data .*digest"):
        Index.load(folder, asked.rows().fingerprint)
    with pytest.raises(DataError, match="the index belongs to other data"):
        analyze(asked)


@pytest.mark.parametrize(
    ("harm", "said"),
    [
        (lambda f: (f / "values.npy").unlink(), "values.npy: No such file"),
        (lambda f: (f / "samples.npy").write_bytes((f / "samples.npy").read_bytes()[:-40]), "samples.npy"),
        (lambda f: np.save(f / "offsets.npy", np.zeros(3)), r"offsets.npy: \(3,\) is not"),
        (lambda f: np.save(f / "values.npy", np.zeros(294)), "values.npy: float64 is not float32"),
        (lambda f: (f / "manifest.json").write_text("{}"), "schema None"),
        (lambda f: (f / "manifest.json").write_text("[1"), "not the manifest"),
        (lambda f: (f / "manifest.json").unlink(), "sentinel-data analyze"),
    ],
)
def test_an_index_that_is_not_whole_is_refused(tmp_path: Path, harm: object, said: str) -> None:
    folder = analyze(job(token_file(tmp_path), tmp_path / "out"))
    assert callable(harm)
    harm(folder)
    with pytest.raises(DataError, match=said):
        Index.load(folder)


def test_a_value_that_is_no_number_is_refused_and_its_sample_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"is nan for sample \d+"):
        analyze(job(token_file(tmp_path), tmp_path / "out", metric="tests.hooks.data_metric:undefined"))
    assert not (tmp_path / "out" / "tests.hooks.data_metric.undefined").exists()


def test_a_workers_refusal_reaches_the_caller(tmp_path: Path) -> None:
    asked = job(token_file(tmp_path), tmp_path / "out", metric="tests.hooks.data_metric:undefined", shard_samples=50)
    with pytest.raises(DataError, match=r"is nan for sample \d+"):
        analyze(asked, workers=2)


def test_a_metric_of_the_users_is_indexed(tmp_path: Path) -> None:
    asked = job(token_file(tmp_path), tmp_path / "out", metric="tests.hooks.data_metric:last")
    assert np.array_equal(Index.load(analyze(asked)).values, asked.rows().tokens[:, -1])


def test_the_command_says_where_the_index_is_and_how_far_it_was(tmp_path: Path) -> None:
    options = [*arguments(token_file(tmp_path), tmp_path / "out"), "--workers", "1", "--deepspeed-format"]
    command = [*COMMAND, *options, "--metric", "seqtru_voc"]
    ran = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=100, check=False)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.splitlines() == [str(tmp_path / "out" / "voc")]  # seqtru_voc draws by voc: one index
    assert "voc, values: 294 of 294 samples (100%)" in ran.stderr
    assert "\r" not in ran.stderr
    assert (tmp_path / "out" / "voc" / "deepspeed" / "voc_index_to_sample.idx").exists()
    manifest = json.loads((tmp_path / "out" / "voc" / "manifest.json").read_text())
    assert manifest["metric"] == "voc"
    assert manifest["corpus"]["seqlen"] == 20


def test_wrong_arguments_are_said_in_one_line(tmp_path: Path) -> None:
    command = [*COMMAND, "--data", str(tmp_path / "none.bin"), "--seqlen", "20", "--metric", "voc", "--output", "o"]
    ran = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=100, check=False)
    assert (ran.returncode, ran.stderr) == (2, f"sentinel-data: {tmp_path}/none.bin: no such file\n")


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_on_a_terminal_the_bar_stays_on_its_line() -> None:
    out = Terminal()
    bar = ProgressBar(out, "voc, values", 100, 20)
    bar.update(60)
    bar.update(100)
    assert out.getvalue().count("\r") == 3
    assert out.getvalue().count("\n") == 1
    assert "[##################            ] voc, values: 60 of 100 samples (60%)" in out.getvalue()
    assert "a second, 0:00:00 left" in out.getvalue()
