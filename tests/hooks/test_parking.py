"""PARK, RESUME and RELEASE on 2 real ranks: where they stand, what they wait for, and the sentence of each end."""

from __future__ import annotations

import logging
import time
from functools import cache
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from benchmarks.in_place import put
from sentinel.vocabulary.parking import FILES, ParkRequest, ReleaseRequest, ResumeRequest, encode_request
from sentinel.vocabulary.sample import RunStarted
from tests.adapters.pagers import until
from tests.hooks.parked_cases import ATTEMPT, ROLLBACK
from tests.hooks.torchrun import lines_of
from tests.hooks.trainer import records
from trainer_hooks import attach
from trainer_hooks.control.boundaries import Boundaries
from trainer_hooks.control.park_files import ParkFile
from trainer_hooks.control.parking import AfterPark, Parking
from trainer_hooks.errors import Guard

pytestmark = [pytest.mark.full, pytest.mark.timeout(900)]  # several processes start, on however few processors

NOT_PARKED = "sentinel: the training is not parked: {}; it goes on"


@cache
def cases() -> dict[str, list[dict[str, Any]]]:
    """{case: what each rank saw, in the order of the ranks}."""
    lines = lines_of("parked_cases.py", ranks=2, timeout_s=200)
    return {
        line["case"]: sorted((one for one in lines if one["case"] == line["case"]), key=lambda one: one["rank"])
        for line in lines
    }


def test_a_park_asks_for_no_collective() -> None:
    assert len(cases()) == 8
    assert all(rank["refused"] == [] for ranks in cases().values() for rank in ranks)


@pytest.mark.parametrize(
    ("case", "after"),
    [
        ("resumed", ["resumed in place for incident-1-r1", "global_step40"]),
        ("killed", ["kill_file", None]),
        ("SIGTERM of rank 1", ["sigterm", None]),
        ("the deadline", ["parked too long", None]),
    ],
)
def test_both_ranks_park_at_the_same_step_and_end_alike(case: str, after: list[str | None]) -> None:
    first, second = cases()[case]
    assert first["parked_at"] == second["parked_at"]
    assert first["after"] == second["after"] == [after]
    assert [[kind, rollback] for kind, rollback, _ in first["records"]] == [["Parked", ROLLBACK]]
    assert second["records"] == []
    in_force = ROLLBACK if case == "resumed" else None
    assert (first["rollback"], second["rollback"]) == (in_force, in_force)  # of what is started in these processes


def test_a_released_training_goes_on_and_parks_again_for_another_rollback_only() -> None:
    """PARK is written anew for the first rollback, and then for a second one."""
    first, second = cases()["released"]
    assert first["after"] == second["after"] == [[None, None]] * 2
    assert first["parked_at"] == second["parked_at"]
    assert [step > 30 for step in first["parked_at"]] == [False, True]
    told = [[kind, rollback] for kind, rollback, _ in first["records"]]
    assert told == [[kind, of] for of in (ROLLBACK, "incident-1-r2") for kind in ("Parked", "Released")]
    assert first["steps"] == second["steps"] == 59


def test_what_is_for_another_rollback_or_attempt_is_ignored_with_a_sentence() -> None:
    told = [line for line in cases()["resumed"][0]["said"] if "ignored" in line]
    for_it = f"and attempt {ATTEMPT} is parked for {ROLLBACK}"
    assert sorted(told) == [
        f"sentinel: the file RELEASE is ignored: it is for {ROLLBACK} and attempt {ATTEMPT - 1}, {for_it}",
        f"sentinel: the file RESUME is ignored: it is for incident-1-r9 and attempt {ATTEMPT}, {for_it}",
    ]


def test_the_training_counts_as_parked_once_the_slow_rank_has_closed_its_files() -> None:
    first, second = cases()["rank 1 is slow"]
    assert first["closed_at"] < second["closed_at"] < first["records"][0][2]
    assert first["after"] == second["after"] == [["resumed in place for incident-1-r1", "global_step40"]]


@pytest.mark.parametrize(
    ("case", "why"),
    [
        ("rank 1 can't close", "rank 1 could not close its files (OSError: [Errno 28] No space left on device)"),
        ("rank 1 is late for the deadline", "rank 1 did not come in time"),
    ],
)
def test_where_a_rank_cannot_park_none_does_and_the_training_goes_on(case: str, why: str) -> None:
    first, second = cases()[case]
    for rank in (first, second):
        assert (rank["after"][0], rank["steps"]) == ([None, None], 59)
        assert rank["said"][0] == NOT_PARKED.format(why)
    assert first["records"][0][:2] == [why, ROLLBACK]
    assert second["records"] == []


def park(attempt: int = ATTEMPT, deadline_s: float = 60.0) -> str:
    deadline = time.time() + deadline_s
    return encode_request(ParkRequest(rollback=ROLLBACK, attempt=attempt, deadline_unix_s=deadline))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (park(attempt=2), "it is for attempt 2, and this is attempt 3"),
        (park(deadline_s=-(10.0**9)), "is past"),
        ("{", "not JSON"),
    ],
    ids=["another attempt", "past", "not JSON"],
)
def test_a_park_that_is_stale_or_makes_no_sense_is_ignored_with_one_sentence(
    text: str, says: str, caplog: pytest.LogCaptureFixture
) -> None:
    file = ParkFile(lambda: ATTEMPT)
    with caplog.at_level(logging.WARNING):
        assert file.accepts(text) is False
    (told,) = [record.getMessage() for record in caplog.records]
    assert told.startswith("sentinel: the file PARK is ignored: ")
    assert says in told


def test_a_wall_clock_that_is_set_while_a_training_is_parked_does_not_end_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parking, looks, real = Parking(tmp_path, Guard(), lambda: ATTEMPT), count(), time.time
    assert parking.file.accepts(park())

    def stop() -> int:
        look = next(looks)
        if look == 0:
            monkeypatch.setattr(time, "time", lambda: real() + 86400.0)
        if look == 1:
            release = ReleaseRequest(rollback=ROLLBACK, attempt=ATTEMPT)
            (tmp_path / "RELEASE").write_text(encode_request(release))
        return 0

    after = parking.park(close=lambda: None, report=lambda *_, **__: None, stop=stop)
    assert after == AfterPark()  # it trains on


@pytest.mark.usefixtures("own_environment")
@pytest.mark.parametrize("told", [("global_step10", {}), {"sead": 1, "seed": 3}, None])
def test_what_reload_returns_costs_a_report_and_never_the_training(tmp_path: Path, told: Any) -> None:
    """load_checkpoint's tuple, handed on; a name that is none. The start is reported all the same."""
    model = torch.nn.Linear(2, 2)
    optimizer = torch.optim.AdamW(model.parameters())
    hook = attach(model=model, optimizer=optimizer, state_dir=tmp_path / "state", run="x")
    hook.run_started()
    engine = SimpleNamespace(global_steps=10)
    loop = Boundaries(tmp_path / "state", hook, engine, lambda _resume: told, None)
    ask = {"rollback": ROLLBACK, "attempt": 1}
    resume = ResumeRequest(**ask, target="global_step10", global_step=10)
    for request in (ParkRequest(**ask, deadline_unix_s=time.time() + 300), resume):
        put(tmp_path / "state" / FILES[type(request)], encode_request(request))
    until(lambda: loop.pass_on().resumed)
    hook.close("finished")
    began = [record for record in records(tmp_path) if isinstance(record, RunStarted)][-1]
    assert (began.attempt, began.in_place, began.resumed_from) == (2, True, 10)
    assert began.seed == (3 if isinstance(told, dict) else None)


def test_a_park_is_looked_at_again_while_the_attempt_has_no_number() -> None:
    attempt = 0
    file = ParkFile(lambda: attempt)
    assert file.accepts(park()) is None
    attempt = ATTEMPT
    assert file.accepts(park()) is True
    assert file.accepts(park()) is False  # written again
