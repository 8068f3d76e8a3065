"""Numbers at the last place where they are still taken, sizes against their formulas, and logs that are cut."""

from __future__ import annotations

import math
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given as drawn
from hypothesis import settings
from hypothesis import strategies as st

from sentinel.jobscript import SetJson, SetOption, rewrite
from sentinel.jobscript.derived import batch_schedule, embedding_rows, parameter_count, total_steps
from sentinel.jobscript.facts import BatchRamp, ScriptFacts, declared_parameters, minutes
from sentinel.jobscript.given import given
from sentinel.jobscript.megatron_log import given_by_log, measured
from sentinel.jobscript.megatron_options import (
    SeqlenWarmup,
    Wanted,
    changes_at,
    lr_schedule,
    megatron_changes,
)
from sentinel.jobscript.reading import read_text
from sentinel.jobscript.script_changes import baseline_of_script, changes_of
from sentinel.plan.incident.baseline import lr_warmup_steps
from sentinel.vocabulary.errors import ConfigError, ScriptRefused
from sentinel.vocabulary.overrides import Anchor, Overrides, TrainingSettings
from sentinel.vocabulary.pacing import FixedLinear, LrSchedule
from tests.support.there import there

LOG = (Path(__file__).parents[1] / "data" / "megatron_logs" / "llama_1b3_2023-08.log").read_text()
WHOLE = [f.name for f in fields(ScriptFacts) if str(f.type).startswith("int")]
NUMBERS = [*WHOLE, *(f.name for f in fields(ScriptFacts) if str(f.type).startswith("float"))]


@pytest.mark.parametrize("name", WHOLE)
def test_a_whole_number_is_at_most_2_to_the_53(name: str) -> None:
    assert getattr(ScriptFacts(**{name: 2**53}), name) == 2**53
    with pytest.raises(ConfigError, match=f"{name} should be a number of at most"):
        ScriptFacts(**{name: 2**53 + 1})


@pytest.mark.parametrize("name", NUMBERS)
@pytest.mark.parametrize("value", [-1, -1e-9, math.nan, math.inf])
def test_no_fact_is_negative_or_not_a_number(name: str, value: float) -> None:
    with pytest.raises(ConfigError, match=f"{name} should be a positive number"):
        ScriptFacts(**{name: value})


@pytest.mark.parametrize("name", ["lr", "clip_grad", "train_iters", "save_interval", "hidden_size", "world_size"])
def test_a_size_is_not_0_and_what_is_off_at_0_may_be(name: str) -> None:
    if name in ("hidden_size", "world_size"):
        with pytest.raises(ConfigError, match="should be a positive number, not 0"):
            ScriptFacts(**{name: 0})
    else:
        assert getattr(ScriptFacts(**{name: 0}), name) == 0


@drawn(st.integers(0, 400), st.integers(0, 99), st.integers(0, 99), st.integers(0, 99))
def test_a_time_limit_is_read_as_sbatch_s_manual_says(days: int, hours: int, mins: int, seconds: int) -> None:
    of_hours = hours * 60 + mins + seconds / 60
    forms = {
        f"{mins}": mins,
        f"{mins}:{seconds}": mins + seconds / 60,
        f"{hours}:{mins}:{seconds}": of_hours,
        f"{days}-{hours}": days * 24 * 60 + hours * 60,
        f"{days}-{hours}:{mins}": days * 24 * 60 + hours * 60 + mins,
        f"{days}-{hours}:{mins}:{seconds}": days * 24 * 60 + of_hours,
    }
    for text, wanted in forms.items():
        assert minutes(text) == pytest.approx(wanted)
    assert minutes(f"{hours}:{mins}:{seconds}:1") is minutes(f"-{hours}") is minutes("") is minutes("UNLIMITED") is None


@pytest.mark.parametrize(
    ("name", "size"),
    [
        *[("tr11f-6B3-ml", 6.3e9), ("1.3B", 1.3e9), ("gpt_760m", 7.6e8), ("1T", 1e12), ("104B-300B-tokens", 1.04e11)],
        *[("llama-7b-300B-tokens", 7e9), ("gpt-1p3b", 1.3e9), ("0B", 0.0), ("a100-80G", None), ("tr8b-bnb", None)],
        *[("x", None), ("6B3-1B", None), ("12345B", None), ("1B33", None), ("v1.2", None), ("3.1B3", 3.1e9)],
    ],
)
def test_a_name_declares_a_size(name: str, size: float | None) -> None:
    assert declared_parameters(name) == (None if size is None else pytest.approx(size))


@settings(max_examples=60, deadline=None)
@drawn(st.integers(1, 8), st.sampled_from([64, 192]), st.integers(1, 300), st.integers(1, 64), st.booleans())
def test_parameters_are_the_sum_of_all_matrices_and_vectors(n: int, h: int, v: int, s: int, tied: bool) -> None:
    """GPT-2's and LLaMA's, counted matrix by matrix."""
    told: dict[str, Any] = {"hidden_size": h, "num_layers": n, "padded_vocab_size": v, "tied_embeddings": tied}
    embeddings = v * h * (1 if tied else 2)
    attention, ffn, norm = (3 * h * h + 3 * h) + (h * h + h), (4 * h * h + 4 * h) + (4 * h * h + h), 2 * h
    gpt = n * (attention + ffn + 2 * norm) + norm + embeddings + s * h
    assert _parameters(**told, seq_length=s) == (gpt, gpt)
    assert _parameters(**told, seq_length=2 * s, max_position_embeddings=s) == (gpt, gpt)
    width = h // 4  # of one head: half as many heads of keys and values as of queries
    grouped = gpt - n * 2 * (h * h + h - 2 * width * (h + 1))
    assert _parameters(**told, seq_length=s, num_attention_heads=4, num_query_groups=2) == (grouped, grouped)
    assert _parameters(**told, seq_length=s, num_attention_heads=4, kv_channels=width) == (gpt, gpt)
    wide = gpt + n * (2 * h * 6 * h + 6 * h)
    assert _parameters(**told, seq_length=s, ffn_hidden_size=10 * h) == (wide, wide)
    llama = n * (4 * h * h + 3 * h * 5 * h + 2 * h) + h + embeddings
    gated = {"gated_ffn": True, "ffn_hidden_size": 5 * h, "learned_positions": False}
    assert _parameters(**told, **gated, seq_length=s) == (llama, llama)
    del told["padded_vocab_size"]
    least, most = _parameters(**told, seq_length=s)
    assert (least, most) == (gpt - embeddings, gpt - embeddings + 262_144 * h * (1 if tied else 2))
    assert parameter_count(ScriptFacts(**told, num_experts=2)) is None


def _parameters(**told: Any) -> tuple[float, float]:
    count = there(parameter_count(ScriptFacts(**told)))
    return count.least, count.most


@drawn(st.integers(1, 99_999), st.integers(1, 200), st.sampled_from([1, 2, 4]))
def test_the_vocabulary_is_padded_to_the_next_multiple(vocabulary: int, by: int, tp: int) -> None:
    padded = embedding_rows(
        ScriptFacts(vocab_size=vocabulary, make_vocab_size_divisible_by=by, tensor_model_parallel_size=tp)
    )
    assert padded == min(n for n in range(vocabulary, vocabulary + by * tp) if n % (by * tp) == 0)


@pytest.mark.parametrize(
    ("told", "steps"),
    [
        ({"train_iters": 7, "train_samples": 40, "train_tokens": 800}, 7),
        ({"train_iters": 70, "train_samples": 40, "train_tokens": 800}, 10),
        ({"train_iters": 70, "train_samples": 42, "train_tokens": 336}, 10.5),
        ({"train_samples": 400, "train_tokens": 160}, 5),
        ({"train_iters": 0, "train_tokens": 168}, 5.25),
        ({"train_samples": 1}, 0.25),
        ({}, None),
        # a ramp by 2 samples over 8 samples: batches of 2, 2, 2, 2 and then of 4
        ({"train_samples": 12, "rampup_batch_size": BatchRamp(start=2, increment=2, samples=8)}, 5),
    ],
)
def test_a_run_ends_at_whichever_of_its_ends_comes_first(told: dict[str, Any], steps: float | None) -> None:
    assert total_steps(ScriptFacts(**told, global_batch_size=4, seq_length=8)) == steps


def test_what_a_log_shows_of_its_options_is_true_wherever_it_is_cut() -> None:
    """An option of a cut log is the whole log's, or is said to be cut."""
    whole = {option.flag: option.values for option in given_by_log(LOG).options}
    assert given_by_log(LOG).complete
    assert len(whole) > 20
    end = LOG.index("end of arguments")
    most = 0
    for cut in range(LOG.index("--- arguments") + len("--- arguments ---"), end, 7):
        found = given_by_log(LOG[:cut])
        known = {option.flag: option.values for option in found.options if option.unread is None}
        unsure = [option for option in found.options if option.unread is not None]
        assert known.items() <= whole.items()
        assert len(unsure) <= 1
        assert most <= len(known)
        assert (found.complete, found.unread[0].what) == (False, "the arguments")
        most = len(known)
    assert most >= len(whole) - 1


@pytest.mark.parametrize(
    ("lines", "known"),
    [
        ([], {}),
        (["elapsed time per iteration (ms): 500.0 | global batch size:  8"], {"step_time_s": 0.5}),
        (["elapsed time per iteration (s): 2 | global batch size:  8"], {"step_time_s": 2.0}),
        (
            [
                f"elapsed time per iteration (s): {s} | global batch size: {b}"
                for s, b in ((9, 4), (1, 8), (2, 8), (6, 8))
            ],
            {"step_time_s": 2.0},
        ),
        (["save-checkpoint: (1000.0, 3000.0)", "save-checkpoint ....: 5000.0"], {"save_time_s": 4.0}),
        (["save-checkpoint: 0.0"], {}),
        (
            ["> padded vocab (size: 50257) with 47 dummy tokens (new size: 50304)"],
            {"vocab_size": 50257, "padded_vocab_size": 50304},
        ),
    ],
)
def test_a_log_shows_the_run_s_pace_since_its_last_start(lines: list[str], known: dict[str, Any]) -> None:
    before = "elapsed time per iteration (s): 77 | global batch size: 99\nsave-checkpoint: 9.0\n"
    assert measured("\n".join([f"{before}-------- arguments --------", *lines])) == known


SHORT = FixedLinear(start=64, full=128, total_steps=60, anchor_step=30)
SHOWN: dict[str, Any] = {"lr": 1e-4, "seq_length": 128, "global_batch_size": 4, "lr_scheduler": "opt_param-scheduler"}


@pytest.mark.parametrize("peak", [1e-5, 1e-4])
def test_a_run_without_a_minimum_takes_any_peak(peak: float) -> None:
    made = changes_at(megatron_changes(Wanted(peak_lr=peak), ScriptFacts(**SHOWN, train_iters=9)), "first")
    assert SetOption(flag="--lr", value=repr(peak)) in made


@pytest.mark.parametrize("minimum", [6e-6, 6e-5])
def test_the_minimum_scales_with_the_peak_and_is_never_above_it(minimum: float) -> None:
    facts, peak = ScriptFacts(**SHOWN, train_iters=9, min_lr=minimum), SHOWN["lr"] / 64
    made = changes_at(megatron_changes(Wanted(peak_lr=peak), facts), "first")
    (written,) = (float(c.value or 0) for c in made if isinstance(c, SetOption) and c.flag == "--min-lr")
    assert (written, written <= peak) == (minimum / 64, True)


@pytest.mark.parametrize(
    ("ends", "unit", "length", "slw", "taken"),
    [
        ({"train_iters": 50}, "steps", 49, False, True),
        ({"train_iters": 50}, "steps", 50, False, False),
        ({"train_iters": 50, "lr_decay_iters": 40}, "steps", 39, False, True),
        ({"train_iters": 50, "lr_decay_iters": 40}, "steps", 40, False, False),
        ({"train_iters": 50, "lr_decay_iters": 40}, "steps", 49, True, True),
        ({"train_iters": 50, "lr_decay_iters": 40}, "steps", 50, True, False),
        ({"train_iters": 50}, "samples", 5000, False, True),
        ({"train_samples": 50}, "samples", 49, False, True),
        ({"train_samples": 50}, "samples", 50, False, False),
        ({"train_samples": 50}, "tokens", 5000, False, True),
    ],
)
def test_an_lr_warmup_ends_before_the_decay(
    ends: dict[str, Any], unit: Any, length: int, slw: bool, taken: bool
) -> None:
    shorter = SeqlenWarmup(schedule=SHORT, train_tokens=25600, decay_tokens=20480) if slw else None
    wanted = Wanted(lr_warmup=LrSchedule(peak=6e-5, decay_end=0, warmup=length, unit=unit), seqlen_warmup=shorter)
    if taken:
        assert megatron_changes(wanted, ScriptFacts(**SHOWN, **ends))
    else:
        with pytest.raises(ConfigError, match="would not end before the decay"):
            megatron_changes(wanted, ScriptFacts(**SHOWN, **ends))


@pytest.mark.parametrize(
    ("words", "seed", "style"),
    [
        ("--seed 5 --lr-decay-style cosine --weight-decay 7", 5, True),
        ("--seed 5 --seed 1_000 --lr-decay-style linear --lr-decay-style cosine --weight-decay 7", 1000, True),
        ("--seed -5 --lr-decay-style cosine --lr-decay-style linear --weight-decay 7", -5, False),
        ("--seed $S --lr-decay-style $S --weight-decay 7", None, False),
        ("--seed x --weight-decay 7", None, False),
        ("--seed --lr-decay-style --weight-decay 7", None, False),
    ],
)
def test_seed_and_decay_are_the_last_ones_of_their_names(words: str, seed: int | None, style: bool) -> None:
    rest = "--lr 1e-4 --train-iters 90 --lr-decay-iters 80 --lr-warmup-iters 20 --global-batch-size 4"
    own = baseline_of_script(f"python pretrain_gpt.py {rest} {words}\n")
    assert own.seed == seed
    assert own.lr is not None
    assert (own.lr.decay_end, own.lr.decay_start) == ((80, 20) if style else (0, 0))


def test_an_error_that_the_grammar_hides_is_one_of_the_first_line() -> None:
    """Its tree says that it has an error, and shows none."""
    with pytest.raises(ScriptRefused, match="not bash that can be read with certainty") as refused:
        rewrite("\n\n<<<$((>cat <<E\n)) ", [SetOption(flag="--lr", value="2")])
    assert refused.value.line_number == 1


@pytest.mark.parametrize(
    ("words", "name", "value"),
    [
        ("--loss-scale 12", "static_loss_scale", 12),
        ("--initial-loss-scale 4096", "initial_loss_scale", 4096),
        ("--position-embedding-type rope", "learned_positions", False),
        ("--group-query-attention --num-query-groups 2", "num_query_groups", 2),
        ("--seq-length 64", "seq_length", 64),
        ("--swiglu", "gated_ffn", True),
    ],
)
def test_an_option_that_is_given_under_a_condition_is_no_fact(words: str, name: str, value: Any) -> None:
    for begin, end, wanted in (("", "", value), ("if c; then ", "; fi", None)):
        found = read_text(f'{begin}A="{words}"{end}\npython pretrain_gpt.py --num-layers 2 $A\n')
        assert getattr(found.facts, name) == wanted, begin


def test_a_decay_by_tokens_without_a_batch_has_no_known_beginning() -> None:
    facts = ScriptFacts(lr=1e-4, lr_warmup_iters=2, train_iters=90, lr_decay_tokens=6400, seq_length=8)
    for batch, ends in ((None, (0, 0)), (4, (64, 6400))):
        lr = there(lr_schedule(replace(facts, global_batch_size=batch), style="cosine"))
        assert (lr.decay_start, lr.decay_end) == ends


def test_a_here_document_without_a_line_is_none() -> None:
    text = "cat <<E\nE\npython x.py --lr 1\n"
    assert rewrite(text, [SetOption(flag="--lr", value="2")]).text == text.replace("--lr 1", "--lr 2")
    assert given(text).deepspeed is None
    with pytest.raises(ScriptRefused, match="JSON"):
        rewrite(text, [SetJson(path=("a",), value=1)])


@pytest.mark.parametrize("value", [math.nan, math.inf, {"b": [-math.inf]}, {1, 2}])
@pytest.mark.parametrize("key", ["a", "new"])
def test_a_value_that_json_does_not_have_is_not_written(key: str, value: Any) -> None:
    text = 'cat > c.json <<J\n{"a": 1}\nJ\npython x.py --lr 1\n'
    with pytest.raises(ScriptRefused, match=f"{key} can't be .* in JSON"):
        rewrite(text, [SetJson(path=(key,), value=value)])


def test_two_variables_side_by_side_in_the_json_are_both_filled_in() -> None:
    text = 'A=1\nB=2\ncat > c.json <<J\n{"a": $A$B, "b": "$B$A$B", "c": $A}\nJ\n'
    found = given(f"{text}python pretrain_gpt.py --deepspeed --deepspeed_config c.json --lr 1\n").deepspeed
    assert found == {"a": 12, "b": "212", "c": 1}


HEADER, END = "-------- arguments --------", "-------- end of arguments --------"


def test_a_log_is_whole_where_its_last_start_is() -> None:
    first = [HEADER, "  lr .......... 0.1", END]
    assert given_by_log("\n".join(first)).unread == ()
    again = given_by_log("\n".join([*first, HEADER, "  seed ........ 4", "  lr .......... 0.2", "  fp16 ........ Tr"]))
    assert not again.complete
    assert [(u.what, u.line) for u in again.unread] == [("the arguments", 4)]
    assert [(o.flag, o.values) for o in again.options if o.unread is None] == [("--seed", ("4",)), ("--lr", ("0.2",))]


@pytest.mark.parametrize(
    ("option", "after", "unread"),
    [
        ("lr .......... 0.1", [], []),
        ("deepspeed_config .......... c.json", [], ["the DeepSpeed JSON"]),
        ("deepspeed_config .......... c.json", ["  json = {", '    "a": 1', "}"], []),
        ("deepspeed_config .......... c.json", ["  json = {", '    "a": '], ["the DeepSpeed JSON"]),
        ("deepspeed_config .......... None", [], []),
    ],
)
def test_a_log_of_deepspeed_shows_its_json(option: str, after: list[str], unread: list[str]) -> None:
    found = given_by_log("\n".join([HEADER, f"  {option}", END, *after]))
    assert [each.what for each in found.unread] == unread
    assert found.deepspeed == ({"a": 1} if after and not unread else None)


@pytest.mark.parametrize("words", ["--l$X 3", "--l$X=3", "$X", "x$X"])
def test_an_option_whose_name_is_not_known_is_none(words: str) -> None:
    found = given(f"python x.py --lr 1 {words} --seed 4\n")
    assert [option.flag for option in found.options] == ["--lr", "--seed"]
    known = given(f"X=x\npython x.py --lr 1 {words} --seed 4\n")
    assert [option.flag for option in known.options] == ["--lr", *["--lx"] * ("--l$X" in words), "--seed"]


@pytest.mark.parametrize("command", ["bash $X run.sh", "bash $X 'echo a'", "$X -c 'echo a'", "bash -c"])
def test_a_shell_whose_options_are_not_known_is_no_hindrance(command: str) -> None:
    text = f"{command}\npython x.py --lr 1\n"
    assert rewrite(text, [SetOption(flag="--lr", value="2")]).text == text.replace("--lr 1", "--lr 2")


RAMPED = (Path(__file__).parents[1] / "data" / "job_scripts" / "lists_in_variables.sh").read_text()


@pytest.mark.parametrize(("more", "taken"), [(0, True), (2, True), (0.019, True), (0.03, False), (-0.03, False)])
def test_a_warmup_in_steps_is_the_script_s_own_within_2_percent(more: float, taken: bool) -> None:
    """Of a decision that counted steps where the script counts samples."""
    own = baseline_of_script(RAMPED)
    known = there(lr_warmup_steps(own))
    steps = known[1] + (int(more) if more in (0, 2) else round(more * known[1]))
    made = Overrides(
        incident="incident-1",
        rollback="incident-1-r1",
        anchor=Anchor(global_step=300, consumed_samples=108_032, consumed_tokens=108_032 * 2048),
        standing=TrainingSettings(lr=replace(there(own.lr), unit="steps", warmup=steps)),
    )
    if taken:
        assert changes_of(RAMPED, made) == ()
    else:
        with pytest.raises(ConfigError, match="counts steps, and that of the job script samples"):
            changes_of(RAMPED, made)


@pytest.mark.parametrize(("start", "ramps"), [(2, True), (4, False), (6, False)])
def test_a_ramp_that_begins_at_the_full_batch_is_none(start: int, ramps: bool) -> None:
    found = there(
        batch_schedule(
            ScriptFacts(global_batch_size=4, rampup_batch_size=BatchRamp(start=start, increment=1, samples=8))
        )
    )
    assert found.warms_up is ramps
    assert (found.start, found.ramp_samples) == ((2, 8) if ramps else (4, 0))
