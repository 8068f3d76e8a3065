"""The page in a real Chromium: what it shows, its keys, what it asks of the network, and what it learns live."""

from __future__ import annotations

import http.client
import json
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import pytest

from sentinel.adapters.journal import Journals
from sentinel.reports.triage.server import Feed, TriageServer
from sentinel.vocabulary.errors import ConfigError
from sentinel.vocabulary.sample import RunStarted, encode
from tests.e2e.chromium import CHROMIUM, DEADLINE_MS, opened, served, until, view, where, written
from tests.triage import runs

if TYPE_CHECKING:
    from playwright.sync_api import Browser

pytestmark = [pytest.mark.full, pytest.mark.skipif(CHROMIUM is None, reason="not installed: apt-get install chromium")]


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("report")
    return written(runs.diverged(folder, reason=runs.HOSTILE))


def test_it_opens_without_an_error_and_asks_nothing_of_any_network(browser: Browser, report: Path) -> None:
    with opened(browser, report.as_uri()) as (page, wrong, asked):
        page.wait_for_timeout(300)
        assert wrong == []
        assert [url for url in asked if not url.startswith("data:")] == [report.as_uri()]
        assert page.locator("h1").inner_text() == "tiny"
        assert page.locator("figure canvas").count() >= 8


def test_what_a_log_line_says_is_shown_and_never_run(browser: Browser, report: Path) -> None:
    with opened(browser, report.as_uri()) as (page, _, _):
        assert page.locator("#incident .lead").inner_text() == runs.HOSTILE
        assert page.evaluate("window.broken") is None
        assert page.locator("img").count() == 0


def test_a_script_that_is_not_the_pages_own_does_not_run(browser: Browser, report: Path) -> None:
    with opened(browser, report.as_uri()) as (page, _, _):
        page.evaluate(
            "document.body.append(Object.assign(document.createElement('script'), {text: 'window.broken=1'}))"
        )
        assert page.evaluate("window.broken") is None


def test_the_incident_is_told_with_plan_suspects_and_commands(browser: Browser, report: Path) -> None:
    with opened(browser, report.as_uri()) as (page, _, _):
        told = page.locator("#incident").inner_text()
        for expected in (
            "incident-1",
            "recovered",
            "201 \u2013 205",
            "reseed",
            "the order of the data did it",
            "3,152 \u2013 3,295",
            "led by adam_variance_max 6 steps before",
        ):
            assert expected in told
        assert "sentinel undo incident-1 --run" in told


def test_dragging_over_one_chart_zooms_all_of_them(browser: Browser, report: Path) -> None:
    with opened(browser, report.as_uri()) as (page, _, _):
        whole = view(page)
        over = page.locator("[data-chart=loss] .u-over").bounding_box()
        assert over is not None
        page.mouse.move(over["x"] + 0.25 * over["width"], over["y"] + 50)
        page.mouse.down()
        page.mouse.move(over["x"] + 0.5 * over["width"], over["y"] + 60, steps=5)
        page.mouse.up()
        until(page, "Triage.view.max < 0.6 * Triage.whole_run.max")
        low, high = view(page)
        assert low == pytest.approx(whole[0] + 0.25 * (whole[1] - whole[0]), abs=5)
        assert high == pytest.approx(whole[0] + 0.5 * (whole[1] - whole[0]), abs=5)
        drawn = "Triage.charts.filter((c) => c.plot).map((c) => c.plot.scales.x)"  # in a frame of their own
        until(page, f"{drawn}.every((x) => x.min === Triage.view.min && x.max === Triage.view.max)")
        assert page.evaluate(f"{drawn}.length") > 4
        page.locator("[data-chart=loss] .u-over").dblclick()
        until(page, "Triage.view.max === Triage.whole_run.max && Triage.view.min === Triage.whole_run.min")


def test_keys_zoom_and_pan_and_go_to_the_incident_and_help(browser: Browser, report: Path) -> None:
    with opened(browser, report.as_uri()) as (page, wrong, _):
        whole = view(page)
        page.keyboard.press("+")
        low, high = view(page)
        assert high - low == pytest.approx((whole[1] - whole[0]) / 2)
        page.keyboard.press("ArrowRight")
        assert view(page)[0] > low
        page.keyboard.press("-")
        page.keyboard.press("0")
        assert view(page) == whole
        page.keyboard.press("j")
        low, high = view(page)
        assert whole[0] < low < 201 < 300 < high
        page.keyboard.press("?")
        assert page.locator("#help").is_visible()
        page.keyboard.press("Escape")
        assert not page.locator("#help").is_visible()
        before = page.evaluate("getComputedStyle(document.body).backgroundColor")
        page.keyboard.press("t")
        assert page.evaluate("getComputedStyle(document.body).backgroundColor") != before
        assert wrong == []


def test_a_reading_that_is_nan_is_marked(browser: Browser, report: Path) -> None:
    with opened(browser, report.as_uri()) as (page, _, _):
        assert page.evaluate("Triage.charts.find((c) => c.name === 'loss').bad") == [[400, 1]]


@pytest.mark.parametrize("width", [390, 900, 1440])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_nothing_is_wider_than_the_screen(browser: Browser, report: Path, width: int, scheme: str) -> None:
    size = {"width": width, "height": 900}
    with opened(browser, report.as_uri(), viewport=size, color_scheme=scheme) as (page, wrong, _):
        page.wait_for_timeout(200)
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        assert wrong == []


def test_it_prints_with_every_chart(browser: Browser, report: Path) -> None:
    with opened(browser, report.as_uri()) as (page, wrong, _):
        assert len(page.pdf(format="A4")) > 50_000
        page.evaluate("document.documentElement.dataset.theme = 'dark'")
        page.evaluate("dispatchEvent(new Event('beforeprint'))")
        assert page.evaluate("[...document.querySelectorAll('details.plan')].every((one) => one.open)")
        assert page.evaluate("Triage.charts.every((chart) => chart.plot)")
        assert page.evaluate("document.documentElement.dataset.theme") == "light"
        page.evaluate("dispatchEvent(new Event('afterprint'))")
        assert page.evaluate("document.documentElement.dataset.theme") == "dark"
        assert wrong == []


def test_a_million_steps_load_and_the_only_peak_is_seen_from_afar_and_near(browser: Browser, tmp_path: Path) -> None:
    steps, peak, bad = 1_000_000, 654_321, 700_001
    state = tmp_path / "state"
    (state / "attempts").mkdir(parents=True)
    with (state / "attempts" / "0001.jsonl").open("w") as file:
        file.write(encode(RunStarted(attempt=1, time_unix_s=0.0)) + "\n")
        line = '{{"kind": "sample", "attempt": 1, "global_step": {0}, "time_unix_s": {0}, "loss": {1}}}\n'
        for step in range(1, steps + 1):
            loss = 99 if step == peak else '"nan"' if step == bad else 2 + (step * 7919 % 1000) / 5000
            file.write(line.format(step, loss))
    report = written(runs.configuration(tmp_path))
    assert report.stat().st_size < 4_000_000
    with opened(browser, report.as_uri()) as (page, wrong, _):
        loss = "const c = Triage.charts.find((c) => c.name === 'loss');"
        seen = "[c.plot.data[0].indexOf(%d), Math.max(...c.plot.data[1]), c.bad.map((b) => b[0])]"
        find = f"(() => {{{loss} return {seen % peak}}})()"
        place, greatest, marked = page.evaluate(find)
        assert place >= 0
        assert greatest == 99
        assert bad in marked
        page.evaluate(f"Triage.setView({peak - 500}, {peak + 500})")
        until(page, "Triage.charts[0].plot.scales.x.max < 700000")
        place, greatest, _ = page.evaluate(find)
        assert place >= 0
        assert greatest == 99
        drawn = page.evaluate("Math.max(...Triage.charts.filter((c) => c.plot).map((c) => c.plot.data[0].length))")
        assert drawn < 20_000  # what a frame draws does not grow with the run
        assert wrong == []


def test_a_new_sample_and_a_new_event_reach_the_open_page(browser: Browser, tmp_path: Path) -> None:
    configuration = runs.diverged(tmp_path)
    with served(configuration) as address, opened(browser, address) as (page, wrong, asked):
        page.wait_for_selector("#live[data-severity=good]")
        journal = tmp_path / "state" / "attempts" / "0002.jsonl"
        with journal.open("a") as file:
            file.write(encode(runs.sample(2, 301, 2.5)) + "\n")
        until(page, "document.querySelector('[data-fact=step]').textContent === '301'")
        until(page, "(() => {const c = Triage.charts[0].curves[1]; return c.x[c.n - 1] === 301})()")
        runs.falls_ill_again(tmp_path)
        page.wait_for_selector("#incident-tabs button:has-text('incident-2')")
        with (tmp_path / "state" / "attempts" / "0003.jsonl").open("w") as file:
            file.write(encode(RunStarted(attempt=3, time_unix_s=1.0, parent_attempt=2, resumed_from=280)) + "\n")
            file.write(encode(runs.sample(3, 281, 2.4)) + "\n")
        until(page, "Triage.order.includes(3) && Triage.charts[0].curves.length === 3")
        assert wrong == []
        assert all(url.startswith((address, "data:")) for url in asked)


def test_a_page_that_was_open_before_the_run_began_shows_it_when_it_begins(browser: Browser, tmp_path: Path) -> None:
    (tmp_path / "state").mkdir()
    with served(runs.configuration(tmp_path)) as address:
        page = browser.new_page()
        page.set_default_timeout(DEADLINE_MS)
        page.goto(address)
        page.wait_for_selector("#live[data-severity=good]")
        assert "No incident" in page.locator("#incident").inner_text()
        runs.write_attempt(tmp_path / "state", 1, [runs.sample(1, step, 4.0) for step in range(1, 40)])
        page.wait_for_selector("[data-chart=loss] canvas")
        until(page, "Triage.whole_run.max === 39")
        page.close()


def answer(address: str, path: str, method: str = "GET", host: str | None = None) -> tuple[int, bytes]:
    """Status and body of one request."""
    at = urlsplit(address)
    with closing(http.client.HTTPConnection(at.hostname or "", at.port, timeout=60)) as connection:
        connection.request(method, path, headers={"Host": host} if host else {})
        got = connection.getresponse()
        return got.status, got.read()


def test_the_server_only_answers_what_it_is_asked_for_and_never_takes_anything(tmp_path: Path) -> None:
    with served(runs.diverged(tmp_path)) as address:
        status, body = answer(address, "/document.json")
        assert (status, json.loads(body)["run"]) == (200, "tiny")
        assert answer(address, "/", method="POST")[0] == 501
        assert answer(address, "/../../etc/passwd")[0] == 404
        assert answer(address, "/", host="evil.example:80")[0] == 421


def test_with_a_token_nothing_is_shown_without_it(browser: Browser, tmp_path: Path) -> None:
    configuration = runs.diverged(tmp_path)
    token = tmp_path / "token"
    token.write_text("a-token-of-some-length\n")
    everywhere = "0.0.0.0"  # noqa: S104 - that is the question
    with served(configuration, "--host", everywhere, "--token-file", str(token)) as shown:
        address = shown.replace(everywhere, "127.0.0.1")
        for path in ("/", "/document.json", "/events", "/?token=another-one"):
            assert answer(address, path)[0] == 401
        with opened(browser, address + "?step=250&token=a-token-of-some-length") as (page, wrong, _):
            assert "token" not in where(page)
            assert page.evaluate("Triage.pointed") == 250
            page.wait_for_selector("#live[data-severity=good]")
            assert wrong == []


def test_beyond_this_machine_nothing_is_served_without_a_token(tmp_path: Path) -> None:
    feed = Feed(Journals(tmp_path), tmp_path / "incidents.jsonl")
    with pytest.raises(ConfigError, match="a token is needed"):
        TriageServer(("192.0.2.1", 0), feed, dict)
