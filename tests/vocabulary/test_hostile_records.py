"""Journals, incident logs and overrides that hold what no program of ours writes: each command answers in sentences."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from tests.support.hostile_run import answer, run_folder

HUGE = st.sampled_from(
    [2**63, -(2**63), 2**64, 10**400, -(10**400), 2**53, 2**53 + 1, -1, 0, 1e308, -1e308, 1e300, 1e12, 1e11, 5e-324]
)
ODD = st.sampled_from(
    ["nan", "inf", "-inf", "", "\ud800", "\x00", "../../evil", "/etc/x", "x" * 5000, "\x1b[2J", "\u202e"]
)
VALUES = st.recursive(
    HUGE | ODD | st.none() | st.booleans(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(ODD, inner, max_size=2),
)

STARTED = {
    "kind": "run_started",
    "attempt": 1,
    "time_unix_s": 1.0,
    "resumed_from": None,
    "job_id": "7",
    "pid": 1,
    "seed": 1,
}
SAMPLE = {"kind": "sample", "attempt": 1, "global_step": 1, "time_unix_s": 1.0, "loss": 2.0, "seqlen": 8, "lr": 1e-4}
SAMPLE |= {"consumed_tokens": 8, "consumed_samples": 1, "adam_variance_max": 1.0, "grad_norm": 1.0, "loss_ratio": 1.0}
OTHERS: list[dict[str, Any]] = [
    {"kind": "validation", "attempt": 1, "global_step": 4, "time_unix_s": 4.0, "loss": 2.0},
    {"kind": "checkpoint_saved", "attempt": 1, "global_step": 5, "time_unix_s": 5.0, "tag": "global_step5"},
    {"kind": "layer_variance", "attempt": 1, "global_step": 5, "time_unix_s": 5.0, "layers": ["a"],
     "adam_variance_l1": [1.0], "adam_variance_max": [1.0]},
    {"kind": "parked", "attempt": 1, "global_step": 8, "time_unix_s": 8.0, "rollback": "incident-1-r1"},
    {"kind": "released", "attempt": 1, "global_step": 8, "time_unix_s": 8.0, "rollback": "incident-1-r1"},
    {"kind": "run_finished", "attempt": 1, "global_step": 9, "time_unix_s": 9.0, "reason": "finished"},
]  # fmt: skip
OVERRIDES = {
    "schema": 1,
    "incident": "incident-1",
    "rollback": "incident-1-r1",
    "anchor": {"global_step": 5},
    "standing": {},
    "once": {},
}
OPENED = {
    "event": "opened",
    "incident": "incident-1",
    "time_unix_s": 1e9,
    "attempt": 1,
    "onset_range": [3, 4],
    "alarm_step": 9,
}
OPENED |= {"onset_tokens": 8, "best_mean": 2.0, "reason": "r", "led_by": [], "baseline": {}}
DECIDED = {
    "event": "decided",
    "incident": "incident-1",
    "time_unix_s": 1e9,
    "rollback": "incident-1-r1",
    "rung": "wait",
}
DECIDED |= {
    "hypothesis": "h",
    "target": {"tag": "global_step5", "global_step": 5},
    "overrides": OVERRIDES,
    "changes": [],
    "lost_steps": 4,
}
AT = {"incident": "incident-1", "time_unix_s": 1e9}
MOVE = {"kind": "quarantine_checkpoints", "tags": ["global_step9"]}
TROUBLE = {"topic": "t", "severity": "warning", "reason": "r", "since_unix_s": 1e9}
EVENTS: list[dict[str, Any]] = [
    OPENED,
    DECIDED,
    {"event": "intent", "rollback": "incident-1-r1", "action": MOVE, **AT},
    {"event": "alert_firing", **AT, **TROUBLE, "incident": None},
    {"event": "stopped", "reason": "r", **AT},
]

COMMANDS = (
    *(["status"], ["status", "--json"], ["watch", "--once"], ["incidents"], ["incident", "incident-1"], ["chronicle"]),
    *(
        ["correlate", "--run", "tr8"],
        ["replay", ".sentinel/tr8"],
        ["rollback", "--to", "global_step5", "--dry-run"],
        ["doctor"],
    ),
    *(["export", "--run", "tr8", "-o", "out.csv"], ["compare", "tr8", ".sentinel/tr8"]),
)


def spoiled(lines: list[dict[str, Any]]) -> st.SearchStrategy[list[dict[str, Any]]]:
    """The lines with some of their values, at any depth of two, replaced."""

    @st.composite
    def one(draw: st.DrawFn) -> list[dict[str, Any]]:
        copies: list[dict[str, Any]] = json.loads(json.dumps(lines))
        for _ in range(draw(st.integers(1, 3))):
            at = copies[draw(st.integers(0, len(copies) - 1))]
            key = draw(st.sampled_from(sorted(at)))
            if isinstance(at[key], dict) and at[key] and draw(st.booleans()):
                at = at[key]
                key = draw(st.sampled_from(sorted(at)))
            at[key] = draw(VALUES)
        return copies

    return one()


def journal() -> list[dict[str, Any]]:
    steps = [SAMPLE | {"global_step": n, "time_unix_s": float(n), "loss": 2 + n % 3 / 10} for n in range(1, 40)]
    return [STARTED, *steps, *OTHERS]


@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    lines=spoiled(journal()),
    events=st.just(EVENTS) | spoiled(EVENTS),
    overrides=spoiled([OVERRIDES]),
    command=st.sampled_from(COMMANDS),
)
@example(lines=[SAMPLE | {"global_step": 10**400}], events=[], overrides=[OVERRIDES], command=["status"])
@example(lines=journal(), events=[OPENED | {"time_unix_s": 1e300}], overrides=[OVERRIDES], command=["chronicle"])
@example(lines=journal(), events=[OPENED, DECIDED | {"changes": [[]]}], overrides=[OVERRIDES], command=["chronicle"])
@example(
    lines=[*journal(), SAMPLE | {"time_unix_s": 1e12}], events=[], overrides=[OVERRIDES], command=["watch", "--once"]
)
def test_no_record_ends_a_command_in_a_traceback(
    lines: list[dict[str, Any]], events: list[dict[str, Any]], overrides: list[dict[str, Any]], command: list[str]
) -> None:
    with run_folder() as root:
        state_dir = root / ".sentinel" / "tr8"
        (state_dir / "attempts" / "0001.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        (state_dir / "incidents.jsonl").write_text("".join(json.dumps(line) + "\n" for line in events))
        (state_dir / "overrides.json").write_text(json.dumps(overrides[0]))
        answer(*command)
        assert {path.name for path in root.parent.iterdir()} == {"b"}, "something was written outside of the run"
        assert {path.name for path in root.parents[1].iterdir()} == {"a"}
