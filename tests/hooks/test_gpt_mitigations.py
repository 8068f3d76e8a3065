"""What the reference trainer does with overrides.json: at the anchor, at a requeue after it, and when it can't."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sentinel.vocabulary.overrides import Anchor, Free, Once, Overrides, TrainingSettings, encode_overrides
from sentinel.vocabulary.sample import Sample
from tests.hooks.trainer import records, starts, train
from trainer_hooks.gpt.order import DataOrder

ID = "incident-1-r1"
ALIKE = ("--lr-decay", "100", "--dropout", "0.1")
SEQLEN, BLOCKS, BATCH = 32, 300, 4
TRAINING = 294
"""Blocks that are not validation samples: 2 % of 299, rounded down, are."""


def decide(folder: Path, step: int, *, standing: TrainingSettings | None = None, **once: Any) -> None:
    """Writes overrides.json with an anchor at that step."""
    (folder / "state").mkdir(exist_ok=True, parents=True)
    overrides = Overrides(
        incident="incident-1",
        rollback=ID,
        anchor=Anchor(global_step=step, consumed_samples=step * BATCH),
        standing=standing or TrainingSettings(),
        once=Once(id=ID, **once) if once else None,
    )
    (folder / "state" / "overrides.json").write_text(encode_overrides(overrides))


def of_attempt(folder: Path, attempt: int) -> dict[int, Sample]:
    return {r.global_step: r for r in records(folder) if isinstance(r, Sample) and r.attempt == attempt}


def losses(folder: Path, attempt: int) -> dict[int, float]:
    return {step: sample.loss for step, sample in of_attempt(folder, attempt).items()}


def blocks() -> np.ndarray[Any, Any]:
    """(BLOCKS, SEQLEN) tokens; each sample ends with the next one's first token, so that is the same in all."""
    made = np.random.default_rng(5).integers(1, 500, (BLOCKS, SEQLEN)).astype(np.uint16)
    made[:, 0] = 0
    return made


def data(folder: Path, tokens: np.ndarray[Any, Any]) -> tuple[str, ...]:
    folder.mkdir(exist_ok=True)
    tokens.tofile(folder / "data.bin")
    return ("--data", str(folder / "data.bin"), "--vocabulary", "512", *ALIKE)


@pytest.mark.full
def test_a_run_that_skips_is_bit_for_bit_the_run_whose_data_does_not_hold_it(tmp_path: Path) -> None:
    skip, at = 14, 10 * BATCH  # three and a half batches
    skipping, without = tmp_path / "skipping", tmp_path / "without"
    tokens = blocks()
    arguments = data(skipping, tokens)
    train(skipping, "--steps", "10", "--save-interval", "10", *arguments)
    decide(skipping, 10, skip_samples=skip)
    train(skipping, "--steps", "14", "--save-interval", "12", *arguments)
    train(skipping, "--steps", "14", *arguments)  # a requeue, from step 12

    order = DataOrder(TRAINING, 0).indices(0, TRAINING)
    moved = tokens.copy()
    moved[order[at : TRAINING - skip]] = tokens[order[at + skip :]]
    train(without, "--steps", "14", *data(without, moved))

    never_there = losses(without, 1)
    assert losses(skipping, 1) | losses(skipping, 2) == never_there
    assert losses(skipping, 3) == {step: never_there[step] for step in (13, 14)}
    _, at_the_anchor, requeued = starts(skipping)
    ledger = ({"begin": at, "end": at + skip, "reseeds": [[0, 0]]},)
    assert (at_the_anchor.first_sample_index, at_the_anchor.skipped_samples) == (at + skip, skip)
    assert at_the_anchor.skipped_ranges == requeued.skipped_ranges == ledger
    assert (requeued.skipped_samples, requeued.first_sample_index) == (skip, 12 * BATCH + skip)
    assert requeued.applied_once == (ID,)
    assert of_attempt(skipping, 2)[14].consumed_samples == 14 * BATCH + skip
    assert of_attempt(skipping, 2)[14].consumed_tokens == 14 * BATCH * SEQLEN  # of what was trained on


@pytest.mark.full
def test_the_ledger_holds_on_another_number_of_ranks_and_before_the_range(tmp_path: Path) -> None:
    train(tmp_path, "--steps", "6", "--save-interval", "2", *ALIKE)
    decide(tmp_path, 6, skip_samples=8)
    train(tmp_path, "--steps", "9", "--save-interval", "7", *ALIKE)
    train(tmp_path, "--steps", "9", *ALIKE, ranks=2)
    one, two = of_attempt(tmp_path, 2), of_attempt(tmp_path, 3)
    assert [two[s].consumed_samples for s in (8, 9)] == [one[s].consumed_samples for s in (8, 9)] == [40, 44]
    ledger = starts(tmp_path)[-1].skipped_ranges
    assert ledger is not None
    decision = json.loads((tmp_path / "state" / "overrides.json").read_text())
    decision |= {"rollback": "incident-2-r1", "anchor": {"global_step": 4}, "standing": {"skipped": list(ledger)}}
    (tmp_path / "state" / "overrides.json").write_text(json.dumps(decision | {"once": {}}))
    (tmp_path / "checkpoints" / "latest").write_text("global_step4")
    train(tmp_path, "--steps", "8", *ALIKE)
    again = of_attempt(tmp_path, 4)
    assert [again[s].consumed_samples for s in (5, 6, 7, 8)] == [20, 24, 36, 40]
    assert starts(tmp_path)[-1].skipped_samples == 8


@pytest.mark.full
def test_moments_are_reset_once_and_settings_hold_at_every_start(tmp_path: Path) -> None:
    train(tmp_path, "--steps", "10", "--save-interval", "10", *ALIKE)
    decide(tmp_path, 10, standing=TrainingSettings(adam_beta2=0.95, clip_grad=0.5), reset_moments=True, seed=7)
    train(tmp_path, "--steps", "13", "--save-interval", "12", *ALIKE)
    train(tmp_path, "--steps", "13", *ALIKE)
    first, at_the_anchor, requeued = starts(tmp_path)
    assert (first.adam_beta2, first.gradient_clipping, first.weight_decay) == (0.999, 1.0, 0.01)
    assert (first.moments_reset_steps, first.skipped_samples, first.precision) == ((), 0, "fp32")
    for started in (at_the_anchor, requeued):
        assert (started.adam_beta1, started.adam_beta2, started.gradient_clipping) == (0.9, 0.95, 0.5)
        assert (started.moments_reset_steps, started.applied_once, started.seed) == ((10,), (ID,), 7)
    once, again = of_attempt(tmp_path, 2)[13], of_attempt(tmp_path, 3)[13]
    assert (again.loss, again.adam_variance_l1, again.grad_norm) == (once.loss, once.adam_variance_l1, once.grad_norm)


@pytest.mark.full
def test_qk_clip_keeps_the_attention_logits_near_its_limit_and_is_reported(tmp_path: Path) -> None:
    high = ("--lr", "0.01", "--lr-warmup", "10", "--save-interval", "10", *ALIKE)
    train(tmp_path, "--steps", "10", *high)
    decide(tmp_path, 10, standing=TrainingSettings(qk_clip=0.05, lr_factor_of={"attention.qk": 0.5}))
    train(tmp_path, "--steps", "20", *high)
    clipped = of_attempt(tmp_path, 2)[20].attention_logit_max
    decide(tmp_path, 10)
    (tmp_path / "checkpoints" / "latest").write_text("global_step10")
    train(tmp_path, "--steps", "20", *high)
    free = of_attempt(tmp_path, 3)[20].attention_logit_max
    assert clipped is not None
    assert free is not None
    assert clipped < free / 4, (clipped, free)
    found = [(started.qk_clip, started.lr_factor_of) for started in starts(tmp_path)]
    assert found == [(0.0, {}), (0.05, {"attention.qk": 0.5}), (0.0, {})]


@pytest.mark.full
def test_a_factor_of_the_lr_for_a_name_that_the_model_has_not_ends_the_start(tmp_path: Path) -> None:
    decide(tmp_path, 0, standing=TrainingSettings(lr_factor_of={"*.q_proj.*": 0.5}))
    ran = train(tmp_path, "--steps", "1", *ALIKE, expect=2)
    assert "no parameter is named like '*.q_proj.*'" in ran.stderr


@pytest.mark.full
def test_a_one_shot_change_is_made_neither_a_second_time_nor_past_its_anchor(tmp_path: Path) -> None:
    decide(tmp_path, 0, seed=5)
    train(tmp_path, "--steps", "10", "--save-interval", "10", *ALIKE)
    decide(tmp_path, 10, seed=77, reset_moments=True)  # exactly at the anchor, and the client state holds its id
    train(tmp_path, "--steps", "11", "--save-interval", "11", *ALIKE)
    anew = json.loads((tmp_path / "state" / "overrides.json").read_text())
    anew |= {"rollback": "incident-1-r2", "once": anew["once"] | {"id": "incident-1-r2"}}
    (tmp_path / "state" / "overrides.json").write_text(json.dumps(anew))
    train(tmp_path, "--steps", "12", *ALIKE)  # an id that was never applied, one step past its anchor
    for started in starts(tmp_path):
        assert (started.seed, started.applied_once, started.moments_reset_steps) == (5, (ID,), ())


@pytest.mark.full
def test_a_free_option_is_taken_and_echoed(tmp_path: Path) -> None:
    decide(tmp_path, 0, standing=TrainingSettings(free=Free(options=("--eps=1e-6", "--micro-batch=2"))))
    train(tmp_path, "--steps", "1", *ALIKE)
    (started,) = starts(tmp_path)
    assert started.free == {"environment": {}, "options": ["--eps=1e-6", "--micro-batch=2"]}
    assert (started.settings["eps"], started.settings["micro_batch"]) == (1e-6, 2)


@pytest.mark.full
@pytest.mark.parametrize(
    ("standing", "once", "says"),
    [
        (
            TrainingSettings(free=Free(options=("--save=elsewhere",))),
            {},
            "this trainer takes --eps=…, .* not '--save=elsewhere'",
        ),
        (TrainingSettings(free=Free(options=("--eps=small",))), {}, "'--eps=small': could not convert"),
        (TrainingSettings(free=Free(environment={"NCCL_ALGO": "Ring"})), {}, "takes none, so not 'NCCL_ALGO'"),
        (TrainingSettings(), {"loss_scale": 512.0}, "only fp16 has one, not fp32"),
    ],
)
def test_what_the_trainer_can_not_do_it_refuses_by_name(
    tmp_path: Path, standing: TrainingSettings, once: dict[str, Any], says: str
) -> None:
    decide(tmp_path, 0, standing=standing, **once)
    refused = train(tmp_path, "--steps", "1", *ALIKE, expect=2).stderr
    assert "overrides.json" in refused
    assert re.search(says, refused)
