"""The dashboards that sentinel brings along: their files, and one of them as a Grafana is to have it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from copy import deepcopy
from pathlib import Path
from typing import Any

from sentinel.vocabulary.errors import ConfigError

PROVISIONING = ("provisioning/dashboards.yaml", "provisioning/datasource.yaml")  # for Grafana's own folder of them
_PACKAGE = Path(__file__).parents[2]
_OWN = {"id", "version", "iteration"}  # what Grafana itself writes into a dashboard when it is saved


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
    sentinel's own pages; None takes away the links that need one."""
    made = deepcopy(dict(document))
    for variable in made["templating"]["list"]:
        if variable["name"] == "datasource" and datasource is not None:
            variable["current"] = {"selected": True, "text": datasource, "value": datasource}
        elif variable["name"] == "incidents":
            variable["query"] = (pages or "").rstrip("/")
    return made if pages is not None else dict(_without_links(made))


def differences(there: Mapping[str, Any], wanted: Mapping[str, Any]) -> list[str]:
    """Where a Grafana's dashboard is not the wanted one, as paths such as panels[3].title; none when they agree."""
    ours, theirs = ({k: v for k, v in one.items() if k not in _OWN} for one in (wanted, there))
    return _differ(theirs, ours, "")


def _without_links(node: Any) -> Any:
    if isinstance(node, list):
        return [_without_links(each) for each in node if not _leads_to_pages(each)]
    return {key: _without_links(value) for key, value in node.items()} if isinstance(node, dict) else node


def _leads_to_pages(link: Any) -> bool:
    return isinstance(link, dict) and str(link.get("url", "")).startswith("${incidents}")


def _differ(there: Any, wanted: Any, path: str) -> list[str]:
    if isinstance(there, dict) and isinstance(wanted, dict):
        keys = sorted(there.keys() | wanted.keys())
        pairs = [(there.get(key), wanted.get(key), f"{path}.{key}".lstrip(".")) for key in keys]
    elif isinstance(there, list) and isinstance(wanted, list) and len(there) == len(wanted):
        pairs = [(left, right, f"{path}[{n}]") for n, (left, right) in enumerate(zip(there, wanted, strict=True))]
    else:
        return [] if there == wanted else [path]
    return [one for left, right, name in pairs for one in _differ(left, right, name)]
