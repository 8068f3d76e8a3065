"""A script that starts Hugging Face's Trainer: what its options say, and what a decision may change in them."""

from __future__ import annotations

import pytest

from sentinel.jobscript.reading import read_text
from sentinel.jobscript.script_changes import baseline_of_script
from sentinel.lint import new_scripts
from sentinel.plan.choose.ladder import Rung
from sentinel.plan.choose.mitigation import overrides_for
from sentinel.vocabulary.errors import ConfigError
from sentinel.vocabulary.overrides import Anchor
from tests.support.there import there

SCRIPT = """\
#!/bin/bash
#SBATCH --array=1-10%1
SEED=7
ARGS=(
    --output_dir out --do_train  # and evaluate
    --max_steps 1000 --lr_scheduler_type=cosine
    --learning_rate 3e-4 --warmup_ratio 0.05
    --per_device_train_batch_size 8 --gradient_accumulation_steps 4
    --seed $SEED --max_grad_norm=1.0 --adam-beta2 0.999 --bf16 True
)
srun torchrun --nproc_per_node 8 run_clm.py "${ARGS[@]}" --resume_from_checkpoint True
"""


def changed(text: str = SCRIPT, *, step: int = 300, **named: object) -> str:
    rung = Rung(name="drawn", hypothesis="drawn", **named)  # type: ignore[arg-type]
    made = overrides_for(
        rung, baseline_of_script(text), incident="i", rollback="i-r1", anchor=Anchor(global_step=step), new_seed=44
    )
    return new_scripts(text, made).first.diff


def lines(diff: str) -> list[str]:
    return [line for line in diff.splitlines() if line[:1] in "+-" and line[:3] not in ("+++", "---")]


def test_the_options_and_trainers_defaults_are_the_runs_baseline() -> None:
    own = baseline_of_script(SCRIPT)
    assert (own.seed, own.clip_grad, own.adam_beta2, own.weight_decay) == (7, 1.0, 0.999, 0.0)
    assert (own.total_steps, own.precision) == (1000, "bf16")
    assert read_text(SCRIPT).names["--clip-grad"] == "--max_grad_norm"
    assert baseline_of_script(SCRIPT.replace("--seed", "--data_seed 9 --seed")).seed == 9


@pytest.mark.parametrize("style", ["linear", "cosine", "constant", "constant_with_warmup"])
@pytest.mark.parametrize("warmup", ["", "--warmup_steps 30", "--warmup_steps 0.05", "--warmup_ratio 0.0333"])
def test_the_lr_is_the_one_that_trainers_scheduler_gives_for_the_same_options(style: str, warmup: str) -> None:
    transformers = pytest.importorskip("transformers")
    torch = pytest.importorskip("torch")
    text = SCRIPT.replace("--warmup_ratio 0.05", warmup).replace("type=cosine", f"type={style}")
    lr = there(baseline_of_script(text).lr)
    optimizer = torch.optim.AdamW([torch.nn.Parameter(torch.zeros(1))], lr=3e-4)
    steps = {"": 0, "--warmup_steps 30": 30, "--warmup_steps 0.05": 50, "--warmup_ratio 0.0333": 34}[warmup]
    scheduler = transformers.get_scheduler(style, optimizer, 0 if style == "constant" else steps, 1000)
    for step in range(1, 1001):
        assert lr.lr(step=step) == pytest.approx(optimizer.param_groups[0]["lr"], rel=1e-9, abs=1e-15)
        optimizer.step()
        scheduler.step()


@pytest.mark.parametrize("way", ["--lr_scheduler_type=polynomial", "--lr_scheduler_type $STYLE"])
def test_a_scheduler_that_is_no_such_formula_is_not_taken_for_one(way: str) -> None:
    assert baseline_of_script(SCRIPT.replace("--lr_scheduler_type=cosine", way)).lr is None


def test_seed_and_clipping_change_and_nothing_else() -> None:
    assert lines(changed(reseed=True, clip_grad=0.25)) == [
        "-    --seed $SEED --max_grad_norm=1.0 --adam-beta2 0.999 --bf16 True",
        "+    --seed 44 --max_grad_norm=0.25 --adam-beta2 0.999 --bf16 True",
    ]
    by_data = SCRIPT.replace("--seed $SEED", "--seed $SEED --data-seed=3")
    assert "+    --seed $SEED --data-seed=44" in changed(by_data, reseed=True)


@pytest.mark.parametrize(
    ("named", "text", "flag"),
    [
        ({"lr_factor": 0.5}, SCRIPT, "--learning_rate"),
        ({"lr_warmup_factor": 20.0}, SCRIPT, "--warmup_steps"),
        ({"adam_beta2": 0.95}, SCRIPT, "--adam_beta2"),
        ({"weight_decay": 0.3}, SCRIPT, "--weight_decay"),
        ({"clip_grad": 0.25}, SCRIPT.replace("--bf16", "--deepspeed ds.json --bf16"), "--max_grad_norm"),
    ],
)
def test_what_trainer_takes_from_the_checkpoint_is_refused_on_a_resume(
    named: dict[str, float], text: str, flag: str
) -> None:
    said = f"on a resume Hugging Face's Trainer takes {flag} from the checkpoint: use StabilityCallback"
    with pytest.raises(ConfigError, match=said):
        changed(text, **named)


def test_from_scratch_all_of_it_can_be_changed() -> None:
    assert lines(changed(step=0, lr_factor=0.5, adam_beta2=0.95, weight_decay=0.3)) == [
        "-    --learning_rate 3e-4 --warmup_ratio 0.05",
        "+    --learning_rate 0.00015 --warmup_ratio 0.05",
        "-    --seed $SEED --max_grad_norm=1.0 --adam-beta2 0.999 --bf16 True",
        "+    --seed $SEED --max_grad_norm=1.0 --adam-beta2 0.95 --bf16 True",
        '-srun torchrun --nproc_per_node 8 run_clm.py "${ARGS[@]}" --resume_from_checkpoint True',
        '+srun torchrun --nproc_per_node 8 run_clm.py "${ARGS[@]}" --weight_decay 0.3 --resume_from_checkpoint True',
    ]


def test_the_lr_that_is_planned_is_the_one_that_the_changed_script_asks_for() -> None:
    rung = Rung(name="drawn", hypothesis="drawn", lr_warmup_factor=3.0, lr_factor=0.5)
    own = baseline_of_script(SCRIPT)
    made = overrides_for(rung, own, incident="i", rollback="i-r1", anchor=Anchor(global_step=0), new_seed=44)
    planned, written = made.standing.lr, baseline_of_script(new_scripts(SCRIPT, made).first.text).lr
    assert planned is not None
    assert written is not None
    assert [planned.lr(step=n) for n in range(1, 1001)] == pytest.approx([written.lr(step=n) for n in range(1, 1001)])


def test_what_no_option_does_is_refused() -> None:
    with pytest.raises(ConfigError, match="skip_samples can't be done by a job script"):
        changed(skip_samples=100)
    with pytest.raises(ConfigError, match="the trainer has not reported the full length"):
        changed(seqlen_start=64, seqlen_total_steps=100)
