"""Opening the journal where the filesystem hangs: attach goes on, and nothing is lost that memory can hold."""

from __future__ import annotations

import json
import os
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from sentinel.vocabulary.sample import RunFinished, RunStarted, Sample
from tests.adapters.pagers import until
from tests.hooks.alone import Training
from trainer_hooks import attach
from trainer_hooks.errors import Guard
from trainer_hooks.export import outputs
from trainer_hooks.export.exporter import ExporterSettings
from trainer_hooks.export.journal_writer import create_attempt
from trainer_hooks.export.outputs import Outputs


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Set: the filesystem of the state folder answers."""
    answers = threading.Event()

    def late(state_dir: Path) -> Any:
        answers.wait(60)
        return create_attempt(state_dir)

    monkeypatch.setattr(outputs, "create_attempt", late)
    return answers


def opened(folder: Path) -> Outputs:
    return Outputs(folder, "run", ExporterSettings(), Guard(), lambda: None, patience_s=0.2)


def test_records_of_the_time_before_the_attempt_get_its_number(tmp_path: Path, answers: threading.Event) -> None:
    (tmp_path / "attempts").mkdir()
    (tmp_path / "attempts" / "0004.jsonl").touch()
    began = time.monotonic()
    made = opened(tmp_path)
    assert time.monotonic() - began < 20
    made.put(RunStarted(attempt=made.attempt, time_unix_s=1.0))
    made.put(Sample(attempt=made.attempt, global_step=1, time_unix_s=2.0, loss=3.0))
    assert made.attempt == 0
    answers.set()
    until(lambda: made.attempt == 5 and made.exporter is not None)
    until(lambda: made._early is None)
    made.put(RunFinished(attempt=made.attempt, global_step=1, time_unix_s=3.0, reason="finished"))
    made.close()
    lines = [json.loads(line) for line in (tmp_path / "attempts" / "0005.jsonl").read_text().splitlines()]
    assert [(line["kind"], line["attempt"]) for line in lines] == [
        ("run_started", 5),
        ("sample", 5),
        ("run_finished", 5),
    ]
    assert made.lost == 0


def test_what_no_filesystem_took_before_the_end_is_counted(tmp_path: Path, answers: threading.Event) -> None:
    made = opened(tmp_path)
    made.put(RunStarted(attempt=0, time_unix_s=1.0))
    began = time.monotonic()
    made.close()
    assert time.monotonic() - began < 5
    assert made.lost == 1
    answers.set()
    until(lambda: made._early is None)


def test_a_filesystem_that_hangs_at_the_end_is_waited_for_a_short_while(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    made = Outputs(tmp_path, "run", ExporterSettings(), Guard(), lambda: None, close_s=0.3)
    answers = threading.Event()
    assert made.exporter is not None
    monkeypatch.setattr(made.exporter, "close", lambda: answers.wait(60))
    began = time.monotonic()
    made.close()
    assert time.monotonic() - began < 20
    assert "does not answer within 0.3 s" in caplog.text
    answers.set()


def test_the_end_of_a_fork_leaves_the_run_as_it_is(tmp_path: Path) -> None:
    engine: Any = Training().engine
    engine.watched_by = lambda _: None
    hook = attach(engine, state_dir=tmp_path, address="0.0.0.0")  # noqa: S104 - only then it is announced
    announced = (tmp_path / "scrape.json").read_text()
    assert "targets" in announced
    child = os.fork()
    if not child:
        hook.close("error: the process ended before the training")  # what an atexit function does
        os._exit(0)
    os.waitpid(child, 0)
    assert (tmp_path / "scrape.json").read_text() == announced
    assert not hook.closed
    hook.close("finished")
    assert json.loads((tmp_path / "scrape.json").read_text()) == []
