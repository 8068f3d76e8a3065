"""Whole incidents as sequences of turns: killed after any record or action, a watch comes to the same end."""

from __future__ import annotations

from collections import deque

import pytest

from sentinel.plan.choose.ladder import Rung
from sentinel.plan.incident.events import fold
from sentinel.plan.outcome import Outcome
from tests.plan.simulated_run import World
from tests.support.stories import STORIES

CLIP = Rung(name="clip anew", hypothesis="a gradient did it", clip_grad=0.5)


@pytest.mark.parametrize("name", STORIES)
def test_an_incident_that_is_cut_short_anywhere_comes_to_the_same_end(name: str) -> None:
    story, outcome, of_incident = STORIES[name]
    whole, before = World(story), list[World]()
    for world in whole.follow():
        before.append(world.copy())
    assert whole.outcome is outcome
    incidents = fold(whole.events)
    assert (incidents[0].outcome if incidents else None) == of_incident
    for cut in range(whole.effects):
        world = next(w for w in reversed(before) if w.effects <= cut).copy()
        world.cut = cut
        deque(world.follow(), maxlen=0)
        assert world.cut is None, f"there is no effect number {cut}"
        assert world.end() == whole.end(), f"cut before effect {cut}"


STARTED_BY_HAND = ("recovers", "is prepared", "needs the second rung", "is approved", "is undone halfway")


@pytest.mark.parametrize("name", STARTED_BY_HAND)
def test_what_a_person_starts_after_a_watch_was_cut_short_is_left_running(name: str) -> None:
    """Nothing of an older decision is done to it: the world asserts that no action comes after the start by hand."""
    story, *_ = STORIES[name]
    whole, before, asked = World(story), list[World](), 0
    for world in whole.follow():
        before.append(world.copy())
    for cut in range(whole.effects):
        world = next(w for w in reversed(before) if w.effects <= cut).copy()
        world.cut = cut
        for _ in world.follow():
            if world.cut is None and not world.state.jobs.writers and world.by_hand is None and world.unfinished:
                world.a_person_starts_the_job()
        if world.by_hand is None:
            continue
        assert world.outcome is Outcome.PERSON_NEEDED, f"cut before effect {cut}"
        asked += 1
    assert asked > 3


@pytest.mark.parametrize("name", ["recovers", "is prepared", "is approved", "recovers in place"])
def test_a_pause_at_any_instant_stops_and_starts_no_job_and_leaves_a_run_that_starts(name: str) -> None:
    """The world asserts that no job is stopped or started from then on, and nothing moves where nothing had."""
    story, *_ = STORIES[name]
    whole, before, in_order = World(story), list[World](), 0
    for world in whole.follow():
        before.append(world.copy())
    for cut in range(whole.effects):
        world = next(w for w in reversed(before) if w.effects <= cut).copy()
        world.cut = cut
        for _ in world.follow():
            if world.cut is None and not world.state.person.paused:
                world.a_person_pauses_it()
        rollbacks = [r for i in fold(world.events) for r in i.rollbacks]
        runs = world.state.jobs.writers and world.parked is None
        if world.moved_nothing_yet or not rollbacks or runs:
            continue
        assert world.state.folders.latest_tag == rollbacks[-1].target_tag, f"cut before effect {cut}"
        assert world.state.folders.checkpoints[-1].tag == rollbacks[-1].target_tag
        assert world.state.folders.overrides == rollbacks[-1].overrides
        in_order += 1
    assert in_order > 3
