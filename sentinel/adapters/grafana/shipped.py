"""The dashboards that sentinel brings along: their files, and one of them as a Grafana is to have it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from copy import deepcopy
from pathlib import Path
from typing import Any

from sentinel.vocabulary.errors import ConfigError

__all__ = ["PROVISIONING", "differences", "fitted", "shipped", "shipped_folder"]

_PACKAGE = Path(__file__).parents[2]
_OWN = ("id", "version", "iteration")
"""What Grafana itself writes into a dashboard when it is saved."""

PROVISIONING = ("provisioning/dashboards.yaml", "provisioning/datasource.yaml")
"""For those who don't push: copied into Grafana's own provisioning folder."""


def shipped_folder() -> Path:
    """Where they are: inside the installed package, or beside it in a checkout."""
    for folder in (_PACKAGE / "shipped_dashboards", _PACKAGE.parent / "dashboards"):
        if (folder / "fleet.json").is_file():
            return folder
    raise ConfigError("this installation of sentinel has no dashboards in it: install it again")


def shipped() -> dict[str, dict[str, Any]]:
    """{name of its file: the dashboard}, in the order of the names."""
    return {path.name: json.loads(path.read_text(encoding="utf-8")) for path in sorted(shipped_folder().glob("*.json"))}


def fitted(document: Mapping[str, Any], *, datasource: str | None, pages: str | None) -> dict[str, Any]:
    """The dashboard for one Grafana: its Prometheus chosen, and sentinel's own pages where links lead to them.

    `datasource` is the uid of a Prometheus, None leaves the choice to Grafana's default. `pages` is the address of
    sentinel's own pages; None takes away the links that need one.
    """
    made = deepcopy(dict(document))
    for variable in made["templating"]["list"]:
        if variable["name"] == "datasource" and datasource is not None:
            variable["current"] = {"selected": True, "text": datasource, "value": datasource}
        elif variable["name"] == "incidents":
            variable["query"] = (pages or "").rstrip("/")
    return made if pages is not None else dict(_without_links(made))


def differences(there: Mapping[str, Any], wanted: Mapping[str, Any]) -> list[str]:
    """Where a Grafana's dashboard is not the wanted one, as paths such as panels[3].title; none when they agree."""
    told = {key: value for key, value in there.items() if key not in _OWN}
    return _differ(told, {key: value for key, value in wanted.items() if key not in _OWN}, "")


def _without_links(node: Any) -> Any:
    if isinstance(node, list):
        kept = [each for each in node if not (isinstance(each, dict) and _leads_to_pages(each))]
        return [_without_links(each) for each in kept]
    if isinstance(node, dict):
        return {key: _without_links(value) for key, value in node.items()}
    return node


def _leads_to_pages(link: Mapping[str, Any]) -> bool:
    return str(link.get("url", "")).startswith("${incidents}")


def _differ(there: Any, wanted: Any, path: str) -> list[str]:
    if isinstance(there, dict) and isinstance(wanted, dict):
        keys = sorted(there.keys() | wanted.keys())
        return [one for key in keys for one in _differ(there.get(key), wanted.get(key), f"{path}.{key}".lstrip("."))]
    if isinstance(there, list) and isinstance(wanted, list) and len(there) == len(wanted):
        return [
            one
            for number, (left, right) in enumerate(zip(there, wanted, strict=True))
            for one in _differ(left, right, f"{path}[{number}]")
        ]
    return [] if there == wanted else [path]
