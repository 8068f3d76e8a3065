"""Hugging Face's Trainer by `train_in_place`: resumed in its process it trains as a new process would."""

from __future__ import annotations

import time
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks.in_place import put
from sentinel.vocabulary.overrides import Anchor, Once, Overrides, TrainingSettings, encode_overrides
from sentinel.vocabulary.parking import ParkRequest, ReleaseRequest, ResumeRequest, encode_request
from sentinel.vocabulary.sample import Parked, Released, RunFinished, RunStarted, Sample
from tests.adapters.pagers import until
from tests.hooks.trainer import records
from tests.support.forked_programs import Forked
from trainer_hooks.errors import Guard
from trainer_hooks.integrations.huggingface_parked import ParkedTrainer, ResumedInPlace

pytestmark = [pytest.mark.full, pytest.mark.timeout(900)]  # several processes start, on however few processors

ROOT = Path(__file__).parents[2]


def started(folder: Path, *more: str) -> Forked:
    folder.mkdir(exist_ok=True)
    log = folder / "log"
    return Forked("tests.hooks.parked_llama", str(folder), *more, cwd=folder, stdout=log, stderr=log)


def digests(folder: Path) -> list[str]:
    path = folder / "digests"
    return path.read_text().splitlines() if path.exists() else []


def park(folder: Path, rollback: str, attempt: int) -> None:
    request = ParkRequest(rollback=rollback, attempt=attempt, deadline_unix_s=time.time() + 300)
    put(folder / "state" / "PARK", encode_request(request))
    until(lambda: isinstance(records(folder)[-1], Parked))


def overrides(rollback: str, step: int, beta2: float | None) -> str:
    standing = TrainingSettings() if beta2 is None else TrainingSettings(adam_beta2=beta2)
    once = Once(id=rollback, seed=11) if beta2 is not None else None
    anchor = Anchor(global_step=step)
    return encode_overrides(
        Overrides(incident="incident-1", rollback=rollback, anchor=anchor, standing=standing, once=once)
    )


@pytest.mark.parametrize(
    "engine",
    [(), pytest.param(("--zero", "1"), marks=pytest.mark.full), pytest.param(("--zero", "3"), marks=pytest.mark.full)],
)
def test_a_trainer_goes_on_in_place_as_a_new_process_would_and_takes_back_what_was_changed_before(
    tmp_path: Path, engine: tuple[str, ...]
) -> None:
    folder = tmp_path / "run"
    process = started(folder, *engine)
    try:
        until((folder / "checkpoints" / "checkpoint-20" / "trainer_state.json").exists, within_s=150)
        until(lambda: len(digests(folder)) == 1)
        park(folder, "incident-1-r0", attempt=1)
        put(folder / "state" / "RELEASE", encode_request(ReleaseRequest(rollback="incident-1-r0", attempt=1)))
        until(lambda: isinstance(records(folder)[-1], Sample))
        for number, (step, beta2) in enumerate([(20, 0.9), (10, None)], start=1):
            rollback = f"incident-1-r{number}"
            park(folder, rollback, attempt=number)
            put(folder / "state" / "overrides.json", overrides(rollback, step, beta2))
            target = f"checkpoint-{step}"
            resume = ResumeRequest(rollback=rollback, attempt=number, target=target, global_step=step)
            put(folder / "state" / "RESUME", encode_request(resume))
            until(lambda number=number: len(digests(folder)) == number + 1, within_s=60)  # type: ignore[misc]
        (folder / "state" / "KILL").touch()
        assert process.wait(60) == 0
    finally:
        process.kill()
    told = records(folder)
    began = [r for r in told if isinstance(r, RunStarted)]
    assert [(r.in_place, r.can_park, r.resumed_from) for r in began] == [
        (False, True, None),
        (True, True, 20),
        (True, True, 10),
    ]
    assert [r.adam_beta2 for r in began] == [0.999, 0.9, 0.999]
    ends = [
        type(r) if not isinstance(r, RunFinished) else r.reason
        for r in told
        if isinstance(r, RunFinished | Parked | Released)
    ]
    resumed = ["resumed in place for incident-1-r1", Parked, "resumed in place for incident-1-r2", "kill_file"]
    assert ends == [Parked, Released, Parked, *resumed]
    for number, (step, beta2) in enumerate([(20, 0.9), (10, None)], start=1):
        again = tmp_path / f"again-{number}"
        (again / "checkpoints").mkdir(parents=True)
        name = f"checkpoint-{step}"
        (again / "checkpoints" / name).symlink_to(folder / "checkpoints" / name)
        (again / "state").mkdir()
        put(again / "state" / "overrides.json", overrides(f"incident-1-r{number}", step, beta2))
        assert started(again, *engine, "--ends").wait(200) == 0, (again / "log").read_text()[-3000:]
        assert digests(again) == [digests(folder)[number]]


@pytest.mark.parametrize("ended", [False, True])
def test_what_close_files_has_closed_is_opened_again_where_the_training_goes_on_and_where_it_ends(
    tmp_path: Path, ended: bool
) -> None:
    """Released, the script's own callbacks write again; stopped by KILL, Trainer logs once more."""
    calls: list[str] = []
    trainer = SimpleNamespace(callback_handler=SimpleNamespace(callbacks=[]))
    parked = ParkedTrainer(trainer, lambda: calls.append("close"), lambda: calls.append("open"))
    accepts = parked.begin(tmp_path, Guard(), None, SimpleNamespace(global_step=5))
    hook: Any = SimpleNamespace(attempt=1, report_park=lambda *_: None, await_readings=lambda: None)
    parked.follow(hook)
    ask = {"rollback": "incident-1-r1", "attempt": 1}
    assert accepts(encode_request(ParkRequest(**ask, deadline_unix_s=time.time() + 300)))
    put(tmp_path / ("KILL" if ended else "RELEASE"), encode_request(ReleaseRequest(**ask)))
    control = SimpleNamespace(should_training_stop=False, should_save=False)
    parked.wait(SimpleNamespace(), control, lambda _reason: None)
    assert (calls, control.should_training_stop) == (["close", "open"], ended)


@pytest.mark.usefixtures("own_environment")
@pytest.mark.parametrize("begins_anew", [False, True])
def test_a_resume_from_scratch_is_ignored_where_the_model_can_not_begin_anew(tmp_path: Path, begins_anew: bool) -> None:
    """Then it is not taken, and the rollback goes on by a new job; taken, it would end the process."""
    trainer = SimpleNamespace(
        callback_handler=SimpleNamespace(callbacks=[]), model_init=object if begins_anew else None
    )
    parked = ParkedTrainer(trainer, None)
    accepts = parked.begin(tmp_path, Guard(), None, SimpleNamespace(global_step=5))
    hook: Any = SimpleNamespace(attempt=1, report_park=lambda *_: None, await_readings=lambda: None)
    parked.follow(hook)
    ask = {"rollback": "incident-1-r1", "attempt": 1}
    assert accepts(encode_request(ParkRequest(**ask, deadline_unix_s=time.time() + 300)))
    put(tmp_path / "RESUME", encode_request(ResumeRequest(**ask, target=None, global_step=0)))
    put(tmp_path / "RELEASE", encode_request(ReleaseRequest(**ask)))
    with pytest.raises(ResumedInPlace) if begins_anew else nullcontext():
        parked.wait(SimpleNamespace(), SimpleNamespace(), lambda _reason: None)
