"""TensorBoard folders, as PyTorch's writer makes them, and trainer_state.json, as Hugging Face's trainer does."""

from __future__ import annotations

import math
import warnings
from pathlib import Path
from typing import Any

import pytest

from sentinel.sources.opening import open_columns
from sentinel.vocabulary.errors import ConfigError
from sentinel.vocabulary.sample import Validation
from tests.sources.readings import NAN, column, only, told

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.compat.proto.tensor_pb2 import TensorProto
    from tensorboard.compat.proto.types_pb2 import DT_FLOAT, DT_STRING
    from tensorboard.summary.writer.event_file_writer import EventFileWriter


class Writer:
    """Writes scalars as torch.utils.tensorboard's SummaryWriter does, without waiting for torch."""

    def __init__(self, folder: Path, begun_s: int = 1_700_000_000) -> None:
        before = set(folder.glob("*"))
        self._writer = EventFileWriter(str(folder))
        (made,) = set(folder.glob("*")) - before
        self._made, self.path = made, made.with_name(f"events.out.tfevents.{begun_s}.node.1.0")

    def add(self, step: int, **scalars: float) -> None:
        """Scalars by tag."""
        for tag, value in scalars.items():
            summary = Summary(value=[Summary.Value(tag=tag, simple_value=value)])
            self.event(Event(wall_time=1.7e9 + step, step=step, summary=summary))

    def event(self, event: Any) -> None:
        """Any event."""
        self._writer.add_event(event)

    def close(self) -> Path:
        """The file, named by when it was begun."""
        self._writer.close()
        return self._made.rename(self.path)


def test_megatrons_tags_are_joined_by_step_and_those_over_samples_left_out(tmp_path: Path) -> None:
    writer = Writer(tmp_path)
    for step in range(1, 4):
        writer.add(step, **{"learning-rate": 0.5, "batch-size": 8.0, "lm loss": step / 4})
        writer.add(step * 8, **{"lm loss vs samples": step / 4, "grad-norm vs samples": 7.0})
        writer.add(step, **{"grad-norm": math.inf, "loss-scale": 65536.0, "params-norm": 3.0})
    writer.add(3, **{"lm loss validation": 2.5, "lm loss validation ppl": 12.0})
    writer.close()
    source = only(tmp_path)
    expected = {"lr": 0.5, "global_batch_samples": 8.0, "grad_norm": math.inf, "loss_scale": 65536.0}
    assert told(source) == [{"attempt": 1, "step": s, "loss": s / 4, **expected} for s in (1, 2, 3)]
    assert (source.format, source.samples, source.unreadable) == ("tensorboard", 3, 0)
    assert source.others == [Validation(attempt=1, global_step=3, time_unix_s=1.7e9 + 3, loss=2.5)]


@pytest.mark.parametrize(
    ("tags", "fields"),
    [
        (
            {
                "lm-loss-training/lm loss": 2.5,
                "lm-loss-training/lm loss vs tokens": 9.0,
                "learning-rate/learning-rate": 0.25,
                "grad-norm/grad-norm": 4.0,
                "loss-scale/loss-scale": 8.0,
                "batch-size/batch-size": 16.0,
                "seqlen/curriculum_seqlen": 64.0,
                "optimizer/variance_l1": 9.0,
                "optimizer/variance_sqrt_l1": 128.0,
                "optimizer/variance_sqrt_abs_max": 0.5,
            },
            {
                "loss": 2.5, "lr": 0.25, "grad_norm": 4.0, "loss_scale": 8.0, "global_batch_samples": 16.0,
                "seqlen": 64.0, "adam_variance_l1": 128.0, "adam_variance_max": 0.5,
            },
        ),
        (
            {"reduced_train_loss": 2.5, "lr": 0.25, "grad_norm": 4.0, "global_step": 9.0, "consumed_samples": 9.0},
            {"loss": 2.5, "lr": 0.25, "grad_norm": 4.0},
        ),
        (
            {"train/loss": 2.5, "train/learning_rate": 0.25, "train/grad_norm": 4.0, "train/epoch": 0.5},
            {"loss": 2.5, "lr": 0.25, "grad_norm": 4.0, "epoch": 0.5},
        ),
        ({"train_loss": 2.5, "lr-AdamW": 0.25, "epoch": 1.0}, {"loss": 2.5, "lr": 0.25, "epoch": 1.0}),
        ({"loss": 2.5, "gnorm": 4.0, "lr": 0.25, "ppl": 9.0}, {"loss": 2.5, "grad_norm": 4.0, "lr": 0.25}),
    ],
    ids=["Megatron-DeepSpeed", "NeMo", "Hugging Face", "Lightning", "fairseq"],
)  # fmt: skip
def test_the_tags_of_trainers_are_known(tmp_path: Path, tags: dict[str, float], fields: dict[str, float]) -> None:
    writer = Writer(tmp_path)
    writer.add(7, **tags)
    path = writer.close()
    assert told(only(tmp_path)) == [{"attempt": 1, "step": 7, **fields}]
    assert told(only(path)) == [{"attempt": 1, "step": 7, **fields}]


def test_a_restart_that_goes_back_is_a_new_attempt_from_its_first_step_on(tmp_path: Path) -> None:
    later, earlier = Writer(tmp_path, 1_700_009_000), Writer(tmp_path, 1_700_000_000)
    for step in range(1, 7):
        earlier.add(step, **{"grad-norm": 1.0, "lm loss": 2.5})
        if step in (3, 6):
            earlier.add(step, **{"lm loss validation": 4.0})
    for step in range(5, 8):
        later.add(step, **{"grad-norm": 2.0, "lm loss": 2.25})
        if step == 6:
            later.add(step, **{"lm loss validation": 3.0})
    later.close(), earlier.close()
    source = only(tmp_path)
    expected = [(1, s, 2.5, 1.0) for s in range(1, 7)] + [(2, s, 2.25, 2.0) for s in range(5, 8)]
    assert column(told(source), "attempt", "step", "loss", "grad_norm") == expected
    validations = [(one.attempt, one.global_step) for one in source.others if isinstance(one, Validation)]
    assert validations == [(1, 3), (1, 6), (2, 6)]


def test_a_restart_at_the_last_step_is_a_new_attempt_and_one_that_goes_on_is_none(tmp_path: Path) -> None:
    for name, begins in (("again", 3), ("on", 4)):
        (tmp_path / name).mkdir()
        first, second = Writer(tmp_path / name, 1), Writer(tmp_path / name, 2)
        for step in range(1, 4):
            first.add(step, loss=2.5)
        second.add(begins, loss=2.25)
        first.close(), second.close()
    assert column(told(only(tmp_path / "again")), "attempt", "step") == [(1, 1), (1, 2), (1, 3), (2, 3)]
    assert column(told(only(tmp_path / "on")), "attempt", "step") == [(1, 1), (1, 2), (1, 3), (1, 4)]


def test_each_folder_with_a_loss_is_a_source_of_its_own(tmp_path: Path) -> None:
    for name, tags in (("a", {"loss": 2.5}), ("b/deep", {"train/loss": 2.25}), ("eval", {"accuracy": 0.5})):
        (tmp_path / name).mkdir(parents=True)
        writer = Writer(tmp_path / name)
        writer.add(1, **tags)
        writer.close()
    sources = open_columns(tmp_path, {})
    assert [source.path for source in sources] == [tmp_path / "a", tmp_path / "b/deep"]
    assert [column(told(source), "loss") for source in sources] == [[2.5], [2.25]]
    assert column(told(only(tmp_path, {"loss": "accuracy"})), "loss") == [0.5]
    with pytest.raises(ConfigError, match="say which with --column loss=NAME; it has: accuracy"):
        open_columns(tmp_path / "eval", {})
    with pytest.raises(ConfigError, match="no 'perplexity' to take as loss; it has: accuracy"):
        open_columns(tmp_path / "eval", {"loss": "perplexity"})


def test_tensorflows_tensors_and_long_tags_are_read_and_other_events_passed_over(tmp_path: Path) -> None:
    writer = Writer(tmp_path)
    text = Summary.Value(tag="arguments", tensor=TensorProto(dtype=DT_STRING, string_val=[b"--lr"]))
    writer.event(Event(wall_time=1.0, step=0, summary=Summary(value=[text])))
    packed = Summary.Value(tag="loss", tensor=TensorProto(dtype=DT_FLOAT, float_val=[2.5]))
    content = Summary.Value(tag="lr", tensor=TensorProto(dtype=DT_FLOAT, tensor_content=b"\0\0\x80\x3e"))
    writer.event(Event(wall_time=1.0, step=5, summary=Summary(value=[packed, content])))
    writer.add(6, loss=math.nan, **{"grad_norm": 3.0, "x" * 300: 1.0})
    writer.close()
    assert told(only(tmp_path)) == [
        {"attempt": 1, "step": 5, "loss": 2.5, "lr": 0.25},
        {"attempt": 1, "step": 6, "loss": NAN, "grad_norm": 3.0},
    ]


def test_a_damaged_record_is_counted_and_a_torn_end_too(tmp_path: Path) -> None:
    writer = Writer(tmp_path)
    for step in range(1, 11):
        writer.add(step, loss=float(step))
    path = writer.close()
    data = bytearray(path.read_bytes())
    at = data.find(b"loss", data.find(b"loss", data.find(b"loss") + 1) + 1)
    data[at + 6] ^= 1  # a bit of the third loss
    path.write_bytes(data[:-5])
    source = only(tmp_path)
    assert column(told(source), "step") == [1, 2, 4, 5, 6, 7, 8, 9]
    assert [why.partition(": ")[2][:26] for _, why in source.first_unreadable] == [
        "its checksum does not hold", "it ends within a record, 3",
    ]  # fmt: skip
    assert source.unreadable == 2


def test_a_tag_that_is_logged_now_and_then_does_not_hold_the_others_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sentinel.sources.row_merge.CHUNK_ROWS", 50)
    monkeypatch.setattr("sentinel.adapters.event_files.frames._STRETCH_BYTES", 1000)
    writer = Writer(tmp_path)
    writer.add(0, epoch=0.0)
    for step in range(1, 1001):
        writer.add(step, loss=2.5, lr=0.5)
    writer.close()
    assert column(told(only(tmp_path)), "step", "loss", "lr") == [(step, 2.5, 0.5) for step in range(1, 1001)]


def test_torchs_own_writer_is_read(tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from torch.utils.tensorboard import SummaryWriter
    writer = SummaryWriter(str(tmp_path))
    for step in range(1, 4):
        writer.add_scalar("train/loss", 2.5, step)
        writer.add_scalar("train/grad_norm", 0.5, step, new_style=True)
    writer.add_text("args", "{}", 0)
    writer.close()
    assert told(only(tmp_path)) == [{"attempt": 1, "step": s, "loss": 2.5, "grad_norm": 0.5} for s in (1, 2, 3)]
