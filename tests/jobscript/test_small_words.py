"""Words of a script that are easily taken for something else: dashes, dots, backticks, long chains, cut lines."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sentinel.jobscript import Change, RemoveOption, SetJson, SetOption, SetVariable, rewrite
from sentinel.jobscript.derived import replicas, warmup_steps
from sentinel.jobscript.facts import Curriculum, ScriptFacts
from sentinel.jobscript.given import given
from sentinel.jobscript.script_changes import KnownSettings, baseline_of_script, changes_of
from sentinel.vocabulary.errors import ConfigError, ScriptRefused
from sentinel.vocabulary.overrides import Anchor, Overrides, TrainingSettings
from tests.support.there import there

DATA = Path(__file__).parents[1] / "data"


@pytest.mark.parametrize(("links", "known"), [(1, True), (20, True), (21, False)])
def test_a_value_is_followed_over_twenty_variables(links: int, known: bool) -> None:
    chain = "".join(f"A{n}=$A{n - 1}\n" for n in range(1, links + 1))
    (option,) = given(f"A0=7\n{chain}python x.py --lr=$A{links}\n").options
    assert (option.unread is None) is known
    assert option.values == (("7",) if known else (f"$A{links}",))


@pytest.mark.parametrize("uses", [('"${A[@]}"', "${A[@]}"), ("${A[@]}", '"${A[@]}"')])
def test_an_array_that_is_once_used_without_quotes_takes_no_value_that_needs_them(uses: tuple[str, str]) -> None:
    text = "A=(--title x)\nif y; then python x.py {}; else python x.py {}; fi\n"
    change = SetOption(flag="--title", value="a b")
    with pytest.raises(ScriptRefused, match="used without them"):
        rewrite(text.format(*uses), [change])
    quoted = text.format('"${A[@]}"', '"${A[@]}"')
    assert rewrite(quoted, [change]).text == quoted.replace("--title x", "--title 'a b'")


@pytest.mark.parametrize("name", ["time", "-t", "--", "", "--a b", "--a=b", "--é"])
def test_a_change_of_something_that_has_no_such_name_is_an_error(name: str) -> None:
    for make in (
        lambda: SetOption(flag=name, value="1"),
        lambda: RemoveOption(flag=name),
        lambda: SetVariable(name=f"{name}-", value="1"),
    ):
        with pytest.raises(ConfigError, match="is not the name of"):
            make()


@pytest.mark.parametrize("path", [(), ("é",), ("a", "é")])
def test_a_key_is_written_in_ascii(path: tuple[str, ...]) -> None:
    with pytest.raises(ConfigError, match="not the path of a key"):
        SetJson(path=path, value=1)


BY_SAMPLES = (DATA / "job_scripts" / "lists_in_variables.sh").read_text()
BY_STEPS = "python pretrain_gpt.py --lr 1e-4 --seq-length 8 --global-batch-size 4 --train-iters 900 {}\n".format(
    "--lr-decay-iters 500 --lr-warmup-iters 50 --lr-decay-style cosine"
)


@pytest.mark.parametrize(
    ("text", "unit", "warmup", "flag"),
    [
        (BY_SAMPLES, "samples", 432_640, "--lr-warmup-samples"),
        (BY_SAMPLES, "tokens", 5_000_000_000, "--lr-warmup-tokens"),
        (BY_STEPS, "steps", 51, "--lr-warmup-iters"),
        (BY_STEPS, "steps", 400, "--lr-warmup-iters"),
    ],
)
def test_an_lr_warmup_is_written_in_the_unit_of_the_decision(text: str, unit: str, warmup: int, flag: str) -> None:
    own = baseline_of_script(text).lr
    made = Overrides(
        incident="incident-1",
        rollback="incident-1-r1",
        anchor=Anchor(global_step=300, consumed_samples=108_032, consumed_tokens=108_032 * 2048),
        standing=TrainingSettings(lr=replace(there(own), unit=unit, warmup=warmup)),
    )
    changes: list[Change] = [
        each.change for each in changes_of(text, made, KnownSettings(scheduler="opt_param-scheduler"))
    ]
    assert SetOption(flag=flag, value=str(warmup)) in changes


CUSTOM = Curriculum(schedule="custom", min_difficulty=8, max_difficulty=64)


@pytest.mark.parametrize(
    ("facts", "steps"),
    [
        ({}, None),
        ({"lr_warmup_iters": 7}, 7),
        ({"lr_warmup_iters": 0}, 0),
        ({"lr_warmup_samples": 10}, None),
        ({"lr_warmup_samples": 10, "global_batch_size": 4}, 2.5),
        ({"lr_warmup_samples": 0, "global_batch_size": 4}, 0),
        ({"lr_warmup_tokens": 64, "global_batch_size": 4}, None),
        ({"lr_warmup_tokens": 64, "global_batch_size": 4, "seq_length": 8}, 2),
        ({"lr_warmup_tokens": 0, "global_batch_size": 4, "seq_length": 8}, 0),
        ({"lr_warmup_tokens": 64, "global_batch_size": 4, "seq_length": 8, "curriculum": CUSTOM}, None),
        ({"lr_warmup_samples": 10, "global_batch_size": 4, "seq_length": 8, "curriculum": CUSTOM}, 2.5),
        ({"lr_warmup_fraction": 0.5}, None),
        ({"lr_warmup_fraction": 0.5, "lr_decay_iters": 8, "train_iters": 100}, 4),
        ({"lr_warmup_fraction": 0.5, "lr_decay_samples": 40, "global_batch_size": 4}, 5),
        ({"lr_warmup_fraction": 0.5, "lr_decay_tokens": 320, "global_batch_size": 4, "seq_length": 8}, 5),
        ({"lr_warmup_fraction": 0.5, "train_iters": 100, "train_samples": 40, "global_batch_size": 4}, 5),
        ({"lr_warmup_fraction": 0.5, "train_iters": 9, "train_samples": 40, "global_batch_size": 4}, 4.5),
    ],
)
def test_a_warmup_takes_the_steps_that_its_unit_takes_where_they_can_be_counted(
    facts: dict[str, Any], steps: float | None
) -> None:
    assert warmup_steps(ScriptFacts(**facts)) == steps


@pytest.mark.parametrize(
    ("sizes", "wanted"),
    [((32, 2, 2, 4), 2), ((32, 2, 2, None), 8), ((32, 2, 4, 1), 4), ((3, 2, 2, 1), None), ((None, 1, 1, 1), None)],
)
def test_replicas_are_the_ranks_over_tensor_pipeline_and_context(
    sizes: tuple[int | None, ...], wanted: int | None
) -> None:
    names = ("world_size", "tensor_model_parallel_size", "pipeline_model_parallel_size", "context_parallel_size")
    assert replicas(ScriptFacts(**dict(zip(names, sizes, strict=True)))) == wanted


@pytest.mark.parametrize("value", [11, 1, 4, "$B"])
def test_a_value_that_the_shell_fills_in_is_never_taken_for_the_one_that_is_wanted(value: Any) -> None:
    """While the JSON is read, two digits stand for `$B`: 11."""
    text = 'B=4\ncat > c.json <<J\n{"a": $B}\nJ\npython x.py --lr 1\n'
    made = rewrite(text, [SetJson(path=("a",), value=value)]).text
    assert made == text.replace("$B", json.dumps(value).replace("$", "\\$"))
    plain = text.replace("$B", "11")
    assert rewrite(plain, [SetJson(path=("a",), value=11)]).diff == ""
