"""/metrics of the watch by real scrapes: clients that hang, ports that are taken, files, Prometheus's own linter."""

from __future__ import annotations

import json
import socket
import subprocess
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as read_openmetrics
from prometheus_client.parser import text_string_to_metric_families as read_text

from sentinel.adapters.exposition import server
from sentinel.adapters.exposition.exposition import Exposition, Textfile, reachable_name
from sentinel.adapters.exposition.settings import Metrics
from sentinel.adapters.exposition.text import RunText, RunWriter, page
from sentinel.vocabulary.errors import ConfigError
from sentinel.vocabulary.metrics import DAEMON_METRICS, Shown, all_metrics, exemplar
from tests.adapters.pagers import free_port, until
from tests.adapters.prometheus_asked import prometheus
from tests.support.layers_shown import LAYERS, whole
from tests.support.rules import promtool
from trainer_hooks.export.step_collector import StepCollector

_EVERYTHING = tuple(Shown(m.name, 1.0, tuple("tr8" for _ in m.labels)) for m in DAEMON_METRICS)
EVERYTHING = RunWriter().write(_EVERYTHING)
KNOWN_ABBREVIATIONS = {"sentinel_step_time_s", "sentinel_step_time_s_window_max", "sentinel_tokens_per_s"}
"""Names that scripts rely on, after the sample's own fields; the linter would have their units spelt out."""


def written(*shown: Shown) -> RunText:
    return RunWriter().write(shown)


@contextmanager
def showing(folder: Path, *, once: bool = False, well: bool = True, **settings: Any) -> Iterator[Exposition]:
    announced = folder / "scrape-watch.json"
    exposition = Exposition(Metrics(**settings), announced, {"run": "tr8"}, once=once)
    exposition.open()
    try:
        yield exposition
    finally:
        exposition.close(well=well)


def port_of(exposition: Exposition) -> int:
    assert exposition.server is not None
    return exposition.server.port


def scrape(exposition: Exposition, accept: str = "text/plain") -> str:
    asked = urllib.request.Request(f"http://127.0.0.1:{port_of(exposition)}/metrics", headers={"Accept": accept})
    with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(asked, timeout=60) as answer:
        return str(answer.read().decode())


def test_scrapes_for_which_no_thread_could_be_started_take_no_room_from_later_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    start, refused = threading.Thread.start, list[str]()

    def none_left(thread: threading.Thread) -> None:
        refused.append(thread.name)
        raise RuntimeError("can't start new thread")

    with showing(tmp_path) as exposition:
        monkeypatch.setattr(threading.Thread, "start", none_left)
        for _ in range(20):
            with pytest.raises(OSError):  # noqa: PT011 - sent away, in whichever way the system has it
                scrape(exposition)
        assert len(refused) == 20
        monkeypatch.setattr(threading.Thread, "start", start)
        exposition.show("tr8", EVERYTHING)
        assert "sentinel_" in scrape(exposition)


def test_no_metric_has_the_step_as_a_label_or_the_name_of_one_of_the_trainers() -> None:
    assert all("step" not in label for metric in DAEMON_METRICS for label in metric.labels)
    assert all(metric.labels[0] == "run" for metric in DAEMON_METRICS)
    names = [metric.name for metric in (*DAEMON_METRICS, *all_metrics())]
    assert len(set(names)) == len(names)


def test_a_scrape_sees_the_last_turn_whole_and_nan_and_inf_as_they_are(tmp_path: Path) -> None:
    with showing(tmp_path) as exposition:
        assert "tr8" not in scrape(exposition)
        exposition.show("tr8", written(Shown("sentinel_judged_loss", 2.0, ("tr8", "1"))))
        exposition.show(
            "tr8",
            written(
                Shown("sentinel_judged_loss", float("nan"), ("tr8", "1")),
                Shown("sentinel_judged_loss_ratio", float("inf"), ("tr8", "1")),
            ),
        )
        text = scrape(exposition)
        assert 'sentinel_judged_loss{attempt="1",run="tr8"} NaN' in text
        assert 'sentinel_judged_loss_ratio{attempt="1",run="tr8"} +Inf' in text
        assert "2.0" not in text


def test_a_counter_says_in_openmetrics_what_it_counted_last_and_a_gauge_has_no_place_for_it(tmp_path: Path) -> None:
    of = exemplar({"incident": "incident-1", "rollback": "incident-1-r1"}, 12.5)
    with showing(tmp_path) as exposition:
        exposition.show(
            "tr8",
            written(
                Shown("sentinel_actions_total", 1.0, ("tr8", "stop_job", "done"), of),
                Shown("sentinel_actions_total", 0.0, ("tr8", "stop_job", "failed")),
                Shown("sentinel_paused", 0.0, ("tr8",), of),
            ),
        )
        families = list(read_openmetrics(scrape(exposition, "application/openmetrics-text; version=1.0.0")))
        plain = scrape(exposition)
    shown = {(s.name, s.labels.get("outcome")): s.exemplar for family in families for s in family.samples}
    told = shown["sentinel_actions_total", "done"]
    assert told is not None
    assert (told.labels, told.value, float(told.timestamp or 0)) == (of.labels, 1.0, 12.5)
    assert shown["sentinel_actions_total", "failed"] is shown["sentinel_paused", None] is None
    assert "incident-1" not in plain
    assert {family.name for family in read_text(plain)} == {"sentinel_actions", "sentinel_paused"}


@pytest.mark.full
def test_prometheus_knows_which_incident_an_action_was_for_also_one_of_hours_ago(tmp_path: Path) -> None:
    then = round(time.time()) - 3 * 3600.0
    action = Shown("sentinel_actions_total", 1.0, ("tr8", "stop_job", "done"), exemplar({"incident": "i-1"}, then))
    with showing(tmp_path) as exposition:
        exposition.show("tr8", written(action))
        target = f'[{{targets: ["127.0.0.1:{port_of(exposition)}"]}}]'
        scraping = f"scrape_configs: [{{job_name: sentinel, scrape_interval: 1s, static_configs: {target}}}]\n"
        with prometheus(tmp_path, scraping, "--enable-feature=exemplar-storage") as asked:

            def kept() -> list[Any]:
                about = {"query": "sentinel_actions_total", "start": then - 60, "end": then + 60}
                return [e for series in asked.get("query_exemplars", **about) or () for e in series["exemplars"]]

            until(kept)
            assert [(e["labels"], e["timestamp"]) for e in kept()] == [({"incident": "i-1"}, then)]


def test_clients_that_never_ask_hold_up_nobody(tmp_path: Path) -> None:
    with showing(tmp_path) as exposition:
        silent = [socket.create_connection(("127.0.0.1", port_of(exposition))) for _ in range(8)]
        exposition.show("tr8", EVERYTHING)  # a turn
        assert "sentinel_verdict" in scrape(exposition)
        for connection in silent:
            connection.close()


@pytest.mark.full
def test_who_comes_when_all_rooms_are_taken_is_sent_away_and_served_once_they_are_free(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server._Handler, "timeout", 600.0)  # nobody is let go for being silent
    with showing(tmp_path) as exposition:
        crowd = [socket.create_connection(("127.0.0.1", port_of(exposition)), timeout=60) for _ in range(17)]
        assert crowd[-1].recv(1) == b""
        assert not answers(exposition)
        for connection in crowd:
            connection.close()
        exposition.show("tr8", EVERYTHING)
        until(lambda: answers(exposition))


def answers(exposition: Exposition) -> bool:
    try:
        return "HELP" in scrape(exposition)
    except OSError:
        return False


def test_a_port_that_is_taken_is_replaced_and_one_that_is_asked_for_is_taken(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", free_port())) as taken:
        with showing(tmp_path, port=taken.getsockname()[1]) as exposition:
            assert port_of(exposition) != taken.getsockname()[1]
        free = taken.getsockname()[1]
    with showing(tmp_path, port=free) as exposition:
        assert exposition.server is not None
        assert (exposition.server.address, exposition.server.port) == ("127.0.0.1", free)


@pytest.mark.parametrize("address", ["192.0.2.1", "no..name"])
def test_an_address_that_cannot_be_had_costs_the_metrics_and_not_the_watch(tmp_path: Path, address: str) -> None:
    with showing(tmp_path, address=address) as exposition:
        assert exposition.server is None
        exposition.show("tr8", EVERYTHING)


def test_nothing_listens_where_it_is_switched_off_or_for_one_turn(tmp_path: Path) -> None:
    with showing(tmp_path, serve=False) as exposition:
        assert exposition.server is None
    with showing(tmp_path, once=True) as exposition:
        assert exposition.server is None


def test_it_is_announced_while_it_lasts_and_withdrawn_when_it_ends_well(tmp_path: Path) -> None:
    file = tmp_path / "scrape-watch.json"
    with showing(tmp_path, announce="node-7") as exposition:
        (group,) = json.loads(file.read_text())
        labels = {"run": "tr8", "component": "watch"}
        assert group == {"targets": [f"node-7:{port_of(exposition)}"], "labels": labels}
    assert json.loads(file.read_text()) == []


def test_a_watch_that_does_not_end_well_stays_announced_so_that_somebody_misses_it(tmp_path: Path) -> None:
    with showing(tmp_path, well=False, announce="node-7") as exposition:
        exposition.show("tr8", EVERYTHING)
    assert json.loads((tmp_path / "scrape-watch.json").read_text())


def test_what_only_this_machine_can_reach_is_not_announced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with showing(tmp_path):
        assert not (tmp_path / "scrape-watch.json").exists()
    monkeypatch.setenv("SLURMD_NODENAME", "node-7")
    assert reachable_name("0.0.0.0", "0.0.0.0") == reachable_name("::", "::") == "node-7"  # noqa: S104
    assert reachable_name("ib0.node-7", "10.1.2.3") == "ib0.node-7"
    assert reachable_name("localhost", "127.0.0.1") is None


def test_the_textfile_holds_what_the_last_turn_has_shown_until_it_is_taken_away(tmp_path: Path) -> None:
    file = tmp_path / "tr8.prom"
    textfile = Textfile(file)
    textfile.write(written(*_EVERYTHING[:1]))
    textfile.write(EVERYTHING)
    assert len(list(read_text(file.read_text()))) == len(DAEMON_METRICS)
    assert file.stat().st_mode & 0o777 == 0o644
    textfile.remove()
    assert not file.exists()
    textfile.remove()


def test_a_textfile_that_cannot_be_written_costs_no_turn_and_is_said_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    textfile = Textfile(tmp_path / "away" / "tr8.prom")
    textfile.write(EVERYTHING)
    textfile.write(EVERYTHING)
    assert caplog.text.count("the metrics' textfile can't be written") == 1


def test_all_runs_of_a_daemon_are_in_one_exposition_until_they_are_withdrawn(tmp_path: Path) -> None:
    with showing(tmp_path) as exposition:
        for run in ("a", "b"):
            exposition.show(run, written(Shown("sentinel_paused", 1.0, (run,))))
        text = scrape(exposition)
        assert text.count("# TYPE sentinel_paused gauge") == 1
        assert 'sentinel_paused{run="a"} 1.0' in text
        assert 'sentinel_paused{run="b"} 1.0' in text
        exposition.withdraw("a")
        assert 'run="a"' not in scrape(exposition)


def test_settings_that_would_be_passed_over_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"should end in \.prom"):
        Metrics(textfile=Path("tr8.txt"))


def test_prometheus_finds_nothing_wrong_with_the_watchs_metrics() -> None:
    assert promtool("check", "metrics", given=page((EVERYTHING,))) == ""


def test_prometheus_finds_nothing_wrong_with_the_trainers_but_names_that_others_rely_on() -> None:
    registry = CollectorRegistry()
    steps = StepCollector("tr8", 3, layers=lambda: LAYERS)
    steps.push(whole(7))
    registry.register(steps)
    promtool("--version")
    checked = subprocess.run(["promtool", "check", "metrics"], input=generate_latest(registry), capture_output=True)  # noqa: PLW1510, S607
    said = [line.split(" ", 1) for line in (checked.stdout + checked.stderr).decode().splitlines()]
    assert {name for name, _ in said} == KNOWN_ABBREVIATIONS
    assert {why for _, why in said} == {"metric names should not contain abbreviated units"}
