"""Which events page whom, and when what goes wrong again and again is told."""

from __future__ import annotations

from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sentinel.plan.alerts.page import WHAT_TO_DO, Page, page_for, page_from_json, pages, trial_page
from sentinel.plan.incident.log_events import IncidentEvent
from sentinel.plan.topics import AlertTopic
from sentinel.vocabulary.numbers import dump_json, load_object
from tests.support.page_events import event, firing, resolved

DECISION = {
    "rollback": "incident-1-r1",
    "rung": "reseed",
    "hypothesis": "the order of the data did it",
    "target": {"tag": "global_step40", "global_step": 40},
    "changes": ["seed 0 -> 1 for the data not yet consumed"],
    "lost_steps": 200,
}


LED = {"signal": "loss_scale", "first_step": 33, "steps_before_onset": 19, "deviations": "inf"}
MOVED = {"departures": [LED], "stayed": [], "unjudged": []}
ONSET: dict[str, Any] = {"onset_range": [41, 52], "alarm_step": 60, "led_by": ["loss_scale"], "moved_first": MOVED}
OPENED = event("opened", reason="the loss is nan", attempt=1, **ONSET)
BY_HAND = event("opened", onset_range=None, alarm_step=None, reason="a person asked for global_step20", led_by=[])
PROPOSED = event("proposed", digest="d" * 64, **DECISION)
STOPPED = event("stopped", reason="rollback budget of 3 is spent")
CLOSED = event("closed", outcome="recovered", reason="past the onset, and better than before")


@pytest.mark.parametrize(
    ("happened", "key", "status", "severity", "says"),
    [
        (
            OPENED,
            "tr8/incident-1/divergence",
            "firing",
            "warning",
            "the loss is nan; led by loss_scale 19 steps before",
        ),
        (event("shadow", **DECISION), "tr8/incident-1/divergence", "firing", "warning", "would have applied 'reseed'"),
        (PROPOSED, "tr8/incident-1/approval", "firing", "critical", "waits for `sentinel approve`"),
        (event("expired", digest="d" * 64), "tr8/incident-1/approval", "firing", "critical", "nothing is done"),
        (event("approved", digest="d" * 64, by="ann"), "tr8/incident-1/approval", "resolved", "warning", "ann"),
        (
            STOPPED,
            "tr8/incident-1/divergence",
            "firing",
            "critical",
            "a person is needed: rollback budget of 3 is spent",
        ),
        (
            event("not_proved", rollback="incident-1-r1", attempt=2, checks=[{"what": "seed", "holds": False}]),
            "tr8/incident-1/divergence",
            "firing",
            "critical",
            "contradicts incident-1-r1, which did not take effect: seed",
        ),
        (CLOSED, "tr8/incident-1/divergence", "resolved", "warning", "closed, recovered"),
        (firing("down", severity="critical"), "tr8/down", "firing", "critical", "no answer"),
        (resolved("down"), "tr8/down", "resolved", "warning", "it lasted 1950 s"),
    ],
)
def test_what_concerns_somebody_is_a_page(
    happened: IncidentEvent, key: str, status: str, severity: str, says: str
) -> None:
    page = page_for(happened, "tr8")
    assert page is not None
    assert (page.key, page.status, page.severity) == (key, status, severity)
    assert says in page.summary
    assert page.topic in WHAT_TO_DO
    assert page.runbook == f"docs/PAGING.md#{page.topic}"
    assert "overrides" not in page.details


@pytest.mark.parametrize("kind", ["decided", "intent", "done", "failed", "applied", "proved", "rung_failed", "purged"])
def test_what_sentinel_does_by_itself_wakes_nobody(kind: str) -> None:
    assert page_for(event(kind, **DECISION, action={"kind": "start_job"}, reason="x", checks=[]), "tr8") is None


def test_a_persons_own_rollback_pages_nobody_unless_it_does_not_take_effect() -> None:
    proved = event("closed", outcome="proved", reason="attempt 2 runs with what was asked for")
    assert not list(pages([BY_HAND, proved], "tr8"))
    told = [page.status for _, page in pages([BY_HAND, STOPPED, proved], "tr8")]
    assert told == ["firing", "resolved"]


def test_the_question_to_a_person_says_how_it_is_answered() -> None:
    page = page_for(PROPOSED, "tr8")
    assert page is not None
    assert page.details["answer"] == "sentinel approve incident-1 --run tr8"
    assert "lost_steps: 200" in page.text
    assert page.title.startswith("[critical] tr8 incident-1: proposed 'reseed' from global_step40")


def test_the_end_of_an_incident_ends_all_that_was_told_of_it() -> None:
    told = [page for _, page in pages([OPENED, firing(), PROPOSED, CLOSED], "tr8")]
    ends = [(page.key, page.severity) for page in told if page.resolved]
    assert ends == [("tr8/incident-1/divergence", "warning"), ("tr8/incident-1/approval", "critical")]


def test_an_end_has_the_severity_that_its_story_had_so_that_it_finds_the_same_channels() -> None:
    *_, (_, last) = pages([OPENED, STOPPED, OPENED, CLOSED], "tr8")
    assert (last.resolved, last.severity) == (True, "critical")


@given(st.lists(st.sampled_from([OPENED, BY_HAND, PROPOSED, STOPPED, CLOSED, firing(), resolved()]), max_size=12))
def test_nothing_ends_that_was_not_told(events: list[IncidentEvent]) -> None:
    firing: set[str] = set()
    for number, page in pages(events, "tr8"):
        assert 0 <= number < len(events)
        if page.resolved:
            firing.remove(page.key)
        else:
            firing.add(page.key)
    if events and events[-1] is CLOSED:
        assert not any("incident-1" in key for key in firing)


@given(
    st.builds(
        Page,
        run=st.text(min_size=1),
        incident=st.none() | st.text(min_size=1),
        topic=st.sampled_from(sorted(WHAT_TO_DO)),
        severity=st.sampled_from(["warning", "critical"]),
        summary=st.text(),
        details=st.dictionaries(st.text(), st.text() | st.integers() | st.lists(st.integers())),
        runbook=st.text(),
        time_unix_s=st.floats(0, 4e9),
        resolved=st.booleans(),
    )
)
def test_a_page_comes_back_from_the_outbox_as_it_went_in(page: Page) -> None:
    assert page_from_json(load_object(dump_json(page.to_json()))) == page


def test_a_log_of_another_version_is_told_as_well_as_may_be() -> None:
    page = page_for(event("stopped", reason=None), "tr8")
    assert page is not None
    assert page.summary == "stopped, in the words of another version"


def test_a_test_page_says_that_nothing_is_wrong() -> None:
    assert "nothing is wrong" in trial_page("tr8", 1.0).text


def test_each_topic_of_the_alerts_says_what_to_do() -> None:
    assert set(get_args(AlertTopic)) | {"divergence", "approval", "ended", "test"} == set(WHAT_TO_DO)
    (page,) = [page for _, page in pages([firing("stalled")], "tr8")]
    assert "py-spy dump" in page.text
