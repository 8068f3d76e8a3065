"""Lines that look like training steps and are not: inner loops, evaluations, reinforcement learning, skipped steps."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sentinel.sources.opening import open_sources
from sentinel.sources.step_kinds import Kind, StepKinds
from sentinel.vocabulary.errors import ConfigError
from sentinel.vocabulary.sample import Validation
from tests.sources.reading import megatron
from tests.sources.readings import told

STEPS = range(1, 13)


def loss(i: int) -> float:
    return round(9 - 0.5 * i, 2)


def written(tmp_path: Path, *lines: str, name: str = "a.log") -> Path:
    path = tmp_path / name
    path.write_text("\n".join(lines) + "\n")
    return path


def read(path: Path, **columns: str) -> tuple[list[tuple[int, int, float]], list[tuple[int, float]], list[str]]:
    """Attempt, step and loss of the samples, step and loss of the validations, and the notes."""
    (source,) = open_sources(path, columns)
    samples = [(one["attempt"], one["step"], one["loss"]) for one in told(source)]
    validations = [(one.global_step, one.loss) for one in source.others if isinstance(one, Validation)]
    return samples, validations, source.notes


TRAINING = [f"step {100 * i}/20000 | train_loss {loss(i)} | 99 ms" for i in STEPS]
INNER = [f"ttt_progress: batch {i}/782 batch_loss:{2.5 + i / 1000} running_bpb:1.1" for i in range(1, 80, 5)]
OF_STEPS = [(1, i, loss(i)) for i in STEPS]
OF_TRAINING = [(1, 100 * i, loss(i)) for i in STEPS]


@pytest.mark.parametrize("lines", [[*TRAINING, *INNER], [*INNER, *TRAINING], [*TRAINING[:6], *INNER, *TRAINING[6:]]])
def test_an_inner_loops_lines_are_left_out_wherever_they_stand(tmp_path: Path, lines: list[str]) -> None:
    samples, _, notes = read(written(tmp_path, *lines))
    assert samples == OF_TRAINING
    assert notes == ["left out, since other lines are the training steps: 16 lines `batch … batch_loss`"]


def test_the_real_steps_beside_an_inner_loop_are_read_where_no_word_stands_before_them(tmp_path: Path) -> None:
    lines = [f"{100 * i}/20000 train_loss: {loss(i)} train_time: 0.9m tok/s: 7669991" for i in STEPS]
    samples, validations, _ = read(written(tmp_path, "0/20000 val_loss: 9.0047 val_bpb: 3.48", *lines, *INNER))
    assert (samples, validations) == (OF_TRAINING, [(0, 9.0047)])


def test_a_log_whose_inner_loop_fills_its_head_is_refused(tmp_path: Path) -> None:
    path = written(tmp_path, *INNER, *(["of no step"] * 3000), *TRAINING)
    with pytest.raises(ConfigError, match=r"`batch … batch_loss` was read for the training steps until `step …"):
        read(path)
    assert read(path, step="step")[0] == OF_TRAINING


def test_a_log_that_counts_batches_alone_is_read_by_them(tmp_path: Path) -> None:
    samples, _, notes = read(written(tmp_path, *INNER))
    assert (len(samples), samples[0], notes) == (16, (1, 1, 2.501), [])


@pytest.mark.parametrize("before", [True, False])
def test_an_evaluation_that_repeats_a_step_is_a_validation_and_not_averaged_with_it(
    tmp_path: Path, before: bool
) -> None:
    lines = []
    for i in STEPS:
        both = [f"Step: {100 * i}, loss: {loss(i)}, lr: 0.1"]
        if not i % 4:
            both.insert(
                0 if before else 1, f"Step: {100 * i}, {{'train/loss': 5.25, 'validation/loss': {loss(i) + 1}}}"
            )
        lines += both
    samples, validations, _ = read(written(tmp_path, *lines))
    assert samples == OF_TRAINING
    assert validations == [(400, 8.0), (800, 6.0), (1200, 4.0)]


def test_training_and_validation_loss_of_one_line_are_both_read_where_no_other_line_has_the_steps(
    tmp_path: Path,
) -> None:
    lines = [f"Step: {i}, train_loss: {loss(i)}, val_loss: {loss(i) + 1}" for i in STEPS]
    samples, validations, _ = read(written(tmp_path, *lines))
    assert (samples, validations) == ([(1, i, loss(i)) for i in STEPS], [(i, loss(i) + 1) for i in STEPS])


OF_RL = [
    f"step {i} | policy_loss: 0.01{i} | reward: 1.{i} | kl: 0.00{i}\nAverage loss: 0.0{i} at step {i}" for i in STEPS
]
IN_DICTS = [f"{{'loss': 0.0{i}, 'reward': 0.5, 'kl': 0.01, 'learning_rate': 1e-06, 'epoch': 0.1}}" for i in STEPS]
OF_RL_ALONE = (
    "step {i} | loss= 0.0{i} reward_mean= 0.4{i} lr= 1e-06",
    "Step {i}: loss=0.0{i} mean_reward=0.4{i} lr=1e-06",
    "[step {i}] loss=0.0{i} mean_r=0.4{i} resp_tokens=81{i}",
    "iter {i}: loss 0.0{i}, resp_tokens=81{i}, time 12ms",
    "step {i}/100 loss: 0.0{i} avg_return: 12.{i}",
    "step={i} loss=0.0{i} clip_frac=0.1{i} entropy=0.5",
    "step {i} loss 0.0{i} kl 0.1{i} entropy 0.5{i}",
    "step {i} loss 0.0{i} advantages/mean: 0.1{i}",
    "{{'loss': 0.0{i}, 'grad_norm': 1.5, 'learning_rate': 1e-06, 'completions/mean_length': 51{i}.5, 'epoch': 0.{i}}}",
    "GRPO:  12%|#  | {i}/100 [01:20<09:50, 13.4s/it, loss=0.0{i}, reward_mean=0.4{i}]",
    '{{"step": {i}, "loss": 0.0{i}, "mean_reward": 0.4{i}}}',
    "{i}: loss 0.0{i}\nmean reward 0.{i}",
)
IN_JSON = [json.dumps({"step": i, "loss": i / 100, "reward/mean": 0.5, "objective/kl": 0.01}) for i in STEPS]
IN_CSV = ["step,loss,policy_loss,reward", *(f"{i},{i / 100},0.1,1.5" for i in STEPS)]


@pytest.mark.parametrize(
    ("lines", "name"), [(OF_RL, "a.log"), (IN_DICTS, "a.log"), (IN_JSON, "a.jsonl"), (IN_CSV, "a.csv")]
)
def test_a_log_of_reinforcement_learning_is_refused_unless_its_loss_is_named(
    tmp_path: Path, lines: list[str], name: str
) -> None:
    path = written(tmp_path, *lines, name=name)
    with pytest.raises(ConfigError, match=r"reinforcement learning \(it has an? .*--loss NAME"):
        read(path)
    samples, _, _ = read(path, loss="policy_loss" if "policy_loss" in lines[0] else "loss")
    assert len(samples) == 12


@pytest.mark.parametrize("form", OF_RL_ALONE)
def test_reinforcement_learning_is_recognised_by_one_number_that_nothing_else_has(tmp_path: Path, form: str) -> None:
    path = written(tmp_path, *(form.format(i=i) for i in STEPS))
    with pytest.raises(ConfigError, match=r"reinforcement learning .*--loss NAME"):
        read(path)


def test_a_named_loss_of_a_bar_is_read_as_the_bar_shows_it_last(tmp_path: Path) -> None:
    bar = "\rGRPO:  12%|#  | {i}/100 [01:20<09:50, 13.4s/it, loss={loss}, reward_mean=0.5]"
    drawn = [bar.format(i=i, loss=loss(i) + again) for i in STEPS for again in (2, 1, 0)]
    assert read(written(tmp_path, *drawn), loss="loss")[0] == OF_STEPS


def test_the_settings_of_a_framework_for_both_kinds_of_training_are_no_sign(tmp_path: Path) -> None:
    settings = [
        *("kl_coef: 0.1 entropy_coef: 0.01", "reward_weight: 1.0", "rollout_len: 512", "adv_norm: 1"),
        "clip_frac: 0.2",
    ]
    lines = [*settings, *(f"step {i} loss {loss(i)}" for i in STEPS)]
    assert read(written(tmp_path, *lines))[0] == OF_STEPS


@pytest.mark.parametrize(
    "extra",
    [
        *("rewards/chosen: 0.5 rewards/margins: 0.1 kl: 0.2", "kl: 0.3", "value: 3 policy: cosine"),
        *("chosen_reward=1.25 reject_reward=0.5 reward_margin=0.75 acc_mean=0.8", "entropy: 5.1", "reward: null"),
        *("clip_grad: 1.0 clip=100 clip_coef: 1.0 grad_clipped: 0.5", "padv: 3 response: 2"),
        *("cross_entropy: 2.1 kl: 0.1", "act_mem: 12.5 act_loss_scale: 1.0", "returned: 5 return code: 0"),
        "reward_bench/score: 0.7",
    ],
)
def test_one_word_of_reinforcement_learning_and_the_rewards_of_preferences_are_no_sign_of_it(
    tmp_path: Path, extra: str
) -> None:
    samples, _, _ = read(written(tmp_path, *(f"step {i} loss {loss(i)} {extra}" for i in STEPS)))
    assert samples == [(1, i, loss(i)) for i in STEPS]


def test_two_losses_that_may_both_be_the_training_loss_are_refused_with_their_names(tmp_path: Path) -> None:
    path = written(tmp_path, *(f"step {i} train_loss {loss(i)} lm_loss {loss(i) - 0.25}" for i in STEPS))
    with pytest.raises(ConfigError, match=r"train_loss 8\.5 and lm_loss 8.25; say which with --column loss=train_loss"):
        read(path)
    assert read(path, loss="lm_loss")[0] == [(1, i, loss(i) - 0.25) for i in STEPS]


def test_two_kinds_of_step_lines_of_equal_rank_are_refused_with_their_names(tmp_path: Path) -> None:
    path = written(
        tmp_path, *(f"step {i} loss {loss(i)}\niter {j} loss 0.5" for i in STEPS for j in (3 * i, 3 * i + 1))
    )
    with pytest.raises(ConfigError, match=r"both may be the training steps; say which with --column step="):
        read(path)
    samples, _, _ = read(path, step="iter")
    assert samples[0] == (1, 3, 0.5)


def test_names_that_no_line_has_are_refused(tmp_path: Path) -> None:
    path = written(tmp_path, *TRAINING)
    with pytest.raises(ConfigError, match=r"no line has a step and a loss by the names of --column loss=lm_los"):
        read(path, loss="lm_los")


def test_other_columns_of_a_line_are_taken_by_the_users_names(tmp_path: Path) -> None:
    path = written(tmp_path, *(f"step {i} loss {loss(i)} speed_of_learning 0.5 my norm: 2.5" for i in STEPS))
    (source,) = open_sources(path, {"lr": "speed_of_learning", "grad_norm": "my norm"})
    assert [(one["lr"], one["grad_norm"]) for one in told(source)] == [(0.5, 2.5)] * 12


@pytest.mark.parametrize("name", ["lrate", "LRate"])
def test_lrate_and_grad_are_read(tmp_path: Path, name: str) -> None:
    (source,) = open_sources(
        written(tmp_path, *(f"Step {i} | Loss: {loss(i)} | {name}: 1e-4 | Grad: 0.5" for i in STEPS)), {}
    )
    assert [(one["lr"], one["grad_norm"]) for one in told(source)] == [(1e-4, 0.5)] * 12


def test_epochs_that_are_given_as_steps_are_named_so(tmp_path: Path) -> None:
    samples, _, notes = read(written(tmp_path, *(f"Epoch [{i}/12] Loss: {loss(i)}" for i in STEPS)))
    assert samples == [(1, i, loss(i)) for i in STEPS]
    assert notes == ["the log counts epochs and no steps: a step here is an epoch"]


def test_a_skipped_step_that_is_tried_again_under_its_number_is_no_restart(tmp_path: Path) -> None:
    lines = [
        *(megatron(i, loss(i), scale=4096.0) for i in (1, 2, 3)),
        *(megatron(4, None, scale=scale, skipped=1) for scale in (2048.0, 1024.0)),
        *(megatron(i, loss(i), scale=1024.0) for i in (4, 5)),
        megatron(5, None, scale=512.0, skipped=1),
        megatron(6, loss(6), scale=512.0),
    ]
    assert read(written(tmp_path, *lines))[0] == [(1, i, loss(i)) for i in range(1, 7)]


def test_kinds_whose_steps_go_on_together_are_one_series_and_a_restart_is_none_of_an_inner_loop() -> None:
    often, seldom = Kind(False, 0, "step", "loss"), Kind(False, 0, "step", "lm_loss")
    kinds = StepKinds()
    for at in (*range(1, 31), *range(11, 31)):
        assert kinds.take(seldom if at % 10 == 0 else often, at)
    assert (kinds.left_out, kinds.problem) == ({}, "")


def summed_up(line: str) -> list[str]:
    """The training's lines, and after each third a line of that form with the same step and another loss."""
    steps = [[f"step {100 * i}: loss {loss(i)}", *([line.format(100 * i)] if i % 3 == 0 else [])] for i in STEPS]
    return [line for lines in steps for line in lines]


def test_a_summary_that_names_its_step_otherwise_is_not_averaged_with_the_training(tmp_path: Path) -> None:
    path = written(tmp_path, *summed_up("done: global step {}, loss 1.25"))
    with pytest.raises(ConfigError, match=r"two kinds of lines have step 300: .*--column step=global_step"):
        read(path)
    assert read(written(tmp_path, *summed_up("Saving dict for global step {}: loss = 1.25")))[0] == OF_TRAINING


def test_lines_that_are_averaged_for_want_of_a_rank_are_said(tmp_path: Path) -> None:
    _, _, notes = read(written(tmp_path, *summed_up("step {}: loss 1.25")))
    assert notes == [
        "4 lines have the step before them and another loss: taken for other ranks', a step is the mean of them"
    ]


def test_a_bars_share_in_percent_is_not_the_step(tmp_path: Path) -> None:
    bar = "\rsteps:  5%|##  | {i}/1000 [01:00<09:00,  1.67it/s, loss={loss}]"
    assert read(written(tmp_path, *(bar.format(i=100 * i, loss=loss(i)) for i in STEPS)))[0] == OF_TRAINING
