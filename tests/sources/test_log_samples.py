"""Real lines of real trainers: what is read of them, by eye."""

from __future__ import annotations

import math
from ast import literal_eval
from collections.abc import Iterator
from typing import Any

import pytest

from sentinel.vocabulary.errors import ConfigError
from sentinel.vocabulary.sample import Sample
from tests.sources.reading import SAMPLES, recorded, samples, validations

NAN = math.nan

READ = """
sentinel sentinel 12 | 1/1 adam_variance_l1=0.4602904 grad_norm=5.963054 |
    1/12 loss=7.631196 adam_variance_max=0.2965047 lr=0.01
bigscience_exp_meg-ds-3d_ds-off megatron 62 |
    1/1 loss=12.44238 grad_norm=67.593 lr=1.875e-05 loss_scale=12.0 step_time_s=144.9156 |
    1/4 loss=48.14127 consumed_samples=4096 global_batch_samples=1024 skipped=False
bigscience_exp_meg_gpt2_base_n8 megatron 20 | 1/10 loss=nan skipped=True loss_scale=8388608.0 lr=0.0 grad_norm=None |
    1/20 loss=12.10588 skipped=False grad_norm=None | 1/30 loss=26.48119 skipped=False grad_norm=67.033
bigscience_exp_gpt2-16gb-nodes megatron 0 7
bigscience_tr1-13B_README megatron 1 | 1/168000 loss=2.376641 consumed_samples=153013584
bigscience_tr1-13B_chronicles megatron 10 | 1/29050 loss=7.343709 loss_scale=8192.0 grad_norm=None |
    1/43680 loss=2.635663 grad_norm=17224.723
bigscience_tr11-176B_README megatron 1 1 | 1/3707 loss=5.396257 step_time_s=15.23
bigscience_tr11-176B_chronicles megatron 13 5 | 1/31219 loss=5.098124 grad_norm=960.351 loss_scale=None |
    1/45000 loss=2.113567 consumed_tokens=155652554752
bigscience_tr11-176B_prequel megatron 6 | 1/2 loss=63.84045 | 4/2 loss=63.81926 loss_scale=1.0 | 6/2 loss=63.69444
bigscience_tr11-176B_reshaping-log megatron 16 | 1/94769 loss=1.934365 | 2/94768 loss=1.943954 | 7/94770 loss=2.000182
bigscience_tr8-104B-wide_chronicles megatron 19 | 1/7010 loss=11.42026 grad_norm=219645.978 |
    2/11448 loss=7.71234 loss_scale=65536.0 | 3/9026 loss=7.02458 skipped=False |
    3/9027 loss=nan skipped=True grad_norm=None loss_scale=8192.0
bigscience_tr8b-104B_chronicles megatron 18 1 | 1/17061 loss=2.667121 grad_norm=464441.887 |
    1/17062 loss=4.374269 grad_norm=None | 1/17065 loss=4.404639 grad_norm=None |
    1/17066 loss=4.398458 grad_norm=879946.622
megatron_2019_nocolon megatron 9 | 1/700 loss=nan skipped=False | 1/800 loss_scale=0.1
megatron_alcf_keyvalue megatron 7 |
    1/136004 loss=12.316531 grad_norm=1020.352 seqlen=8192 |
    1/136004 consumed_tokens=6845305454592 time_unix_s=1762767816.161992 step_time_s=3.4153
megatron_deepspeed_alcf megatron 2 | 1/199 loss=5.905366 grad_norm=None seqlen=4096
megatron_lm_new megatron 2 | 1/43 loss=1.825991 time_unix_s=1712372376.0 grad_norm=1.426
megatron_nan_lmloss_missing megatron 6 | 1/3384 loss=0.7072597 grad_norm=0.741 | 1/3385 loss=nan skipped=False |
    1/5426 loss=nan skipped=False grad_norm=nan | 2/9 loss=nan skipped=False consumed_samples=108
gpt_neox gpt_neox 13 | 1/1 loss=11.06431 lr=3.333e-06 | 1/139 loss=4.286492
hf_trainer_dict huggingface 16 | 1/1 loss=1.3587 lr=5e-05 epoch=0.0 | 1/5 loss=0.6607 grad_norm=17.22315788269043 |
    1/13 loss=4.2653 grad_norm=None | 1/16 loss=nan grad_norm=nan epoch=1.74
fairseq_train_inner fairseq 20 | 1/1 loss=16.475 grad_norm=20.751 loss_scale=4.0 time_unix_s=1615206696.0 |
    2/3 loss=23.682 lr=6e-05 loss_scale=1.0 global_batch_samples=64
metaseq_train_inner metaseq 2 | 1/1 loss=15.878 grad_norm=16.981
torchtitan torchtitan 5 | 1/14 loss=3.24405 grad_norm=0.8319 time_unix_s=1779120286.338 |
    2/4 loss=7.62585 loss_spread=0.0 | 2/5 loss=7.07623 loss_spread=None
olmo olmo 3 | 1/1 loss=12.18 grad_norm=231.7 consumed_tokens=1048576 |
    1/2 loss=1.7872662283480167e-06 time_unix_s=1722938405.52 | 1/3 loss=0.0 consumed_tokens=3145728
composer composer 4 | 1/1 loss=10.9736 | 1/4 loss=10.6459
nanotron nanotron 2 |
    1/327281 loss=2.38 consumed_tokens=85800000000 step_time_s=11.5 |
    1/327281 grad_norm=1.25 lr=1e-05 global_batch_samples=64 time_unix_s=1760718716.0
nemo2 nemo 6 | 1/1 loss=11.03 | 1/2 consumed_samples=1024 step_time_s=7.549
litgpt litgpt 5 | 1/1 loss=1.66 | 1/5 loss=1.524 epoch=1.0
dllogger_bert dllogger 2 | 1/1787 loss=3.146484375 lr=0.005360045911827694
mlx_lora mlx 8 | 1/100 loss=6.437 lr=7e-05 consumed_tokens=39407
nanogpt_generic nanogpt 3 | 1/1 loss=4.2627 step_time_s=3.28679 | 1/21 loss=2.7816
dion_jsonl jsonl 7 | 1/1 loss=11.130464553833008 | 1/3486 loss=3.1541152000427246
"""
"""Name, format and number of samples of a log, how many of its lines are unreadable; then attempt/step and what is read
there. A loss of fairseq's and metaseq's is in bits."""


def by_eye() -> Iterator[tuple[str, str, int, int, dict[tuple[int, int], dict[str, Any]]]]:
    """Name, format, samples, unreadable lines, (attempt, step) -> fields."""
    for log in READ.strip().replace("|\n", "|").splitlines():
        (name, form, count, *unreadable), *places = (part.split() for part in log.split("|"))
        expected: dict[tuple[int, int], dict[str, Any]] = {}
        for place, *fields in places:
            attempt, step = map(int, place.split("/"))
            read = expected.setdefault((attempt, step), {})
            for field, _, value in (each.partition("=") for each in fields):
                read[field] = NAN if value == "nan" else literal_eval(value)
            if form in ("fairseq", "metaseq"):
                read["loss"] *= math.log(2)
        yield name, form, int(count), int("".join(unreadable) or "0"), expected


ROWS = [*by_eye()]


BY_EYE = {name for name, *_ in ROWS} | {"deepspeed_overflow"}
BY_NAME = sorted({path.stem for path in SAMPLES.glob("*.log")} - BY_EYE)
"""Recorded logs that no row of the table above describes; each is named after its format."""


@pytest.mark.parametrize("name", BY_NAME)
def test_a_recorded_log_is_read_by_the_format_of_its_name(name: str) -> None:
    log = recorded(name)
    read = samples(log)
    steps = [sample.global_step for sample in read]
    assert (log.format, log.reader.unreadable, len(read)) == (name, 0, len(set(steps)))
    assert steps == sorted(steps)
    assert len(read) > 1
    assert any(sample.lr for sample in read)
    assert all(0 < sample.loss < 20 for sample in read)


@pytest.mark.parametrize(("name", "form", "count", "unreadable", "expected"), ROWS, ids=[r[0] for r in ROWS])
def test_a_recorded_log_is_read(
    name: str, form: str, count: int, unreadable: int, expected: dict[tuple[int, int], dict[str, Any]]
) -> None:
    log = recorded(name)
    read = samples(log)
    assert (log.format, len(read), log.reader.unreadable) == (form, count, unreadable)
    by_place: dict[tuple[int, int], Sample] = {(s.attempt, s.global_step): s for s in read}
    for place, fields in expected.items():
        for field, value in fields.items():
            shown = getattr(by_place[place], field)
            assert shown == (pytest.approx(value, nan_ok=True) if isinstance(value, float) else value), (place, field)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("bigscience_exp_meg_gpt2_base_n8", [(100, 8.095942), (200, 7.645013)]),
        ("megatron_2019_nocolon", [(1000, 4.503653)]),
        ("fairseq_train_inner", [(10, 17.953 * math.log(2)), (10, 16.624 * math.log(2))]),
        ("mlx_lora", [(1, 2.086)]),
        ("nanogpt_generic", [(0, 4.2848)]),
        ("dion_jsonl", [(0, 11.17902069091797)]),
    ],
)
def test_validations_are_read(name: str, expected: list[tuple[int, float]]) -> None:
    assert [(v.global_step, pytest.approx(v.loss)) for v in validations(recorded(name))] == expected


def test_a_file_without_a_training_step_is_refused_with_the_formats_that_are_known() -> None:
    with pytest.raises(ConfigError, match=r"no line of it is a training step .*\(sentinel, .*megatron, .*generic\)"):
        recorded("deepspeed_overflow")


def test_unreadable_lines_are_shown_with_their_numbers() -> None:
    log = recorded("bigscience_tr11-176B_chronicles")
    list(log)
    line, why = log.reader.tally.first_unreadable[0]
    assert line == 13
    assert why.startswith("cut before its loss: [default7]: iteration   42780/ 115311")
