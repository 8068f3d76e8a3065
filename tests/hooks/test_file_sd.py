"""scrape.json: who may be told of an exporter, by which name, and for how long."""

# ruff: noqa: S104 - what listens everywhere is what is announced

from __future__ import annotations

import json
import socket
from pathlib import Path
from typing import Any

import pytest

from trainer_hooks.export.exporter import (
    Exporter,
    ExporterSettings,
    announce,
    is_loopback,
    reachable_name,
    target,
)
from trainer_hooks.export.step_collector import StepCollector

LABELS = {"run": "tr8", "attempt": "3", "job": "4711"}


def told(path: Path) -> Any:
    return json.loads(path.read_text())


@pytest.mark.parametrize(
    ("asked", "bound", "name"),
    [
        ("127.0.0.1", "127.0.0.1", None),
        ("localhost", "::1", None),
        ("127.0.0.53", "127.0.0.53", None),
        ("0.0.0.0", "0.0.0.0", "node17"),
        ("::", "::", "node17"),
        ("", "0.0.0.0", "node17"),
        ("10.0.0.7", "10.0.0.7", "10.0.0.7"),
        ("node17-ib", "10.1.0.7", "node17-ib"),
        ("fe80::1", "fe80::1%eth0", "fe80::1"),
    ],
)
def test_another_node_is_told_a_name_that_it_can_reach(
    asked: str, bound: str, name: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLURMD_NODENAME", "node17")
    assert reachable_name(asked, bound) == name
    assert is_loopback(bound) == (name is None)


def test_without_slurm_it_is_the_hosts_own_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SLURMD_NODENAME", raising=False)
    assert reachable_name("0.0.0.0", "0.0.0.0") == socket.gethostname()


def test_an_ipv6_address_stands_in_brackets() -> None:
    assert target("fd00::7", 9400) == "[fd00::7]:9400"
    assert target("node17", 9400) == "node17:9400"


def test_an_exporter_that_listens_everywhere_is_announced_and_taken_away_at_its_end(tmp_path: Path) -> None:
    path = tmp_path / "scrape.json"
    exporter = Exporter(StepCollector("tr8", 3), ExporterSettings(address="0.0.0.0", announce="node17.cluster"))
    announce(exporter, path, LABELS)
    assert told(path) == [{"targets": [f"node17.cluster:{exporter.port}"], "labels": LABELS}]
    exporter.close()
    assert told(path) == []
    assert list(tmp_path.iterdir()) == [path]


def test_a_loopback_exporter_is_not_announced_and_takes_a_stale_target_away(tmp_path: Path) -> None:
    path = tmp_path / "scrape.json"
    for before in (None, [{"targets": ["node3:9400"], "labels": LABELS | {"attempt": "2"}}]):
        if before is not None:
            path.write_text(json.dumps(before))
        exporter = Exporter(StepCollector("tr8", 3), ExporterSettings())
        announce(exporter, path, LABELS)
        exporter.close()
        assert path.exists() == (before is not None)
    assert told(path) == []


def test_an_exporter_that_did_not_start_takes_a_stale_target_away(tmp_path: Path) -> None:
    path = tmp_path / "scrape.json"
    path.write_text('[{"targets": ["node3:9400"], "labels": {}}]')
    announce(None, path, LABELS)
    assert told(path) == []


def test_loopback_is_announced_to_who_asks_for_it(tmp_path: Path) -> None:
    exporter = Exporter(StepCollector("tr8", 3), ExporterSettings(announce="127.0.0.1"))
    announce(exporter, tmp_path / "scrape.json", LABELS)
    assert told(tmp_path / "scrape.json")[0]["targets"] == [f"127.0.0.1:{exporter.port}"]
    exporter.close()


def test_an_attempt_on_another_node_keeps_its_target_when_the_one_before_ends(tmp_path: Path) -> None:
    path = tmp_path / "scrape.json"
    exporters = {n: Exporter(StepCollector("tr8", n), ExporterSettings(announce=f"node{n}")) for n in (3, 4)}
    for number, exporter in exporters.items():
        announce(exporter, path, LABELS | {"attempt": str(number)})
    exporters[3].close()
    assert told(path)[0]["targets"] == [f"node4:{exporters[4].port}"]
    exporters[4].close()
    assert told(path) == []


def test_a_state_folder_that_is_gone_is_no_obstacle_to_closing(tmp_path: Path) -> None:
    folder = tmp_path / "state"
    folder.mkdir()
    exporter = Exporter(StepCollector("tr8", 3), ExporterSettings(address="0.0.0.0"))
    announce(exporter, folder / "scrape.json", LABELS)
    (folder / "scrape.json").unlink()
    folder.rmdir()
    exporter.close()
    assert not exporter._server._thread.is_alive()
