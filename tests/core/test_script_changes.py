"""A decision as changes of the run's own script: what differs from it, and nothing else."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from sentinel.plan.script_changes import baseline_of_script, new_scripts
from sentinel.vocabulary.errors import ConfigError, ScriptRefused
from sentinel.vocabulary.overrides import Anchor, Free, Once, Overrides, Standing
from sentinel.vocabulary.pacing import SeqlenSchedule

SCRIPT = (Path(__file__).parents[1] / "data" / "job_scripts" / "lists_in_variables.sh").read_text()
OWN = baseline_of_script(SCRIPT)
ANCHOR = Anchor(global_step=300, consumed_samples=108_032, consumed_tokens=108_032 * 2048)


def overrides(standing: Standing | None = None, once: Once | None = None) -> Overrides:
    name = "incident-1-r1"
    return Overrides(incident="incident-1", rollback=name, anchor=ANCHOR, standing=standing or Standing(), once=once)


def changed(made: str) -> list[str]:
    """The lines that the diff adds."""
    return [line[1:].strip().rstrip("\\ ") for line in made.splitlines() if re.match(r"\+[^+]", line)]


def test_what_the_script_asks_for_is_read_from_it() -> None:
    assert (OWN.seed, OWN.full_seqlen, OWN.adam_beta2, OWN.clip_grad, OWN.precision) == (43, 2048, 0.999, 1.0, "fp16")
    assert OWN.lr is not None
    assert OWN.lr.peak == 6e-5


def test_what_is_in_force_already_changes_no_byte() -> None:
    """Every decision carries all that holds, so that it outlives the next incident."""
    standing = Standing(lr=OWN.lr, adam_beta1=0.9, adam_beta2=0.999, weight_decay=0.01, clip_grad=1.0)
    made = new_scripts(SCRIPT, overrides(standing))
    assert (made.first.text, made.later.text) == (SCRIPT, SCRIPT)


def test_a_seed_and_a_lower_lr_are_the_only_lines_that_change() -> None:
    assert OWN.lr is not None
    standing = Standing(lr=replace(OWN.lr, peak=3e-5))
    made = new_scripts(SCRIPT, overrides(standing, Once(id="incident-1-r1", seed=44)))
    assert set(changed(made.first.diff)) == {"--seed 44", "--lr 3e-05", "--override-lr-scheduler"}
    assert set(changed(made.later.diff)) == {"--seed 44", "--lr 3e-05"}


def test_a_longer_warmup_lowers_the_lr_at_the_anchor_as_megatron_counts_it() -> None:
    """peak x consumed / warmup: eight times the warmup is an eighth of the LR, wherever the restart is."""
    assert OWN.lr is not None
    lr = replace(OWN.lr, warmup=8 * OWN.lr.warmup, anchor=ANCHOR.global_step)
    lines = changed(new_scripts(SCRIPT, overrides(Standing(lr=lr))).first.diff)
    warmup = next(int(line.split()[1]) for line in lines if line.startswith("--lr-warmup-samples"))
    wanted = lr.peak * ANCHOR.global_step / lr.warmup
    assert lr.peak * (ANCHOR.consumed_samples or 0) / warmup == pytest.approx(wanted, rel=0.01)
    with pytest.raises(ConfigError, match="is over at step 300"):
        new_scripts(SCRIPT, overrides(Standing(lr=replace(lr, warmup=299))))


def test_slw_is_all_of_its_changes_or_none() -> None:
    seqlen = SeqlenSchedule(start=64, full=2048, total_steps=2000, anchor_step=ANCHOR.global_step)
    assert OWN.lr is not None
    lr = replace(OWN.lr, warmup=8 * OWN.lr.warmup, anchor=ANCHOR.global_step)
    diff = new_scripts(SCRIPT, overrides(Standing(lr=lr, seqlen=seqlen))).first.diff
    assert "--rampup-batch-size" in "".join(line for line in diff.splitlines() if line.startswith("-"))
    for option in ("--train-tokens", "--lr-decay-tokens", "--train-samples 900000000", '"curriculum_learning"'):
        assert option in diff


@pytest.mark.parametrize(
    "once", [Once(id="incident-1-r1", skip_samples=512), Once(id="incident-1-r1", reset_moments=True)]
)
def test_what_only_a_trainer_with_overrides_can_do_is_refused(once: Once) -> None:
    with pytest.raises(ConfigError, match=r"can't be done by a job script"):
        new_scripts(SCRIPT, overrides(once=once))


def test_a_change_that_lint_finds_wrong_is_refused() -> None:
    standing = Standing(free=Free(environment={"GLOBAL_BATCH": "511"}))
    with pytest.raises(ScriptRefused, match="the changed run would be wrong"):
        new_scripts(SCRIPT, overrides(standing))


def test_a_free_variable_and_option_are_set_where_they_are() -> None:
    standing = Standing(free=Free(environment={"SAVE_INTERVAL": "100"}, options=("--eval-interval=200",)))
    assert set(changed(new_scripts(SCRIPT, overrides(standing)).first.diff)) == {
        "SAVE_INTERVAL=100",
        "--eval-interval 200",
    }
