"""Lines of the incident log: what is read is written again byte by byte, and what can't be read is told apart."""

from __future__ import annotations

import lzma
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sentinel.plan.alerts.sentences import sentence
from sentinel.plan.incident.events import fold
from sentinel.plan.incident.log_events import UnreadEvent
from sentinel.plan.incident.log_lines import event_of
from sentinel.vocabulary.errors import IncidentLogError
from sentinel.vocabulary.numbers import dump_json, load_object
from tests.support.log_lines import ALWAYS, logged

DATA = Path(__file__).parents[1] / "data"
WRITTEN = (DATA / "incident_log.jsonl").read_text().splitlines()
"""One line of each form that 0.1.0 wrote while events were dictionaries."""

OLDER = lzma.decompress((DATA / "removed_records" / "race_won.jsonl.xz").read_bytes()).decode().splitlines()


@pytest.mark.parametrize("line", WRITTEN + OLDER, ids=lambda line: load_object(line)["event"])
def test_a_line_is_written_again_as_it_was_read(line: str) -> None:
    event = event_of(load_object(line))
    assert not isinstance(event, UnreadEvent)
    assert dump_json(event.to_json()) == line


@pytest.mark.parametrize("line", WRITTEN, ids=lambda line: load_object(line)["event"])
def test_an_event_made_today_has_the_bytes_that_scripts_read(line: str) -> None:
    made = replace(event_of(load_object(line)), keys=(), more={})
    assert dump_json(made.to_json()) == line


def test_what_another_version_has_written_besides_is_kept_and_changes_nothing() -> None:
    stopped: dict[str, Any] = {"event": "stopped", "incident": "incident-1", "urgent": True, "reason": "spent"}
    opened = {"event": "opened", "incident": "incident-1"}
    newer = {"event": "handed_over", "incident": "incident-1", "reason": 7}
    events = logged(opened, newer, stopped, {"event": "rated", "stars": 3})
    assert [event.to_json() for event in events[1:3]] == [{**line, "time_unix_s": 1.0} for line in (newer, stopped)]
    (incident,) = fold(events)
    assert (incident.status, incident.note) == ("stopped", "spent")
    assert [sentence(event) for event in events[1:]] == [None, "stopped, a person is needed: spent", None]


@pytest.mark.parametrize("kind", sorted(ALWAYS))
def test_a_known_event_without_a_key_that_it_always_has_is_refused_and_told_in_general_words(kind: str) -> None:
    whole = {"event": kind, "incident": "incident-1", "time_unix_s": 1.0, **ALWAYS[kind]}
    for key in ALWAYS[kind]:
        event = event_of({name: value for name, value in whole.items() if name != key})
        assert sentence(event) == f"{kind}, in the words of another version", key
        with pytest.raises(IncidentLogError, match="event 2 of the incident log makes no sense"):
            fold([*logged({"event": "opened", "incident": "incident-1"}), event])


def test_an_event_whose_times_were_shifted_says_so_and_by_how_much() -> None:
    firing, odd = logged({"event": "alert_firing", "since_unix_s": 5.0}, {"event": "rated"})
    assert {**firing.to_json(), **firing.shifted(60.0).to_json()} == {
        **firing.to_json(),
        "since_unix_s": 65.0,
        "time_unix_s": 61.0,
        "shifted_by_s": 60.0,
    }
    assert odd.shifted(60.0).to_json() == {**odd.to_json(), "time_unix_s": 61.0, "shifted_by_s": 60.0}
    assert event_of(firing.shifted(60.0).to_json()) == firing.shifted(60.0)
