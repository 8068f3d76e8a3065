"""What is marked on every chart of a run: by Grafana's own annotations, and by queries."""

from __future__ import annotations

from grafana_foundation_sdk.builders import dashboard as builders
from grafana_foundation_sdk.cog.builder import Builder
from grafana_foundation_sdk.models import dashboard

from dashboards.build.names import RUN
from dashboards.build.panels import DATASOURCE

__all__ = ["marks"]

_GRAFANA = dashboard.DataSourceRef(type_val="grafana", uid="-- Grafana --")


class _Query(dashboard.AnnotationQuery):
    """A Prometheus annotation with a title, for which the schema has no field and Grafana's datasource has one."""

    title = ""

    def to_json(self) -> dict[str, object]:
        return super().to_json() | {"titleFormat": self.title, "step": "15s", "useValueForTime": False}


class _Mark(builders.AnnotationQuery):
    def __init__(self, name: str, title: str, colour: str, expr: str) -> None:
        super().__init__()
        self._internal = _Query()
        self._internal.title = title
        self.name(name).datasource(DATASOURCE).enable(True).icon_color(colour).expr(expr)


def marks() -> list[Builder[dashboard.AnnotationQuery]]:
    """Of one run: what was pushed from its incident log, and what the metrics tell without that."""
    pushed = builders.AnnotationTarget().limit(1000).match_any(False).tags(["sentinel", "run:$run"]).type("tags")
    target = builders.AnnotationQuery().name("Incident log").datasource(_GRAFANA).enable(True).icon_color("purple")
    spikes = f"increase(sentinel_spike_steps_total{{{RUN}}}[$__rate_interval]) > 0"
    nonfinite = f"increase(sentinel_nonfinite_loss_steps_total{{{RUN}}}[$__rate_interval]) > 0"
    diverged = f'max by (run) (sentinel_verdict{{{RUN},verdict="diverged"}}) == 1'
    attempts = f"sum by (run, attempt) (sentinel_steps_total{{{RUN}}}"
    begun = f"{attempts}) unless {attempts} offset 1m)"
    return [
        target.target(pushed),
        _Mark("Spike steps", "loss ratio above 1.2, attempt {{attempt}}", "yellow", spikes),
        _Mark("Loss not finite", "the loss is nan or infinite, attempt {{attempt}}", "red", nonfinite),
        _Mark("Diverged", "verdict: diverged", "dark-red", diverged),
        _Mark("Attempt begins", "attempt {{attempt}} begins", "blue", begun),
    ]
