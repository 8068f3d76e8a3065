"""Rewriting a job script: what the trainer gets afterwards, run by the real bash, and what is refused."""

from __future__ import annotations

import argparse
import random
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sentinel.jobscript import Change, RemoveOption, SetJson, SetOption, SetVariable, rewrite
from sentinel.jobscript.directives import directive
from sentinel.jobscript.syntax import parse
from sentinel.vocabulary.errors import ConfigError, PermanentError, ScriptRefused
from tests.jobscript import hostile_scripts
from tests.jobscript.shell_sandbox import SCRIPTS, Run, changed_lines, config, parses, run
from tests.support.script_texts import LR, REFUSED, TAKEN, TEXTS

WITH_JSON = [name for name in TEXTS if name != "one_command"]

OPTIONS: list[tuple[Change, str, Any]] = [
    (SetOption(flag="--lr", value="3e-5"), "lr", 3e-5),
    (SetOption(flag="--seed", value="44"), "seed", 44),
    (SetOption(flag="--clip-grad", value="0.5"), "clip_grad", 0.5),
    (SetOption(flag="--adam-beta2", value="0.9"), "adam_beta2", 0.9),
    (SetOption(flag="--global-batch-size", value="128"), "global_batch_size", 128),
    (SetOption(flag="--lr-warmup-samples", value="5_000"), "lr_warmup_samples", 5000),
    (SetOption(flag="--train-samples", value="900_000_000"), "train_samples", 900_000_000),
    (SetOption(flag="--train-tokens", value="300000000000"), "train_tokens", 300_000_000_000),
    (SetOption(flag="--save-interval", value="7"), "save_interval", 7),
    (SetOption(flag="--no-load-rng"), "no_load_rng", True),
    (RemoveOption(flag="--no-load-rng", values=0), "no_load_rng", False),
    (RemoveOption(flag="--rampup-batch-size", values=3), "rampup_batch_size", None),
    (RemoveOption(flag="--clip-grad"), "clip_grad", None),
    (RemoveOption(flag="--lr"), "lr", None),
]


@cache
def original(name: str) -> Run:
    return run(TEXTS[name])


@pytest.mark.parametrize("name", TEXTS)
@pytest.mark.parametrize(("change", "option", "value"), OPTIONS, ids=lambda x: getattr(x, "flag", ""))
def test_exactly_the_wanted_option_changes_for_the_trainer(name: str, change: Change, option: str, value: Any) -> None:
    rewritten = rewrite(TEXTS[name], [change])
    assert parses(rewritten.text)
    before, after = original(name), run(rewritten.text)
    assert before.options["launcher"]
    assert after.options == {**before.options, option: value}
    assert after.configs == before.configs
    assert len(after.programs) == len(before.programs)


@pytest.mark.parametrize("name", TEXTS)
def test_all_changes_together_hold_together(name: str) -> None:
    wanted = {option: (change, value) for change, option, value in OPTIONS}
    rewritten = rewrite(TEXTS[name], [change for change, _ in wanted.values()])
    values = {option: value for option, (_, value) in wanted.items()}
    assert run(rewritten.text).options == {**original(name).options, **values}


@pytest.mark.parametrize("name", TEXTS)
@pytest.mark.parametrize("change", [change for change, _, _ in OPTIONS], ids=repr)
def test_every_line_that_is_not_reported_as_changed_stays(name: str, change: Change) -> None:
    rewritten = rewrite(TEXTS[name], [change])
    changed = changed_lines(TEXTS[name], rewritten.text)
    left = [line for n, line in enumerate(TEXTS[name].splitlines(), 1) if n not in changed]
    after = iter(rewritten.text.splitlines())
    assert all(line in after for line in left)
    assert bool(rewritten.diff) == bool(changed) == (rewritten.text != TEXTS[name])


def test_the_diff_shows_one_line_for_one_option() -> None:
    diff = rewrite(TEXTS["lists_in_variables"], [SetOption(flag="--lr", value="3e-5")]).diff
    assert [line for line in diff.splitlines()[2:] if line[0] in "+-"] == ["-    --lr 6e-5 \\", "+    --lr 3e-5 \\"]


def test_argparse_takes_the_last_of_two_so_the_last_is_changed() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--lr", type=float)
    assert parser.parse_args(["--lr", "1", "--lr", "2"]).lr == 2
    text = rewrite(TEXTS["one_command"], [SetOption(flag="--lr", value="3e-5")]).text
    assert "--lr 1.5e-4 --lr 3e-5 \\" in text


@pytest.mark.parametrize("name", WITH_JSON)
@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("curriculum_learning", "enabled"), True),
        (("curriculum_learning",), {"enabled": True, "schedule_config": {"difficulty": [8, 16], "max_step": [3001]}}),
        (("train_batch_size",), 32),
        (("made", "on the", "way"), None),
        (("hostile",), "$(touch canary) `touch canary` ${HOME} \\ \"'\nEOT\nJSON\n"),
        (("hos$tile`",), 1.5),
    ],
)
def test_exactly_the_wanted_key_of_the_json_changes(name: str, path: tuple[str, ...], value: Any) -> None:
    rewritten = rewrite(TEXTS[name], [SetJson(path=path, value=value)])
    assert parses(rewritten.text)
    before, after = original(name), run(rewritten.text)
    wanted = inside = config(before)
    for key in path[:-1]:
        inside = inside.setdefault(key, {})
    inside[path[-1]] = value
    assert config(after) == wanted
    assert after.options == before.options
    assert not after.executed


def test_a_variable_changes_at_its_assignment_and_for_all_that_use_it() -> None:
    for name in ("lists_in_variables", "read_twice"):
        after = run(rewrite(TEXTS[name], [SetVariable(name="SAVE_INTERVAL", value="100")]).text)
        assert after.options == {**original(name).options, "save_interval": 100}
    after = run(rewrite(TEXTS["lists_in_variables"], [SetVariable(name="GLOBAL_BATCH", value="64")]).text)
    assert (after.options["global_batch_size"], config(after)["train_batch_size"]) == (64, 64)


@pytest.mark.parametrize(
    ("line", "becomes"),
    [
        ("SAVE=300", "SAVE=7"),
        ("SAVE=", "SAVE=7"),
        ("export SAVE=300 # often", "export SAVE=7 # often"),
        ("readonly SAVE='300'", "readonly SAVE='7'"),
        ('declare -i SAVE="300"', 'declare -i SAVE="7"'),
        ("SAVE=$((A*B))", "SAVE=7"),
        ("SAVE=$(perl -e 'print 3*4')", "SAVE=7"),
        ("SAVE=${OTHER:-300}", "SAVE=7"),
    ],
)
def test_a_variable_is_found_however_it_is_set(line: str, becomes: str) -> None:
    assert rewrite(f"{line}\necho $SAVE\n", [SetVariable(name="SAVE", value="7")]).text == f"{becomes}\necho $SAVE\n"


@pytest.mark.parametrize(
    ("lines", "read"),
    [
        ("#SBATCH --time 10:00:00              # HH:MM:SS", "10:00:00"),
        ("#SBATCH -t 10:00:00", "10:00:00"),
        ('#SBATCH --time="10:00:00"', "10:00:00"),
        ("#SBATCH -t 1\n#SBATCH --time=2", "2"),
        ("date\n#SBATCH -t 1", None),
        ("#SBATCH -t", None),
        ("#SBATCH -t 1\n#SBATCH hetjob\n#SBATCH -t 2", None),
    ],
)
def test_a_directive_is_read_as_sbatch_reads_it(lines: str, read: str | None) -> None:
    assert directive(parse(f"#!/bin/bash\n{lines}\npython x.py --lr 1\n"), "--time") == read


@pytest.mark.parametrize(("text", "change", "line", "said"), REFUSED.values(), ids=REFUSED.keys())
def test_what_is_not_certain_is_refused_with_its_line(text: str, change: Change, line: int | None, said: str) -> None:
    with pytest.raises(ScriptRefused, match=r"job script can't be changed safely") as refused:
        rewrite(text, [change])
    assert said in str(refused.value)
    assert refused.value.line_number == line
    assert isinstance(refused.value, PermanentError)


@pytest.mark.parametrize(("text", "change", "old", "new"), TAKEN.values(), ids=TAKEN.keys())
def test_what_is_certain_is_changed_and_nothing_else(text: str, change: Change, old: str, new: str) -> None:
    rewritten = rewrite(text, [change]).text
    assert text.count(old) == 1
    assert rewritten == text.replace(old, new)
    assert parses(rewritten)


HOSTILE = [
    "1; touch canary",
    "$(touch canary)",
    "`touch canary`",
    "1\ntouch canary\n",
    "1' ; touch canary; '",
    '1" ; touch canary; "',
    "1 && touch canary #",
    "a[$(touch canary)]",
    "> canary",
    "| touch canary",
    "--title x",
    "",
    "*",
    "~",
    "\\",
    "\0",
]


@pytest.mark.parametrize("name", TEXTS)
@pytest.mark.parametrize("value", HOSTILE)
def test_a_hostile_value_is_refused_or_arrives_as_it_is_and_never_runs(name: str, value: str) -> None:
    _hostile(name, value)


@settings(max_examples=60, deadline=None)
@given(
    name=st.sampled_from(sorted(TEXTS)),
    value=st.text(alphabet="a1 .;&|<>()$`\\\"'\n\t*?[]{}~#!=-%", max_size=12).map(lambda s: s + "$(touch canary)" + s),
)
def test_no_value_ever_runs(name: str, value: str) -> None:
    _hostile(name, value)


def _hostile(name: str, value: str) -> None:
    changes: list[Change] = [
        SetOption(flag="--title", value=value),
        SetOption(flag="--deepspeed_config", value=value),
        SetVariable(name="SEQ_LEN", value=value),
    ]
    for change in changes:
        try:
            text = rewrite(TEXTS[name], [change]).text
        except ScriptRefused:
            continue
        assert parses(text)
        if isinstance(change, SetOption):
            after = run(text)
            assert not after.executed
            assert after.options == {**original(name).options, change.flag.strip("-"): value}


UNRELATED = st.one_of(
    st.text(alphabet=st.characters(codec="utf-8", exclude_characters="\n\r\0`"), max_size=30).map(lambda s: f"# {s}"),
    st.sampled_from(["", "mkdir -p logs", "date", "   ", "echo '--lr 5 and --seed 6'", "[ -d logs ] && cd .", "X_9=1"]),
)
CHANGES = st.lists(
    st.sampled_from([change for change, _, _ in OPTIONS]),
    min_size=1,
    max_size=4,
    unique_by=repr,
)


@settings(max_examples=60, deadline=None)
@given(name=st.sampled_from(sorted(TEXTS)), lines=st.lists(UNRELATED, max_size=6), changes=CHANGES)
def test_unrelated_lines_stay_as_they_are(name: str, lines: list[str], changes: list[Change]) -> None:
    more = "".join(f"{line}\n" for line in lines)
    assert rewrite(TEXTS[name] + more, changes).text == rewrite(TEXTS[name], changes).text + more


@settings(max_examples=60, deadline=None)
@given(name=st.sampled_from(sorted(TEXTS)), changes=CHANGES)
def test_rewriting_twice_is_rewriting_once(name: str, changes: list[Change]) -> None:
    by_flag = {getattr(change, "flag", ""): change for change in changes}
    once = rewrite(TEXTS[name], list(by_flag.values()))
    twice = rewrite(once.text, list(by_flag.values()))
    assert (twice.text, twice.diff) == (once.text, "")


@settings(max_examples=200, deadline=None)
@given(text=st.text(alphabet="ab$(){}[]\"'`\\ \n#|&;<>=-!x.py", max_size=60))
def test_any_text_is_rewritten_or_refused(text: str) -> None:
    try:
        assert rewrite(text, [LR]).text.count("3e-5") >= text.count("3e-5")
    except ScriptRefused as error:
        refused = error
    else:
        return
    assert refused.line_number is None or 1 <= refused.line_number <= text.count("\n") + 1


def test_bytes_that_are_not_text_come_back_as_they_were() -> None:
    text = b"# caf\xe9\npython x.py --lr 1\n".decode("utf-8", "surrogateescape")
    assert rewrite(text, [LR]).text == text.replace("--lr 1", "--lr 3e-5")


def test_a_script_without_a_last_line_break_keeps_none() -> None:
    rewritten = rewrite("python x.py --lr 1", [LR])
    assert rewritten.text == "python x.py --lr 3e-5"
    assert "\\ No newline at end of file" in rewritten.diff


@pytest.mark.parametrize("flag", ["lr", "--", "--lr 5", "--lr;x", "-t"])
def test_what_is_no_option_is_an_error_of_the_caller(flag: str) -> None:
    with pytest.raises(ConfigError):
        SetOption(flag=flag, value="1")


def test_the_samples_are_all_there() -> None:
    assert [path.stem for path in SCRIPTS if isinstance(path, Path)] == sorted(TEXTS)
    assert len(TEXTS) >= 5


@pytest.mark.parametrize(
    "text", ["#!/bin/bash\necho \ud800\npython t.py --lr 1\n", "\ufeff#!/bin/bash\npython t.py --lr 1\n"]
)
def test_a_script_that_is_no_text_or_begins_with_a_mark_is_refused(text: str) -> None:
    with pytest.raises(ScriptRefused):
        rewrite(f"{text}python t.py --lr 1\n", [SetOption(flag="--lr", value="2")])


@pytest.mark.parametrize("value", ["\ud800", "a\udfffb", "a\0b"])
def test_a_value_that_no_argument_can_hold_is_refused(value: str) -> None:
    for change in (
        SetOption(flag="--title", value=value),
        SetVariable(name="LR", value=value),
        SetJson(path=("made",), value={"a": [value]}),
    ):
        with pytest.raises(ScriptRefused, match=r"NUL byte|surrogate pair"):
            rewrite(TEXTS[WITH_JSON[0]], [change])


def test_a_line_break_in_a_text_that_a_second_shell_reads_ends_the_trainers_command() -> None:
    lists = 'ARGS="--seed 1\n--lr 2 "\nCMD="python /work/pretrain_gpt.py $ARGS --clip-grad 1"\n'
    text = f'#!/bin/bash\n{lists}bash -c "$CMD" || true\n'
    with pytest.raises(ScriptRefused, match="way to the trainer"):
        rewrite(text, [SetOption(flag="--lr", value="3")])
    with_lr = rewrite(text, [SetOption(flag="--wd", value="3")]).text
    (call,) = run(with_lr).programs
    assert "--clip-grad" not in call
    assert call == ["python", "/work/pretrain_gpt.py", "--wd", "3", "--seed", "1"]


@pytest.mark.parametrize("seed", [1, 2, *(pytest.param(n, marks=pytest.mark.full) for n in range(3, 30))])
def test_hostile_rewrites_give_the_trainer_what_was_asked_or_are_refused(seed: int) -> None:
    random_ = random.Random(seed)
    for _ in range(40):
        text, change = hostile_scripts.draw(random_)
        assert hostile_scripts.wrong(text, change) is None, (text, change)


def test_a_script_as_long_as_no_job_script_is_refused_at_once() -> None:
    with pytest.raises(ScriptRefused, match="limit is 1 MiB"):
        rewrite("#!/bin/bash\n" + "echo a\n" * 200_000, [SetOption(flag="--lr", value="2")])
