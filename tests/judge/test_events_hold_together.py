"""Whatever the losses are, the events that are told of them hold together: in order, within the run, in JSON."""

from __future__ import annotations

import json
import math
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from sentinel.cli.commands import app
from sentinel.judge.events import Event, EventKind
from sentinel.judge.readings import Readings
from sentinel.judge.replay import Replay
from sentinel.judge.thresholds import Thresholds
from sentinel.judge.verdict import VerdictKind, judge_past
from sentinel.plan.choose.target import rollback_to

AS_IS, UP, SPIKE, CLIMB, NAN, INF, ZERO, NEGATIVE, SKIPPED, RESTART = range(10)
PIECE = st.tuples(st.sampled_from(range(10)), st.integers(1, 150), st.floats(0.01, 5))
CURVE = st.fixed_dictionaries(
    {
        "pieces": st.lists(PIECE, min_size=1, max_size=8),
        "noise": st.sampled_from((0.0, 0.003, 0.03, 0.5)),
        "level": st.sampled_from((1e-6, 0.02, 2.0, 11.0, 1e30)),
        "interval": st.sampled_from((1, 10, 100)),
        "first": st.sampled_from((0, 1, 5000)),
        "seed": st.integers(0, 2**16),
    }
)


def stretches(curve: dict[str, object]) -> list[Readings]:
    """Pieces of every illness and of none, one after the other; a restart goes back by half of what was done."""
    rng = np.random.default_rng(int(str(curve["seed"])))
    interval, noise, level = int(str(curve["interval"])), float(str(curve["noise"])), float(str(curve["level"]))
    step, attempt, found = int(str(curve["first"])), 1, []
    for kind, n, height in curve["pieces"]:  # type: ignore[attr-defined]
        if kind == RESTART and found:
            attempt, step = attempt + 1, max(int(str(curve["first"])), step - interval * (n // 2))
        ramp = np.arange(1, n + 1) / n
        shape = {UP: 1 + height, SPIKE: 1 + height * np.exp(-9 * ramp), CLIMB: 1 + height * ramp}.get(kind, 1.0)
        loss = level * shape * np.exp(rng.normal(0, noise, n))
        loss = {NAN: loss * math.nan, INF: loss * 0 + math.inf, ZERO: loss * 0, NEGATIVE: -loss}.get(kind, loss)
        steps = step + interval * np.arange(1, n + 1)
        skipped = np.full(n, kind == SKIPPED)
        found.append(Readings(attempt=attempt, steps=steps, columns={"loss": loss}, skipped=skipped))
        step = int(steps[-1])
    return found


def check(events: tuple[Event, ...], first: int, last: int, *, restarted: bool) -> None:
    assert [e.onset_range for e in events] == sorted(e.onset_range for e in events)
    for e in events:
        early, late = e.onset_range
        assert first <= early <= late <= last, e
        assert early <= e.verdict_step <= last, e
        if e.end_step is not None:
            assert late <= e.end_step or e.kind is EventKind.PLATEAU, e
            assert e.verdict_step <= e.end_step <= last, e
        assert e.recommend_rollback == (e.kind in (EventKind.DIVERGENCE, EventKind.NAN)), e
        assert e.reason
        to = rollback_to(e, (), 10)
        assert (to is not None) == e.recommend_rollback
        assert to is None or 0 <= to <= early
    lasting = [e for e in events if e.end_step is None and e.kind is not EventKind.PLATEAU]
    assert len(lasting) <= 1, lasting
    if not restarted:
        called = sorted((e.verdict_step, e.end_step) for e in events if e.recommend_rollback)
        assert all(end is not None and end <= nxt[0] for (_, end), nxt in pairwise(called)), called


@settings(deadline=None, max_examples=150, suppress_health_check=list(HealthCheck))
@given(CURVE, st.booleans())
def test_events_are_in_order_and_within_the_run(curve: dict[str, object], still_running: bool) -> None:
    replay = Replay(Thresholds())
    found = stretches(curve)
    for readings in found:
        replay.push(readings)
    if not still_running:
        replay.end()
    first = min(int(r.steps[0]) for r in found)
    last = max(int(r.steps[-1]) for r in found)
    check(replay.events, first, last, restarted=len({r.attempt for r in found}) > 1)
    diverged = judge_past(replay.series, None).kind is VerdictKind.DIVERGED
    assert diverged == any(e.recommend_rollback and e.end_step is None for e in replay.events)


@settings(deadline=None, max_examples=25, suppress_health_check=list(HealthCheck))
@given(CURVE)
def test_the_json_is_json_and_the_exit_code_says_what_it_says(
    tmp_path_factory: pytest.TempPathFactory, curve: dict[str, object]
) -> None:
    path = Path(tmp_path_factory.mktemp("curve")) / "a.csv"
    rows = [
        f"{step},{loss!r},{int(skipped)},{r.attempt}"
        for r in stretches(curve)
        for step, loss, skipped in zip(
            r.steps.tolist(), r.columns["loss"].tolist(), np.asarray(r.skipped).tolist(), strict=True
        )
    ]
    path.write_text("\n".join(["step,loss,skipped,attempt", *rows]) + "\n")
    done = CliRunner().invoke(app, ["replay", str(path), "--json"])
    (document,) = json.loads(done.stdout, parse_constant=lambda text: pytest.fail(f"{text} is no JSON"))
    assert document["samples"] == len(rows)
    assert document["unreadable_lines"] == 0
    assert done.exit_code == int(document["verdict"] == "diverged")
    for event in document["events"]:
        assert event["onset_step"] == event["onset_range"][0]
        assert (event["rollback_to"] is not None) == event["recommend_rollback"]
    assert json.loads(json.dumps(document)) == document
