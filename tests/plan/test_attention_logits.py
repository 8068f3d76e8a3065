"""What follows from a warning of attention logits: a pin, a request for a save, a page; never a rollback. Nothing
follows from any other early warning."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from sentinel.judge.detectors.attention_logits import LogitWarning
from sentinel.judge.readings import Readings as LossReadings
from sentinel.judge.series import Series
from sentinel.judge.thresholds import Thresholds
from sentinel.plan.alerts.alerts import alerts_of
from sentinel.plan.choose.policy import Policy
from sentinel.plan.facts import Facts
from sentinel.plan.outcome import Memory
from sentinel.plan.restart.actions import AskForSave, to_json
from sentinel.plan.turn import decide
from tests.plan.looks import look
from tests.support.log_lines import logged
from tests.support.recovery_plans import checkpoint

WARNING = LogitWarning(since_step=1000, step=1031)
SAVES = Policy(mode="act", warn="save")
THERE = tuple(checkpoint(step) for step in (800, 900, 995))
ASKED = {"event": "intent", "action": to_json(AskForSave(500, "")), "time_unix_s": 1.0}


def warned(warning: LogitWarning | None = WARNING, **seen: Any) -> Facts:
    return look(**({"checkpoints": THERE, "judged_step": 1040, "logit_warning": warning} | seen))


@pytest.mark.parametrize(
    ("policy", "seen", "pins"),
    [
        (Policy(mode="act"), {}, ("global_step995", "global_step900")),  # 995 is the last healthy one
        (Policy(mode="approve", pin_last_healthy=False), {}, ("global_step900",)),
        (Policy(mode="act", warn="tell"), {}, ("global_step995",)),
        (Policy(mode="act"), {"warning": None}, ("global_step995",)),  # it has passed: its pin is let go
        (Policy(mode="act", pin_last_healthy=False), {"warning": None}, ()),
        (Policy(mode="observe"), {}, None),
        (Policy(mode="act", pin_last_healthy=False), {"checkpoints": (checkpoint(900, complete=False),)}, ()),
    ],
)
def test_a_warning_pins_the_newest_whole_checkpoint_from_before_it(
    policy: Policy, seen: dict[str, Any], pins: tuple[str, ...] | None
) -> None:
    assert decide(warned(**seen), policy, Memory()).pins == pins


@pytest.mark.parametrize(
    ("policy", "seen", "asks"),
    [
        (SAVES, {}, True),
        (Policy(mode="act"), {}, False),  # the default pins and asks for nothing
        (Policy(mode="observe", warn="save"), {}, False),
        (SAVES, {"warning": None}, False),
        (SAVES, {"paused": True}, False),
        (SAVES, {"checkpoints": (*THERE, checkpoint(990), checkpoint(1010))}, False),  # new enough
        (SAVES, {"events": logged(ASKED)}, False),  # not long ago
        (SAVES, {"events": logged(ASKED | {"action": to_json(AskForSave(20, ""))})}, True),
    ],
)
def test_a_save_is_asked_for_once_and_where_the_policy_says_so(
    policy: Policy, seen: dict[str, Any], asks: bool
) -> None:
    checkpoints = {"checkpoints": tuple(checkpoint(step) for step in (800, 900))}
    turn = decide(warned(**(checkpoints | seen)), policy, Memory())
    assert turn.actions == ((AskForSave(1031, WARNING.reason),) if asks else ())
    assert (turn.records, turn.outcome) == ((), None)


@pytest.mark.parametrize(("warn", "told"), [("off", None), ("tell", WARNING.reason), ("save", WARNING.reason)])
def test_a_warning_is_a_page_of_low_severity_also_where_sentinel_only_observes(warn: Any, told: str | None) -> None:
    (alert,) = [a for a in alerts_of(warned(), Policy(warn=warn), None) if a.topic == "attention_logits"]
    assert (alert.reason, alert.severity) == (told, "warning")


TOLD = {"topic": "attention_logits", "severity": "warning", "reason": WARNING.reason, "since_unix_s": 1.0}
FIRING, RESOLVED = {"event": "alert_firing", **TOLD}, {"event": "alert_resolved", **TOLD}


@pytest.mark.parametrize(
    ("events", "told"),
    [
        ((), True),
        ((FIRING,), True),  # it lasts: no word of its end
        ((FIRING, RESOLVED), False),  # the divergence was known, and the rollback's target is after the warning
        ((FIRING | {"reason": "another"}, RESOLVED), True),
    ],
)
def test_a_warning_that_a_rollback_brings_back_is_not_told_again(events: tuple[Any, ...], told: bool) -> None:
    seen = warned(events=logged(*events))
    (alert,) = [a for a in alerts_of(seen, Policy(), None) if a.topic == "attention_logits"]
    assert (alert.reason is not None) == told
    assert decide(seen, Policy(mode="act"), Memory()).pins == ("global_step995", "global_step900")  # its pin stays


def test_a_page_of_an_early_warning_that_an_older_version_sent_is_ended_and_none_is_sent_again() -> None:
    firing = FIRING | {"topic": "early_warning", "reason": "signals rise", "time_unix_s": 1.0}
    turn = decide(look(events=logged(firing)), Policy(), Memory())
    assert [(e.kind, e.to_json()["topic"]) for e in turn.alert_records] == [("alert_resolved", "early_warning")]
    ended = logged(firing, firing | {"event": "alert_resolved"})
    assert decide(look(events=ended), Policy(), Memory()).alert_records == ()


def test_signals_that_rise_together_are_neither_told_nor_pinned_for() -> None:
    n = 1200
    rise = np.clip((np.arange(n) - 600) / 300, 0, 1)
    rng = np.random.default_rng(0)
    columns = {name: by * (1 + 0.01 * rng.standard_normal(n)) for name, by in (("loss", 2.0), ("grad_norm", 1 + rise))}
    columns["adam_variance_max"] = 0.1 * (1 + rise)
    series = Series(Thresholds())
    series.push_readings(LossReadings(attempt=1, steps=np.arange(1, n + 1), columns=columns))
    assert series.early_warning is not None
    seen = look(checkpoints=THERE, series=series)
    assert [a for a in alerts_of(seen, Policy(), None) if a.reason is not None] == []
    assert decide(seen, Policy(mode="act", pin_last_healthy=False), Memory()).pins in (None, ())
