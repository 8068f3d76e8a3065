"""A rung that is for one instability is tried where the onset shows it, and takes no place in the ladder elsewhere."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sentinel.config.toml import rung_text
from sentinel.judge.analysis.departures import FirstMoved
from sentinel.judge.analysis.instability import Instability, InstabilitySeen
from sentinel.plan.choose.ladder import DEFAULT_LADDER, Rung
from sentinel.plan.choose.policy import Policy
from sentinel.plan.incident.incident import Incident
from sentinel.plan.incident.other_rungs import Skip
from sentinel.plan.restart.decision import decide_rung
from sentinel.plan.turn_bisect import asks_for_cause
from sentinel.vocabulary.errors import ConfigError
from tests.support.recovery_plans import BASELINE, incident, run


def with_onset(kind: Instability | None, *skipped: str) -> Incident:
    seen = None if kind is None else InstabilitySeen(kind=kind, first_step=40, value=900.0)
    moved = FirstMoved(departures=(), stayed=(), unjudged=(), instability=seen)
    skips = [Skip(rung=rung, hypothesis="", reason="can't") for rung in skipped]
    return incident(moved_first=moved, skips=skips)


def next_rung(found: Incident, policy: Policy) -> str | None:
    plan = decide_rung(found, run(incidents=(found,)), policy)
    return plan.decision.rung if plan.decision is not None else plan.refusal


@pytest.mark.parametrize(
    ("kind", "tried"),
    [
        (None, ["reseed", "reseed + LR warmup x8"]),
        ("lagging_variance", ["LR warmup again", "reseed"]),
        ("attention_logits", ["QK-clip", "reseed"]),
    ],
)
def test_the_default_ladder_begins_with_what_is_known_to_cure_what_the_onset_shows(
    kind: Instability | None, tried: list[str]
) -> None:
    policy = Policy(mode="act", ladder=DEFAULT_LADDER)
    assert [next_rung(with_onset(kind, *tried[:n]), policy) for n in range(len(tried))] == tried


def test_the_warmup_that_follows_on_a_lagging_variance_ends_at_the_full_learning_rate() -> None:
    found = with_onset("lagging_variance")
    plan = decide_rung(found, run(incidents=(found,)), Policy(mode="act"))
    assert plan.decision is not None
    assert BASELINE.lr is not None
    assert plan.decision.overrides.standing.lr == replace(BASELINE.lr, anchor=plan.decision.target_step)


def test_an_incident_without_an_onset_that_was_read_has_the_rungs_for_all() -> None:
    rungs = Policy().ladder_for(incident().instability)
    assert {rung.instability for rung in rungs} == {None}
    assert len(rungs) < len(DEFAULT_LADDER)


def test_a_ladder_for_other_instabilities_alone_is_used_up_at_once() -> None:
    policy = Policy(mode="act", ladder=(Rung(name="x", hypothesis="y", instability="attention_logits", qk_clip=100),))
    assert next_rung(with_onset("lagging_variance"), policy) == (
        "the ladder has no rung for this incident: each is for another instability"
    )


def test_a_bisect_for_one_instability_is_asked_where_it_shows() -> None:
    policy = Policy(mode="act", ladder=(Rung(name="x", hypothesis="y", instability="attention_logits", bisect=True),))
    assert asks_for_cause(with_onset("attention_logits"), policy)
    assert not asks_for_cause(with_onset(None), policy)


def test_an_instability_alone_changes_nothing() -> None:
    with pytest.raises(ConfigError, match="changes nothing"):
        Rung(name="x", hypothesis="y", instability="attention_logits")
    assert 'instability = "attention_logits"' in rung_text(DEFAULT_LADDER[0])


RUNGS = tuple(
    Rung(name=name, hypothesis="x", adam_beta2=beta2) for name, beta2 in (("a", 0.95), ("b", 0.9), ("c", 0.8))
)


@pytest.mark.parametrize(
    ("tried", "ladder", "then"),
    [
        (("a",), RUNGS, "b"),
        (("a",), RUNGS[1:], "b"),  # the one that was tried was taken out
        (("b",), RUNGS, "a"),  # another one was put before it
        (("a",), (*RUNGS[:1], replace(RUNGS[1], instability="attention_logits"), RUNGS[2]), "c"),
        (("a",), (RUNGS[0], *RUNGS[:2]), "a"),  # it stands in the ladder twice
    ],
)
def test_a_ladder_that_was_edited_meanwhile_repeats_no_rung_and_loses_none(
    tried: tuple[str, ...], ladder: tuple[Rung, ...], then: str
) -> None:
    assert next_rung(with_onset(None, *tried), Policy(mode="act", ladder=ladder)) == then
