"""Sentinel itself: whether the watcher is awake, and what it loses."""

from __future__ import annotations

from grafana_foundation_sdk.builders import dashboard as builders
from grafana_foundation_sdk.models import dashboard

from dashboards.build import links, variables
from dashboards.build.names import help_of, most_of
from dashboards.build.panels import Query, curve, states

__all__ = ["itself"]

_LOOKED, _SAMPLED = "last_look_timestamp_seconds", "last_sample_timestamp_seconds"
_LATE = "last_turn_late_seconds"


def itself() -> builders.Dashboard:
    """Its loop, its errors, its actions, and the hooks inside the trainers."""
    board = builders.Dashboard("Sentinel itself").uid("sentinel-itself").tags(["sentinel"]).link(links.to_others())
    board = board.description("Whether the watcher is awake, what it does, and what it loses.").timezone("browser")
    board = board.time("now-24h", "now").refresh("1m").tooltip(dashboard.DashboardCursorSync.CROSSHAIR)
    board = board.with_variable(variables.datasource()).with_variable(variables.incidents())
    for title, name, expr, legend, unit in (
        ("A turn of its loop", "last_turn_seconds", "max by (run) (sentinel_last_turn_seconds)", "{{run}}", "s"),
        ("A turn is late", _LATE, f"max by (run) (sentinel_{_LATE})", "{{run}}", "s"),
        ("Turns that failed", "turn_errors_total", most_of("run:sentinel_turn_errors:increase5m"), "{{run}}", "short"),
        ("Since it last looked", _LOOKED, f"time() - max by (run) (sentinel_{_LOOKED})", "{{run}}", "s"),
        ("Newest sample is old", _SAMPLED, f"time() - max by (run) (sentinel_{_SAMPLED})", "{{run}}", "s"),
        (
            "Actions",
            "actions_total",
            most_of("run_outcome:sentinel_actions:increase5m"),
            "{{run}}, {{outcome}}",
            "short",
        ),
        ("Budget", "budget_rollbacks_left", "min by (run) (sentinel_budget_rollbacks_left)", "{{run}}", "short"),
        ("Hook errors", "hook_errors_total", most_of("run:sentinel_hook_errors:increase5m"), "{{run}}", "short"),
        (
            "Steps reported, per second",
            "steps_total",
            "run_attempt:sentinel_steps:rate5m",
            "{{run}}, attempt {{attempt}}",
            "short",
        ),
        ("Window of the maxima", "window_seconds", "min by (run) (sentinel_window_seconds)", "{{run}}", "s"),
    ):
        about, bars = help_of(f"sentinel_{name}"), "increase5m" in expr
        about += " The most within any five minutes." if bars else ""
        here = [links.to_triage(), links.to_incidents()]
        board = board.with_panel(
            curve(title, Query(expr=expr, legend=legend), about=about, unit=unit, bars=bars, links=here)
        )
    modes = Query(expr="run_mode:sentinel_mode:max", legend="{{run}}, {{mode}}")
    return board.with_panel(states("Mode", modes, about=help_of("sentinel_mode")))
