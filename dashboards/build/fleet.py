"""Fleet: every run. Which one needs somebody, since when, and what sentinel may still do about it."""

from __future__ import annotations

from grafana_foundation_sdk.builders import dashboard as builders
from grafana_foundation_sdk.models import dashboard

from dashboards.build import links, variables
from dashboards.build.names import help_of, most_of
from dashboards.build.panels import PanelBuilder, Query, coloured, curve, states, table_of

__all__ = ["fleet"]

_LINKED = [links.to_triage(), links.to_incidents()]


def fleet() -> builders.Dashboard:
    """All runs on one page; each leads to its own."""
    board = builders.Dashboard("Fleet").uid("sentinel-fleet").tags(["sentinel"]).link(links.to_others())
    board = board.description("Every run: its verdict, how fresh it is, its incidents and its budget.")
    board = (
        board.timezone("browser").time("now-24h", "now").refresh("1m").tooltip(dashboard.DashboardCursorSync.CROSSHAIR)
    )
    board = board.with_variable(variables.datasource()).with_variable(variables.incidents())
    verdicts = Query(expr="run_verdict:sentinel_verdict:max", legend="{{run}}, {{verdict}}")
    for panel in (
        _table(),
        states("Verdicts", verdicts, about=help_of("sentinel_verdict")),
        curve(
            "Loss ratio, worst within the exporter's window",
            Query(expr="max by (run) (sentinel_loss_ratio_window_max)", legend="{{run}}"),
            about="A click leads to the run at that moment. " + help_of("sentinel_loss_ratio"),
            threshold=1.2,
            links=_LINKED,
        ),
        curve(
            "Spike steps",
            Query(expr=most_of("run:sentinel_spike_steps:increase5m"), legend="{{run}}"),
            about=help_of("sentinel_spike_steps_total") + " The most within any five minutes.",
            bars=True,
            links=_LINKED,
        ),
        curve(
            "Newest sample is old",
            Query(expr="time() - max by (run) (sentinel_last_sample_timestamp_seconds)", legend="{{run}}"),
            about=help_of("sentinel_last_sample_timestamp_seconds"),
            unit="s",
            links=_LINKED,
        ),
        curve(
            "Tokens per second",
            Query(expr="sum by (run) (sentinel_tokens_per_s)", legend="{{run}}"),
            about=help_of("sentinel_tokens_per_s"),
            links=_LINKED,
        ),
    ):
        board = board.with_panel(panel)
    return board


def _table() -> PanelBuilder:
    columns = {
        "code": "max by (run, verdict) (sentinel_verdict) == 1",
        "step": "max by (run) (sentinel_global_step)",
        "loss": "max by (run) (sentinel_loss)",
        "loss ratio, judged": "max by (run) (sentinel_judged_loss_ratio)",
        "newest sample is old": "time() - max by (run) (sentinel_last_sample_timestamp_seconds)",
        "incidents": "sum by (run) (sentinel_incidents)",
        "a person is needed": 'sum by (run) (sentinel_incidents{status="stopped"})',
        "last incident": "max by (run) (sentinel_last_incident_timestamp_seconds) * 1000",
        "budget left": "min by (run) (sentinel_budget_rollbacks_left)",
    }
    queries = {heading: Query(expr=expr, instant=True, table=True) for heading, expr in columns.items()}
    panel = table_of(
        "Runs",
        queries,
        about="One row for each run that is watched or exports a step; `last incident` is when it was opened.",
        join="run",
        hidden=["Value #A"],
    )
    panel = coloured(panel, "verdict")
    panel = panel.override_by_name("newest sample is old", [dashboard.DynamicConfigValue("unit", "s")])
    panel = panel.override_by_name("last incident", [dashboard.DynamicConfigValue("unit", "dateTimeFromNow")])
    to_run = [links.to_triage("${__value.text}", at=""), links.to_incidents("${__value.text}", there="")]
    return panel.override_by_name(
        "run", [dashboard.DynamicConfigValue("links", [link.build().to_json() for link in to_run])]
    )
