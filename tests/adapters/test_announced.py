"""The trainer's own exporter as a witness of its life: an answer counts, and no answer says nothing."""

# ruff: noqa: S104 - what listens everywhere is what is announced

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from sentinel.act.observe import Observer
from sentinel.adapters.process_states import Announced
from sentinel.daemon import wiring
from sentinel.vocabulary.errors import JobStillAlive
from tests.support.diverged_runs import diverged_run
from trainer_hooks.export.exporter import Exporter, ExporterSettings, announce
from trainer_hooks.export.step_collector import StepCollector

LABELS = {"run": "tr8", "attempt": "1", "job": "4711"}


@pytest.fixture
def exporter() -> Iterator[Exporter]:
    here = Exporter(StepCollector("tr8", 1), ExporterSettings(address="0.0.0.0", announce="127.0.0.1"))
    yield here
    here.close()


def announced_at(state_dir: Path, where: str, **labels: str) -> Announced:
    (state_dir / "scrape.json").write_text(json.dumps([{"targets": [where], "labels": {**LABELS, **labels}}]))
    return Announced(state_dir, within_s=0.5)


def test_an_exporter_that_answers_as_the_attempt_says_that_it_lives(tmp_path: Path, exporter: Exporter) -> None:
    announce(exporter, tmp_path / "scrape.json", LABELS)
    url = f"http://127.0.0.1:{exporter.port}/metrics"
    assert Announced(tmp_path).answers_as(1) == f"the exporter of attempt 1 answers at {url}, after 0 steps"
    assert Announced(tmp_path).answers_as(2) is None


def test_what_another_attempt_or_another_run_answers_at_that_address_says_nothing(
    tmp_path: Path, exporter: Exporter
) -> None:
    where = f"127.0.0.1:{exporter.port}"
    assert announced_at(tmp_path, where, attempt="2").answers_as(2) is None
    assert announced_at(tmp_path, where, run="another").answers_as(1) is None


@pytest.mark.parametrize("text", [None, "", "[]", "{}", "[1]", '[{"targets": [], "labels": {"attempt": "1"}}]'])
def test_where_nothing_is_announced_nothing_is_asked(tmp_path: Path, text: str | None) -> None:
    if text is not None:
        (tmp_path / "scrape.json").write_text(text)
    assert Announced(tmp_path).answers_as(1) is None


def test_no_answer_in_time_says_nothing_and_is_not_waited_for_again(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        asked = announced_at(tmp_path, f"127.0.0.1:{silent.getsockname()[1]}")
        assert [asked.answers_as(1), asked.answers_as(1)] == [None, None]
        silent.setblocking(False)
        silent.accept()[0].close()
        with pytest.raises(BlockingIOError):  # no second connection was made
            silent.accept()
    assert announced_at(tmp_path, "127.0.0.1:9").answers_as(1) is None  # refused


def test_nothing_is_moved_while_the_newest_attempts_exporter_answers(tmp_path: Path, exporter: Exporter) -> None:
    config = diverged_run(tmp_path, "[judge]", "gone_after_s = 0.001")
    time.sleep(0.01)
    observer = Observer(wiring.neighbours_of(config), config.judge)
    observer.look(time.time())
    observer.fence.check(None)
    announce(exporter, tmp_path / "s" / "scrape.json", LABELS)
    with pytest.raises(JobStillAlive, match="the exporter of attempt 1 answers"):
        observer.fence.check(None)
