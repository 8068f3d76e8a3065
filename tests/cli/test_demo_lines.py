"""The demo's lines of progress: what happened, each incident and rollback named once."""

from __future__ import annotations

from typing import Any

import pytest

from sentinel.demo.story import _line
from tests.support.log_lines import logged

OF: dict[str, Any] = {
    "incident": "incident-1",
    "rollback": "incident-1-r2",
    "attempt": 3,
    "checks": [{"what": "seed", "answer": "confirmed"}] * 2,
}


@pytest.mark.parametrize(
    ("event", "line"),
    [
        ({"event": "proved", **OF}, "  attempt 3 confirms incident-1-r2: 2 checks hold"),
        ({"event": "rung_failed", **OF, "reason": "diverged again"}, "! incident-1-r2 "),
        (
            {"event": "closed", "incident": "incident-1", "outcome": "recovered", "reason": "it is better"},
            "! incident-1: closed, recovered: it is better",
        ),
        ({"event": "intent", **OF, "action": {"kind": "undo"}}, None),
    ],
)
def test_a_line_names_its_incident_or_rollback_once(event: dict[str, Any], line: str | None) -> None:
    (said,) = map(_line, logged(event))
    assert (said is None) == (line is None)
    if said is not None and line is not None:
        assert said.startswith(line)
        assert said.count("incident-1") == 1
