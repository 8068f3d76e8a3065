"""The rules of Prometheus: its own checks and cases, their names, and what each alert tells a person."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from sentinel.vocabulary.metrics import every_name
from tests.support.rules import RECORDED, ROOT, RULES, groups, promtool

CASES = sorted((RULES / "tests").glob("*.yaml"))


ALERTS = [rule for group in groups("alerts.yaml") for rule in group["rules"]]


def test_prometheus_takes_the_rules() -> None:
    said = promtool("check", "rules", RULES / "recording.yaml", RULES / "alerts.yaml")
    assert said.count("SUCCESS") == 2


@pytest.mark.full
@pytest.mark.parametrize("cases", CASES, ids=lambda path: path.stem)
def test_alerts_fire_when_they_should_and_only_then(cases: Path) -> None:
    assert "SUCCESS" in promtool("test", "rules", cases)


@pytest.mark.full
@pytest.mark.parametrize("alert", ALERTS, ids=lambda rule: str(rule["alert"]))
def test_an_alert_has_cases_of_both_kinds_and_one_that_never_fires_fails_them(
    alert: dict[str, Any], tmp_path: Path
) -> None:
    (cases,) = [path for path in CASES if f'"{alert["alert"]}"' in path.read_text()]
    asked = [ask for case in yaml.safe_load(cases.read_text())["tests"] for ask in case["promql_expr_test"]]
    expected = [ask["exp_samples"] for ask in asked if f'"{alert["alert"]}"' in ask["expr"]]
    assert [] in expected
    assert any(expected)
    text = (RULES / "alerts.yaml").read_text()
    everything = yaml.safe_load(text)
    for rule in (rule for group in everything["groups"] for rule in group["rules"]):
        if rule["alert"] == alert["alert"]:
            rule["expr"] = f"({rule['expr']}) and on () vector(1) > 2"
    shutil.copytree(RULES, tmp_path / "rules")
    (tmp_path / "rules" / "alerts.yaml").write_text(yaml.safe_dump(everything))
    with pytest.raises(AssertionError, match="FAILED"):
        promtool("test", "rules", tmp_path / "rules" / "tests" / cases.name)


@pytest.mark.full
@pytest.mark.parametrize("record", sorted(RECORDED))
def test_a_recorded_series_has_cases_with_and_without_a_value_and_one_that_never_has_any_fails_them(
    record: str, tmp_path: Path
) -> None:
    assert re.fullmatch(r"[a-z_]+:sentinel_[a-z0-9_]+:[a-z0-9]+", record)  # level:metric:operation
    named = re.compile(rf"{record}(?!\w)")
    about = []
    for document in (yaml.safe_load(path.read_text()) for path in CASES):
        for case in document["tests"]:
            expected = [ask["exp_samples"] for ask in case["promql_expr_test"] if named.search(ask["expr"])]
            about += [(document["evaluation_interval"], case, expected)] if expected else []
    assert any([] in expected for _, _, expected in about)
    every, case, _ = next(one for one in about if any(one[2]))
    everything = yaml.safe_load((RULES / "recording.yaml").read_text())
    for rule in (rule for group in everything["groups"] for rule in group["rules"]):
        if rule["record"] == record:
            rule["expr"] = f"({rule['expr']}) and on () vector(1) > 2"
    (tmp_path / "recording.yaml").write_text(yaml.safe_dump(everything))
    alone = {"rule_files": ["recording.yaml"], "evaluation_interval": every, "tests": [case]}
    (tmp_path / "cases.yaml").write_text(yaml.safe_dump(alone))
    with pytest.raises(AssertionError, match="FAILED"):
        promtool("test", "rules", tmp_path / "cases.yaml")


def test_dashboards_and_rules_name_what_is_exported_and_nothing_else() -> None:
    known = every_name() | RECORDED
    for path in (ROOT / "dashboards").rglob("*.*"):
        named = set(re.findall(r"(?<![\w:.-])(?:[a-z_]+:)?sentinel_[a-z0-9_]+(?::\w+)?(?![\w-])", path.read_text()))
        assert {name for name in named if name not in known} == set(), path


@pytest.mark.parametrize("alert", ALERTS, ids=lambda rule: str(rule["alert"]))
def test_an_alert_says_how_grave_it_is_and_what_to_do(alert: dict[str, Any]) -> None:
    assert alert["labels"]["severity"] in ("warning", "critical")
    assert set(alert["annotations"]) == {"summary", "description", "what_to_do", "runbook_url"}
    who = "instance" if alert["alert"] == "SentinelTurnsLate" else "run"  # it is no run's own fault
    assert f"$labels.{who}" in alert["annotations"]["summary"]
    page, _, anchor = alert["annotations"]["runbook_url"].partition("#")
    headings = re.findall(r"^## (.+)$", (ROOT / page).read_text(), re.MULTILINE)
    assert alert["alert"] in headings
    assert anchor == alert["alert"].lower()
