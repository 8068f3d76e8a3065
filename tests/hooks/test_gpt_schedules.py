"""Every schedule in the reference trainer: real runs that are cut short and go on, alone and on several ranks."""

from __future__ import annotations

import json
import math
import sys
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from sentinel.vocabulary.overrides import Anchor, Overrides, encode_overrides
from sentinel.vocabulary.pacing import (
    BatchSizeSchedule,
    CurriculumSchedule,
    FixedLinear,
    LrSchedule,
    RandomLtdSchedule,
    SeqlenSchedule,
)
from sentinel.vocabulary.sample import RunStarted, Sample
from sentinel.vocabulary.training_settings import TrainingSettings
from tests.hooks.torchrun import lines_of
from tests.hooks.trainer import SMALL, losses, records, starts

pytestmark = pytest.mark.full

FULL = 32
SLW = ("--seqlen-start", "8", "--seqlen-warmup-steps", "5")
KEPT = (*SLW, "--seqlen-shorten", "truncate_keep")
RESHAPED = (*SLW, "--seqlen-shorten", "reshape")
LTD = ("--random-ltd", "8", "9")
RAMP = ("--rampup-batch-size", "2", "2", "9")
COMPOSED = {
    "slw": SLW,
    "kept + random-LTD": (*KEPT, *LTD),
    "reshaped + random-LTD": (*RESHAPED, *LTD),
    "adaptive": ("--seqlen-schedule", '{"pacing": "adaptive", "start": 8}', "--validate-every", "2"),
    "batch-size warmup": (*RAMP, "--micro-batch", "1"),
}
PACINGS: list[dict[str, Any]] = [
    {"start": 8, "total_steps": 6},
    {"pacing": "fixed_root", "start": 8, "total_steps": 6, "root_degree": 2},
    {"pacing": "fixed_discrete", "start": 8, "difficulties": [8, 24, 32], "max_steps": [2, 4]},
    {"pacing": "mixed", "start": 8, "short_steps": 2, "full_steps": 1},
]
OWN = {"pacing": "custom", "start": 8, "function": "users_own:by_fours"}
TUTORIAL = {
    "enabled": True,
    "curriculum_type": "seqlen",
    "min_difficulty": 8,
    "max_difficulty": FULL,
    "schedule_type": "fixed_linear",
    "schedule_config": {"total_curriculum_step": 6, "difficulty_step": 8},
}
INDEXED = {
    "difficulty_type": "percentile",
    "clustering_type": "schedule_based",
    "min_difficulty": 5,
    "max_difficulty": 100,
    "schedule_type": "fixed_root",
    "schedule_config": {"total_curriculum_step": 6, "difficulty_step": 1, "root_degree": 2},
}
LENGTHS = {
    "difficulty_type": "value",
    "clustering_type": "single_cluster",
    "min_difficulty": 8,
    "max_difficulty": FULL,
    "schedule_type": "fixed_linear",
    "schedule_config": {"total_curriculum_step": 4, "difficulty_step": 8},
}
ROUTED = {
    "enabled": True,
    "total_layer_num": 4,
    "random_ltd_layer_num": 2,
    "random_ltd_layer_id": [1, 2],
    "model_mask_name": None,
    "model_type": "decoder",
    "hidden_state_order": "batch_seq_dim",
    "random_ltd_schedule": {
        "min_value": 8,
        "max_value": FULL,
        "schedule_type": "fixed_linear",
        "schedule_config": {"require_steps": 6, "seq_per_step": 8},
    },
}
SEQLEN = FixedLinear(start=8, full=FULL, total_steps=4, anchor_step=6)
DROPPING = RandomLtdSchedule(start=8, full=FULL, total_steps=5, anchor_step=6, multiple=8)
BY_TOKENS = LrSchedule(peak=1e-3, warmup=5, decay_end=9 * 4 * FULL, decay_unit="tokens")
BY_TOKENS_FROM_THE_START = ("--lr-decay-unit", "tokens", "--lr-decay", str(14 * 4 * FULL))
GROWING = BatchSizeSchedule(start=2, full=4, increment=1, ramp_samples=8, anchor_samples=24)


@dataclass
class Runs:
    """What is to be run, in this order, and how each ended."""

    root: Path
    wanted: list[dict[str, Any]] = field(default_factory=list)
    ended: dict[str, str] = field(default_factory=dict)

    def add(self, case: str, steps: int, *more: str, folder: str = "", overrides: str | None = None) -> None:
        there = self.root / (folder or case)
        files = ("--save", str(there / "checkpoints"), "--state-dir", str(there / "state"))
        arguments = [*SMALL, *files, "--steps", str(steps), *more]
        self.wanted.append({"case": case, "folder": str(there), "arguments": arguments, "overrides": overrides})

    def run(self, ranks: int) -> Runs:
        (self.root / "runs.json").write_text(json.dumps(self.wanted))
        lines = lines_of("gpt_runs.py", str(self.root / "runs.json"), ranks=ranks)
        self.ended = {line["case"]: line["ended"] for line in lines}
        return self

    def samples(self, case: str) -> dict[int, Sample]:
        return {r.global_step: r for r in records(self.root / case) if isinstance(r, Sample)}

    def losses(self, case: str) -> dict[int, float]:
        return losses(self.root / case)

    def starts(self, case: str) -> list[RunStarted]:
        return starts(self.root / case)


def cut_short(runs: Runs, case: str, *more: str, at: tuple[int, ...]) -> None:
    """The same run whole, and in parts."""
    runs.add(f"{case}, whole", at[-1], *more)
    for steps in at:
        runs.add(f"{case}, up to {steps}", steps, "--lr-decay", str(at[-1]), "--save-interval", str(steps), *more,
                 folder=f"{case}, cut")  # fmt: skip


def decided(standing: TrainingSettings, at: int) -> str:
    anchor = Anchor(global_step=at, consumed_samples=4 * at, consumed_tokens=4 * at * FULL)
    return encode_overrides(Overrides(incident="i-1", rollback="i-1.1", anchor=anchor, standing=standing))


def paced(index: str) -> dict[str, Any]:
    difficulty = {"kind": "percentile", "start": 5, "full": 100, "total_steps": 6, "root_degree": 2}
    return {"voc": {"difficulty": difficulty, "index": index}}


def with_voc(index: str) -> tuple[str, ...]:
    return ("--curriculum", json.dumps(paced(index)), *RESHAPED, *LTD)


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> str:
    from trainer_hooks.data.__main__ import main

    folder = tmp_path_factory.mktemp("index")
    asked = ["--metric", "voc", "--seqlen", str(FULL), "--output", str(folder), "--workers", "1"]
    assert main(["analyze", *asked, "--deepspeed-format", "--quiet"]) == 0
    return str(folder / "voc")


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory, index: str) -> Runs:
    runs = Runs(tmp_path_factory.mktemp("alone"))
    (runs.root / "users_own.py").write_text("def by_fours(step: int) -> int:\n    return 8 + 4 * step\n")
    for pacing in PACINGS:
        runs.add(pacing.get("pacing", "fixed_linear"), 7, "--seqlen-schedule", json.dumps(pacing))
    runs.add("custom", 4, "--seqlen-schedule", json.dumps(OWN))
    runs.add("no function", 4, "--seqlen-schedule", json.dumps(OWN | {"function": "no.such:thing"}))
    for case, more in COMPOSED.items():
        cut_short(runs, case, *more, at=(3, 7, 11))
    cut_short(runs, "voc", *with_voc(index), at=(3, 5, 8))
    runs.add("kept to the end", 14, *KEPT)
    runs.add("both ramps", 8, *RAMP, *SLW)
    runs.add("decay by tokens", 14, *KEPT, *LTD, *BY_TOKENS_FROM_THE_START)
    runs.add("decay by steps", 14, *SLW, "--lr-unit", "tokens", "--lr-decay-unit", "steps", "--lr-warmup", "300")
    share = ("--recipe", "slw", "voc", "random-ltd", "--voc-index", index, "--data-share", "0.5", "--lr-warmup", "0")
    runs.add("recipe", 10, *share, "--lr-warmup-tokens", "128", "--seqlen-shorten", "reshape")
    runs.add("other data", 2, "--seqlen", "16", *with_voc(index))
    for name, config in {
        "tutorial": {"curriculum_learning": TUTORIAL},
        "tutorial with a typo": {"curriculum_learning": TUTORIAL | {"min_dificulty": 8}},
        "library": library(f"{index}/index_to_sample"),
        "library of DeepSpeed's files": library(f"{index}/deepspeed/voc_index_to_sample_percentile_merged"),
    }.items():
        (runs.root / f"{name}.json").write_text(json.dumps(config))
        runs.add(name, 8, "--deepspeed-config", str(runs.root / f"{name}.json"))
    for name, standing in {
        "all of it": TrainingSettings(
            seqlen=SEQLEN,
            shorten="reshape",
            random_ltd=DROPPING,
            curriculum=CurriculumSchedule.from_json(paced(index)).anchored_at(6),
        ),
        "a batch that grows": TrainingSettings(batch_size=GROWING),
        "another end": TrainingSettings(total_tokens=9 * 4 * FULL),
        "by tokens": TrainingSettings(seqlen=SEQLEN, lr=BY_TOKENS, total_tokens=9 * 4 * FULL),
    }.items():
        runs.add(name, 6, "--lr-decay", "12", "--save-interval", "6", "--micro-batch", "1")
        runs.add(f"{name}, on", 12, "--micro-batch", "1", folder=name, overrides=decided(standing, 6))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "path", [str(runs.root), *sys.path])  # where the trainer finds the user's own module
        return runs.run(1)


@pytest.fixture(scope="module")
def in_pairs(tmp_path_factory: pytest.TempPathFactory, index: str) -> Runs:
    runs = Runs(tmp_path_factory.mktemp("in_pairs"))
    for case, more in COMPOSED.items():
        runs.add(case, 11, *more, "--micro-batch", "1")
    runs.add("voc", 8, *with_voc(index), "--micro-batch", "2")
    return runs.run(2)


def library(index_to_sample: str) -> dict[str, Any]:
    metrics = {"voc": INDEXED | {"index_to_sample_path": index_to_sample}, "seqlen": LENGTHS}
    learning = {"enabled": True, "data_cluster_path": "clusters", "curriculum_metrics": metrics}
    sampling = {"enabled": True, "curriculum_learning": learning}
    routing = {"enabled": True, "random_ltd": ROUTED}
    return {"data_efficiency": {"enabled": True, "data_sampling": sampling, "data_routing": routing}}


# Lengths


@pytest.mark.parametrize("pacing", PACINGS, ids=lambda p: p.get("pacing", "fixed_linear"))
def test_each_pacing_is_followed(alone: Runs, pacing: dict[str, Any]) -> None:
    case = pacing.get("pacing", "fixed_linear")
    schedule = SeqlenSchedule.from_json({"full": FULL} | pacing)
    wanted = {step: schedule.seqlen(step) for step in range(1, 8)}
    assert len(set(wanted.values())) > 1
    assert {step: sample.seqlen for step, sample in alone.samples(case).items()} == wanted
    assert alone.samples(case)[7].consumed_tokens == 4 * sum(wanted.values())
    assert alone.starts(case)[0].seqlen_schedule == schedule.to_json()


def test_the_loss_ratio_is_told_by_length_and_over_all_lengths(alone: Runs) -> None:
    earlier: list[tuple[int | None, float]] = []
    for sample in alone.samples("slw, whole").values():
        own = [loss for length, loss in earlier if length == sample.seqlen]
        others = len(own) < len(earlier)
        smallest = min((loss for _, loss in earlier), default=math.nan)
        assert sample.loss_ratio == (sample.loss / min(own) if own else 1.0)
        assert sample.loss_ratio_all_lengths == (sample.loss / smallest if others else None)
        earlier.append((sample.seqlen, sample.loss))
    assert len({length for length, _ in earlier}) > 1


def test_a_function_of_the_users_paces_too(alone: Runs) -> None:
    assert [sample.seqlen for sample in alone.samples("custom").values()] == [8, 16, 16, 24]
    assert alone.ended["no function"].startswith("ConfigError: the custom pacing no.such:thing")


def test_what_truncation_keeps_is_trained_on_once_the_length_is_full(alone: Runs) -> None:
    found = alone.samples("kept to the end")
    short = [s for s in found.values() if s.seqlen is not None and s.seqlen < FULL]
    cut_off = sum(4 * (FULL - (s.seqlen or 0)) for s in short)
    last = found[14]
    assert last.consumed_samples is not None
    packed = 14 * 4 - last.consumed_samples  # rows that came from nowhere in the data's order
    assert packed == cut_off // FULL > 0
    assert last.consumed_tokens == last.consumed_samples * FULL  # nothing is lost, nothing waits any more


def test_a_reshape_keeps_the_tokens_of_a_step(alone: Runs) -> None:
    before = 0
    for sample in alone.samples("reshaped + random-LTD, whole").values():
        assert sample.seqlen is not None
        assert sample.consumed_tokens is not None
        assert sample.consumed_tokens - before == 4 * (FULL // sample.seqlen) * sample.seqlen
        before = sample.consumed_tokens


# Exact


@pytest.mark.parametrize("case", [*COMPOSED, "voc"])
def test_a_run_that_is_cut_short_goes_on_as_if_nothing_had_been(alone: Runs, case: str) -> None:
    whole, cut = alone.samples(f"{case}, whole"), alone.samples(f"{case}, cut")
    assert len(alone.starts(f"{case}, cut")) == 3
    assert alone.losses(f"{case}, cut") == alone.losses(f"{case}, whole")
    for name in ("consumed_tokens", "consumed_samples", "seqlen", "kept_tokens", "curriculum_share", "lr"):
        assert [getattr(s, name) for s in cut.values()] == [getattr(s, name) for s in whole.values()], name


@pytest.mark.parametrize("case", [*COMPOSED, "voc"])
def test_two_ranks_train_on_the_same_as_one(alone: Runs, in_pairs: Runs, case: str) -> None:
    one, two = alone.samples(f"{case}, whole"), in_pairs.samples(case)
    assert [s.consumed_tokens for s in two.values()] == [s.consumed_tokens for s in one.values()]
    assert [s.loss for s in two.values()] == pytest.approx([s.loss for s in one.values()], rel=1e-5)


# Batches, metrics


def test_the_batch_warms_up_by_whole_micro_batches(alone: Runs) -> None:
    schedule, consumed = BatchSizeSchedule(start=2, full=4, increment=2, ramp_samples=9), 0
    for sample in alone.samples("batch-size warmup, whole").values():
        assert sample.global_batch_samples == schedule.samples(consumed)
        consumed += sample.global_batch_samples or 0
        assert sample.consumed_samples == consumed
    assert consumed < 11 * 4
    assert "sequence length warmup and batch-size warmup" in alone.ended["both ramps"]


def test_a_curriculum_draws_from_more_and_more_of_the_data(alone: Runs) -> None:
    shares = [s.curriculum_share or 1.0 for s in alone.samples("voc, whole").values()]
    assert shares == sorted(shares)
    assert shares[0] < 0.5
    assert shares[-1] == 1.0
    assert alone.ended["other data"].startswith("DataError: ")


def test_a_recipe_is_scaled_to_the_run(alone: Runs) -> None:
    assert alone.ended["recipe"] == "finished"
    (told,) = alone.starts("recipe")
    lr, voc = told.lr_schedule or {}, (told.curriculum_schedule or {})["voc"]["difficulty"]
    assert lr["peak"] == pytest.approx(2 * 1e-3)  # half of the data
    assert (lr["unit"], lr["decay_end"], lr["minimum"]) == ("tokens", 10 * 4 * FULL, 1e-6)
    assert ((told.seqlen_schedule or {})["total_steps"], voc["total_steps"]) == (4, 4)  # 110K of 286K steps
    assert (told.random_ltd_schedule or {})["total_steps"] == 7  # 200K
    assert (voc["start"], voc["root_degree"]) == (1, 2)


# DeepSpeed's own blocks


def test_the_tutorials_block_is_taken_out_and_performed(alone: Runs) -> None:
    schedule = FixedLinear(start=8, full=FULL, total_steps=6)
    assert [s.seqlen for s in alone.samples("tutorial").values()] == [schedule.seqlen(step) for step in range(1, 9)]
    refused = alone.ended["tutorial with a typo"]
    assert "min_dificulty" in refused
    assert "tutorial with a typo.json" in refused


@pytest.mark.parametrize("case", ["library", "library of DeepSpeed's files"])
def test_the_data_efficiency_block_is_performed_with_its_index_and_its_dropping(alone: Runs, case: str) -> None:
    found = alone.samples(case)
    assert [found[1].seqlen, found[5].seqlen] == [8, FULL]
    assert any(s.kept_tokens is not None for s in found.values())
    assert found[8].kept_tokens is None
    assert (found[1].curriculum_share or 1) < 0.5
    assert found[8].curriculum_share is None


# Switched on in the middle of a run


def test_all_of_it_is_switched_on_in_the_middle_and_reported(alone: Runs, index: str) -> None:
    after = [s for s in alone.samples("all of it").values() if s.global_step > 6]
    assert [s.seqlen for s in after] == [SEQLEN.seqlen(step) for step in range(7, 13)]
    assert any(s.kept_tokens is not None for s in after)
    assert after[-1].kept_tokens is None
    assert (after[0].curriculum_share or 1) < 0.6
    before, told = alone.starts("all of it")
    assert (before.seqlen_schedule or {})["start"] == FULL
    assert before.curriculum_schedule == {}
    assert told.incident == "i-1"
    assert told.seqlen == 8
    assert told.seqlen_schedule == SEQLEN.to_json()
    assert told.seqlen_shortening == "reshape"
    assert told.random_ltd_schedule == DROPPING.to_json()
    assert told.curriculum_schedule == CurriculumSchedule.from_json(paced(index)).anchored_at(6).to_json()


def test_a_batch_size_warmup_is_switched_on_in_the_middle(alone: Runs) -> None:
    after = [s for s in alone.samples("a batch that grows").values() if s.global_step > 6]
    assert [s.global_batch_samples for s in after][:3] == [2, 2, 3]
    assert after[-1].global_batch_samples == 4
    assert alone.starts("a batch that grows")[-1].batch_size_schedule == GROWING.to_json()


def test_a_run_that_warms_up_ends_and_decays_by_tokens(alone: Runs) -> None:
    """It was to end at step 12 of its own settings, which are 9 full steps' worth of tokens here."""
    found, told = alone.samples("by tokens"), alone.starts("by tokens")[-1]
    assert (told.total_steps, told.total_tokens) == (None, 9 * 4 * FULL)
    last = found[max(found)]
    assert max(found) != 12
    assert last.consumed_tokens is not None
    assert 0 <= last.consumed_tokens - 9 * 4 * FULL < 4 * FULL
    for step in range(7, max(found) + 1):
        before = found[step - 1].consumed_tokens or 0
        assert found[step].lr == pytest.approx(BY_TOKENS.lr(step=step, consumed_tokens=before))


def test_a_decay_begins_where_the_warmup_ends_whatever_each_of_them_counts(alone: Runs) -> None:
    """The largest LR is the peak. With a decay from token 0 it never was: the warmup was multiplied by the decay."""
    rates = [s.lr or 0 for s in alone.samples("decay by tokens").values()]
    assert rates[:5] == pytest.approx([1e-3 * step / 5 for step in range(1, 6)])
    assert rates[5] == rates[4] == 1e-3  # no token since the warmup's end
    assert all(after < before for before, after in pairwise(rates[5:]))
    lr = LrSchedule.from_json(alone.starts("decay by tokens")[0].lr_schedule or {})
    assert (lr.warmup, lr.decay_unit, lr.decay_end) == (5, "tokens", 14 * 4 * FULL)
    assert lr.decay_start < 4 * (8 + 16 + 16 + 24 + 32)  # the tokens of the warmup's steps, less what is dropped
    mirrored = list(alone.samples("decay by steps").values())
    warming = [s for s in mirrored if (s.consumed_tokens or 0) < 300]
    start = LrSchedule.from_json(alone.starts("decay by steps")[0].lr_schedule or {}).decay_start
    assert start == len(warming) + 1 > 2
    assert mirrored[start - 1].lr == pytest.approx(1e-3, rel=0.25)
    assert (mirrored[-1].lr or 0) < 1e-4


def test_another_end_leaves_the_pace_as_it_was(alone: Runs) -> None:
    assert alone.ended["another end, on"] == "finished"
    before, told = alone.starts("another end")
    assert (told.total_steps, told.total_tokens) == (None, 9 * 4 * FULL)
    assert told.lr_schedule == before.lr_schedule
    assert max(alone.samples("another end")) == 9
