"""What the watch shows of a run: ratios that know the verdict, where mitigations stand, budgets, and its own turns."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from sentinel.act.observation import Observation
from sentinel.daemon.run_metrics import Correlated, leads
from sentinel.daemon.run_series import MITIGATIONS, ActionCounts, Turns, exposed, of_actions, of_daemon
from sentinel.judge.history import History
from sentinel.judge.series import Series
from sentinel.judge.thresholds import Thresholds
from sentinel.judge.verdict import VerdictKind, judge
from sentinel.plan.choose.policy import Policy
from sentinel.plan.facts import Facts
from sentinel.plan.incident.incident import Incident, Proof, Rollback
from sentinel.plan.incident.log_events import IncidentEvent
from sentinel.vocabulary.metrics import DAEMON_METRICS, Exemplar, Shown
from sentinel.vocabulary.sample import Sample
from tests.support.curves import ALIVE, curve, healthy, sample, spike, tr8
from tests.support.decisions import DECISION
from tests.support.facts import look_of
from tests.support.log_lines import logged
from tests.support.recovery_plans import incident
from tests.support.recovery_plans import run as run_state

LABELS = {metric.name: metric.labels for metric in DAEMON_METRICS}


def look(
    samples: Iterable[Sample], facts: Facts | None = None, events: Sequence[Mapping[str, Any]] = ()
) -> Observation:
    history, series = History(), Series(Thresholds())
    for one in samples:
        history.push(one)
        series.push(one)
    facts = facts or run_state(incidents=())
    verdict = judge(series, ALIVE, Thresholds())
    return look_of(history, series, facts.changed(verdict=verdict, events=tuple(events)))


def values(shown: Iterable[Shown]) -> dict[str, float]:
    """`name{the labels but run and attempt}` without its prefix -> value."""
    found = {}
    for one in shown:
        labels = dict(zip(LABELS[one.name], one.labels, strict=True))
        assert labels.pop("run") == "tr8"
        assert labels.pop("attempt", "1") == "1"
        key = one.name.removeprefix("sentinel_") + "".join(f"[{value}]" for value in labels.values())
        assert key not in found
        found[key] = one.value
    return found


def seen(samples: Iterable[Sample], **more: Any) -> dict[str, float]:
    at = look(samples, **more)
    return values((*exposed("tr8", at, Policy()), *of_actions("tr8", at.events)))


def test_of_a_healthy_run_the_ratio_is_about_one_and_nothing_is_shown_as_wrong() -> None:
    found = seen(curve(healthy, 400))
    assert (found["verdict[healthy]"], found["verdict[diverged]"], found["severity"]) == (1, 0, 0)
    assert sum(value for key, value in found.items() if key.startswith("verdict[")) == 1
    assert found["judged_loss_ratio"] == pytest.approx(1.0, abs=0.1)
    assert {"judged_loss_ratio_peak", "alarm_step", "onset_step[early]"} & set(found) == set()
    assert (found["judged_global_step"], found["last_sample_timestamp_seconds"]) == (400, 400.0)


def test_a_spike_shows_its_peak_also_when_the_newest_step_is_past_it() -> None:
    found = seen(curve(spike, 515))
    assert (found["verdict[spike]"], found["severity"]) == (1, 1)
    assert found["judged_loss_ratio_peak"] == pytest.approx((healthy(503) + 3) / healthy(495), rel=0.1)
    assert found["judged_loss_ratio"] < found["judged_loss_ratio_peak"]
    assert "judged_loss_ratio_peak" not in seen(curve(spike, 700))


def test_a_divergence_shows_its_onset_and_a_ratio_that_never_learns_the_illness() -> None:
    found = seen(curve(tr8, 1500))
    assert (found["verdict[diverged]"], found["severity"]) == (1, 2)
    assert found["onset_step[early]"] <= 500 <= found["onset_step[late]"] + 1
    assert found["alarm_step"] > 500
    assert found["judged_loss_ratio"] == pytest.approx(1.15, abs=0.05)


def test_a_recovery_at_a_short_length_has_no_ratio_that_would_page() -> None:
    full = [sample(s, healthy(s), seqlen=128) for s in range(1, 200)]
    for last in range(200, 400, 3):
        lengths = {s: min(128, 8 + 8 * ((s - 200) // 4)) for s in range(200, last + 1)}
        after = [sample(s, healthy(s) + 1.5 * (128 - n) / 120, seqlen=n) for s, n in lengths.items()]
        found = seen(full + after)
        assert found.get("judged_loss_ratio", 1.0) < 1.2
        assert "judged_loss_ratio_peak" not in found


@pytest.mark.parametrize("loss", [math.nan, math.inf])
def test_a_loss_that_is_no_number_is_the_worst_ratio(loss: float) -> None:
    assert seen([*curve(healthy, 100), sample(101, loss)])["judged_loss_ratio"] == math.inf


def test_before_the_first_attempt_there_is_a_verdict_and_no_reading() -> None:
    shown = exposed("tr8", look(()), Policy())
    assert {s.labels[1] for s in shown if s.name == "sentinel_verdict"} == {""}
    assert "sentinel_judged_loss" not in {s.name for s in shown}


@pytest.mark.parametrize(
    ("changed", "state"),
    [
        ({}, "decided"),
        ({"applied": True}, "applied"),
        ({"applied": True, "proof": Proof.CONFIRMED}, "proved"),
        ({"applied": True, "proof": Proof.NOT_VERIFIED}, "not_verified"),
        ({"applied": True, "proof": Proof.CONTRADICTED}, "not_proved"),
        ({"applied": True, "proof": Proof.CONFIRMED, "failed": "diverged again"}, "failed"),
        ({"applied": True, "taken_back": True}, "taken_back"),
    ],
)
def test_where_the_mitigation_of_the_open_incident_stands(changed: dict[str, Any], state: str) -> None:
    found = seen(curve(healthy, 50), facts=run_state(incidents=(_with(replace(DECISION, **changed)),)))
    assert [one for one in MITIGATIONS if found[f"mitigation[{one}]"]] == [state]


def test_a_closed_incident_has_no_mitigation_in_force_and_is_counted() -> None:
    found = seen(
        curve(healthy, 50), facts=run_state(incidents=(_with(DECISION, status="closed"), incident(id="incident-2")))
    )
    assert not [key for key in found if key.startswith("mitigation")]
    assert (found["incidents[closed]"], found["incidents[open]"], found["incidents[stopped]"]) == (1, 1, 0)


def test_the_newest_incident_is_told_by_its_opening_also_when_it_is_long_closed() -> None:
    one, two = (incident(id=f"incident-{n}", status="closed", opened_unix_s=1000.0 * n) for n in (1, 2))
    assert seen(curve(healthy, 50), facts=run_state(incidents=(one, two)))["last_incident_timestamp_seconds"] == 2000.0
    assert "last_incident_timestamp_seconds" not in seen(curve(healthy, 50))


def test_actions_are_counted_over_the_runs_life_each_from_zero() -> None:
    def event(what: str, kind: str) -> dict[str, Any]:
        return {"event": what, "time_unix_s": 1990.0, "action": {"kind": kind}}

    before = seen(curve(healthy, 50))
    assert before["actions_total[stop_job][failed]"] == before["last_action_failed"] == 0
    events = logged(event("intent", "stop_job"), event("failed", "stop_job"), event("done", "verify_checkpoint"))
    after = seen(curve(healthy, 50), events=events[:2])
    assert (after["actions_total[stop_job][failed]"], after["last_action_failed"]) == (1, 1)
    over = seen(curve(healthy, 50), events=events)
    assert (over["actions_total[verify_checkpoint][done]"], over["last_action_failed"]) == (1, 0)


def test_actions_are_counted_again_only_once_the_incident_log_has_grown() -> None:
    events = list[IncidentEvent]()
    counts = ActionCounts("tr8")
    none = counts.of(events)
    assert counts.of(events) is none
    assert sum(shown.value for shown in none) == 0
    events += logged({"event": "done", "action": {"kind": "stop_job"}})
    assert sum(shown.value for shown in counts.of(events)) == 1


def test_a_count_of_actions_says_which_incident_the_last_one_was_for() -> None:
    def event(what: str, at: float, **of: Any) -> dict[str, Any]:
        return {"event": what, "time_unix_s": at, "action": {"kind": "stop_job"}, **of}

    events = [
        event("intent", 10.0, incident="incident-1", rollback="incident-1-r1"),
        event("done", 11.0, incident="incident-1", rollback="incident-1-r1"),
        event("done", 12.0, incident="incident-2", rollback=None),
        event("intent", 13.0, incident="incident-3", rollback=None),
    ]
    shown = of_actions("tr8", logged(*events))
    told = {s.labels[1:]: s.exemplar for s in shown if s.name == "sentinel_actions_total" and s.exemplar}
    assert told == {("stop_job", "done"): Exemplar({"incident": "incident-2"}, 12.0)}


def test_budgets_are_what_is_left_and_never_below_zero() -> None:
    spent = run_state(incidents=(_with(replace(DECISION, lost_gpu_hours=3.0)),))
    at = look(curve(healthy, 50), facts=spent)
    found = values(exposed("tr8", at, Policy(rollback_budget=3, lost_steps_budget=60, gpu_hours_budget=4.5)))
    assert (found["budget_rollbacks_left"], found["budget_lost_steps_left"]) == (2, 0)
    assert found["budget_gpu_seconds_left"] == 5400
    assert "budget_gpu_seconds_left" not in values(exposed("tr8", at, Policy()))


def test_the_watch_tells_of_itself_before_it_has_seen_anything() -> None:
    turns = Turns()
    found = values(of_daemon("tr8", turns, mode="approve", poll_interval_s=5.0, version="1.2.3"))
    assert (found["mode[approve]"], found["mode[act]"], found["build_info[1.2.3]"], found["turns_total"]) == (
        *(1, 0, 1, 0),
    )
    assert "last_look_timestamp_seconds" not in found
    turns = turns.with_turn(took_s=0.5, failed=False, look_unix_s=7.0).with_turn(
        took_s=2.0, failed=True, look_unix_s=None
    )
    found = values(of_daemon("tr8", turns, mode="act", poll_interval_s=5.0, version="1.2.3"))
    assert (found["turns_total"], found["turn_errors_total"], found["turn_seconds_total"]) == (2, 1, 2.5)
    assert (found["last_turn_seconds"], found["last_look_timestamp_seconds"]) == (2.0, 7.0)


def test_a_signal_that_leads_is_shown_with_its_lag() -> None:
    noise = [s.loss - healthy(s.global_step) for s in curve(healthy, 405, noise=0.05)]
    made = [
        sample(s, 3.0 + noise[s], loss_ratio=1.0 + noise[s], grad_norm=1.0 + noise[s + 4] if s + 4 < 405 else 1.0)
        for s in range(400)
    ]
    (lead,) = [one for one in leads(made) if one.signal == "grad_norm"]
    assert lead.lag == 4
    assert lead.pearson_r > 0.9
    assert leads(made[:20]) == ()


def test_correlations_are_worked_out_while_something_is_wrong_and_once_a_minute() -> None:
    correlated = Correlated()
    made = [replace(s, loss_ratio=s.loss / 2, grad_norm=s.loss) for s in curve(tr8, 700)]
    ill = look(made)
    assert ill.verdict.kind is VerdictKind.DIVERGED
    first = correlated.of(ill)
    assert [lead.signal for lead in first] == ["grad_norm"]
    at_once = ill.known(now_unix_s=ill.facts.now_unix_s + 59)
    assert correlated.of(at_once) is first
    later = ill.known(now_unix_s=ill.facts.now_unix_s + 61)
    assert correlated.of(later) is not first
    assert correlated.of(look(made[:400])) == ()


def _with(rollback: Rollback, **changed: Any) -> Incident:
    return replace(incident(**changed), rollbacks=[rollback])
