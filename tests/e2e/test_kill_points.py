"""Killed, or refused by the filesystem, at each call that changes something: before or after, never between."""

from __future__ import annotations

import multiprocessing
import os
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import pytest

from tests.e2e.kill_points import ERRORS, Point, copy_run, incidents, live, record, settled, strike, why_not
from tests.e2e.scenarios import KEPT, ROOM, STRADDLES, scenarios
from tests.e2e.stepping import BY_HAND, UNDO, WATCH, Scenario, as_a_fork, as_a_process, step
from tests.tiers import full

WHY_NOT = why_not()
pytestmark = [pytest.mark.full, pytest.mark.skipif(WHY_NOT is not None, reason=WHY_NOT or "")]

LOG = "state/incidents.jsonl"

SAMPLE = [
    ("rollback", "write", 3, LOG, "KILL", UNDO),  # decided, and nothing begun
    ("rollback", "rename", 1, f"tensorboard/{KEPT}", "KILL", WATCH),  # the original is gone, its part not yet there
    ("rollback", "fsync", 1, "checkpoints", "EIO", UNDO),
    ("undo", "write", 2, LOG, "KILL", WATCH),  # taken back, and not said so
    ("watch", "write", 8, LOG, "ENOSPC", UNDO),
    ("torn", "rename", 1, "checkpoints/latest", "KILL", UNDO),
    ("again", "rename", 1, f"{ROOM}/files.json", "KILL", BY_HAND),  # killed, and killed again while it was taken back
]
MORE = [
    ("rollback", "rename", 1, "checkpoints/global_step60", "KILL", BY_HAND),
    ("rollback", "write", 1, f"tensorboard/{STRADDLES.replace('tfevents', '.sentinel-part')}", "ENOSPC", BY_HAND),
    ("rollback", "rename", 1, f"tensorboard/{STRADDLES}", "EACCES", BY_HAND),
    ("rollback", "mkdir", 1, "checkpoints/.sentinel-quarantine", "EROFS", BY_HAND),
    ("rollback", "link", 1, "state/lock", "ESTALE", BY_HAND),
    ("rollback", "unlink", 1, "state/lock", "EIO", UNDO),
    ("undo", "rename", 1, "tensorboard-incident-1-r1/events.out.tfevents.1700000000.host.c", "KILL", BY_HAND),
    ("undo", "fsync", 1, "checkpoints", "ESTALE", UNDO),
    ("watch", "rename", 1, "checkpoints/global_step40", "EACCES", WATCH),
    ("watch", "utime", 1, "state/lock", "EIO", WATCH),
    ("again", "rename", 1, f"{ROOM}/{STRADDLES.replace('tfevents', 'tf-events')}", "KILL", WATCH),
]
"""Where each was once found wanting, or where the run is furthest from both ends."""


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Scenario]:
    return scenarios(tmp_path_factory.mktemp("runs").resolve())


@pytest.mark.parametrize(
    ("name", "call", "number", "path", "how", "then"),
    [*SAMPLE, *full(MORE)],
    ids=[f"{name}: {how} at {call} of {path}, then {then[0]}" for name, call, _, path, how, then in (*SAMPLE, *MORE)],
)
def test_a_command_that_is_struck_leaves_the_run_before_or_after(
    built: dict[str, Scenario], name: str, call: str, number: int, path: str, how: str, then: tuple[str, ...]
) -> None:
    point = Point(call=call, path=path, number=number)
    assert step(built[name], point, how, [then], as_a_process) == []


@pytest.mark.soak
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("how", ["KILL", *ERRORS])
@pytest.mark.parametrize("name", ["rollback", "undo", "watch"])
def test_wherever_a_command_is_struck(built: dict[str, Scenario], tmp_path: Path, name: str, how: str) -> None:
    """At every call that is recorded twice in a row. Calls are counted upon their file; where the file has another name
    in each process, among all calls of their thread and spelling, as strace counts. A strike that falls on another call
    than the one meant, or on none, is an error: no point passes untested."""
    _every_point(built[name], tmp_path, how, every_route=how == "KILL")


@pytest.mark.soak
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("name", ["torn", "again"])
def test_wherever_it_is_killed_with_latest_torn_or_for_the_second_time(
    built: dict[str, Scenario], tmp_path: Path, name: str
) -> None:
    _every_point(built[name], tmp_path, "KILL", every_route=False)


def _every_point(scenario: Scenario, tmp_path: Path, how: str, *, every_route: bool) -> None:
    """Steps through all calls of the scenario's command. Where not every route is gone after each, they take turns."""
    points = settled(scenario.start, tmp_path.resolve(), scenario.words)
    assert {p.call for p in points} >= {"open", "write", "fsync", "mkdir", "rename", "link", "unlink"}
    routes = list(scenario.routes)
    after = [routes if every_route else [routes[number % len(routes)]] for number in range(len(points))]
    with ProcessPoolExecutor(os.cpu_count(), multiprocessing.get_context("spawn")) as pool:
        struck = [pool.submit(step, scenario, p, how, then, as_a_fork) for p, then in zip(points, after, strict=True)]
        wrong = [problem for future in struck for problem in future.result()]
    print(f"{scenario.name}: {len(points)} points, {how}")
    assert wrong == []


def test_what_is_counted_among_all_calls_is_struck_although_other_spellings_come_before_it(
    built: dict[str, Scenario], tmp_path: Path
) -> None:
    """A watch removes what it has tried with unlinkat, and its own files with unlink: strace counts each by itself."""
    watch = built["watch"]
    recorded = record(copy_run(watch.start, tmp_path.resolve() / "recorded"), watch.words)
    point = [p for p in recorded if p.call == "unlink" and "*" in p.path][-1]
    ran = strike(copy_run(watch.start, tmp_path.resolve() / "struck"), watch.words, point, "EIO")
    assert ran.struck, f"{point}: {ran.instead}"


@pytest.mark.parametrize(("number", "instead"), [(1, "unlink of state/"), (99, "nothing")])
def test_a_number_that_leads_to_another_call_or_to_none_is_a_point_that_was_not_met(
    built: dict[str, Scenario], tmp_path: Path, number: int, instead: str
) -> None:
    run = copy_run(built["rollback"].start, tmp_path.resolve() / "run")
    ran = strike(run, BY_HAND, Point(call="unlink", path="checkpoints/.latest.*.new", number=number), "EIO")
    assert not ran.struck
    assert ran.instead.startswith(instead)


@pytest.mark.parametrize("torn", [b"", b"global_st", b"global_step60\n\0\xff"])
def test_a_torn_latest_is_pointed_at_the_target_and_undo_gives_it_back(
    built: dict[str, Scenario], tmp_path: Path, torn: bytes
) -> None:
    run = tmp_path.resolve() / "run"
    copy_run(built["rollback"].start, run)
    (run / "checkpoints" / "latest").write_bytes(torn)
    before = live(run)
    assert as_a_process(run, BY_HAND)[0] == 0
    assert (run / "checkpoints" / "latest").read_text() == "global_step20"
    assert as_a_process(run, UNDO)[0] == 0
    assert live(run) == before


def test_what_a_person_asked_for_and_had_not_yet_decided_is_not_decided_for_them(
    built: dict[str, Scenario], tmp_path: Path
) -> None:
    """Killed before the target was on record: watch closes that incident, and goes by the onset that it sees itself."""
    ill = built["watch"]
    run = tmp_path.resolve() / "run"
    copy_run(ill.start, run)
    assert strike(run, BY_HAND, Point(call="write", path=LOG, number=2), "KILL").code == 137
    assert as_a_process(run, WATCH)[0] == 4
    by_hand, own = incidents(run)
    assert (by_hand.outcome, by_hand.rollbacks) == ("superseded", [])
    assert own.rollbacks[0].target_tag == "global_step20"


def test_a_job_that_dies_at_once_is_not_started_for_ever(built: dict[str, Scenario], tmp_path: Path) -> None:
    run = tmp_path.resolve() / "run"
    copy_run(built["rollback"].start, run)
    code, said = as_a_process(run, ("rollback", "--to", "global_step20", "--yes"))
    assert code == 4
    assert "the job was started 1 times for incident-1-r1 and never reported a start" in said
    assert as_a_process(run, UNDO)[0] == 0
    assert live(run) == built["rollback"].ends["before"]
