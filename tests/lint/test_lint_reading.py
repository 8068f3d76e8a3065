"""What lint reads from job scripts, commands, logs and DeepSpeed JSONs, and what it says that it could not."""

from __future__ import annotations

import subprocess
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given as for_all
from hypothesis import strategies as st

from sentinel.demo.configuration import trainer_command
from sentinel.jobscript.facts import BatchRamp, Curriculum, declared_size
from sentinel.jobscript.given import Given, given
from sentinel.jobscript.option_facts import DEFAULTS, NAMES, PRESETS
from sentinel.jobscript.reading import Read, read_command, read_text
from sentinel.lint import in_its_words, lint
from sentinel.vocabulary.errors import ConfigError
from tests.jobscript.shell_sandbox import BASH, FLOATS, SCRIPTS, WHOLE, run
from tests.support.there import there
from tests.support.wide_scripts import WIDE, script

LOG = Path(__file__).parents[1] / "data" / "megatron_logs" / "llama_1b3_2023-08.log"
TEXTS = {path.stem: path.read_text() for path in SCRIPTS}


def values(given_: Given) -> dict[str, str]:
    return {o.flag: " ".join(o.values) for o in given_.options if o.unread is None}


def whys(read: Read) -> dict[str, str]:
    return {unread.what: unread.why for unread in read.unread}


def test_tr8_is_read_from_a_script_like_its_own_and_its_errors_are_found() -> None:
    read = read_text(WIDE)
    facts = read.facts
    assert (facts.hidden_size, facts.ffn_hidden_size, facts.gated_ffn) == (16384, 20480, False)
    assert facts.rampup_batch_size == BatchRamp(start=16, increment=16, samples=6_000_000)
    assert (facts.world_size, facts.gpus_per_node, facts.time_limit_min) == (256, 4, 1200)
    assert (facts.declared_parameters, facts.precision, facts.initial_loss_scale) == (104e9, "fp16", 2.0**12)
    assert there(facts.deepspeed).zero_stage is None
    assert whys(read) == {"the DeepSpeed JSON": "$ZERO_STAGE is not set in the script"}
    errors = {finding.what for finding in lint(facts) if finding.severity == "error"}
    assert errors == {"ffn_size", "parameters_as_declared"}


@pytest.mark.parametrize("name", TEXTS)
def test_options_are_what_the_real_shell_gives_the_trainer(name: str) -> None:
    real = run(TEXTS[name]).options
    read = values(given(TEXTS[name]))
    found = {flag for flag in (*FLOATS, *WHOLE) if flag in read}
    assert found
    for flag in found:
        kind = float if flag in FLOATS else int
        assert kind(read[flag]) == real[flag.removeprefix("--").replace("-", "_")], flag
    unread = {o.flag for o in given(TEXTS[name]).options if o.unread is not None}
    for flag in {*FLOATS, *WHOLE} - found - unread:
        assert real[flag.removeprefix("--").replace("-", "_")] is None, flag


@for_all(st.integers(-50, 50), st.integers(-50, 50), st.sampled_from("+-*/"), st.integers(-9, 9).filter(bool))
def test_sums_come_out_as_whole_numbers_that_divide_towards_zero(a: int, b: int, sign: str, c: int) -> None:
    read = values(given(script(f"--lr $(( ($A {sign} {c}) - {b} ))", f"A={a}")))
    quotient = abs(a) // abs(c) * (1 if (a < 0) == (c < 0) else -1)
    assert int(read["--lr"]) == {"+": a + c, "-": a - c, "*": a * c, "/": quotient}[sign] - b


@pytest.mark.parametrize("sum_", ["7 / -2", "-7 / 2", "3 * (4 - 9) / 2", "-(5) + 2", "100 - 3 - 2"])
def test_the_shell_calculates_the_same(sum_: str) -> None:
    shell = subprocess.run([BASH, "-c", f"echo $(({sum_}))"], capture_output=True, text=True, check=True)
    assert values(given(script(f"--lr $(({sum_}))")))["--lr"] == shell.stdout.strip()


def test_arguments_that_can_t_be_seen_leave_megatron_s_defaults_open() -> None:
    whole, partial = read_text(script("")), read_text(script("--fp16 --lr 1e-4 $EXTRA_ARGS"))
    assert (whole.facts.adam_beta2, whole.facts.gated_ffn, whole.facts.save_interval) == (0.999, False, 0)
    assert (partial.facts.adam_beta2, partial.facts.gated_ffn, partial.facts.save_interval) == (None, None, None)
    assert whys(partial)["$EXTRA_ARGS"] == "$EXTRA_ARGS is not set in the script"


def test_an_option_that_is_given_only_sometimes_is_not_known() -> None:
    read = read_text(script("$ARGS", "ARGS='--lr 1e-4'", "if true; then ARGS+=' --swiglu --lr 2e-4'; fi"))
    assert (read.facts.lr, read.facts.gated_ffn) == (None, None)
    assert set(whys(read)) == {"--lr", "--swiglu"}


def test_a_json_elsewhere_is_said_and_can_be_read_on_its_own() -> None:
    assert whys(read_text(script("--deepspeed_config ds.json"))) == {
        "the DeepSpeed JSON": "it is in ds.json: lint that file, too"
    }
    alone = read_text("{}", "tr8b-104B")
    assert (alone.format, alone.facts.declared_parameters) == ("deepspeed json", 104e9)


def test_a_json_with_numbers_that_no_run_has_is_said() -> None:
    read = read_text('{"train_batch_size": -1, "fp16": {"enabled": true}}')
    assert read.facts.deepspeed is None
    assert "train_batch_size should be a positive number, not -1" in whys(read)["the DeepSpeed JSON"]


def test_a_log_s_arguments_are_the_facts() -> None:
    read = read_text(LOG.read_text())
    facts = read.facts
    assert read.format == "megatron log"
    assert read.unread == ()
    assert (facts.num_layers, facts.hidden_size, facts.ffn_hidden_size, facts.gated_ffn) == (24, 2048, 5504, True)
    assert (facts.world_size, facts.padded_vocab_size, facts.num_experts) == (8, 32000, 1)
    assert (facts.lr_warmup_iters, facts.lr_warmup_samples, facts.train_samples) == (2000, None, None)
    assert {finding.what: finding.severity for finding in lint(facts) if finding.severity != "note"} == {
        "warmup_against_total": "warning",
        "saves_at_all": "warning",
        "deepspeed_agrees": "error",
    }


def test_the_last_start_in_a_log_counts_and_its_pace_is_measured() -> None:
    step = " iteration {i}/ 9 | elapsed time per iteration (ms): {ms} | learning rate: 0 | global batch size: {b} | x"
    paces = [(1, 9000, 16), (2, 20000, 32), (3, 40000, 32), (4, 21000, 32)]
    steps = [step.format(i=i, ms=ms, b=b) for i, ms, b in paces]
    again = LOG.read_text().replace("hidden_size ..................................... 2048", "hidden_size ... 4096")
    tail = "\n".join([*steps, "time (ms) | save-checkpoint: 46122.21", ""])
    facts = read_text(f"{LOG.read_text()}{step.format(i=1, ms=1, b=64)}\n{again}{tail}").facts
    assert (facts.hidden_size, facts.step_time_s, facts.save_time_s) == (4096, 21.0, 46.12221)


def test_arguments_behind_torchrun_s_prefix_are_read() -> None:
    read = read_text("\n".join(f"[default0]:{line}" for line in LOG.read_text().splitlines()))
    assert read.facts == read_text(LOG.read_text()).facts


def test_a_log_that_ends_within_its_arguments_leaves_the_rest_open() -> None:
    text = LOG.read_text()
    read = read_text(text[: text.index("0.0003") + 3])
    assert whys(read)["the arguments"] == "the log ends before they do"
    assert whys(read)["--lr"] == "the log ends in this line"
    assert (read.facts.lr, read.facts.hidden_size, read.facts.lr_warmup_iters) == (None, 2048, None)


@pytest.mark.parametrize("text", ["", "echo hello", "if", '{"a": ', "#!/bin/bash\n\0"])
def test_what_is_none_of_these_is_refused(text: str) -> None:
    with pytest.raises(ConfigError):
        read_text(text)


@for_all(st.text(alphabet=st.sampled_from("-=.$(){}[]'\"\n argumentsoflr0123456789"), max_size=200))
def test_no_text_breaks_the_reading(text: str) -> None:
    for each in (text, f"{LOG.read_text()[:400]}{text}", script(text.replace("\n", " "))):
        try:
            read_text(each)
        except ConfigError as error:
            assert str(error)  # noqa: PT017 - either answer is right, a crash is not


def test_our_own_trainer_is_read_from_its_command() -> None:
    command = [*trainer_command(Path("run"), 0), "--seqlen-start", "8", "--seqlen-warmup-steps", "60"]
    read = read_command(["torchrun", "--nproc_per_node", "2", *command[1:]])
    facts = read.facts
    assert (facts.num_layers, facts.hidden_size, facts.seq_length, facts.train_iters) == (4, 64, 128, 240)
    assert (facts.lr, facts.lr_warmup_iters, facts.save_interval, facts.world_size) == (3e-2, 60, 10, 2)
    assert facts.curriculum == Curriculum(
        min_difficulty=8, max_difficulty=128, difficulty_step=8, schedule="fixed_linear", total_steps=60
    )
    sentences = " ".join(finding.sentence for finding in in_its_words(read, lint(facts)))
    assert "--tokens" in sentences
    assert "--train-tokens" not in sentences


def test_a_command_s_quoted_words_stay_whole() -> None:
    facts = read_command(["python", "train.py", "--lr=1e-4", "--rampup-batch-size", "16", "16", "1000"]).facts
    assert (facts.lr, facts.rampup_batch_size) == (1e-4, BatchRamp(start=16, increment=16, samples=1000))
    with pytest.raises(ConfigError, match="which program is the trainer"):
        read_command(["echo", "hello"])


@cache
def settings() -> Any:
    from trainer_hooks.gpt.arguments import parse  # torch comes with it

    return parse(["--steps", "10"])


def test_presets_and_defaults_are_the_trainer_s() -> None:
    from trainer_hooks.gpt.model import PRESETS as THEIRS

    assert {name: (s.layers, s.width, s.heads, s.seqlen) for name, s in THEIRS.items()} == dict(PRESETS)
    names = {
        "min_lr": "lr_min",
        "adam_beta1": "beta1",
        "adam_beta2": "beta2",
        "clip_grad": "clip",
        "global_batch_size": "global_batch",
        "eval_interval": "validate_every",
    }
    assert {name: getattr(settings(), names.get(name, name)) for name in DEFAULTS} == DEFAULTS
    options = " ".join(NAMES.values()).split()
    assert all(hasattr(settings(), o.removeprefix("--").replace("-", "_")) for o in options if o.startswith("--"))


@pytest.mark.parametrize(("said", "size"), [("104B", 104e9), ("1.3e9", 1.3e9), ("1B3", 1.3e9), ("760M", 760e6)])
def test_a_size_on_the_command_line(said: str, size: float) -> None:
    assert declared_size(said) == pytest.approx(size)
    with pytest.raises(ConfigError):
        declared_size(f"about {said}")


@pytest.mark.parametrize(
    "script",
    [
        "#SBATCH --time=" + "9" * 400 + ":00\nsrun python pretrain_gpt.py --seq-length 32\n",
        "#SBATCH --gpus-per-node=" + "9" * 5000 + "\nsrun python pretrain_gpt.py --seq-length 32\n",
        "srun python pretrain_gpt.py --seq-length 32 --hidden-size 1" + "0" * 400 + "\n",
    ],
)
def test_a_number_of_hundreds_of_digits_is_no_fact(script: str) -> None:
    read = read_text("#!/bin/bash\n" + script)
    assert (read.facts.seq_length, read.facts.hidden_size, read.facts.time_limit_min) == (32, None, None)


def test_what_a_log_prints_in_place_of_a_time_is_not_measured() -> None:
    lines = "elapsed time per iteration (ms): 1.2.3 | global batch size: " + "9" * 5000 + "\n> save-checkpoint: 1.2.3\n"
    read_text(
        "------------------------ arguments ------------------------\n  seq_length ......... 32\n"
        "-------------------- end of arguments ---------------------\n" + lines
    )
