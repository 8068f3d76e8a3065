"""A run's own command or job script with a probe's folders in it; and the search that follows from what they show."""

from __future__ import annotations

from pathlib import Path

import pytest

from sentinel.jobscript.facts import ScriptFacts
from sentinel.jobscript.reading import read_command, read_text
from sentinel.jobscript.script_changes import baseline_of_script
from sentinel.lab.probes.command import Folders, command_of, own_trainer_options, script_of
from sentinel.lab.tune.search import Pacing, ProbeSeen, decide
from sentinel.lab.tune.task import task_of
from sentinel.lint import KnownSettings
from sentinel.plan.choose.policy import Tuning
from sentinel.vocabulary.errors import ConfigError
from tests.support.there import there

RUN = Path("/data/tr8")
PROBE = RUN / "state" / "tune-slw" / "start8-T40"
FOLDERS = Folders(
    working_directory=RUN,
    moved={
        RUN / "checkpoints": PROBE / "checkpoints",
        RUN / "state": PROBE,
        RUN / "tensorboard": PROBE / "tensorboard",
    },
)
MEGATRON = """\
#!/bin/bash
#SBATCH --nodes=2
SAVE=/data/tr8/checkpoints
ARGS=" \\
    --lr 6e-5 --min-lr 1e-6 --lr-warmup-samples 2000 --lr-decay-samples 40000 \\
    --seq-length 2048 --global-batch-size 8 --micro-batch-size 1 --train-samples 80000 \\
    --num-layers 4 --hidden-size 64 --num-attention-heads 4 \\
    --save $SAVE --load $SAVE --tensorboard-dir tensorboard --seed 43 --eval-interval 1000"
srun python pretrain_gpt.py $ARGS
"""


BY_VARIABLES = (Path(__file__).parents[1] / "data" / "job_scripts" / "lists_in_variables.sh").read_text()
"""Its checkpoints are below $PWD; its DeepSpeed JSON is a here-document."""


def megatron_task() -> tuple[ScriptFacts, Tuning]:
    return read_text(MEGATRON, "tr8").facts, Tuning(starts=(64,), durations=(500, 1000, 4000))


def test_every_word_that_names_a_folder_of_the_run_names_the_probes_instead() -> None:
    words = ("python", "train.py", "--save", "checkpoints", "--load=/data/tr8/checkpoints", "--tb", "./tensorboard")
    assert command_of(words, FOLDERS, ("--eval-interval=10",)) == (
        "python",
        "train.py",
        "--save",
        str(PROBE / "checkpoints"),
        f"--load={PROBE / 'checkpoints'}",
        "--tb",
        str(PROBE / "tensorboard"),
        "--eval-interval=10",
    )


def test_a_command_or_a_script_that_does_not_name_the_checkpoints_is_refused() -> None:
    with pytest.raises(ConfigError, match="does not name the checkpoints folder"):
        command_of(("python", "train.py", "--save", "elsewhere"), FOLDERS, ())
    with pytest.raises(ConfigError, match="does not name the checkpoints folder"):
        script_of(MEGATRON.replace("SAVE=/data/tr8/", "SAVE=/data/other/"), FOLDERS, (), None)


def test_the_reference_trainer_ends_at_the_horizon_and_its_lr_decays_to_where_it_did() -> None:
    words = ("python", "-m", "trainer_hooks.gpt", "--seqlen", "128", "--lr-warmup", "10", "--steps", "400")
    facts = read_command(words).facts
    task = task_of(Tuning(), facts)
    options = own_trainer_options(PROBE, facts, until_step=task.space.horizon_steps, tensorboard=False)
    assert command_of(words, FOLDERS, options)[: len(words)] == words
    assert {"--steps=30", "--lr-decay=400", "--save-interval=0", f"--save={PROBE / 'checkpoints'}"} <= set(options)
    assert not any(option.startswith("--tensorboard") for option in options)


def test_a_megatron_script_gets_the_probes_folders_the_options_and_the_pacing_in_its_json_or_options() -> None:
    facts, tuning = megatron_task()
    task = task_of(tuning, facts)
    assert (task.full, task.lr_warmup_steps, task.full_steps) == (2048, 250, 10000)
    made = script_of(MEGATRON, FOLDERS, ("--eval-interval=50",), None)
    read = read_text(made).facts
    assert read.lr == facts.lr
    assert f"--save {PROBE / 'checkpoints'} --load {PROBE / 'checkpoints'}" in made
    assert f"--tensorboard-dir {PROBE / 'tensorboard'}" in made
    assert "--eval-interval 50" in made
    assert "--seed 43" in made


def test_a_pacing_is_written_into_a_script_with_all_that_goes_with_it() -> None:
    script = BY_VARIABLES.replace("--rampup-batch-size 16 16 6_000_000", "")
    task = task_of(Tuning(starts=(64,), durations=(1200,)), read_text(script).facts)
    options = ("--save={checkpoints}", "--load={checkpoints}")
    overrides = task.overrides_in_script(Pacing(64, 1200), baseline_of_script(script))
    made = script_of(script, FOLDERS, options, overrides, KnownSettings(scheduler="lr-scheduler"))
    curriculum = there(read_text(made).facts.curriculum)
    assert (curriculum.min_difficulty, curriculum.max_difficulty) == (64, 2048)
    assert "--train-tokens" in made, "SLW ends by tokens"
    assert f"--load {PROBE / 'checkpoints'}" in made


def test_a_folder_that_a_script_does_not_show_is_asked_for_with_its_line() -> None:
    with pytest.raises(ConfigError, match="does not name the checkpoints folder"):
        script_of(BY_VARIABLES, FOLDERS, (), None)
    with pytest.raises(ConfigError, match=r'--load: \$PWD is not set.*"--load=\{checkpoints\}"'):
        script_of(BY_VARIABLES, FOLDERS, ("--save={checkpoints}",), None)


def test_the_space_follows_from_warmup_and_length_and_a_person_may_say_otherwise() -> None:
    facts = ScriptFacts(seq_length=1024, lr_warmup_iters=3000, train_iters=300000, global_batch_size=512)
    space = task_of(Tuning(), facts).space
    assert space.starts == (8, 16, 32, 64, 128, 256, 512)
    for answer in (20_000, 45_000, 60_000, 110_000, 270_000):  # Li, Zhang & He 2022, Table 1
        assert any(0.9 * answer <= duration <= answer for duration in space.durations)
    assert (space.first_duration, space.beginning_steps, space.horizon_steps) == (12000, 3000, 9000)
    said = task_of(Tuning(starts=(64,), horizon_steps=10000, validate_every=100, durations=(20000, 60000)), facts).space
    assert (said.starts, said.first_duration, said.horizon_steps) == ((64,), 20000, 10000)


@pytest.mark.parametrize("longest_calm", [20_000, 45_000, 60_000, 110_000, 270_000])
def test_the_search_comes_to_the_papers_answers(longest_calm: int) -> None:
    """Li, Zhang & He 2022, Table 1: an LR warmup of 3K steps."""
    space = task_of(Tuning(), ScriptFacts(seq_length=1024, lr_warmup_iters=3000, train_iters=300_000)).space
    seen: dict[Pacing, ProbeSeen] = {}
    while not (decision := decide(space, seen)).over:
        for probe in decision.probes:
            ill = probe.total_steps > longest_calm
            seen[probe] = ProbeSeen(fluctuated_at=5000) if ill else ProbeSeen(calm_through=space.horizon_steps)
    assert 0.9 * longest_calm <= there(decision.chosen).total_steps <= longest_calm
    assert len(seen) <= 5


def test_the_starts_of_each_kind_are_in_its_own_unit() -> None:
    facts = ScriptFacts(seq_length=256, lr_warmup_iters=10, train_iters=400)
    tuning = Tuning(starts=(64,), voc_index="voc")
    assert task_of(tuning, facts, "random-ltd").space.starts == (64,)
    assert task_of(tuning, facts, "voc").space.starts == (1, 2, 5, 10, 20, 40)
    said = task_of(Tuning(voc_starts=(3,), voc_index="voc"), facts, "voc")
    assert (said.space.starts, said.full) == ((3,), 100)
    with pytest.raises(ConfigError, match="voc_starts: each should be below 100 %"):
        task_of(Tuning(voc_starts=(3, 100), voc_index="voc"), facts, "voc")
    with pytest.raises(ConfigError, match="voc_index should name the folder"):
        task_of(Tuning(), facts, "voc")


@pytest.mark.parametrize(
    ("facts", "sentence"),
    [
        (ScriptFacts(seq_length=128), "LR warmup is unknown or 0"),
        (ScriptFacts(lr_warmup_iters=10), "full_seqlen can say it"),
        (ScriptFacts(seq_length=8, lr_warmup_iters=10), "each should be below 8 tokens"),
        (ScriptFacts(seq_length=128, lr_warmup_iters=10, train_iters=20), "the run has 20 steps"),
    ],
)
def test_what_is_missing_for_a_search_is_said_with_its_key(facts: ScriptFacts, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        task_of(Tuning(), facts)


@pytest.mark.parametrize(
    "wrong", [{"parallel": 0}, {"fluctuation": 1.0}, {"starts": (12,)}, {"options": ("eval-interval=5",)}]
)
def test_settings_that_make_no_sense_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ConfigError):
        Tuning(**wrong)  # type: ignore[arg-type]


def test_hydra_s_words_paths_in_the_checkpoints_and_variables_are_the_probes_too(tmp_path: Path) -> None:
    words = ("train.py", "out.dir=/data/tr8/checkpoints", "--load=checkpoints/global_step30", "lr=3e-3")
    own = PROBE / "checkpoints"
    made = command_of(words, FOLDERS, ())
    assert made == ("train.py", f"out.dir={own}", f"--load={own / 'global_step30'}", "lr=3e-3")
    assert command_of(("run.sh", "lr=1"), FOLDERS, (), (str(own),)) == ("run.sh", "lr=1")
    (tmp_path / "vocabulary.json").touch()
    inside = Folders(working_directory=tmp_path, moved={tmp_path: PROBE / "checkpoints"})
    reads = ("python", "train.py", f"--vocabulary={tmp_path / 'vocabulary.json'}")
    assert command_of((*reads, f"--save={tmp_path}"), inside, ())[:3] == reads
