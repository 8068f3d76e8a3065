"""What makes logs hard to read: nan that is left out, stale norms, ranks, restarts, progress bars, other programs."""

from __future__ import annotations

import gzip
import math
from pathlib import Path

import pytest

from sentinel.sources.line_text import number, rank_of, time_of, whole
from sentinel.sources.log_file import read_log
from sentinel.vocabulary.errors import ConfigError
from sentinel.vocabulary.sample import CheckpointSaved, RunFinished, RunStarted, Sample
from tests.sources.reading import SAMPLES, megatron, reader, recorded, records_of, samples, starts, steps, validations
from tests.support.there import there


def one(name: str, *lines: str) -> Sample:
    (sample,) = samples(records_of(name, lines))
    return sample


def test_a_loss_that_megatron_leaves_out_is_a_nan_that_may_have_reached_the_weights() -> None:
    sample = one("megatron", megatron(5, None))
    assert math.isnan(sample.loss)
    assert not sample.skipped


def test_a_skipped_step_is_told_from_a_nan_and_its_grad_norm_is_not_taken() -> None:
    sample = one("megatron", megatron(5, None, scale=4096.0, norm=77.5, skipped=1))
    assert (sample.skipped, sample.grad_norm) == (True, None)


def test_a_nan_loss_that_was_skipped_shows_in_the_grad_norm() -> None:
    line = megatron(5, None, skipped=1).replace("nan iterations:   0", "nan iterations:   1")
    sample = one("megatron", line)
    assert sample.skipped
    assert math.isnan(there(sample.grad_norm))


def test_deepspeeds_overflow_line_says_that_the_step_was_skipped() -> None:
    overflow = "[INFO] [loss_scaler.py:183] [deepspeed] OVERFLOW! Rank 0 Skipping step. Attempted loss scale: 128"
    lines = [megatron(1, 3.0), overflow, megatron(2, 3.1), megatron(3, 3.0)]
    assert [s.skipped for s in samples(records_of("megatron", lines))] == [False, True, False]


def test_a_grad_norm_of_zero_was_not_measured() -> None:
    assert one("megatron", megatron(5, 2.7, norm=0.0)).grad_norm is None


def test_a_grad_norm_is_stale_only_where_a_loss_scale_is_in_use() -> None:
    lines = [megatron(1, 3.0, norm=464441.887), megatron(2, 3.0, norm=464441.887)]
    assert [s.grad_norm for s in samples(records_of("megatron", lines))] == [464441.887, 464441.887]


def test_a_line_cut_in_the_middle_of_its_loss_is_not_believed() -> None:
    cut = megatron(2, 3.456789).partition("E+00")[0][:-4]
    of = reader("megatron")
    assert len([*of.feed(megatron(1)), *of.feed(cut), *of.end()]) == 2  # run_started and step 1
    assert of.unreadable == 1
    assert of.tally.first_unreadable[0][1].startswith("cut before its loss: ")


def test_another_loss_than_that_of_a_trainers_dict_is_asked_for_and_not_there() -> None:
    with pytest.raises(ConfigError, match="no line has a step and a loss by the names of --column loss=nothing"):
        read_log(SAMPLES / "hf_trainer_dict.log", columns={"loss": "nothing"})


def test_the_same_step_of_several_ranks_is_one_sample() -> None:
    lines = [
        f"[rank{r}]:[titan] 2026-02-24 19:46:17,508 - step:  4  loss:  {7 + r}.0  grad_norm: 1.0" for r in range(4)
    ]
    sample = one("torchtitan", *lines)
    assert (sample.loss, sample.loss_spread) == (8.5, 3.0)


def test_a_rank_whose_loss_is_nan_makes_the_step_nan() -> None:
    sample = one(
        "torchtitan", "[rank0]: step:  4  loss:  7.0  grad_norm: 1.0", "[rank1]: step:  4  loss:  nan  grad_norm: 1.0"
    )
    assert math.isnan(sample.loss)


def test_a_rank_that_comes_late_is_no_restart() -> None:
    lines = [
        f"[rank{r}]: step: {s}  loss: 7.0  grad_norm: 1.0" for s, r in [(4, 0), (4, 1), (5, 0), (4, 2), (5, 1), (6, 0)]
    ]
    assert steps(records_of("torchtitan", lines)) == [(1, 4), (1, 5), (1, 6)]


def test_steps_that_go_back_are_a_new_attempt_with_its_parent() -> None:
    records = records_of("megatron", [megatron(s) for s in (98, 99, 100, 51, 52)])
    assert steps(records) == [(1, 98), (1, 99), (1, 100), (2, 51), (2, 52)]
    second = starts(records)[-1]
    assert (second.attempt, second.parent_attempt, second.resumed_from) == (2, 1, 50)


def test_the_same_step_with_another_loss_from_one_writer_is_a_restart() -> None:
    assert steps(records_of("megatron", [megatron(5, 3.0), megatron(5, 3.5)])) == [(1, 5), (2, 5)]
    assert steps(records_of("megatron", [megatron(5, 3.0), megatron(5, 3.0)])) == [(1, 5)]
    ranks = [megatron(5, 3.0, rank="[default6]:"), megatron(5, 3.5, rank="[default7]:")]
    assert [s.loss for s in samples(records_of("megatron", ranks))] == [3.25]


def test_a_restart_at_a_saved_checkpoint_resumes_from_it() -> None:
    saved = "  successfully saved checkpoint at iteration      50 to /c/checkpoints"
    records = records_of("megatron", [megatron(40), megatron(50), saved, megatron(60), megatron(60, 9.0)])
    assert starts(records)[-1].resumed_from == 50
    assert [r for r in records if isinstance(r, CheckpointSaved)] == [
        CheckpointSaved(
            attempt=1, global_step=50, time_unix_s=pytest.approx(math.nan, nan_ok=True), tag="global_step50"
        )
    ]


@pytest.mark.parametrize(
    "prefix",
    [
        *("[default7]:", "slurm_procid 0 : ", "rank0: ", "0: ", "[rank3]: ", "  ", "\x1b[32m\x1b[1m", "127: "),
        *("2024-04-06 02:59:36 INFO: ", "[2025-11-10 09:43:36,161992][I][megatron/training_log:402:training_log] "),
        *("worker-3: ", "INFO:megatron.training:", "node12: [default0]:"),
    ],
)
def test_prefixes_do_not_hide_a_step(prefix: str) -> None:
    sample = one("megatron", prefix + megatron(7, 2.5).lstrip() + "\x1b[0m")
    assert (sample.global_step, sample.loss, sample.grad_norm) == (7, 2.5, 1.5)


@pytest.mark.parametrize(
    "line",
    [
        "iteration 7/1000|lm loss:2.5|loss scale:1.0|grad norm:1.5|",
        "iteration=7/1000 | lm_loss=2.5 | loss_scale=1 | grad_norm=1.5 |",
        "iteration: 7 / 1,000 | grad_norm: 1.50 | lm_loss: 25e-1 | loss_scale: 1",
        "iteration 7/ 1000 | lm loss 2.500000E+00 | grad norm 1.5 | loss scale 1.0 |",
        "ITERATION 7 of 1000 | GRAD NORM: 1.5 | LM LOSS: 2.5 | Loss Scale: 1.0 |",
        "[2024-04-06 02:59:36.123456] iteration 7/ 1000 | total loss: 2.5 | grad norm: 1.5 | loss scale: 1.0 |",
    ],
)
def test_spacing_order_and_signs_vary(line: str) -> None:
    sample = one("megatron", line)
    assert (sample.global_step, sample.loss, sample.grad_norm, sample.loss_scale) == (7, 2.5, 1.5, 1.0)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        *(
            *(("85.8G", 85.8e9), ("11.5K", 11.5e3), ("1,048,576", 1048576.0), ("6.4E+00", 6.4), ("2B", 2e9)),
            ("1.2M", 1.2e6),
        ),
        *(("inf", math.inf), ("-Infinity", -math.inf), ("0.17%", 0.17), ("444.91ms", 444.91), ("7", 7.0), (".5", 0.5)),
    ],
)
def test_numbers_are_read_as_people_write_them(text: str, value: float) -> None:
    assert number(text) == value


def test_what_is_no_number_is_none_and_a_count_is_whole() -> None:
    assert [number(t) for t in ("", "n/a", "-", "1.2.3", "9" * 100, "²")] == [None] * 6
    assert [whole(t) for t in ("85.8G", "-1", "nan", "1e30", "1,024", "²", "7.0")] == [
        85_800_000_000,
        *[None] * 3,
        1024,
        None,
        7,
    ]


def test_times_are_utc_unless_the_line_names_a_zone() -> None:
    assert time_of("[2024-04-06 02:59:36] x") == 1712372376.0
    assert time_of("2024-04-06T02:59:36.500+02:00 x") == 1712372376.5 - 7200
    assert time_of("10/17/2025 16:31:56 [INFO") == 1760718716.0
    assert [math.isnan(time_of(t)) for t in ("2024-02-31 00:00:00 x", "12:31:36 only a time of day", "")] == [True] * 3


def test_ranks_are_known_by_their_prefixes() -> None:
    heads = ["[default7]: ", "slurm_procid 3 : ", "rank0: ", "12: ", "[rank5]:", "[INFO|DP=1|PP=0|TP=0]: ", "INFO: "]
    assert [rank_of(head) for head in heads] == ["7", "3", "0", "12", "5", "DP=1|PP=0|TP=0", None]


def test_hugging_faces_end_is_the_runs_end() -> None:
    lines = [
        "{'loss': 1.0, 'learning_rate': 1e-05, 'epoch': 1.0}",
        "{'train_runtime': 10.0, 'train_loss': 1.1, 'epoch': 1.0}",
    ]
    assert isinstance(records_of("huggingface", lines)[-1], RunFinished)


def test_hugging_faces_epoch_going_back_is_a_restart() -> None:
    dicts = [f"{{'loss': 1.0, 'learning_rate': 1e-05, 'epoch': {epoch}}}" for epoch in (0.1, 0.2, 0.3, 0.4, 0.3, 0.4)]
    assert steps(records_of("huggingface", dicts)) == [(1, 1), (1, 2), (1, 3), (1, 4), (2, 3), (2, 4)]


BEGINS = "[INFO|trainer.py:1618] 2026-11-23 01:30:13,851 >> ***** Running training *****"
RESUMES = "[INFO|trainer.py:1631] >>   Resuming training from checkpoint with epoch 0 and global step 10"
CONTINUES = "[INFO|trainer.py:2430] >>   Continuing training from global step 10"  # transformers 4
ENDS = "{'train_runtime': '0.4', 'train_loss': '4.2', 'epoch': '0.0375'}"
ONE_LIFE = [(1, 1), (1, 2), (1, 3)]


def of_hugging_face(epoch: float, loss: float = 4.2) -> str:
    return f"{{'loss': '{loss}', 'grad_norm': '1.1', 'learning_rate': '2e-05', 'epoch': '{epoch}'}}"


LIFE = [of_hugging_face(epoch) for epoch in (0.0125, 0.025, 0.0375)]
ANEW = of_hugging_face(0.0375, 4.1)


@pytest.mark.parametrize(
    ("lines", "read"),
    [
        ([BEGINS, *LIFE, BEGINS, RESUMES, ANEW], [*ONE_LIFE, (2, 3)]),  # it begins with the last epoch once more
        ([BEGINS, *LIFE, BEGINS, CONTINUES, LIFE[-1]], [*ONE_LIFE, (2, 3)]),  # and with the same loss
        ([BEGINS, *LIFE, BEGINS, RESUMES, of_hugging_face(0.05)], [*ONE_LIFE, (2, 4)]),  # no step was lost
        ([*LIFE, ENDS, ANEW], [*ONE_LIFE, (2, 3)]),
        ([BEGINS, RESUMES, *LIFE, BEGINS, RESUMES, ANEW], [*ONE_LIFE, (2, 3)]),  # from the same checkpoint once more
        ([BEGINS, *LIFE, BEGINS, LIFE[0]], [*ONE_LIFE, (2, 1)]),  # from scratch
        # One life: the lines of the other nodes come late, and an epoch is rounded.
        ([BEGINS, RESUMES, LIFE[0], BEGINS, RESUMES, *LIFE], ONE_LIFE),
        ([LIFE[0], BEGINS, LIFE[1], of_hugging_face(0.025, 4.1)], ONE_LIFE),
        ([BEGINS, *LIFE, ENDS, LIFE[-1], ENDS], ONE_LIFE),
        ([*LIFE, ANEW], [*ONE_LIFE, (1, 4)]),
    ],
)
def test_hugging_faces_restart_is_told_where_the_epoch_does_not_go_back(
    lines: list[str], read: list[tuple[int, int]]
) -> None:
    assert steps(records_of("huggingface", lines)) == read


def test_hugging_faces_restart_of_a_log_with_steps_names_the_step_that_it_resumed() -> None:
    life = [f"{{'loss': 1.0, 'learning_rate': 1e-05, 'epoch': 0.0, 'step': {step}}}" for step in (10, 20)]
    again = "{'loss': 1.5, 'learning_rate': 1e-05, 'epoch': 0.0, 'step': 20}"
    records = records_of("huggingface", [BEGINS, *life, BEGINS, RESUMES, again])
    assert steps(records) == [(1, 10), (1, 20), (2, 20)]
    assert [r.resumed_from for r in records if isinstance(r, RunStarted)][-1] == 10


def test_a_log_is_recognised_behind_thousands_of_other_programs_warnings(tmp_path: Path) -> None:
    warning = "[codecarbon WARNING @ 15:52:03] Failed to retrieve gpu information (pynvml: iteration of handles)\n"
    (tmp_path / "a.log").write_text(
        "".join([warning * 12_000, *(megatron(s) + "\n" + warning * 50 for s in range(1, 20))])
    )
    log = read_log(tmp_path / "a.log")
    assert (log.format, len(samples(log)), log.reader.unreadable, log.reader.foreign) == ("megatron", 19, 0, 12_950)


def test_an_endless_line_is_cut_and_bytes_that_are_no_text_are_passed_over(tmp_path: Path) -> None:
    lines = [megatron(1).encode(), b"x" * 5_000_000, b"\xff\xfe\x00\x80", megatron(2).encode(), b"y" * 3_000_000]
    (tmp_path / "a.log").write_bytes(b"\n".join(lines))
    log = read_log(tmp_path / "a.log")
    assert steps(list(log)) == [(1, 1), (1, 2)]
    assert (log.reader.unreadable, log.splitter.cut) == (0, 2)


def test_a_gzipped_log_is_read_and_half_of_one_is_refused(tmp_path: Path) -> None:
    packed = gzip.compress("".join(megatron(s, 3 + s / 7) + "\n" for s in range(1, 500)).encode())
    (tmp_path / "a.log.gz").write_bytes(packed)
    assert len(samples(read_log(tmp_path / "a.log.gz"))) == 499
    (tmp_path / "b.log.gz").write_bytes(packed[: len(packed) // 2])
    with pytest.raises(ConfigError, match="not whole"):
        list(read_log(tmp_path / "b.log.gz", "megatron"))


def test_what_can_not_be_opened_is_a_sentence(tmp_path: Path) -> None:
    for path in (tmp_path / "none.log", tmp_path):
        with pytest.raises(ConfigError, match=str(path)):
            read_log(path)
    with pytest.raises(
        ConfigError, match="no log format is called 'megatorn'; there are sentinel, nanotron, nemo, gpt_neox, meg"
    ):
        read_log(tmp_path / "none.log", "megatorn")


def test_losses_at_a_restart_of_fairseq_count_from_its_own_updates() -> None:
    log = recorded("fairseq_train_inner")
    assert [s.resumed_from for s in starts(log)] == [None, None]
    assert "bits" in log.reader.note


def test_torchtitans_validations_and_its_start() -> None:
    lines = [
        "[titan] 2026-01-01 00:00:00,000 - root - INFO - Training starts at step 21",
        "[titan] 2026-01-01 00:00:00,000 - root - INFO - step: 21  loss:  3.0  grad_norm:  0.8",
        "[titan] 2026-01-01 00:00:01,000 - root - INFO - validate step: 21  loss:  3.5  memory: 1.0GiB(1.0%)",
    ]
    records = records_of("torchtitan", lines)
    assert [s.resumed_from for s in starts(records)] == [20]
    assert [(v.global_step, v.loss) for v in validations(records)] == [(21, 3.5)]


VARIANTS = r"""
huggingface: {'loss': '2.5', 'grad_norm': '1.5', 'learning_rate': '5e-05', 'epoch': '0.1', 'step': '7'}
huggingface: INFO - {'epoch': 0.1, 'step': 7, 'learning_rate': 5e-05, 'grad_norm': 1.5, 'loss': 2.5}
torchtitan: [rank0]:␛[31mstep:  7  ␛[32mloss:  2.5  ␛[33mgrad_norm:  1.5  tps: 7,282␛[39m
olmo: [rank0]: 2024-08-06 INFO [step=7/9,epoch=0]⏎[rank0]:     train/CE loss=2.5⏎0:  optim/total grad norm=1.5
composer: [epoch=1][batch=7/9]:⏎0:  Train LanguageCrossEntropy: 2.5⏎ Train l2_norm/grad/global: 1.5
nemo: Epoch 0: :   1%|▏| 7/1000 [00:30<1:00, reduced_train_loss=2.500, global_step=6.000, grad_norm=1.5]
nanotron: [INFO|DP=0|PP=0|TP=0]: iteration: 7 / 1,000 | lm_loss: 2.5 | lr: 1e-05 | grad_norm: 1.50
generic: step    7/19560 | loss 2.500000 (+nanz)| norm 1.5 (+nanz)| lr 7.00e-07 | 300.5 ms
generic: [2024-04-06 02:59:36] INFO Step: 7, Train Loss = 2.5, Grad Norm = 1.5, LR = 3e-4
jsonl: INFO {"iteration": 7, "lm loss": 2.5, "grad-norm": "1.5"}
fairseq: | INFO | train_inner | epoch 001:  7 / 9 loss=3.6067376, num_updates=7, lr=1e-5, gnorm=1.5
metaseq: 0: | train_inner | {"actv_norm": "0", "loss": "3.6067376", "num_updates": "7", "gnorm": "1.5"}
"""
"""Format and lines, with arrows for line breaks and ␛ for an escape."""


@pytest.mark.parametrize("variant", VARIANTS.strip().split("\n"))
def test_variants_that_were_not_recorded(variant: str) -> None:
    name, _, text = variant.replace("␛", "\x1b").partition(": ")
    sample = one(name, *text.split("⏎"))
    assert (sample.global_step if name != "huggingface" else 7, sample.grad_norm) == (7, 1.5)
    assert sample.loss == pytest.approx(2.5)
