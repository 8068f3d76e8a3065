"""The dashboards as they are committed: made by their code, of known names only, leading from one to another."""

from __future__ import annotations

import json
import re
from collections import Counter
from typing import Any

import pytest

from sentinel.vocabulary.metrics import every_name
from tests.dashboards.boards import FILES, FOLDER, board, panels, queries
from tests.support.rules import RECORDED


def test_the_committed_json_is_what_the_code_makes() -> None:
    pytest.importorskip("grafana_foundation_sdk", reason="not installed: pip install grafana-foundation-sdk")
    from dashboards.build.__main__ import FOLDER, documents

    made = documents()
    assert set(made) == set(FILES)
    for name, text in made.items():
        assert (FOLDER / name).read_text() == text, f"{name}: run python -m dashboards.build"


def test_the_dashboards_use_no_name_that_is_not_in_the_table() -> None:
    used = {name for asked in queries() for name in re.findall(r"(?:\w+:)?sentinel_\w+(?::\w+)?", asked.expr)}
    assert len(used) > 25
    assert used - every_name() - RECORDED == set()


def test_no_query_holds_another_one() -> None:
    """A subquery is worked out anew for each point, at each refresh: a rule does that once."""
    assert [str(asked) for asked in queries() if re.search(r"\[[^\]]*:[^\]]*\]", asked.expr)] == []


@pytest.mark.parametrize("name", ["fleet.json", "sentinel-itself.json"])
def test_over_time_the_boards_of_all_runs_ask_for_what_is_recorded_wherever_that_is_more_than_a_reading(
    name: str,
) -> None:
    heavy = r"\b(?:rate|increase|topk|\w*quantile\w*|\w+_over_time)\b[^]]*?\b(?<!:)sentinel_\w+(?!:)\b(?:\{|\[)"
    assert re.search(heavy, "sum by (run) (increase(sentinel_steps_total[5m]))")
    assert not re.search(heavy, "max_over_time(run:sentinel_steps:increase5m[5m])")
    of_all = [asked for asked in queries() if asked.board == name]
    assert [str(asked) for asked in of_all if re.search(heavy, asked.expr)] == []
    states = {"sentinel_verdict", "sentinel_mode"}
    for asked in of_all:
        assert asked.instant or not states & set(re.findall(r"(?<!:)\bsentinel_\w+(?!:)", asked.expr)), asked


def test_the_points_that_name_a_step_are_asked_of_the_counters_themselves() -> None:
    """What is recorded has no exemplars."""
    asked = {
        (panel["title"], target["expr"])
        for name in FILES
        for panel in panels(board(name))
        for target in panel["targets"]
        if target.get("exemplar")
    }
    assert {title for title, _ in asked} == {"Steps that went wrong", "Actions"}
    assert len(asked) == 4
    assert all(re.search(r"(?<!:)\bsentinel_\w+_total\{", expr) for _, expr in asked)


def test_the_page_says_which_panels_are_empty_without_the_rules() -> None:
    page = (FOLDER.parent / "docs" / "GRAFANA.md").read_text()
    (told,) = re.findall(r"recording\.yaml` .*?: else (.*?) stay empty", page, re.DOTALL)
    said = {title.strip("`") for title in re.findall(r"`[^`]+`", " ".join(told.split()))}
    needed = {asked.panel for asked in queries() if any(name in asked.expr for name in RECORDED)}
    assert said == needed


@pytest.mark.parametrize("name", FILES)
def test_every_panel_says_what_it_shows_and_asks_the_chosen_prometheus(name: str) -> None:
    document = board(name)
    titles = Counter(panel["title"] for panel in panels(document))
    assert [title for title, count in titles.items() if count > 1] == []
    for panel in panels(document):
        assert len(panel["description"]) > 20, panel["title"]
        for target in panel["targets"]:
            assert target["datasource"] == {"type": "prometheus", "uid": "${datasource}"}, panel["title"]


@pytest.mark.parametrize("name", FILES)
def test_every_line_of_panels_is_as_wide_as_the_board(name: str) -> None:
    """24 columns: what goes beyond them is cut off, what does not reach them is a hole."""
    lines: dict[int, list[tuple[int, int]]] = {}
    for panel in board(name)["panels"]:
        place = panel["gridPos"]
        lines.setdefault(place["y"], []).append((place["x"], place["x"] + place["w"]))
    for y, taken in lines.items():
        begins, ends = zip(*sorted(taken), strict=True)
        assert (0, *ends) == (*begins, 24), y


def test_an_attempt_has_one_colour_whatever_its_number() -> None:
    loss = next(panel for panel in panels(board("spike-triage.json")) if panel["title"] == "Loss, over time")
    colours = [
        (rule["matcher"]["options"].strip("/"), prop["value"]["fixedColor"])
        for rule in loss["fieldConfig"]["overrides"]
        for prop in rule["properties"]
        if prop["id"] == "color"
    ]
    for series in ("attempt 1", "worst, attempt 1", "attempt 10", "attempt 41"):
        found = [colour for pattern, colour in colours if re.search(pattern, series)]
        assert found == [colours[int(series[-1])][1]], series
    assert len({colour for _, colour in colours}) == 10


def test_the_step_is_never_a_label() -> None:
    for asked in queries():
        for labels in re.findall(r"(?:by|on|without) \(([^)]*)\)", asked.expr):
            assert "step" not in labels, asked


def test_every_selector_of_the_triage_page_is_of_the_chosen_run() -> None:
    for asked in queries():
        if asked.board == "spike-triage.json":
            selectors = re.findall(r"sentinel_\w+(?::\w+)?(\{[^}]*\})?", asked.expr)
            assert selectors, asked
            assert all('run="$run"' in selector for selector in selectors), asked


def test_run_and_attempt_can_be_chosen() -> None:
    variables = {v["name"]: v for v in board("spike-triage.json")["templating"]["list"]}
    assert {"datasource", "run", "attempt"} <= set(variables)
    assert variables["attempt"]["multi"]
    assert variables["attempt"]["includeAll"]
    assert not variables["run"]["multi"]


def _links(document: dict[str, Any]) -> dict[str, list[str]]:
    """{panel: the addresses that a click on its readings leads to}."""
    found: dict[str, list[str]] = {}
    for panel in panels(document):
        config = panel["fieldConfig"]
        links = list(config["defaults"].get("links", ()))
        for override in config["overrides"]:
            links += [link for p in override["properties"] if p["id"] == "links" for link in p["value"]]
        found[panel["title"]] = [link["url"] for link in links]
    return found


@pytest.mark.parametrize(
    ("name", "panel"),
    [
        ("fleet.json", "Runs"),
        ("fleet.json", "Spike steps"),
        ("spike-triage.json", "Loss ratio"),
        ("spike-triage.json", "Steps that went wrong"),
    ],
)
def test_a_spike_leads_to_the_triage_page_and_to_the_incidents(name: str, panel: str) -> None:
    links = _links(board(name))[panel]
    uid = board("spike-triage.json")["uid"]
    assert any(url.startswith(f"/d/{uid}?var-run=${{__") for url in links), links
    assert any(url.startswith("${incidents}/") for url in links), links


def test_a_click_leads_to_the_triage_page_at_that_moment_or_step() -> None:
    links = [_links(board(name)) for name in FILES]
    urls = {url for each in links for found in each.values() for url in found if url.startswith("${incidents}/")}
    steps = _links(board("spike-triage.json"))["Onset and alarm, step"]
    assert steps == ["${incidents}/?run=$run&step=${__value.numeric}"]
    of_a_row = "${incidents}/?run=${__value.text}"  # its cell is a name
    assert all(url.endswith("&time=${__value.time}") for url in urls - {*steps, of_a_row}), urls
    assert len(urls) == 4


def test_every_dashboard_lets_incidents_be_addressed() -> None:
    for name in FILES:
        document = board(name)
        if "${incidents}" in json.dumps(document["panels"]):
            assert "incidents" in {v["name"] for v in document["templating"]["list"]}


def test_uids_do_not_change_since_bookmarks_hold_them() -> None:
    assert [board(name)["uid"] for name in FILES] == ["sentinel-spike-triage", "sentinel-fleet", "sentinel-itself"]
