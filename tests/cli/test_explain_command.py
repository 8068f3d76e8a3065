"""`sentinel explain` and `incident --bundle`: no damaged or forged file ends them without a sentence."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from sentinel.act.kept_turns import KeptTurns
from sentinel.cli.commands import app
from sentinel.plan.turn import decide
from sentinel.vocabulary.errors import SentinelError
from sentinel.vocabulary.numbers import dump_json
from tests.plan.simulated_run import World
from tests.support.stories import STORIES
from tests.triage.runs import configuration


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The configuration of a run whose turns were kept as a watch keeps them."""
    folder = tmp_path_factory.mktemp("run")
    turns, world = KeptTurns(folder / "state" / "turns"), World(STORIES["recovers"][0])
    (folder / "state").mkdir()
    for w in world.follow():
        facts = w.look()
        turns.keep(facts, w.story.policy, w.memory, decide(facts, w.story.policy, w.memory))
    (folder / "state" / "incidents.jsonl").write_text("".join(dump_json(e.to_json()) + "\n" for e in world.events))
    return configuration(folder)


@pytest.fixture
def bundle(run: Path, tmp_path: Path) -> Path:
    path = tmp_path / "incident-1.gz"
    assert asked("incident", "incident-1", "--bundle", path, "--run", run).exit_code == 0
    return path


def asked(*words: object) -> Result:
    return CliRunner().invoke(app, list(map(str, words)))


def refused(*words: object) -> str:
    """The sentence of an error that the command foresaw."""
    result = asked(*words)
    assert isinstance(result.exception, SentinelError), result.output
    return str(result.exception)


def changed(bundle: Path, change: Callable[[dict[str, Any]], object]) -> Path:
    document = json.loads(gzip.decompress(bundle.read_bytes()))
    change(document)
    bundle.write_text(json.dumps(document))
    return bundle


def turn_of(document: dict[str, Any]) -> dict[str, Any]:
    """The turn that is explained where nobody names one: the last with a decision."""
    turns = [one["turn"] for one in document["turns"]]
    return next(turn for turn in turns if any(event["event"] == "decided" for event in turn["turn"]["records"]))


def facts_of(document: dict[str, Any]) -> dict[str, Any]:
    return turn_of(document)["facts"]


def test_an_incident_or_a_turn_that_is_not_there_is_told_with_those_that_are(run: Path) -> None:
    assert "incidents.jsonl has incident-1" in refused("explain", "incident-7", "--run", run)
    assert "holds no turn 99 of incident-1; it holds 1, 2" in refused(
        "explain", "incident-1", "--turn", 99, "--run", run
    )


def test_a_turn_whose_file_is_torn_leaves_the_others_readable(run: Path) -> None:
    (first, *_, last) = sorted((run.parent / "state" / "turns").glob("*-incident-1.json.gz"))
    whole = last.read_bytes()
    try:
        last.write_bytes(whole[:100])
        assert f"{last} can't be read" in refused("explain", "incident-1", "--turn", int(last.name[:8]), "--run", run)
        explained = asked("explain", "incident-1", "--turn", int(first.name[:8]), "--run", run)
        assert explained.exit_code == 0
        assert f"{last} can't be read" in explained.output
    finally:
        last.write_bytes(whole)


def test_a_log_that_is_shorter_than_when_the_turn_was_decided_is_told(run: Path) -> None:
    log = run.parent / "state" / "incidents.jsonl"
    whole = log.read_text()
    try:
        log.write_text(whole.splitlines(keepends=True)[0])
        assert "events, and it has 1" in refused("explain", "incident-1", "--run", run)
    finally:
        log.write_text(whole)


@pytest.mark.parametrize(
    ("forged", "sentence"),
    [
        (b"", "is no kept turn"),
        (b"\x1f\x8b torn", "can't be read"),
        (b'{"format": "another"}', "was not written by"),
        (b'{"format": "sentinel incident 1"}', "is damaged"),
        (b'{"format": "sentinel incident 1", "incident": "i", "events": [], "turns": []}', "holds no turn of i"),
        (gzip.compress(b'{"a": "' + b"a" * (65 << 20) + b'"}', 9), "holds more than 64 MiB"),
        (b'{"a":' * 200_000 + b"1" + b"}" * 200_000, "is no kept turn"),
    ],
    ids=["empty", "torn", "of another format", "without turns", "no turn", "a gzip bomb", "deep"],
)
def test_a_file_that_is_no_bundle_is_told(forged: bytes, sentence: str, tmp_path: Path) -> None:
    (tmp_path / "x.gz").write_bytes(forged)
    assert sentence in refused("explain", tmp_path / "x.gz")


DEEP = json.loads("[" * 400 + "]" * 400)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda d: facts_of(d)["folders"].update(checkpoints=DEEP), "can't be explained"),
        (lambda d: facts_of(d).update(verdict="healthy"), "facts.verdict should be an object"),
        (lambda d: facts_of(d).pop("verdict"), "needs the key 'verdict'"),
        (lambda d: turn_of(d)["policy"].update(mode="reckless"), "policy.mode should be one of"),
        (lambda d: turn_of(d).pop("version"), "is of version 1, and this release reads version 3"),
        (lambda d: turn_of(d).update(events_before=10**6), "had 1000000 events"),
        (lambda d: d.update(events=[{"event": "decided", "time_unix_s": 1.0}] * 30), "can't be explained"),
        (lambda d: d.update(events=[{"event": "decided"}] * 30), "is damaged"),
    ],
    ids=[
        *("deep", "another type", "a key less", "a policy of no version", "an older release's", "events gone"),
        *("events torn", "no events"),
    ],
)
def test_a_bundle_that_was_changed_is_explained_or_told(
    change: Callable[[dict[str, Any]], object], sentence: str, bundle: Path
) -> None:
    assert sentence in refused("explain", changed(bundle, change))


@pytest.mark.parametrize("when", [1e300, -1e18, "nan", "-inf"])
def test_a_time_that_no_calendar_has_is_shown(when: float | str, bundle: Path) -> None:
    path = changed(bundle, lambda d: facts_of(d).update(now_unix_s=when))
    for words in (["explain", path], ["explain", path, "--json"]):
        assert asked(*words).exit_code == 0


@pytest.mark.parametrize("depth", [100, 300, 480, 900])
def test_what_is_nested_deeply_is_explained_or_told(depth: int, bundle: Path) -> None:
    """In places that no type of ours checks: an event's fields, what was decided."""
    deep = json.loads("[" * depth + "]" * depth)
    path = changed(bundle, lambda d: (d["events"][0].update(note=deep), turn_of(d)["turn"].update(reason=deep)))
    for words in (["explain", path], ["explain", path, "--json"]):
        result = asked(*words)
        assert result.exit_code == 0 or isinstance(result.exception, SentinelError), result.exception


def test_a_bundle_of_a_newer_version_is_explained_by_what_is_known_of_it(bundle: Path) -> None:
    def newer(document: dict[str, Any]) -> None:
        facts_of(document).update(of_tomorrow=[1])
        facts_of(document)["liveness"].update(of_tomorrow=[1])

    assert asked("explain", changed(bundle, newer)).exit_code == 0


def test_no_text_of_a_bundle_steers_the_terminal(bundle: Path) -> None:
    path = changed(bundle, lambda d: facts_of(d)["verdict"].update(reason="\x1b[2J\u202ea"))
    for words in (["explain", path], ["explain", path, "--json"]):
        result = asked(*words)
        assert result.exit_code == 0
        assert not {"\x1b", "\u202e"}.intersection(result.output)


def test_a_bundle_is_not_written_over_another_file(run: Path, tmp_path: Path) -> None:
    (tmp_path / "notes").write_text("mine")
    assert "it is not overwritten" in refused("incident", "incident-1", "--bundle", tmp_path / "notes", "--run", run)
    assert (tmp_path / "notes").read_text() == "mine"


def test_explained_under_a_configuration_that_only_observes(run: Path, bundle: Path, tmp_path: Path) -> None:
    other = tmp_path / "observe.toml"
    other.write_text(run.read_text() + '\n[policy]\nmode = "observe"\n')
    shown = asked("explain", bundle, "--policy", other)
    assert shown.exit_code == 0
    assert "records: shadow" in shown.output
    assert "does:" not in shown.output.split("(in mode")[0].split("decided\n")[1]
