"""Where an address leads on the triage page, in a real Chromium: to an incident, a step, a moment, or nowhere."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.e2e.chromium import CHROMIUM, opened, served, until, view, where, written
from tests.triage import runs
from tests.triage.runs import falls_ill_again

if TYPE_CHECKING:
    from playwright.sync_api import Browser

pytestmark = [pytest.mark.full, pytest.mark.skipif(CHROMIUM is None, reason="not installed: apt-get install chromium")]


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a live page with two incidents."""
    folder = tmp_path_factory.mktemp("two")
    configuration = runs.diverged(folder)
    falls_ill_again(folder)
    with served(configuration) as address:
        yield address


@pytest.mark.parametrize("asked", ["?run=tiny&incident=incident-1", "?incident=incident-1", "#incident-1"])
def test_an_address_opens_one_incident_and_scrolls_to_it(browser: Browser, two: str, asked: str) -> None:
    size = {"width": 390, "height": 700}  # where the incident is below the charts
    with opened(browser, two + asked, viewport=size) as (page, wrong, _):
        assert page.locator("#incident-tabs [aria-selected=true]").inner_text().startswith("incident-1")
        low, high = view(page)
        assert 1 < low < 201 < 300 < high
        until(page, "Math.abs(document.getElementById('incident').getBoundingClientRect().top) < 120")
        assert page.locator("#asked").is_hidden()
        assert wrong == []


def test_another_address_on_the_open_page_leads_there_too(browser: Browser, two: str) -> None:
    with opened(browser, two) as (page, wrong, _):
        assert page.evaluate("Triage.shown") == "incident-2"
        page.evaluate("location.hash = 'incident-1'")
        until(page, "Triage.shown === 'incident-1'")
        page.locator("#incident-tabs button", has_text="incident-2").click()
        assert where(page).endswith("#incident-2")  # to be copied
        page.evaluate("location.hash = 'incident'")  # the skip link's: no incident's name
        page.wait_for_timeout(100)
        assert page.evaluate("Triage.shown") == "incident-2"
        assert wrong == []


def test_a_file_opens_at_an_incident_as_well(browser: Browser, tmp_path: Path) -> None:
    configuration = runs.diverged(tmp_path)
    falls_ill_again(tmp_path)
    report = written(configuration)
    with opened(browser, f"{report.as_uri()}#incident-1") as (page, wrong, _):
        assert page.evaluate("Triage.shown") == "incident-1"
        page.keyboard.press("j")
        assert where(page) == f"{report.as_uri()}#incident-2"
        assert wrong == []


def test_an_incident_that_is_not_there_is_said_and_opens_when_it_comes(browser: Browser, tmp_path: Path) -> None:
    configuration = runs.diverged(tmp_path)
    with served(configuration) as address, opened(browser, f"{address}?incident=incident-2") as (page, wrong, _):
        assert "not here: this run has incident-1." in page.locator("#asked").inner_text()
        page.wait_for_selector("#live[data-severity=good]")
        falls_ill_again(tmp_path)
        until(page, "Triage.shown === 'incident-2'")
        assert page.locator("#asked").is_hidden()
        assert wrong == []


@pytest.mark.parametrize(
    ("asked", "step"), [("step=250", 250), ("time=1700000120500", 120), ("incident=incident-1&step=260", 260)]
)
def test_an_address_zooms_to_a_step_or_a_moment_and_marks_it(browser: Browser, two: str, asked: str, step: int) -> None:
    with opened(browser, f"{two}?run=tiny&{asked}") as (page, wrong, _):
        assert page.evaluate("Triage.pointed") == pytest.approx(step, abs=1)
        low, high = view(page)
        assert low <= step <= high
        assert high - low == pytest.approx(200, abs=2)
        assert wrong == []


def test_a_moment_is_of_the_attempt_that_was_at_work_then(browser: Browser, two: str) -> None:
    with opened(browser, two) as (page, _, _):
        assert page.evaluate("Triage.stepAtTime(1_700_000_100)") == {"attempt": 1, "step": 100, "away": 0}
        beyond = page.evaluate("Triage.stepAtTime(1_800_000_000)")  # a scrape may be later than the last step
        assert (beyond["attempt"], beyond["step"]) == (1, 400)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("tr8", "This page is of tiny, and tr8 was asked for. Each run has a page of its own: sentinel ui --run tr8"),
        ("x;%20rm%20-rf%20~", "This page is of tiny, and another run was asked for."),
    ],
)
def test_a_page_that_is_of_another_run_says_so_and_goes_nowhere(
    browser: Browser, two: str, name: str, said: str
) -> None:
    with opened(browser, f"{two}?run={name}&incident=incident-1&step=100") as (page, wrong, _):
        assert page.locator("#asked").inner_text() == said
        assert page.evaluate("[Triage.shown, Triage.pointed]") == ["incident-2", None]
        assert view(page) == tuple(page.evaluate("[Triage.whole_run.min, Triage.whole_run.max]"))
        assert wrong == []


@pytest.mark.parametrize("asked", ["step=-1", "step=1e9", "time=NaN", "step=%3Cimg%20src=x%3E", "incident=%3Cb%3E"])
def test_an_address_that_makes_no_sense_does_no_harm(browser: Browser, two: str, asked: str) -> None:
    with opened(browser, f"{two}?{asked}") as (page, wrong, _):
        assert page.evaluate("Triage.shown") == "incident-2"
        assert page.locator("#asked b, img").count() == 0
        assert wrong == []
