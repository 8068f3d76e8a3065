"""What moved first is the same wherever a person reads of it: one analysis, by the watch that opened the incident."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from sentinel.cli.commands import app
from sentinel.vocabulary.sample import RunStarted, Sample
from tests.triage import runs

ONSET = 1490
Asked = Callable[..., str]


def samples(seed: int) -> Iterator[Sample]:
    """The gradient leaves its noise at step 1451, the loss at 1490, for good; the logits are too few to judge."""
    rng = random.Random(seed)
    for step in range(1, 1700):
        yield Sample(
            attempt=1, global_step=step, time_unix_s=1_700_000_000.0 + step,
            loss=3 + rng.gauss(0, 0.01) + (step >= ONSET), update_norm=1 + rng.gauss(0, 0.05),
            grad_norm=1 + rng.gauss(0, 0.05) + 2 * (step > 1450),
            attention_logit_max=20.0 if step in (1400, 1480) else None,
        )  # fmt: skip


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run")
    configuration = runs.configuration(folder)
    (folder / "checkpoints").mkdir()
    runs.write_attempt(folder / "state", 1, [RunStarted(attempt=1, time_unix_s=1_700_000_000.0, seed=0), *samples(0)])
    app(["watch", "--once", "--run", str(configuration)], standalone_mode=False)
    return configuration


@pytest.fixture
def said(run: Path, capsys: pytest.CaptureFixture[str]) -> Asked:
    def asked(*words: str) -> str:
        capsys.readouterr()
        app([*words], standalone_mode=False)
        return capsys.readouterr().out

    return asked


def page_of(run: Path) -> dict[str, Any]:
    page = run.parent / "report.html"
    app(["triage", "--run", str(run), "-o", str(page)], standalone_mode=False)
    return runs.document_in(page.read_text())


def test_page_incident_status_replay_correlate_and_chronicle_name_the_same(run: Path, said: Asked) -> None:
    (on_page,) = page_of(run)["incidents"]
    incident = json.loads(said("incident", "incident-1", "--run", str(run), "--json"))
    status = json.loads(said("status", "--run", str(run), "--json"))
    (replayed,) = json.loads(said("replay", str(run.parent / "state"), "--json"))
    (diverged,) = [event for event in replayed["events"] if event["kind"] == "divergence"]
    correlated = json.loads(said("correlate", "--incident", "incident-1", "--run", str(run), "--json"))

    moved = incident["moved_first"]
    assert incident["led_by"] == ["grad_norm"]
    assert moved["unjudged"] == ["attention_logit_max"]
    assert incident["onset_range"] == diverged["onset_range"]
    assert [on_page["suspects"]["signals"], status["moved_first"], diverged["moved_first"]] == [moved] * 3
    assert [on_page["led_by"], status["led_by"], diverged["led_by"]] == [incident["led_by"]] * 3
    assert correlated == moved["departures"]

    sentence = on_page["led"]
    assert sentence.startswith("led by grad_norm 39 steps before (")
    assert sentence.endswith(" deviations of its own noise); too few readings to judge attention_logit_max")
    app(["chronicle", "--run", str(run), "-o", str(run.parent / "chronicle")], standalone_mode=False)
    chronicle = (run.parent / "chronicle" / "chronicle.md").read_text().replace("\\", "")
    printed = [said("incident", "incident-1", "--run", str(run)), said("status", "--run", str(run))]
    for text in (*printed, said("replay", str(run.parent / "state")), chronicle, on_page["story"][0]["sentence"]):
        assert sentence in " ".join(text.split())


def test_what_an_older_log_names_by_another_analysis_is_not_shown_beside_the_pages_own(run: Path) -> None:
    log = run.parent / "state" / "incidents.jsonl"
    as_it_was = log.read_text()
    events = [json.loads(line) for line in as_it_was.splitlines()]
    older = [{k: v for k, v in e.items() if k != "moved_first"} | {"led_by": ["update_norm"]} for e in events]
    try:
        log.write_text("".join(json.dumps(event) + "\n" for event in older))
        (on_page,) = page_of(run)["incidents"]
    finally:
        log.write_text(as_it_was)
    assert on_page["led_by"] == ["grad_norm"]
    assert on_page["led"] in on_page["story"][0]["sentence"]
    assert "update_norm" not in json.dumps([on_page["story"], on_page["led"]])
