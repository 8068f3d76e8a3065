"""The reference trainer: exact resume, the same data whoever runs it, and what it does when it is asked to stop."""

from __future__ import annotations

import json
import signal
import struct
import subprocess
import urllib.request
from pathlib import Path

import numpy as np
import pytest

from sentinel.adapters.journal import Journals
from sentinel.vocabulary.overrides import Anchor, Once, Overrides, TrainingSettings, encode_overrides
from sentinel.vocabulary.pacing import FixedLinear, LrSchedule
from sentinel.vocabulary.sample import CheckpointSaved, RunFinished, Sample, Validation
from tests.adapters.pagers import until
from tests.hooks.trainer import command, environment, losses, records, starts, train, under_way


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """40 steps in one go, with dropout, so that the RNG counts too."""
    folder = tmp_path_factory.mktemp("whole")
    train(
        folder,
        "--steps",
        "40",
        "--dropout",
        "0.1",
        "--save-interval",
        "20",
        "--validate-every",
        "20",
        "--tensorboard",
        "tb",
    )
    return folder


def test_a_resume_is_exact_bit_for_bit(whole: Path, tmp_path: Path) -> None:
    arguments = ("--steps", "40", "--dropout", "0.1", "--save-interval", "20", "--lr-decay", "40")
    train(tmp_path, *arguments[2:], "--steps", "20")
    train(tmp_path, *arguments)
    assert losses(tmp_path) == losses(whole)
    first, second = starts(tmp_path)
    assert (first.resumed_from, second.resumed_from) == (None, 20)
    assert (second.parent_attempt, second.first_sample_index, second.consumed_tokens) == (1, 80, 80 * 32)


def test_every_step_saving_and_validation_is_in_the_journal(whole: Path) -> None:
    told = records(whole)
    assert [r.global_step for r in told if isinstance(r, Sample)] == list(range(1, 41))
    assert [r.tag for r in told if isinstance(r, CheckpointSaved)] == ["global_step20", "global_step40"]
    assert [r.global_step for r in told if isinstance(r, Validation)] == [20, 40]
    assert [r.reason for r in told if isinstance(r, RunFinished)] == ["finished"]
    assert (whole / "checkpoints" / "latest").read_text() == "global_step40"
    assert (whole / "checkpoints" / "latest_checkpointed_iteration.txt").read_text() == "40"
    last = [r for r in told if isinstance(r, Sample)][-1]
    assert (last.consumed_samples, last.consumed_tokens, last.seqlen) == (160, 160 * 32, 32)
    assert last.adam_variance_l1 is not None
    assert last.adam_variance_max is not None
    assert 0 < last.adam_variance_max < last.adam_variance_l1
    logits = {r.global_step: (r.attention_logit_max, r.output_logit_max) for r in told if isinstance(r, Sample)}
    assert [step for step, (of_attention, _) in logits.items() if of_attention is not None] == [10, 20, 30, 40]
    assert all((of_output or 0) > 0 for step, (_, of_output) in logits.items() if step % 10 == 0)


@pytest.mark.full
@pytest.mark.parametrize("stage", [pytest.param(0, marks=pytest.mark.full), 2])
def test_two_ranks_train_on_the_same_data_as_one(tmp_path: Path, stage: int) -> None:
    arguments = ("--steps", "6", "--zero", str(stage))
    train(tmp_path / "one", *arguments)
    train(tmp_path / "two", *arguments, ranks=2)
    one, two = losses(tmp_path / "one"), losses(tmp_path / "two")
    assert list(two) == list(one) == list(range(1, 7))
    assert list(two.values()) == pytest.approx(list(one.values()), rel=1e-4)


@pytest.mark.full
def test_accumulation_changes_nothing_but_the_memory(tmp_path: Path) -> None:
    train(tmp_path / "one", "--steps", "4")
    train(tmp_path / "four", "--steps", "4", "--micro-batch", "1")
    assert list(losses(tmp_path / "four").values()) == pytest.approx(list(losses(tmp_path / "one").values()), rel=1e-4)


def overrides(step: int, *, seed: int | None = None) -> str:
    lr = LrSchedule(peak=1e-3, warmup=40, anchor=step, decay_start=5, decay_end=100)
    seqlen = FixedLinear(start=8, full=32, total_steps=12, anchor_step=step)
    once = Once(id="incident-1-r1", seed=seed) if seed is not None else None
    return encode_overrides(
        Overrides(
            incident="incident-1",
            rollback="incident-1-r1",
            anchor=Anchor(global_step=step),
            standing=TrainingSettings(lr=lr, seqlen=seqlen),
            once=once,
        )
    )


@pytest.mark.full
def test_overrides_take_effect_at_the_anchor_and_only_the_standing_ones_afterwards(tmp_path: Path) -> None:
    train(tmp_path, "--steps", "10", "--save-interval", "10", "--lr-decay", "100")
    (tmp_path / "state" / "overrides.json").write_text(overrides(10, seed=77))
    train(tmp_path, "--steps", "14", "--save-interval", "14", "--lr-decay", "100")
    train(tmp_path, "--steps", "24", "--lr-decay", "100")
    _, at_the_anchor, requeued = starts(tmp_path)
    assert (at_the_anchor.seed, at_the_anchor.applied_once) == (77, ("incident-1-r1",))
    assert (requeued.seed, requeued.applied_once, requeued.resumed_from) == (77, ("incident-1-r1",), 14)
    told = {r.global_step: r for r in records(tmp_path) if isinstance(r, Sample)}
    assert [told[s].seqlen for s in (10, 11, 16, 22, 24)] == [32, 8, 16, 32, 32]
    assert told[11].lr == pytest.approx(told[12].lr / 2, rel=1e-2)  # type: ignore[operator]
    assert told[11].consumed_tokens == 10 * 4 * 32 + 4 * 8
    assert at_the_anchor.lr == pytest.approx(told[11].lr)
    assert at_the_anchor.seqlen == 8


@pytest.mark.full
def test_a_one_shot_change_is_not_made_anywhere_but_at_its_anchor(tmp_path: Path) -> None:
    train(tmp_path, "--steps", "10", "--save-interval", "10", "--lr-decay", "100")
    (tmp_path / "state" / "overrides.json").write_text(overrides(5, seed=77))
    train(tmp_path, "--steps", "11", "--lr-decay", "100")
    assert (starts(tmp_path)[-1].seed, starts(tmp_path)[-1].applied_once) == (0, ())


def test_overrides_that_are_not_understood_stop_the_trainer_before_it_starts(tmp_path: Path) -> None:
    (tmp_path / "state").mkdir()
    (tmp_path / "state" / "overrides.json").write_text('{"schema": 99}')
    assert "schema 99" in train(tmp_path, "--steps", "2", expect=2).stderr


@pytest.mark.full
@pytest.mark.parametrize("ranks", [pytest.param(1, marks=pytest.mark.full), 2])
def test_all_ranks_save_where_the_save_file_is_written_and_end_where_the_kill_file_is(
    tmp_path: Path, ranks: int
) -> None:
    state = tmp_path / "state"
    state.mkdir()
    (state / "SAVE").touch()  # an earlier attempt's
    with under_way(tmp_path, "--stop-exit-code", "0", ranks=ranks) as trainer:
        assert not (tmp_path / "checkpoints").exists()
        (state / "SAVE").write_text("{}")
        until((tmp_path / "checkpoints" / "latest").exists)
        (state / "KILL").touch()
        assert trainer.wait(120) == 0
    told = records(tmp_path)
    assert isinstance(told[-1], RunFinished)
    assert told[-1].reason == "kill_file"
    saved = [r.tag for r in told if isinstance(r, CheckpointSaved)]
    assert saved == [(tmp_path / "checkpoints" / "latest").read_text()]  # once


@pytest.mark.full
def test_sigterm_finishes_the_step_and_says_so(tmp_path: Path) -> None:
    with under_way(tmp_path, "--stop-exit-code", "7", "--save-on-stop") as trainer:
        trainer.send_signal(signal.SIGTERM)
        assert trainer.wait(120) == 7
    told = records(tmp_path)
    assert isinstance(told[-1], RunFinished)
    assert told[-1].reason == "sigterm"
    assert (tmp_path / "checkpoints" / "latest").read_text() == f"global_step{told[-1].global_step}"


@pytest.mark.full
def test_kill_9_costs_at_most_the_last_line(tmp_path: Path) -> None:
    with under_way(tmp_path) as trainer:
        trainer.kill()
    journals = Journals(tmp_path / "state")
    steps = [r.global_step for r in journals.poll() if isinstance(r, Sample)]
    assert steps == list(range(1, len(steps) + 1))
    assert journals.unreadable == 0


@pytest.mark.full
@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda p: p.joinpath("empty.txt").write_text(""), "no line of ASCII text"),
        (lambda p: p.joinpath("short.txt").write_text("too short\n"), "too few"),
        (lambda p: p.joinpath("odd.bin").write_bytes(b"\x01\x02\x03"), "uint16"),
        (lambda p: (p.joinpath("x.bin").write_bytes(b"ab" * 99), p.joinpath("x.idx").write_bytes(b"??")), "MMIDIDX"),
    ],
)
def test_data_that_can_not_be_used_is_named(tmp_path: Path, make: object, says: str) -> None:
    make(tmp_path)  # type: ignore[operator]
    (data, *_) = sorted(p for p in tmp_path.iterdir() if p.suffix in (".bin", ".txt"))
    ran = train(tmp_path / "run", "--steps", "2", "--data", str(data), expect=2)
    assert says in ran.stderr
    assert data.stem in ran.stderr


@pytest.mark.full
def test_token_files_of_nanogpt_and_megatron_hold_the_same_tokens(tmp_path: Path) -> None:
    tokens = np.random.default_rng(0).integers(0, 500, 5000).astype(np.uint16)
    tokens.tofile(tmp_path / "nano.bin")
    tokens.tofile(tmp_path / "mega.bin")
    header = b"MMIDIDX\x00\x00" + struct.pack("<QBQQ", 1, 8, 1, 2)
    documents = struct.pack("<i", len(tokens)) + struct.pack("<q", 0) + struct.pack("<qq", 0, 1)
    (tmp_path / "mega.idx").write_bytes(header + documents)
    for name in ("nano", "mega"):
        data = str(tmp_path / f"{name}.bin")
        train(tmp_path / name, "--steps", "3", "--data", data, "--vocabulary", "512")
    assert losses(tmp_path / "nano") == losses(tmp_path / "mega")


@pytest.mark.full
def test_a_torn_latest_is_refused_rather_than_trained_over(tmp_path: Path) -> None:
    train(tmp_path, "--steps", "4", "--save-interval", "2", "--lr-decay", "100")
    (tmp_path / "checkpoints" / "latest").write_text("")
    ran = train(tmp_path, "--steps", "6", "--lr-decay", "100", expect=2)
    assert "global_step4" in ran.stderr


def test_what_only_this_machine_can_reach_is_not_announced(whole: Path) -> None:
    assert not (whole / "state" / "scrape.json").exists()


@pytest.mark.full
def test_metrics_are_announced_for_prometheus_as_long_as_they_are_there(tmp_path: Path) -> None:
    everywhere = ("--steps", "1000000", "--lr-decay", "100", "--metrics-address", "0.0.0.0")  # noqa: S104
    announced = tmp_path / "state" / "scrape.json"
    surroundings = environment() | {"SLURMD_NODENAME": "node17", "SLURM_JOB_ID": "4711"}
    with subprocess.Popen(
        command(tmp_path, *everywhere), cwd=tmp_path, env=surroundings, stdout=subprocess.DEVNULL
    ) as trainer:
        try:
            until(announced.exists)
            (group,) = json.loads(announced.read_text())
            assert group["labels"] == {"run": "run", "attempt": "1", "job": "4711"}
            host, _, port = group["targets"][0].partition(":")
            assert host == "node17"
            until(lambda: "sentinel_layer_adam_variance_l1{" in scraped(port))
            assert 'sentinel_loss_ratio_window_max{attempt="1",run="run"}' in scraped(port)
        finally:
            trainer.terminate()
            trainer.wait(120)
    assert json.loads(announced.read_text()) == []


def scraped(port: str) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60) as answer:
        return str(answer.read().decode())
