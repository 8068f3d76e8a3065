"""Lines in the form of trainers whose logs were not recorded: the form is theirs, the numbers are made up."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
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


FORMS: dict[str, tuple[str, Callable[[int], int], dict[str, float]]] = {
    # of whom: the line, {i} the count and {loss} the loss; the update; other fields
    "maxtext": (
        ("I0317 10:00:13.6 1253 metric_logger.py:181] completed step: {before}, seconds: 5.667, TFLOP/s/device: 134.9,"
        " Tokens/s/device: 8672.7, total_weights: 196608, loss: {loss}"),
        lambda i: i,
        {"step_time_s": 5.667},
    ),
    "maxtext with multi-token prediction": (
        "completed step: {before}, seconds: 49.9, TFLOP/s/device: 56.0, main_model_loss: {loss}, mtp_loss: 1.2",
        lambda i: i,
        {"step_time_s": 49.9},
    ),
    "llama2.c": (
        "{tens} | loss {loss} | lr 4.900000e-05 | 8060.78ms | mfu 0.21%",
        lambda i: 10 * i,
        {"lr": 4.9e-5, "step_time_s": 8.06078},
    ),
    "torchtune's bar": ("1|{i}|Loss: {loss}:   1%|#         | {i}/880 [00:01<10:00,  1.2it/s]", lambda i: i, {}),
    "PaddleNLP": (
        ("[2024-01-17 10:00:00,123] [    INFO] - loss: {loss}, learning_rate: 3e-06, global_step: {i},"
        " interval_runtime: 5.3, interval_samples_per_second: 6.0, ppl: 5000.1, progress_or_epoch: 0.0001"),
        lambda i: i,
        {"lr": 3e-6, "time_unix_s": 1705485600.123},
    ),
    "InternEvo": (
        ("2024-11-24 02:35:28,531 INFO pipeline.py:770 in record -- tflops=229.6 step={before} loss={loss} tgs=7.1"
        " lr=9.8e-05 loss_scale=16384.0 grad_norm={{'0_default': 2.5, '1_fp32': 0.0}} num_consumed_tokens={tens}"
        " loss_from_metric=2.2 loss/zh=2.2"),
        lambda i: i,
        {"lr": 9.8e-5, "loss_scale": 16384.0, "grad_norm": 2.5},
    ),
    "XTuner": (
        ("2024/05/07 11:17:20 - mmengine - INFO - Iter(train) [  {tens}/2046]  lr: 3.0002e-05  eta: 1:41:54"
        "  time: 3.0030  data_time: 0.0241  memory: 13995  loss: {loss}  grad_norm: 0.7"),
        lambda i: 10 * i,
        {"lr": 3.0002e-5, "step_time_s": 3.003, "grad_norm": 0.7},
    ),
    "XTuner V1": (
        ("[XTuner][RANK 0][2025-08-29 09:17:51][INFO] Step {i}/100 data_time: 0.0578 lr: 0.000020 time: 4.9770"
        " text_tokens: 4008.0 total_loss: 99.5 reduced_llm_loss: {loss} max_memory: 15.90 GB grad_norm: 13.9"),
        lambda i: i,
        {"lr": 2e-5, "step_time_s": 4.977, "grad_norm": 13.9},
    ),
    "XLNet": (
        "I0704 22:15:42 1405 gpu.py:303] [{tens}] | gnorm 0.25 lr 0.000223 | loss {loss} | pplx 20.29, bpc 11.0",
        lambda i: 10 * i,
        {"lr": 0.000223, "grad_norm": 0.25},
    ),
    "gpt-2-simple": ("[{tens} | 123.45] loss={loss} avg=9.31", lambda i: 10 * i, {}),
    "MindFormers": (
        ("2024-05-06 10:00:00,123 - mindformers[callback.py:316] - INFO - {{ Epoch:[  1/  1], step:[ {i}/10000],"
        " loss: {loss}, per_step_time: 1234ms, lr: 2.5e-08, overflow cond: False, loss_scale: 65536.0,"
        " global_norm: [1.5], train_throughput_per_npu: 171.176T"),
        lambda i: i,
        {"lr": 2.5e-8, "step_time_s": 1.234, "loss_scale": 65536.0, "grad_norm": 1.5},
    ),
    "MindSpore": ("epoch: 1 step: {i}, loss is {loss}", lambda i: i, {}),
    "DeepSpeed's pipeline": (
        "steps: {tens} loss: {loss} iter time (s): 2.300 samples/sec: 13.9",
        lambda i: 10 * i,
        {"step_time_s": 2.3},
    ),
    "an LR for each group": ("step={tens}, lr=[2.2e-06, 0.0], loss={loss}", lambda i: 10 * i, {"lr": 2.2e-06}),
    "NeuronX": (
        "LOG Wed Nov  1 10:00:00 2023 - (0, {tens}) step_loss : {loss} learning_rate : 1.50e-05 grad_norm : 1.5",
        lambda i: 10 * i,
        {"lr": 1.5e-5, "grad_norm": 1.5},
    ),
    "detectron2": (
        "[05/08 10:00:00 d2.utils.events]:  eta: 0:10:00  iter: {tens}  total_loss: {loss}  loss_cls: 1.1  lr: 0.00025",
        lambda i: 10 * i,
        {"lr": 0.00025},
    ),
    "OpenNMT": ("[2020-03-01 12:00:00,123 INFO] Step {tens}/100000; acc: 5.1; ppl: 8.1; xent: {loss}; lr: 0.1; 23 sec",
                lambda i: 10 * i, {"lr": 0.1}),
    "prime-rl": (
        "10:00:00    INFO Step {i} | Time: 2.33s | Loss: {loss} | Grad. Norm: 0.5 | LR: 1.00e-05 | MFU: 30.1%",
        lambda i: i,
        {"lr": 1e-5, "step_time_s": 2.33, "grad_norm": 0.5},
    ),
    "pith-train": (
        ("2026-03-31 22:03:19 | INFO | step 000000{i}/00000025 | step-time 25.491 sec | cross-entropy-loss {loss}"
        " | load-balance-loss 0.003234 | learning-rate 1.0e-06 | gradient-norm 2.1494 | tokens-per-second 82,269"),
        lambda i: i,
        {"lr": 1e-6, "step_time_s": 25.491, "grad_norm": 2.1494},
    ),
    "levanter": (
        ("2024-05-02T10:00:00 - 0 - tqdm_logging.py:145 - INFO :: Progress on:train {tens}it/10.0kit rate:1.3it/s"
        " remaining:2:06:00 elapsed:01:17 postfix:loss={loss}"),
        lambda i: 10 * i,
        {},
    ),
    "MiniLLM, which counts micro-batches too": (
        "train | epoch   0 | Iter:  {tens}/100000 | global iter:  {i}/ 12500 | loss: {loss} | lr: 5.0e-06 | time: 1.2",
        lambda i: i,
        {"lr": 5e-6},
    ),
    "a total beside it": ("step={i} total_loss=99.5 aux_loss=1.0 ce_loss={loss}", lambda i: i, {}),
    "other losses before it": ("step={i} aux_loss=0.1 nll_loss=0.3 best_loss=0.4 loss={loss}", lambda i: i, {}),
    "another norm": ("step {i} | param norm 300.1 | loss {loss} | grad norm 1.5", lambda i: i, {"grad_norm": 1.5}),
    "thousands": ("Iteration: {i}K, Train loss: {loss}", lambda i: 1000 * i, {}),
    "a tensor": ("epoch 0, step {i}, loss: tensor({loss}, device='cuda:0', grad_fn=<NllLoss>)", lambda i: i, {}),
    "an array": ("step {i}, loss: Array({loss}, dtype=float32), lr 0.5", lambda i: i, {"lr": 0.5}),
    "a tensor of one": ("step: {i} loss: tensor([{loss}], dtype=torch.bfloat16)", lambda i: i, {}),
    "Composer's bar": ("Epoch 0:  1%|#   | {i}/9 [00:1<10:00, 1ba/s, loss/train/total={loss}]", lambda i: i, {}),
    "a step as a float": ("step: {i}.0, loss: {loss}, step_size 2.5", lambda i: i, {}),
    "brackets": ("[{i}/1000] Training loss: {loss} lr: 1e-4", lambda i: i, {"lr": 1e-4}),
}  # fmt: skip


@pytest.mark.parametrize("of", FORMS)
def test_a_step_and_a_loss_on_one_line_are_read_whoever_wrote_them(tmp_path: Path, of: str) -> None:
    line, step, fields = FORMS[of]
    lines = [line.format(i=i, before=i - 1, tens=10 * i, loss=loss(i)) for i in STEPS]
    name, samples, _ = read(written(tmp_path, "\n".join(lines)))
    assert name == "generic"
    assert [(one["attempt"], one["step"], one["loss"]) for one in samples] == [(1, step(i), loss(i)) for i in STEPS]
    assert {field: samples[3].get(field) for field in fields} == pytest.approx(fields)
    assert ("grad_norm" in samples[0]) == ("grad_norm" in fields)


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


@pytest.mark.parametrize(
    "line",
    [
        "Epoch(train) [{epoch}][{at}/4]  base_lr: 2.0e-03 lr: 5.9e-05  time: 0.8  data_time: 0.1  loss: {loss}",
        "Epoch [{epoch}][{at}/4]\tlr: 0.00125, time: 0.595, loss_rpn_cls: 0.0989, loss: {loss}",
        "[01:58:53.220553] Epoch: [{epoch}]  [ {before}/4]  lr: 0.000030  loss: {loss} (9.3119)  time: 4.5",
        "{{ Epoch:[  {epoch}/  3], step:[ {at}/ 4], loss: {loss}, per_step_time: 1234ms",
        "Epoch: {epoch}, Step: {before}, Rank: 0, loss = {loss}",
        "Training Epoch: {epoch}/3, step {before}/4 completed (loss: {loss}): 1%|#  | {at}/4 [00:10<01:00,  1.0s/it]",
        "Epoch {epoch}:  22%|##   | {at}/4 [00:17<01:02,  4.47s/it, loss={loss}, v_num=1]",
    ],
)
def test_steps_that_begin_anew_in_each_epoch_are_counted_over_all(tmp_path: Path, line: str) -> None:
    where = [{"epoch": 1 + (i - 1) // 4, "at": 1 + (i - 1) % 4, "before": (i - 1) % 4, "loss": loss(i)} for i in STEPS]
    _, samples, _ = read(written(tmp_path, "\n".join(line.format(**one) for one in where)))
    assert [(one["attempt"], one["step"], one["loss"]) for one in samples] == [(1, i, loss(i)) for i in STEPS]


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
