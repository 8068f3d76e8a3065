"""Whatever the text is, a reader reads on; and how the bytes were cut up changes nothing."""

from __future__ import annotations

import contextlib
import dataclasses
import time
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from sentinel.sources.follow import FollowedLog
from sentinel.sources.line_splitter import LineSplitter
from sentinel.sources.read_log import read_log
from sentinel.sources.recognise import FORMATS
from sentinel.vocabulary.errors import ConfigError
from sentinel.vocabulary.sample import Record
from tests.adapters.sources.reading import SAMPLES, reader, samples

LINES = {
    "megatron": " iteration 7/ 1000 | lm loss: 2.5E+00 | loss scale: 1.0 | grad norm: 1.5 |",
    "gpt_neox": " samples/sec: 87.558 | iteration 7/ 3072 | lm_loss: 2.5 | loss scale: 4096.0 |",
    "nanotron": "10/17/2025 16:31:56 [INFO|DP=0|PP=0|TP=0]: iteration: 7 / 9 | lm_loss: 2.5 | lr: 1e-05",
    "nemo": "Training epoch 0, iteration 6/19 | lr: 2.999e-07 | global_step: 6 | reduced_train_loss: 2.5",
    "huggingface": "{'loss': 2.5, 'grad_norm': 0.24, 'learning_rate': 5e-05, 'epoch': 0.0, 'step': 7}",
    "metaseq": '2022-11-11 14:05:27 | INFO | train_inner | {"actv_norm": "0", "loss": "2.5", "num_updates": "7"}',
    "fairseq": '2022-11-11 14:05:27 | INFO | train_inner | {"loss": "2.5", "num_updates": "7", "gnorm": "1"}',
    "torchtitan": "[rank0]:[titan] 2026-05-18 16:04:46,338 - root - INFO - step: 7  loss:  2.5  grad_norm:  0.8319",
    "olmo": "INFO    [step=7/739328,epoch=0]\n    train/CrossEntropyLoss=2.5",
    "composer": "[batch=7/100]:\n         Train loss/train/total: 2.5",
    "litgpt": "Epoch 1 | iter 14 step 7 | loss train: 2.5, val: n/a | iter time: 548.72 ms (step)",
    "dllogger": "DLL 2020-05-29 11:31:45.763470 - Training Epoch: 0 Training Iteration: 7  step_loss : 2.5",
    "mlx": "Iter 7: Train loss 2.5, Learning Rate 7.000e-05, It/sec 0.999, Trained Tokens 9699",
    "nanogpt": "iter 7: loss 2.5, ppl 71.0037, time 3286.79ms, mfu 0.42%",
    "fms_fsdp": "step: 7\nloss: 2.5\nLR: 0.0003",
    "llm.c": "s:7 trl:2.5 lr:0.0006 norm:1.2",
    "jsonl": '{"train/loss": 2.5, "train/grad_norm": 21.2, "step": 7}',
    "generic": "step 7/100 | loss 2.5 | norm 1.2 | lr 3e-4",
}
ENDLESS = [
    *("a" * 65_000, "loss " * 13_000, "iteration 1 " * 5_400 + "|", "step: 1 loss: " * 4_600, "{'loss': " * 7_000),
    *("1," * 32_000, "loaded checkpoint step " * 80, "iter 1 step 1 | loss" * 3_000, "Train " * 10_000 + ": 1"),
    *(" " * 65_000 + "loss step 1", "[step=1/2,epoch=0" * 3_800, "DLL loss " + "a:" * 30_000, " .." * 20_000),
    *('DLL loss "step": [' + "1," * 30_000, "- (" * 20_000 + "loss DLL", "valid loss at iteration 1" * 2_600),
    *("a" * 1_900 + " ...... " + "." * 1_900, "train_loss|val_loss" * 3_000, "num_updates=" * 5_000, "x=1 " * 16_000),
]
"""Lines on which a pattern that looks back and forth would take for ever."""

LOGS = [path for path in sorted(SAMPLES.glob("*.log")) if "overflow" not in path.name and "16gb" not in path.name]
SOUP = st.lists(
    st.one_of(
        st.text(max_size=60),
        st.sampled_from([part for line in LINES.values() for part in line.replace("\n", " ").split(" ") if part]),
        st.sampled_from(["nan", "-1", "1e999", "9" * 30, "|", ":", "{", "}", "\x1b[31m", "\0", "arguments", "...."]),
    ),
    max_size=30,
)


def test_there_is_a_line_of_every_format() -> None:
    assert set(LINES) == {decoder.name for decoder in FORMATS}


@pytest.mark.parametrize("name", LINES)
@given(soups=st.lists(SOUP, max_size=8))
@settings(max_examples=60, deadline=None)
@example(
    soups=[["------------------------ arguments ------------------------"], ["a ....... [{[]:1}]"], ["b ....... \\d"]]
)
def test_no_text_stops_a_reader(name: str, soups: list[list[str]]) -> None:
    of = reader(name)
    for soup in soups:
        of.feed(" ".join(soup))
    of.end()
    assert of.unreadable + of.foreign <= of.lines


@pytest.mark.parametrize("name", LINES)
@given(noise=st.lists(st.text(alphabet=st.characters(exclude_characters="[]{}|:='\"_"), max_size=60), max_size=6))
@settings(max_examples=25, deadline=None)
def test_a_step_among_noise_is_read(name: str, noise: list[str]) -> None:
    of = reader(name)
    records: list[Record] = []
    for line in [*noise, *LINES[name].split("\n"), *noise]:
        records += of.feed(line)
    (sample,) = samples(records + of.end())
    factor = 0.6931471805599453 if name in ("fairseq", "metaseq") else 1.0
    assert (sample.global_step, sample.loss) == (7, pytest.approx(2.5 * factor))


@pytest.mark.parametrize("name", LINES)
def test_no_line_takes_long(name: str) -> None:
    for text in ENDLESS:
        of = reader(name)
        begun = time.process_time()
        for line in ("----- arguments -----", "[step=1/2]", "[batch=1/2]:", text, LINES["megatron"]):
            of.feed(line)
        assert time.process_time() - begun < 1.0, text[:20]


@given(data=st.one_of(st.binary(max_size=300), st.binary(max_size=99).map(lambda b: b"\x1f\x8b\x08\0" + b)))
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_file_of_any_bytes_is_read_or_refused_in_a_sentence(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "a.log").write_bytes(data)
    with contextlib.suppress(ConfigError):
        list(read_log(tmp_path / "a.log"))


@given(data=st.binary(max_size=300), cuts=st.lists(st.integers(0, 300), max_size=5))
def test_lines_are_the_same_however_their_bytes_are_cut_up(data: bytes, cuts: list[int]) -> None:
    def lines(pieces: list[bytes]) -> list[str]:
        splitter = LineSplitter()
        return [line for piece in pieces for _, line in splitter.feed(piece)] + [line for _, line in splitter.end()]

    edges = sorted({0, len(data), *(c for c in cuts if c < len(data))})
    assert lines([data[a:b] for a, b in pairwise(edges)]) == lines([data])


@pytest.mark.parametrize("path", LOGS, ids=lambda p: p.stem)
@given(data=st.data())
@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_followed_in_pieces_a_log_gives_what_it_gives_whole(tmp_path: Path, path: Path, data: st.DataObject) -> None:
    content = path.read_bytes().rstrip(b"\n") + b"\n"
    cuts = data.draw(st.lists(st.integers(1, len(content) - 1), max_size=6))
    grown = tmp_path / "grown.log"
    grown.write_bytes(b"")
    followed = FollowedLog(grown, now=lambda: float("nan"))
    records: list[Record] = []
    edges = sorted({0, len(content), *cuts})
    for begin, end in pairwise(edges):
        with grown.open("ab") as file:
            file.write(content[begin:end])
        records += followed.poll()
    records += followed.poll() + followed.poll()
    whole = [as_text(record) for record in read_log(path)]
    assert [as_text(record) for record in records] == whole


def as_text(record: Record) -> str:
    return repr(dataclasses.asdict(record))
