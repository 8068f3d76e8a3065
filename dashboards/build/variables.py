"""What can be chosen at the head of a dashboard: the Prometheus, the run, its attempts."""

from __future__ import annotations

from grafana_foundation_sdk.builders import dashboard as builders
from grafana_foundation_sdk.models import dashboard

from dashboards.build.panels import DATASOURCE

__all__ = ["attempts", "datasource", "incidents", "run"]


def datasource() -> builders.DatasourceVariable:
    """Which Prometheus is asked."""
    return builders.DatasourceVariable("datasource").label("Prometheus").type("prometheus")


def run() -> builders.QueryVariable:
    """One run; whoever exports a step, or is watched."""
    metric = '{__name__=~"sentinel_global_step|sentinel_verdict"}'
    return _of_label("run", metric).label("Run").sort(dashboard.VariableSort.ALPHABETICAL_ASC)


def attempts() -> builders.QueryVariable:
    """Any of its attempts, all at first: they are laid over one another."""
    variable = _of_label("attempt", 'sentinel_global_step{run="$run"}').label("Attempt").multi(True)
    every = dashboard.VariableOption(selected=True, text="All", value="$__all")
    return variable.include_all(True).all_value(".*").current(every).sort(dashboard.VariableSort.NUMERICAL_DESC)


def incidents() -> builders.ConstantVariable:
    """The address of sentinel's own pages, without a slash at its end; `sentinel dashboards push` fills it in."""
    return builders.ConstantVariable("incidents").label("Sentinel's pages").value("")


def _of_label(label: str, selector: str) -> builders.QueryVariable:
    query: dict[str, object] = {"qryType": 1, "query": f"label_values({selector},{label})", "refId": label}
    variable = builders.QueryVariable(label).datasource(DATASOURCE).query(query)
    return variable.refresh(dashboard.VariableRefresh.ON_TIME_RANGE_CHANGED)
