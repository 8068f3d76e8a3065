"""Lines in the form of trainers whose logs were not recorded: the form is theirs, the numbers are made up."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from sentinel.judge.readings import CARRIED, COLUMNS
from sentinel.sources.opening import open_sources
from sentinel.vocabulary.errors import ConfigError
from sentinel.vocabulary.sample import Record, Validation
from tests.sources.reading import megatron
from tests.sources.readings import told

STEPS = range(1, 13)


def loss(i: int) -> float:
    return round(9 - 0.5 * i, 2)


def read(path: Path) -> tuple[str, list[dict[str, Any]], list[Record]]:
    """The format, every sample with all that is known of it, and what was told beside."""
    (source,) = open_sources(path, {})
    source.fields = (*COLUMNS, *CARRIED)
    samples = told(source)
    assert source.unreadable == 0, source.first_unreadable
    return source.format, samples, source.others


def written(tmp_path: Path, text: str, name: str = "a.log") -> Path:
    path = tmp_path / name
    path.write_text(text)
    return path


@pytest.mark.parametrize(
    ("line", "of_validation"),
    [
        ("[train] epoch: [0/1], batch: [{i}/500], loss: {loss}", "[eval] epoch: 0, batch: 1, loss: 5.5"),
        ("INFO:   | Train Device=CSX, Step={i}, Loss={loss}", "INFO:   | Eval Device=CSX, Batch=50, Loss=5.5"),
        ("| epoch 1 step  {i} |   {i} batches | lr 0.1 | loss  {loss}", "| Eval 1 at step {i} | valid loss  5.5"),
        ("step: {i}, loss: {loss}", "Validation at step {i}: loss: 5.5"),
        ("step:{i}/1480 train_loss:{loss} train_time:1ms", "step:{i}/1480 val_loss:5.5 train_time:1ms step_avg:2ms"),
        ("step:1{i} - train/loss:{loss} - train/lr(1e-3):0.01", "step:1{i} - val/loss:5.5"),
        ('{{"step": {i}, "split": "train", "loss": {loss}}}', '{{"step": {i}, "split": "val", "loss": 5.5}}'),
        ('INFO {{"step": {i}, "split": "train", "loss": {loss}}}', 'I {{"step": {i}, "split": "eval", "loss": 5.5}}'),
        ('{{"mode": "train", "iter": {i}, "loss": {loss}}}', '{{"mode": "val", "iter": {i}, "loss": 5.5}}'),
        ("{i},train,{loss}", "{i},valid,5.5"),
        ("[titan] step: {i}  loss:  {loss}  memory: 1", "[titan] [eval] step: {i}  loss:  5.5  memory: 1"),
        ("s:{i} trl:{loss} lr:0.1 norm:1.5", "s:{i} tel:5.5"),
        ("{i} train {loss}", "{i} val 5.5\n{i} hella 0.25"),
        ("| epoch 1: {i} / 9 loss={loss}, num_updates={i}, lr=1, gnorm=1",
         ("| epoch 1 | valid on 'valid' subset | valid_loss 5.5 | valid_ppl 118.06 | num_updates {i}\n"
         "| epoch 1 | loss 4.5 | ppl 22 | num_updates {i} | lr 1 | gnorm 1")),
    ],
)  # fmt: skip
def test_a_validations_loss_is_no_training_loss(tmp_path: Path, line: str, of_validation: str) -> None:
    lines = [line.format(i=i, loss=loss(i)) for i in STEPS]
    lines.insert(6, of_validation.format(i=6))
    head = "step,split,loss\n" if line.startswith("{i},") else ""
    name, samples, others = read(written(tmp_path, head + "\n".join(lines)))
    in_nats = math.log(2) if name == "fairseq" else 1
    assert [one["loss"] for one in samples] == [pytest.approx(loss(i) * in_nats) for i in STEPS]
    assert {one["attempt"] for one in samples} == {1}
    assert [one.loss for one in others if isinstance(one, Validation)] == [pytest.approx(5.5 * in_nats)]


def test_steps_that_go_on_over_epochs_stay_what_they_are_and_a_restart_goes_back(tmp_path: Path) -> None:
    lines = [f"epoch {i // 5} step {i} loss {loss(i)}" for i in STEPS]
    _, samples, _ = read(written(tmp_path, "\n".join([*lines, *lines[6:]])))
    assert [(one["attempt"], one["step"]) for one in samples] == [
        *((1, i) for i in STEPS),
        *((2, i) for i in STEPS[6:]),
    ]
    anew = [f"Epoch [{1 + i // 4}][{1 + i % 4}/4]\tloss: {loss(i)}" for i in range(12)]
    _, samples, _ = read(written(tmp_path, "\n".join([*anew, *anew[4:]])))
    assert [one["step"] for one in samples] == [*range(1, 13), *range(5, 13)]
    assert {one["attempt"] for one in samples} == {1, 2}


def test_a_progress_bar_that_is_drawn_twice_counts_with_its_last_loss(tmp_path: Path) -> None:
    bar = "Epoch 0:  22%|##   | {0}/180 [00:17<01:02,  4.47s/it, loss={1}, v_num=1]\r"
    text = "".join(bar.format(i, loss(i - 1)) + bar.format(i, loss(i)) for i in STEPS)
    _, samples, _ = read(written(tmp_path, text))
    assert [(one["step"], one["loss"]) for one in samples] == [(i, loss(i)) for i in STEPS]


@pytest.mark.parametrize("name", ["abc-json.log", "abc.jsonl"])
@pytest.mark.parametrize(
    ("text", "at"),
    [("log", "time"), ("textPayload", "timestamp"), ("message", "asctime"), ("MESSAGE", "ts")],
)
def test_a_line_within_json_is_the_line(tmp_path: Path, name: str, text: str, at: str) -> None:
    times: dict[str, Any] = {"ts": 1704067200.5}
    wrapped = [
        {"severity": "INFO", text: megatron(i, loss(i)) + "\n", at: times.get(at, "2024-01-01T00:00:00.500Z")}
        for i in STEPS
    ]
    known_as, samples, _ = read(written(tmp_path, "\n".join(map(json.dumps, wrapped)), name))
    assert known_as == "megatron"
    assert [(one["step"], one["loss"]) for one in samples] == [(i, loss(i)) for i in STEPS]
    assert {one["time_unix_s"] for one in samples} == {1704067200.5}


def test_json_within_json_is_read_and_a_message_beside_a_loss_is_a_remark(tmp_path: Path) -> None:
    inner = [json.dumps({"step": i, "loss": loss(i)}) for i in STEPS]
    lines = "\n".join(json.dumps({"log": line + "\n", "time": "2024-01-01T00:00:00Z"}) for line in inner)
    assert [one["loss"] for one in read(written(tmp_path, lines))[1]] == [loss(i) for i in STEPS]
    remarks = "\n".join(json.dumps({"msg": "step 99 loss 1.5", "step": i, "loss": loss(i)}) for i in STEPS)
    assert [one["loss"] for one in read(written(tmp_path, f"started\n{remarks}"))[1]] == [loss(i) for i in STEPS]


def test_ranks_behind_the_prefixes_of_mpi_and_skypilot_are_one_sample(tmp_path: Path) -> None:
    for prefix in ("[1,{0}]<stdout>:", "(worker{0}, rank={0}, pid=12, ip=10.0.0.{0}) ", "[XTuner][RANK {0}][INFO] "):
        lines = [f"{prefix.format(r)}step: {i}  loss:  {loss(i) + r}  grad_norm:  1.5" for i in STEPS for r in range(4)]
        lines[4], lines[5] = lines[5], lines[4]
        _, samples, _ = read(written(tmp_path, "\n".join(lines)))
        assert [(one["step"], one["loss"], one["loss_spread"]) for one in samples] == [
            (i, loss(i) + 1.5, 3) for i in STEPS
        ]


def test_primus_writes_the_mean_behind_the_value_and_the_date_without_hyphens(tmp_path: Path) -> None:
    head = "[20250501 10:00:00][rank-7/8][INFO ] [-----trainer.py:1234] : "
    lines = [head + megatron(i, loss(i)).replace("(ms): 1000.0", "(ms): 5444.9/5450.1") for i in STEPS]
    name, samples, _ = read(written(tmp_path, "\n".join(lines)))
    assert (name, samples[0]["step_time_s"], samples[0]["time_unix_s"]) == ("megatron", 5.4449, 1746093600.0)


def test_fms_fsdps_blocks(tmp_path: Path) -> None:
    block = "step: {0}\nloss: {1}\nLR: 0.0003\ntokens seen: {0}000\ngradient norm: 0.5\nreserved memory: 6\n"
    name, samples, _ = read(written(tmp_path, "".join(block.format(i, loss(i)) for i in STEPS)))
    assert name == "fms_fsdp"
    assert [(s["step"], s["loss"], s["lr"], s["grad_norm"], s["consumed_tokens"]) for s in samples] == [
        (i, loss(i), 0.0003, 0.5, 1000 * i) for i in STEPS
    ]


@pytest.mark.parametrize(
    ("line", "fields"),
    [
        ("{{'loss': '{loss}', 'learning_rate': '1e-05', 'iteration': '{i}/900', 'loss_scale': '1.0'}}", {"lr": 1e-5}),
        ("{{'gradient_norm': 1.5,\n 'learning_rate': 0.5,\n 'loss': {loss},\n 'step': {i}}}", {"grad_norm": 1.5}),
        ("{{'loss': {loss}, 'learning_rate': 1e-05, 'num_tokens': 77.0, 'epoch': 0.5}}", {"consumed_tokens": 77}),
        (
            "{{'loss': {loss}, 'learning_rate': 1e-05, 'epoch': 0.5, 'num_input_tokens_seen': 7}}",
            {"consumed_tokens": 7},
        ),
    ],
)
def test_dicts_of_those_who_build_on_hugging_face(tmp_path: Path, line: str, fields: dict[str, float]) -> None:
    name, samples, _ = read(written(tmp_path, "\n".join(line.format(i=i, loss=loss(i)) for i in STEPS)))
    assert name == "huggingface"
    assert [(one["step"], one["loss"]) for one in samples] == [(i, loss(i)) for i in STEPS]
    assert {field: samples[3].get(field) for field in fields} == fields


def test_linguas_metrics_and_hugging_faces_table(tmp_path: Path) -> None:
    rows = [{"global_step": i, "optim/grad_norm": 1.5, "optim/total_tokens": 9, "loss/out": loss(i)} for i in STEPS]
    _, samples, _ = read(written(tmp_path, "\n".join(map(json.dumps, rows)), "metrics.jsonl"))
    assert [(one["loss"], one["grad_norm"], one["consumed_tokens"]) for one in samples] == [
        (loss(i), 1.5, 9) for i in STEPS
    ]
    table = "Step\tTraining Loss\tValidation Loss\n10\tNo log\t2.5\n" + "".join(
        f"{i}0\t{loss(i)}\t2.5\n" for i in (2, 3)
    )
    _, samples, _ = read(written(tmp_path, table))
    assert [(one["step"], one["loss"]) for one in samples] == [(20, loss(2)), (30, loss(3))]


def test_nemo_repeats_its_newest_validation_on_every_line(tmp_path: Path) -> None:
    line = "Training epoch 0, iteration {0}/99 | global_step: {0} | reduced_train_loss: {1} | val_loss: {2}"
    text = "\n".join(line.format(i, loss(i), 4.5 if i < 6 else 4.25) for i in STEPS)
    assert [one.loss for one in read(written(tmp_path, text))[2] if isinstance(one, Validation)] == [4.5, 4.25]


def test_infinity_in_words_is_a_reading_and_a_fraction_is_no_step(tmp_path: Path) -> None:
    lines = [
        *(f"step {i} loss {loss(i)}" for i in STEPS),
        "step 13 loss Infinity",
        "step 14 loss -inf",
        "step 1.5e1 loss 3.0",
    ]
    _, samples, _ = read(written(tmp_path, "\n".join(lines)))
    assert [(one["step"], one["loss"]) for one in samples][11:] == [(12, loss(12)), (13, math.inf), (14, -math.inf)]


def test_gpt_neoxs_validations_have_the_name_of_its_loss(tmp_path: Path) -> None:
    line = " samples/sec: 7.7 | iteration {0}/ 99 | lm_loss: {1} | loss scale: 4.0 |"
    lines = [line.format(i, loss(i)) for i in STEPS]
    lines.insert(8, " validation results at iteration 8 | lm_loss value: 5.5E+00 | lm_loss_ppl value: 2.4E+02 | ")
    name, samples, others = read(written(tmp_path, "\n".join(lines)))
    assert (name, len(samples)) == ("gpt_neox", 12)
    assert [(one.global_step, one.loss) for one in others if isinstance(one, Validation)] == [(8, 5.5)]


def test_a_file_as_windows_writes_it(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    for encoding in ("utf-16", "utf-8-sig"):
        path.write_bytes("".join(f"step {i}: loss {loss(i)}\r\n" for i in STEPS).encode(encoding))
        assert [(one["step"], one["loss"]) for one in read(path)[1]] == [(i, loss(i)) for i in STEPS]


@pytest.mark.parametrize(
    "line",
    [
        "[eval] step {i} loss 3.2",
        "step:{i}/1480 val_loss:4.3 train_time:29736ms step_avg:258.57ms",
        "Train Epoch: 1 [{i}640/60000 (1%)]\tLoss: 2.2135",
        "print(f'step {{step}} loss {{loss.item()}}')  # {i}",
    ],
)
def test_a_log_without_a_training_loss_is_refused_with_what_it_should_have(tmp_path: Path, line: str) -> None:
    path = written(tmp_path, "\n".join(line.format(i=i) for i in STEPS))
    with pytest.raises(ConfigError, match="should have the step and the training loss, as in `step 10 loss"):
        read(path)


def test_a_few_lines_of_another_program_do_not_decide_what_a_log_is(tmp_path: Path) -> None:
    lines = [f"step {i} | loss {9 - i / 100} | lr 0.5" for i in range(1, 200)]
    stray = "{'loss': 0.5, 'learning_rate': 1e-05, 'epoch': 0.5}"
    name, samples, _ = read(written(tmp_path, "\n".join([*lines, stray])))
    assert (name, len(samples)) == ("generic", 199)
