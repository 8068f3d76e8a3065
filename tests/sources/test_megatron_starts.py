"""What a Megatron log says of a start, and that it proves a restart as a trainer's own report does."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from sentinel.plan.incident.baseline import Baseline, baseline_of, warmup_end
from sentinel.plan.incident.incident import Incident, Proof, Rollback
from sentinel.plan.observation import JobsSeen, WriterSeen
from sentinel.plan.restart.liveness import rollback_of
from sentinel.plan.starts.evidence import Evidence
from sentinel.plan.starts.proof import outcome, prove, unreported
from sentinel.vocabulary.overrides import Anchor, Once, Overrides, TrainingSettings
from sentinel.vocabulary.pacing import LrSchedule
from sentinel.vocabulary.sample import RunStarted, Sample
from tests.sources.reading import records_of, starts, steps

DUMP = Path(__file__).parents[1] / "data" / "megatron_logs" / "llama_1b3_2023-08.log"
SCHEDULE = LrSchedule(peak=6e-5, warmup=40, decay_end=1000, decay_start=40, minimum=6e-6)
LOADED = "  successfully loaded checkpoint from /c/checkpoints at iteration {}"


def arguments(seed: int = 42, prefix: str = "", **others: object) -> list[str]:
    settings: dict[str, object] = {
        "seed": seed,
        "lr": 6e-5,
        "min_lr": 6e-6,
        "lr_warmup_iters": 40,
        "lr_decay_iters": None,
        "train_iters": 1000,
        "lr_decay_style": "cosine",
        "clip_grad": 1.0,
        "adam_beta1": 0.9,
        "adam_beta2": 0.95,
        "weight_decay": 0.1,
        "bf16": True,
        "fp16": False,
        "seq_length": 2048,
        "global_batch_size": 8,
        "world_size": 64,
        "log_interval": 1,
        "save_interval": 50,
        "load": "/c/checkpoints",
        "train_samples": None,
        "lr_warmup_samples": 0,
        **others,
    }
    listed = [f"{prefix}  {name} {'.' * (48 - len(name))} {value}" for name, value in sorted(settings.items())]
    edge = "------------------------"
    return [f"{prefix}{edge} arguments {edge}", *listed, f"{prefix}-------------------- end of arguments {edge}"]


def step(number: int, lr: float | None = None) -> str:
    lr = SCHEDULE.lr(step=number) if lr is None else lr
    return (
        f" iteration {number:8d}/    1000 | consumed samples: {number * 8:12d} |"
        f" elapsed time per iteration (ms): 1000.0 |"
        f" learning rate: {lr:.3E} | global batch size:     8 | lm loss: 3.000000E+00 |"
        f" loss scale: 1.0 | grad norm: 1.500 |"
        f" actual seqlen:  2048 | number of skipped iterations:   0 | number of nan iterations:   0 |"
    )


LIFE = [
    *arguments(),
    "WARNING: could not find the metadata file latest_checkpointed_iteration.txt",
    "    will not load any",
]
TWO_LIVES = [*LIFE, *map(step, range(1, 71)), *arguments(43), LOADED.format(40), *map(step, range(41, 45))]


@pytest.mark.parametrize(
    ("printed", "precision"),
    [
        ({}, "bf16"),
        ({"bf16": False, "fp16": True, "params_dtype": "torch.float16"}, "fp16"),
        ({"bf16": False, "params_dtype": "torch.float32"}, "fp32"),
        ({"bf16": None, "fp16": None, "params_dtype": "torch.bfloat16"}, "bf16"),
        ({"bf16": None, "fp16": None, "precision": "fp16"}, "fp16"),  # GPT-NeoX's
        ({"bf16": None, "fp16": None, "precision": "int4"}, None),
    ],
)
def test_the_precision_is_read_however_it_is_printed(printed: dict[str, object], precision: str | None) -> None:
    (start,) = starts(records_of("megatron", [*arguments(**printed), LOADED.format(40), step(41)]))
    assert start.precision == precision


@pytest.mark.parametrize("prefix", ["", "[default0]:", "0: ", "slurm_procid 0 : ", "[2024-04-06 02:59:36] "])
def test_the_arguments_the_load_line_and_the_first_line_make_a_start(prefix: str) -> None:
    lines = [*arguments(prefix=prefix), prefix + LOADED.format(40), step(41)]
    (start,) = starts(records_of("megatron", lines))
    assert (start.seed, start.total_steps, start.world_size, start.full_seqlen, start.seqlen) == (
        *(42, 1000, 64, 2048, 2048),
    )
    assert (start.adam_beta1, start.adam_beta2, start.weight_decay, start.gradient_clipping) == (0.9, 0.95, 0.1, 1.0)
    assert (start.resumed_from, start.first_sample_index, start.precision) == (40, 320, "bf16")
    assert (start.lr_schedule, start.checkpoint_interval_steps) == (SCHEDULE.to_json(), 50)
    assert start.settings["global-batch-size"] == "8"
    assert start.lr == SCHEDULE.lr(step=41)  # exact: the line shows four digits of it
    assert warmup_end(start) == 40


def test_an_lr_that_the_schedule_does_not_give_is_reported_as_it_is_shown() -> None:
    (start,) = starts(records_of("megatron", [*arguments(), LOADED.format(40), step(41, 3e-5)]))
    assert start.lr == 3e-5


def test_a_start_from_scratch_has_no_parent() -> None:
    lines = [
        *arguments(),
        *map(step, range(1, 5)),
        *arguments(),
        "will not load any checkpoints and will start from random",
    ]
    records = records_of("megatron", [*lines, step(1), step(2)])
    assert [(s.attempt, s.parent_attempt, s.resumed_from) for s in starts(records)] == [
        (1, None, None),
        (2, None, None),
    ]


def test_a_start_that_goes_on_where_the_last_one_ended_is_an_attempt_of_its_own() -> None:
    lines = [*arguments(), *map(step, range(1, 51)), *arguments(), LOADED.format(50), *map(step, range(51, 53))]
    records = records_of("megatron", lines)
    assert steps(records)[-3:] == [(1, 50), (2, 51), (2, 52)]
    assert (starts(records)[-1].resumed_from, starts(records)[-1].parent_attempt) == (50, 1)


@pytest.mark.parametrize(
    "line",
    [
        " loading checkpoint from /c/checkpoints at iteration 40",
        "  successfully loaded checkpoint from /c/checkpoints [ t 1/2, p 1/4 ] at iteration 40",
        "[default0]:  successfully loaded checkpoint from /c at iteration      40",
    ],
)
def test_megatrons_ways_of_saying_what_was_loaded(line: str) -> None:
    (start,) = starts(records_of("megatron", [*arguments(), line, step(41)]))
    assert start.resumed_from == 40


def test_schedules_that_are_counted_in_samples_are_not_guessed() -> None:
    lines = [*arguments(train_samples=8000, train_iters=None, lr_warmup_samples=320), step(1)]
    (start,) = starts(records_of("megatron", lines))
    assert (start.lr_schedule, start.lr) == (None, 1.5e-06)


def test_a_recorded_list_of_arguments_is_read() -> None:
    (start,) = starts(records_of("megatron", [*DUMP.read_text().splitlines(), step(1, 3e-4 / 2000)]))
    assert (start.full_seqlen, start.total_steps, start.precision, start.gradient_clipping) == (2048, 2500, "fp16", 1.0)
    assert start.lr_schedule is not None
    assert (start.lr_schedule["peak"], start.lr_schedule["warmup"]) == (3e-4, 2000)


def decision(before: RunStarted, *, seed: int) -> Rollback:
    baseline = baseline_of(before)
    overrides = Overrides(
        incident="incident-1",
        rollback="incident-1-r1",
        anchor=Anchor(global_step=40, consumed_samples=320),
        standing=TrainingSettings(lr=baseline.lr, adam_beta2=baseline.adam_beta2, clip_grad=baseline.clip_grad),
        once=Once(id="incident-1-r1", seed=seed),
    )
    unconfirmed = {**unreported(overrides, baseline), "one-shot changes of incident-1-r1": "it keeps no record"}
    return Rollback(
        id="incident-1-r1",
        rung="reseed",
        hypothesis="…",
        target_tag="global_step40",
        target_step=40,
        overrides=overrides,
        changes=(),
        decided_unix_s=7.0,
        lost_steps=30,
        unconfirmed=tuple(unconfirmed),
    )


def test_a_restart_is_proved_by_the_log_and_a_seed_that_was_ignored_is_not() -> None:
    first, second = starts(records_of("megatron", TWO_LIVES))
    told = replace(second, rollback="incident-1-r1")
    samples = tuple(r for r in records_of("megatron", TWO_LIVES) if isinstance(r, Sample) and r.attempt == 2)
    shown = Evidence(started=told, samples=samples)
    answers = {seed: prove(decision(first, seed=seed), shown, baseline_of(first)) for seed in (43, 44)}
    assert outcome(answers[43]) is Proof.CONFIRMED
    assert [check.what for check in answers[44] if check.answer is Proof.CONTRADICTED] == ["seed"]


def test_an_argument_is_no_proof_of_what_a_checkpoint_brings_back() -> None:
    """DeepSpeed loads Adam's settings with the optimizer's groups: the list of arguments shows what was asked for."""
    first, second = starts(records_of("megatron", TWO_LIVES))
    told = replace(second, rollback="incident-1-r1", adam_beta2=0.95)
    asked = decision(first, seed=43)
    standing = replace(asked.overrides.standing, adam_beta2=0.95)
    lowered = replace(asked, overrides=replace(asked.overrides, standing=standing))
    checks = {c.what: c.answer for c in prove(lowered, Evidence(started=told), baseline_of(first))}
    assert checks["adam_beta2"] is Proof.NOT_VERIFIED
    ignored = Evidence(started=replace(told, adam_beta2=0.999))
    assert outcome(prove(lowered, ignored, baseline_of(first))) is Proof.CONTRADICTED


def test_an_attempt_of_a_log_belongs_to_the_rollback_whose_job_writes() -> None:
    first, second = starts(records_of("megatron", TWO_LIVES))
    rollback = decision(first, seed=43)
    rollback.last_start_unix_s, rollback.last_start_attempt = 100.0, 1
    jobs = JobsSeen(writers=(WriterSeen(id="7", rollback="incident-1-r1"),))
    incidents = [incident_with(rollback)]
    for by_the_logs_clock_unix_s in (99.0, 101.0):  # which is not the daemon's
        at = {"time_unix_s": by_the_logs_clock_unix_s}
        assert rollback_of(replace(second, **at), jobs, incidents) == "incident-1-r1"
        assert rollback_of(replace(second, **at, attempt=1), jobs, incidents) is None
    assert rollback_of(second, jobs, incidents) == "incident-1-r1"  # no clock: it resumed from the target
    assert rollback_of(first, jobs, incidents) is None
    assert rollback_of(second, JobsSeen(writers=(WriterSeen(id="7", rollback=None),)), incidents) is None


def incident_with(rollback: Rollback) -> Incident:
    nothing = {"onset_range": None, "alarm_step": None, "onset_tokens": None, "best_mean": None}
    said = {"opened_unix_s": 1.0, "reason": "…", "baseline": Baseline()}
    return Incident(id="incident-1", attempt=1, rollbacks=[rollback], **nothing, **said)  # type: ignore[arg-type]
