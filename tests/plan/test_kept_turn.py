"""A turn that is kept, read back and decided again is the same, byte for byte; what is kept holds no secret."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sentinel.act.kept_turns import KeptTurns
from sentinel.plan.choose.policy import Policy
from sentinel.plan.facts import Facts
from sentinel.plan.outcome import Memory, Turn
from sentinel.plan.review.kept_turn import KeptTurn, to_json, told
from sentinel.plan.turn import decide
from sentinel.vocabulary.errors import ConfigError
from sentinel.vocabulary.numbers import dump_json, load_object
from tests.plan.looks import DOWN, look
from tests.plan.simulated_run import World
from tests.support.log_lines import logged
from tests.support.stories import STORIES


def decided_again(facts: Facts, policy: Policy, memory: Memory, *, with_log: bool) -> tuple[str, str]:
    """The turn as it was decided, and as it is decided from what was kept of it."""
    turn = decide(facts, policy, memory)
    written = dump_json(to_json(facts, policy, memory, turn, with_log=with_log))
    read = KeptTurn.from_json(load_object(written), () if with_log else (*facts.events, *logged({"event": "later"})))
    return dump_json(read.decided), dump_json(told(decide(read.facts, read.policy, read.memory)))


@pytest.mark.parametrize("name", STORIES)
def test_every_turn_of_an_incident_is_decided_again_from_what_was_kept(name: str) -> None:
    story, *_ = STORIES[name]
    turns = 0
    for world in World(story).follow():
        first, again = decided_again(world.look(), story.policy, world.memory, with_log=bool(turns % 2))
        assert first == again
        turns += 1
    assert turns >= 2


def test_a_turn_after_the_wall_clock_was_set_is_decided_again_by_the_times_that_it_had() -> None:
    told = {"event": "alert_resolved", "incident": None, "topic": "down", "reason": "", "time_unix_s": 10.0}
    log = logged({**told, "event": "alert_firing", "since_unix_s": 5.0}, told)
    facts = look(events=(log[0].shifted(3600.0), log[1]))
    kept = load_object(dump_json(to_json(facts, Policy(), Memory(), Turn(reason=""))))
    assert KeptTurn.from_json(kept, log).facts.events == facts.events


def test_a_log_that_has_lost_events_is_told() -> None:
    kept = to_json(look(events=logged({"event": "a"}, {"event": "b"})), Policy(), Memory(), Turn(reason=""))
    with pytest.raises(ConfigError, match="when the incident log had 2 events, and it has 1"):
        KeptTurn.from_json(kept, logged({"event": "a"}))


def test_what_is_kept_holds_no_secret(tmp_path: Path) -> None:
    told = "curl https://joe:hunter2@example.org --wandb_api_key=0123abcd hf_abcdefghijklmnop"
    seen = look(verdict=DOWN, overlap=told)
    KeptTurns(tmp_path).keep(seen, Policy(), Memory(), Turn(reason="", message="x"))
    ((_, path),) = KeptTurns(tmp_path).numbers()
    text = json.dumps(KeptTurns(tmp_path).read(path))
    assert "joe" in text
    assert not [secret for secret in ("hunter2", "0123abcd", "hf_abc") if secret in text]


def test_the_turns_that_are_kept_are_bounded_and_a_repeated_one_is_kept_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sentinel.act.kept_turns.MOST_TURNS", 3)
    turns = KeptTurns(tmp_path)
    for number in range(1, 6):
        for age_s in (1, 2):
            turns.keep(
                look(), Policy(), Memory(), Turn(reason=f"{'no' * number} and silent for {age_s} s", message="x")
            )
    assert [number for number, _ in turns.numbers()] == [3, 4, 5]
    assert [path.name for _, path in turns.numbers("run")][-1] == "00000005-run.json.gz"
    turns.keep(look(), Policy(), Memory(), Turn(reason="nothing"))
    assert len(list(turns.numbers())) == 3


def test_a_full_disk_holds_up_no_turn(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "turns").write_text("no folder")
    KeptTurns(tmp_path / "turns").keep(look(), Policy(), Memory(), Turn(reason="", message="x"))
    assert "can't be kept" in caplog.text
