"""A decision as changes of the run's own script: what differs from it, and nothing else."""

from __future__ import annotations

import json
import re
import subprocess
from dataclasses import fields, replace
from functools import partial
from pathlib import Path

import pytest

from sentinel import lint
from sentinel.jobscript import SetJson, rewrite
from sentinel.jobscript.given import given
from sentinel.jobscript.reading import read_text
from sentinel.jobscript.script_changes import baseline_of_script
from sentinel.plan.choose.ladder import DEFAULT_LADDER, Rung
from sentinel.plan.choose.mitigation import changes, overrides_for
from sentinel.plan.choose.pacings import with_slw
from sentinel.vocabulary.errors import ConfigError, ScriptRefused
from sentinel.vocabulary.overrides import Anchor, Free, Once, Overrides, TrainingSettings
from sentinel.vocabulary.pacing import (
    BatchSizeSchedule,
    CurriculumSchedule,
    DifficultySchedule,
    FixedLinear,
    FixedRoot,
    MetricSchedule,
    Position,
    RandomLtdSchedule,
    SeqlenSchedule,
    Track,
    staircase,
)
from sentinel.vocabulary.training_settings import OptimizerSettings, settings_of
from tests.jobscript.shell_sandbox import run
from tests.support.there import there

SCRIPT = (Path(__file__).parents[1] / "data" / "job_scripts" / "lists_in_variables.sh").read_text()
OWN = baseline_of_script(SCRIPT)
new_scripts = partial(lint.new_scripts, known=lint.KnownSettings(scheduler="lr-scheduler"))  # BigScience's fork
TR8 = SCRIPT.replace("GLOBAL_BATCH=512", "GLOBAL_BATCH=2048")
"""With tr8-104B's batch; the ramp from 16 by 16 over 6 million samples, the warmup and the decay are tr8's already."""

GROWING = BatchSizeSchedule(start=16, full=512, increment=16, ramp_samples=9)
DROPPING = RandomLtdSchedule(start=128, full=2048, total_steps=9)
PACED = CurriculumSchedule(
    metrics={
        "voc": MetricSchedule(
            difficulty=DifficultySchedule(kind="percentile", start=1, full=100, total_steps=9), index="indexes/voc"
        )
    }
)
ANCHOR = Anchor(global_step=300, consumed_samples=108_032, consumed_tokens=108_032 * 2048)


def overrides(standing: TrainingSettings | None = None, once: Once | None = None) -> Overrides:
    name = "incident-1-r1"
    return Overrides(
        incident="incident-1", rollback=name, anchor=ANCHOR, standing=standing or TrainingSettings(), once=once
    )


def changed(made: str) -> list[str]:
    """The lines that the diff adds."""
    return [line[1:].strip().rstrip("\\ ") for line in made.splitlines() if re.match(r"\+[^+]", line)]


def test_what_the_script_asks_for_is_read_from_it() -> None:
    assert (OWN.seed, OWN.full_seqlen, OWN.adam_beta2, OWN.clip_grad, OWN.precision) == (43, 2048, 0.999, 1.0, "fp16")
    assert there(OWN.lr).peak == 6e-5


def test_what_is_in_force_already_changes_no_byte() -> None:
    """Every decision carries all that holds, so that it outlives the next incident."""
    standing = TrainingSettings(lr=OWN.lr, adam_beta1=0.9, adam_beta2=0.999, weight_decay=0.01, clip_grad=1.0)
    made = new_scripts(SCRIPT, overrides(standing))
    assert (made.first.text, made.later.text) == (SCRIPT, SCRIPT)


@pytest.mark.parametrize("name", [f.name for f in fields(OptimizerSettings)])
def test_each_setting_of_the_optimizer_is_one_option_of_the_script(name: str) -> None:
    from_scratch = Anchor(global_step=0, consumed_samples=0, consumed_tokens=0)
    made = new_scripts(SCRIPT, replace(overrides(TrainingSettings(**{name: 0.25})), anchor=from_scratch))
    option = settings_of()[name].option
    assert changed(made.first.diff) == changed(made.later.diff) == [f"{option} 0.25"]
    assert getattr(baseline_of_script(made.first.text), name) == 0.25


@pytest.mark.parametrize(
    ("name", "stage", "flag"),
    [("adam_beta2", 0, "--adam-beta2"), ("adam_eps", 3, "--adam-eps"), ("clip_grad", 1, "--clip-grad")],
)
def test_what_an_engine_takes_from_its_checkpoint_no_script_changes_on_a_resume(
    name: str, stage: int, flag: str
) -> None:
    script = SCRIPT.replace("ZERO_STAGE=1", f"ZERO_STAGE={stage}")

    wanted = overrides(TrainingSettings(**{name: 0.25}))
    with pytest.raises(ConfigError, match=f"on a resume DeepSpeed takes {flag} from the checkpoint"):
        new_scripts(script, wanted)
    new_scripts(script.replace("    --deepspeed \\\n", "    --deepspeed --no-load-optim \\\n", 1), wanted)


def test_a_seed_and_a_lower_lr_are_the_only_lines_that_change() -> None:
    standing = TrainingSettings(lr=there(OWN.lr).with_peak(3e-5))
    made = new_scripts(SCRIPT, overrides(standing, Once(id="incident-1-r1", seed=44)))
    lowered = {"--seed 44", "--lr 3e-05", "--min-lr 3e-06"}
    assert set(changed(made.first.diff)) == {*lowered, "--override-lr-scheduler"}
    assert set(changed(made.later.diff)) == lowered
    assert baseline_of_script(made.first.text).lr == standing.lr


def decided(rung: Rung, text: str = SCRIPT, anchor: Anchor = ANCHOR) -> Overrides:
    named = {"incident": "incident-1", "rollback": "incident-1-r1"}
    return overrides_for(rung, baseline_of_script(text), **named, anchor=anchor, new_seed=44)


def test_a_longer_warmup_is_the_number_of_the_plan() -> None:
    made = decided(Rung(name="x8", hypothesis="…", lr_warmup_factor=8))
    assert changed(new_scripts(SCRIPT, made).first.diff) == ["--lr-warmup-samples 1730560", "--override-lr-scheduler"]
    assert changes(made, OWN) == ("LR warmup 216320 -> 1730560 samples from 0",)
    own = baseline_of_script(new_scripts(SCRIPT, made).first.text).lr
    assert own == replace(made.standing.lr, decay_start=own.decay_start)  # type: ignore[type-var, union-attr]
    late = Anchor(global_step=9000, consumed_samples=1_800_000, consumed_tokens=1_800_000 * 2048)
    with pytest.raises(ConfigError, match="one of 1730560 samples is over at the target, 1800000 samples"):
        decided(Rung(name="x8", hypothesis="…", lr_warmup_factor=8), anchor=late)


def test_a_warmup_that_begins_anywhere_else_can_not_be_said_to_megatron() -> None:
    assert OWN.lr is not None
    lr = replace(OWN.lr, warmup=8 * OWN.lr.warmup, anchor=108_032)
    with pytest.raises(ConfigError, match="counts the LR warmup from the run's beginning"):
        new_scripts(SCRIPT, overrides(TrainingSettings(lr=lr)))


def with_all(seqlen: SeqlenSchedule) -> TrainingSettings:
    return with_slw(TrainingSettings(lr=OWN.lr, seqlen=seqlen), OWN, ANCHOR)


def test_slw_is_all_of_its_changes_or_none() -> None:
    seqlen = FixedLinear(start=64, full=2048, total_steps=2000, anchor_step=ANCHOR.global_step)
    with pytest.raises(ConfigError, match="the decision or the script does not show where"):
        new_scripts(SCRIPT, overrides(TrainingSettings(lr=OWN.lr, seqlen=seqlen)))
    diff = new_scripts(SCRIPT, overrides(with_all(seqlen))).first.diff
    assert "--rampup-batch-size" in "".join(line for line in diff.splitlines() if line.startswith("-"))
    for option in ("--train-tokens", "--lr-decay-tokens", "--train-samples 900000000", '"curriculum_learning"'):
        assert option in diff


@pytest.mark.parametrize(
    "once", [Once(id="incident-1-r1", skip_samples=512), Once(id="incident-1-r1", reset_moments=True)]
)
def test_what_only_a_trainer_with_overrides_can_do_is_refused(once: Once) -> None:
    with pytest.raises(ConfigError, match=r"can't be done by a job script"):
        new_scripts(SCRIPT, overrides(once=once))


@pytest.mark.parametrize(
    "standing",
    [
        TrainingSettings(shorten="reshape", seqlen=FixedLinear(start=64, full=2048, total_steps=9, anchor_step=300)),
        TrainingSettings(batch_size=GROWING.anchored_at(ANCHOR.consumed_samples or 0)),
        TrainingSettings(random_ltd=DROPPING.anchored_at(300)),
        TrainingSettings(curriculum=PACED.anchored_at(300)),
    ],
)
def test_a_pacing_that_only_a_trainer_with_overrides_can_do_is_refused(standing: TrainingSettings) -> None:
    with pytest.raises(ConfigError, match=r"can't be done by a job script"):
        new_scripts(SCRIPT, overrides(standing))


@pytest.mark.parametrize("begun_at", [0, 100])
def test_what_the_run_had_before_is_the_scripts_own_and_no_change(begun_at: int) -> None:
    standing = TrainingSettings(
        shorten="reshape",
        batch_size=GROWING.anchored_at(begun_at),
        random_ltd=DROPPING.anchored_at(begun_at),
        curriculum=PACED.anchored_at(begun_at),
        total_tokens=10**12,
    )
    assert new_scripts(SCRIPT, overrides(standing)).first.text == SCRIPT


def test_slw_by_the_root_reaches_the_script_as_stages() -> None:
    seqlen = FixedRoot(start=64, full=2048, total_steps=2000, anchor_step=ANCHOR.global_step)
    diff = new_scripts(SCRIPT, overrides(with_all(seqlen))).first.diff
    assert '"fixed_discrete"' in diff
    added = "".join("".join(line[1:].split()) for line in diff.splitlines() if line.startswith("+"))
    assert f'"difficulty":{json.dumps(staircase(seqlen).difficulties, separators=(",", ":"))}' in added


def test_a_change_that_lint_finds_wrong_is_refused() -> None:
    standing = TrainingSettings(free=Free(environment={"GLOBAL_BATCH": "511"}))
    with pytest.raises(ScriptRefused, match="the changed run would be wrong"):
        new_scripts(SCRIPT, overrides(standing))


def test_a_free_variable_and_option_are_set_where_they_are() -> None:
    standing = TrainingSettings(free=Free(environment={"SAVE_INTERVAL": "100"}, options=("--eval-interval=200",)))
    assert set(changed(new_scripts(SCRIPT, overrides(standing)).first.diff)) == {
        "SAVE_INTERVAL=100",
        "--eval-interval 200",
    }


@pytest.mark.parametrize("target", [0, 1000, 3000, 6210, 9000])
@pytest.mark.parametrize("rung", DEFAULT_LADDER, ids=lambda rung: rung.name)
def test_the_default_ladder_is_carried_by_a_script_with_a_batch_ramp_as_it_is(rung: Rung, target: int) -> None:
    """tr8's ramp and warmup; 6210 and 3000 are what its people rolled back to, at 9000 the warmup is over."""
    own = baseline_of_script(TR8)
    at = Track(full=2048, batch=there(own.batch_size)).reach(Position(), "steps", target)
    anchor = Anchor(global_step=target, consumed_samples=at.samples, consumed_tokens=at.tokens)
    if rung.lr_warmup_factor == 1:  # Megatron's warmup counts from the run's beginning: the same is no change
        with pytest.raises(ConfigError, match=r"is over at the target|the run trains with what it sets already"):
            decided(rung, TR8, anchor)
        return
    made = decided(rung, TR8, anchor)
    text = new_scripts(TR8, made).first.text
    now = baseline_of_script(text)
    lr, seqlen = made.standing.lr, made.standing.seqlen
    assert lr is not None
    assert now.lr is not None
    assert own.lr is not None
    assert (now.lr.unit, now.lr.warmup, now.lr.decay_end) == (lr.unit, lr.warmup, lr.decay_end)
    if rung.seqlen_start is None:
        assert text.count("--rampup-batch-size") == 1
        assert lr.warmup == own.lr.warmup * (rung.lr_warmup_factor or 1)
        return
    assert seqlen is not None
    assert now.batch_size is not None
    assert not now.batch_size.warms_up
    assert now.total_tokens == made.standing.total_tokens == 300_000_000 * 2048
    assert now.total_samples == 900_000_000
    for step in range(target + 1, (seqlen.end_step or 0) + 20, 37):
        assert there(now.seqlen).seqlen(step) == seqlen.seqlen(step), step
    if at.samples >= 216_320:
        assert lr.warmup == 216_320
        return
    track = Track(full=2048, batch=now.batch_size, seqlen=seqlen)
    end = track.reach(at, "samples", lr.warmup)
    assert end.samples == lr.warmup
    assert 0 <= end.tokens - 216_320 * 2048 < 2048 * seqlen.seqlen(end.step)


def test_slw_from_the_ladder_is_what_bigscience_wrote_by_hand() -> None:
    """tr8b: a curriculum in the here-document, no batch ramp, end and decay by tokens, warmup of 3_750_000 samples."""
    by_hand = Rung(name="by hand", hypothesis="…", target="scratch", seqlen_start=64, seqlen_total_steps=36_000)
    made = decided(by_hand, TR8, Anchor(global_step=0, consumed_samples=0, consumed_tokens=0))
    told = read_text(new_scripts(TR8, made).first.text).facts
    assert told.rampup_batch_size is None
    assert (told.train_tokens, told.lr_decay_tokens) == (300_000_000 * 2048, 126_953_125 * 2048)
    assert told.lr_decay_samples is None
    assert told.lr_warmup_samples == pytest.approx(3_750_000, rel=0.05)
    theirs = FixedLinear(start=64, full=2048, total_steps=36_000)
    ours = baseline_of_script(new_scripts(TR8, made).first.text).seqlen
    assert all(there(ours).seqlen(step) == theirs.seqlen(step) for step in range(1, 36_500, 11))


def test_an_option_is_taken_away_with_its_values_and_a_switch_is_added() -> None:
    standing = TrainingSettings(free=Free(options=("--bf16",), removed=("--fp16", "--rampup-batch-size")))
    text = new_scripts(SCRIPT, overrides(standing)).first.text
    before, after = ({o.flag for o in given(t).options} for t in (SCRIPT, text))
    assert (before - after, after - before) == ({"--fp16", "--rampup-batch-size"}, {"--bf16"})
    json_ = there(given(text).deepspeed)
    assert (json_["fp16"]["enabled"], json_["bf16"]["enabled"]) == (False, True)


def test_slw_without_an_lr_of_its_own_decays_as_the_script_does() -> None:
    seqlen = FixedLinear(start=64, full=2048, total_steps=2000, anchor_step=ANCHOR.global_step)
    standing = TrainingSettings(seqlen=seqlen, total_tokens=300_000_000 * 2048)
    lines = changed(new_scripts(SCRIPT, overrides(standing)).first.diff)
    assert f"--lr-decay-tokens {126_953_125 * 2048}" in lines
    assert f"--train-tokens {300_000_000 * 2048}" in lines


MADE = """#!/bin/bash
config_json="ds_config_${NODES:-1}.json"
sed "s/GBSIZE/8/" template.json \\
    | sed "s/MBSIZE/2/" \\
      > ${config_json}  # as Microsoft's examples make it
options="--deepspeed --deepspeed_config ${config_json} --seed 43 --clip-grad 1.0"
deepspeed pretrain_gpt.py --lr 1e-4 --num-layers 2 ${options}
"""
TEMPLATE = '{"train_batch_size": GBSIZE, "gradient_clipping": 1.0, "a b": {"it\'s": [MBSIZE]}}'


def with_template(script: str) -> str:
    template = f"cat > template.json <<'EOT'\nX {TEMPLATE}\nEOT\nsed -i 's/^X //' template.json\n"
    return script.replace("config_json=", f"{template}config_json=", 1)


def test_clipping_changes_the_json_that_a_command_makes_from_a_template() -> None:
    made = new_scripts(MADE, overrides(TrainingSettings(clip_grad=0.25))).first
    ran = run(with_template(made.text), options=False)
    wanted = {"train_batch_size": 8, "gradient_clipping": 0.25, "a b": {"it's": [2]}}
    assert json.loads(ran.configs["ds_config_1.json"]) == wanted
    assert "--clip-grad 0.25" in made.text
    (trained,) = [call for call in ran.programs if call[0] == "deepspeed"]
    assert trained[-2:] == ["--clip-grad", "0.25"]


def test_several_keys_of_a_made_json_are_each_set_and_a_broken_one_stops_the_job() -> None:
    keys = [SetJson(path=("a b", "new"), value={"it's": "$X"}), SetJson(path=("gradient_clipping",), value=0.5)]
    text = with_template(rewrite(MADE, keys).text)
    ran = json.loads(run(text, options=False).configs["ds_config_1.json"])
    assert (ran["gradient_clipping"], ran["a b"]) == (0.5, {"it's": [2], "new": {"it's": "$X"}})
    with pytest.raises(subprocess.CalledProcessError):
        run(text.replace("X {", "X [{"), options=False)


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        ("# as Microsoft's", "; rm -f x #", "another command follows"),
        ('sed "s/GB', 'if true; then\nsed "s/GB', "only if a condition holds"),
        ("options=", "sed -i s/1/2/ ${config_json}\noptions=", "edited there after it is written"),
        ("options=", "echo >> ${config_json}\noptions=", "which one counts"),
        ("> ${config_json} ", "> other.json ", "no here-document in it holds"),
    ],
)
def test_a_json_whose_making_is_not_sure_is_left_alone(old: str, new: str, why: str) -> None:
    text = MADE.replace(old, new)
    text = text.replace("examples make it\n", "examples make it\nfi\n") if "if true" in new else text
    with pytest.raises(ScriptRefused, match=why):
        rewrite(text, [SetJson(path=("gradient_clipping",), value=0.5)])
