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

TEXTS = {path.stem: path.read_text() for path in SCRIPTS}
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


LISTED = 'ARGS=" \\\n    --lr 1e-4 \\\n    --seed 1 \\\n    "\npython pretrain_gpt.py $ARGS\n'
LR = SetOption(flag="--lr", value="3e-5")
SEED = SetOption(flag="--seed", value="44")

REFUSED: dict[str, tuple[str, Change, int | None, str]] = {
    "two lists": (f'MORE="--lr 2"\n{LISTED[:-1]} $MORE\n', LR, 3, "in lines 1 and 3"),
    "an append": (LISTED.replace("\npython", '\nARGS+=" --lr 2"\npython'), LR, 5, "in lines 2 and 5"),
    "if and else": (
        'if true; then\nA="--lr 1"\nelse\nA="--lr 2"\nfi\npython x.py $A\n',
        LR,
        4,
        "two lists",
    ),
    "if and else, one of them": (
        'if true; then\nA="--lr 1"\nelse\nA="--fp16"\nfi\npython x.py --seed 1 $A\n',
        LR,
        2,
        "only if a condition holds",
    ),
    "set twice": ('A="--lr 1"\nA="--seed 2"\npython x.py $A\n', LR, 2, "in lines 1 and 2"),
    "after &&": ('A="--seed 1"\ntrue && A="$A --lr 1"\npython x.py $A\n', LR, 2, "only if a condition holds"),
    "in a function": ('f() { A="--lr 1"; }\nf\npython x.py $A\n', LR, 1, "function runs"),
    "a function's arguments": ('f() { python x.py --fp16 "$@"; }\nf --lr 1\n', LR, 2, "can't be followed"),
    "positional": ('set -- --lr 1\npython x.py --fp16 "$@"\n', LR, 1, "can't be followed"),
    "from a substitution": ("python x.py --fp16 $(echo --lr 1)\n", LR, 1, "can't be followed"),
    "from a here-string": ('read -r A <<< "--lr 1"\npython x.py --fp16 $A\n', LR, 1, "can't be followed"),
    "from a here-document": (
        "cat <<EOT > args\n--lr 1\nEOT\npython x.py --fp16 $(cat args)\n",
        LR,
        2,
        "can't be followed",
    ),
    "a default": ("python x.py --fp16 ${EXTRA:---lr 1}\n", LR, 1, "can't be followed"),
    "exported to a script": ('export A="--lr 1"\nbash other.sh\npython x.py --fp16\n', LR, 1, "can't be followed"),
    "a loop": ("for A in --lr 1; do python x.py --fp16 $A; done\n", LR, 1, "can't be followed"),
    "a continuation with a blank": (LISTED.replace("1e-4 \\\n", "1e-4 \\ \n"), LR, 2, "blanks follow the backslash"),
    "single quotes with a backslash": ("A='--lr 1 \\\n --seed 2'\npython x.py $A\n", LR, 1, "an argument of its own"),
    "a comment in quotes": ('A="--lr 1\n # --seed 2\n"\npython x.py $A\n', SEED, 2, "begins no comment"),
    "evaluated with quotes": ('eval "python x.py --data \\"a b\\" --lr 1"\n', LR, 1, "reads this list as code"),
    "evaluated comment": ('A="python x.py --fp16 # --lr 1"\neval $A\n', LR, 1, "begins no comment"),
    "no launcher": ("srun ./train --lr 1\n", LR, 1, "no word that ends in .py"),
    "no program": ("echo hello\n", LR, None, "starts a Python program"),
    "two programs": ("python a.py --x\npython b.py --y\n", LR, 2, "lines 1 and 2 look alike"),
    "two starts": ("if true; then python x.py --lr 1\nelse python x.py --lr 2; fi\n", LR, 2, "two lists"),
    "a start that does not show it trains": ("python x.py $A\npython x.py --lr 1\n", LR, 1, "does not get --lr"),
    "nothing beside in one of two starts": ("python x.py $A\npython x.py --lr 1\n", SEED, 1, "no option beside"),
    "one start without": ("python x.py --lr 1\npython x.py --train-iters 5\n", LR, 2, "does not get --lr"),
    "DOS": ("python x.py \\\n --lr 1\r\n", LR, 2, "DOS"),
    "not bash": ("DATA=<path to data>\npython x.py --lr 1\n", LR, 1, "not bash"),
    "backticks read across": ("`date` `python x.py --lr 1`\npython x.py --lr 2 `date`\n", LR, 1, "not bash"),
    "several values": ("python x.py --lr 1 2\n", LR, 1, "has 2 values"),
    "no value": ("python x.py --lr --fp16\n", LR, 1, "no value"),
    "value elsewhere": ('A="--fp16 --lr"\npython x.py $A 1\n', LR, 1, "no value"),
    "value of many words": ('V="1 2"\npython x.py --lr $V\n', LR, 2, "more than one word"),
    "value with effects": ("python x.py --lr $(next-lr)\n", LR, 1, "more than calculate"),
    "value with effects, counted": ("python x.py --lr $((I++))\n", LR, 1, "more than calculate"),
    "IFS alone": ('IFS=,\nB="--lr 1"\npython x.py $B\n', LR, 1, "IFS"),
    "joined value with effects": ("python x.py --lr=$(next-lr)\n", LR, 1, "more than calculate"),
    "removed with effects": ("python x.py --lr=`next-lr`\n", RemoveOption(flag="--lr"), 1, "more than calculate"),
    "an element": ('A=(--lr 1)\nA[1]=2\npython x.py "${A[@]}"\n', LR, 2, "changed there"),
    "by another name": (
        'A=(--fp16)\ndeclare -n B=A\nB+=(--lr 2)\npython x.py "${A[@]}"\n',
        LR,
        3,
        "can't be followed",
    ),
    "a program with effects": (
        "python x.py --lr $(perl -e 'unlink \"x\"; print 1')\n",
        LR,
        1,
        "more than calculate",
    ),
    "set after its use": ('A="--fp16"\npython x.py $A\nA="$A --lr 1"\n', LR, 3, "can't be followed"),
    "appended after it was copied": (
        'A="--fp16"\nB="$A"\nA+=" --lr 1"\npython x.py $B $C\necho $A\n',
        LR,
        3,
        "can't be followed",
    ),
    "quotes in a list that is split": (
        'A="--title x"\npython x.py $A\n',
        SetOption(flag="--title", value="a b"),
        1,
        "do not hold",
    ),
    "quotes in an array that is split": (
        "A=(--title x)\npython x.py ${A[@]}\n",
        SetOption(flag="--title", value="a b"),
        1,
        "used without them",
    ),
    "quotes for pdsh": (
        "deepspeed x.py --title x\n",
        SetOption(flag="--title", value="a b"),
        1,
        "may not hand them on",
    ),
    "nothing beside": ("python x.py $ARGS\n", LR, 1, "no option beside"),
    "a list elsewhere changed": ('A="--lr 1"\nread -r A\npython x.py $A\n', LR, 2, "changed there"),
    "too few values": ("python x.py --ramp 1 2 --lr 1\n", RemoveOption(flag="--ramp", values=3), 1, "2 values"),
    "variable twice": ("A=1\nif x; then A=2; fi\n", SetVariable(name="A", value="3"), 2, "lines 1 and 2"),
    "variable in a branch": ("if x; then A=2; fi\n", SetVariable(name="A", value="3"), 1, "condition"),
    "variable counted": ("A=1\n((A++))\n", SetVariable(name="A", value="3"), 2, "changed there"),
    "variable read": ("A=1\nread A\n", SetVariable(name="A", value="3"), 2, "changed there"),
    "variable for one command": ("A=1 python x.py\n", SetVariable(name="A", value="3"), 1, "one command"),
    "variable with effects": ("A=$(take-a-number)\n", SetVariable(name="A", value="3"), 1, "more than calculate"),
    "variable absent": ("B=1\n", SetVariable(name="A", value="3"), None, "not set"),
    "whole number": ("declare -i A=1\n", SetVariable(name="A", value="x"), 1, "whole number"),
    "JSON twice": (
        "cat <<A > a\n{}\nA\ncat <<B > b\n{}\nB\npython x.py --lr 1\n",
        SetJson(path=("a",), value=1),
        5,
        "lines 2 and 5",
    ),
    "JSON edited": (
        'cat <<A > $C\n{"a": 1}\nA\nsed -i s/1/2/ $C\npython x.py --lr 1\n',
        SetJson(path=("a",), value=3),
        4,
        "edited there",
    ),
    "JSON in a branch": (
        "if x; then\ncat <<A > a\n{}\nA\nfi\npython x.py --lr 1\n",
        SetJson(path=("a",), value=1),
        3,
        "condition",
    ),
    "JSON broken": ('cat <<A > a\n{"a": 1,}\nA\npython x.py --lr 1\n', SetJson(path=("b",), value=1), 2, "not JSON"),
    "JSON in a here-string": (
        "cat <<< '{}' > a\npython x.py --lr 1\n",
        SetJson(path=("b",), value=1),
        1,
        "here-string",
    ),
    "JSON with pasted members": (
        "cat <<A > a\n{ $MORE }\nA\npython x.py --lr 1\n",
        SetJson(path=("b",), value=1),
        2,
        "JSON",
    ),
}


@pytest.mark.parametrize(("text", "change", "line", "said"), REFUSED.values(), ids=REFUSED.keys())
def test_what_is_not_certain_is_refused_with_its_line(text: str, change: Change, line: int | None, said: str) -> None:
    with pytest.raises(ScriptRefused, match=r"job script can't be changed safely") as refused:
        rewrite(text, [change])
    assert said in str(refused.value)
    assert refused.value.line_number == line
    assert isinstance(refused.value, PermanentError)


TAKEN: dict[str, tuple[str, Change, str, str]] = {
    "array spliced whole": ('A=(--lr 1)\npython x.py "${A[@]}"\n', LR, "--lr 1", "--lr 3e-5"),
    "another program's option": (
        "python prepare.py --seed 5\npython x.py --lr 1 --seed 6\n",
        SEED,
        "--seed 6",
        "--seed 44",
    ),
    "a launcher's option": ("srun --seed 5 python x.py --lr 1 --seed 6\n", SEED, "--seed 6", "--seed 44"),
    "a shown option": ("echo --lr 5\npython x.py --lr 1\n", LR, "py --lr 1", "py --lr 3e-5"),
    "an edited file": ("perl -pi -e 's/--lr 1/--lr 2/' o.sh\npython x.py --lr 1\n", LR, "py --lr 1", "py --lr 3e-5"),
    "a list nobody uses": ('OLD="--lr 5"\nA="--lr 1"\npython x.py $A\n', LR, 'A="--lr 1"', 'A="--lr 3e-5"'),
    "the same list for two starts": (
        'A="--lr 1"\nif x; then python x.py $A; else srun python x.py $A; fi\n',
        LR,
        "--lr 1",
        "--lr 3e-5",
    ),
    "a script in a script": ("srun bash -c 'python x.py \\\n  --lr 1 \\\n --fp16'\n", LR, "--lr 1", "--lr 3e-5"),
    "a prefix": ("python x.py --lr-decay-style cosine --lr 1\n", LR, "--lr 1", "--lr 3e-5"),
    "a list in a function": (
        'main() {\n  local A="--lr 1"\n  python x.py $A\n}\nmain "$@"\n',
        LR,
        "--lr 1",
        "--lr 3e-5",
    ),
    "an array": ('A=(--title x)\npython x.py "${A[@]}"\n', SetOption(flag="--title", value="a b"), " x)", " 'a b')"),
    "a module": ("python -m torch.distributed.run --x 1 -m pretrain --lr 1\n", LR, "--lr 1", "--lr 3e-5"),
    "its own number": ("python x.py --lr 1 --clip -1.5\n", SetOption(flag="--clip", value="-2"), "-1.5", "-2"),
    "the last line of a command": (
        "python x.py --lr 1 \\\n  --seed 4\ndate\n",
        RemoveOption(flag="--seed"),
        "\n  --seed 4\n",
        "\n\n",
    ),
    "beside a JSON that is not the config": (
        'cat <<A > a\n{"a": 1}\nA\ncat <<B > b\n{"a": 2}\nB\npython x.py --deepspeed_config b\n',
        SetJson(path=("a",), value=3),
        '{"a": 2}',
        '{"a": 3}',
    ),
    "a function that is called once its list is set": (
        'f() { python x.py $A --fp16; }\nA="--lr 1"\nf\n',
        LR,
        "--lr 1",
        "--lr 3e-5",
    ),
    "a key in a line": ('cat <<A > a\n{"a": $X}\nA\npython x.py --lr 1\n', SetJson(path=("a",), value=1), "$X", "1"),
}


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
