"""Panels, each with its queries: a line over time, a number now, a state over time, a table, a curve by step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from grafana_foundation_sdk.builders import common as common_builders
from grafana_foundation_sdk.builders import dashboard as builders
from grafana_foundation_sdk.builders import prometheus, stat, statetimeline, table, timeseries, xychart
from grafana_foundation_sdk.cog.builder import Builder
from grafana_foundation_sdk.models import common, dashboard
from grafana_foundation_sdk.models import prometheus as prometheus_models
from grafana_foundation_sdk.models import xychart as xychart_models

from dashboards.build.names import ATTEMPTS, VERDICTS

__all__ = ["DATASOURCE", "PanelBuilder", "Query", "by_step", "coloured", "curve", "number", "states", "table_of"]

DATASOURCE = dashboard.DataSourceRef(type_val="prometheus", uid="${datasource}")
"""Whichever Prometheus the dashboard's own variable names."""

PanelBuilder = Builder[dashboard.Panel]
"""A panel of any kind, being built."""

_HEIGHT = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """One PromQL expression of a panel."""

    expr: str
    legend: str = "__auto"
    instant: bool = False
    """Only its value now; otherwise over the time range."""

    table: bool = False
    """As rows with the labels as columns, not as series."""

    step: str | None = None
    """The smallest step of its range; None leaves it to the datasource's scrape interval."""

    exemplars: bool = False
    """Whether what a counter has counted is drawn as points on the curve, which name the step. The expression has to
    name the counter itself: what is recorded has none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """How a curve is drawn."""

    unit: str = "short"
    logarithmic: bool = False
    bars: bool = False
    threshold: float | None = None
    """Drawn as a dashed line; None draws none."""

    dashed: str | None = None
    """Regular expression of the series that are drawn dashed."""

    links: Sequence[builders.DashboardLink] = field(default=())
    counted: bool = False
    """Whether it is a whole number that holds until the next one: drawn as steps, without decimals."""

    many: bool = False
    """Whether there are so many series that their names stand beside the curves: below, they would leave no room."""

    by_attempt: bool = False
    """Whether an attempt has the same colour as in every other panel of this kind."""


def curve(title: str, *queries: Query, about: str, span: int = 12, **look: Any) -> timeseries.Panel:
    """Readings over time. A gap is a gap: nothing is drawn across it, nan is none of 0."""
    drawn = Observation(**look)
    panel = timeseries.Panel().title(title).description(about).datasource(DATASOURCE).unit(drawn.unit)
    panel = panel.span(span).height(_HEIGHT).line_width(1).fill_opacity(0).span_nulls(False)
    panel = panel.show_points(common.VisibilityMode.AUTO).legend(_legend(beside=drawn.many))
    panel = panel.tooltip(common_builders.VizTooltipOptions().mode(common.TooltipDisplayMode.MULTI))
    if drawn.logarithmic:
        scale = common_builders.ScaleDistributionConfig().type(common.ScaleDistribution.LOG).log(10)
        panel = panel.scale_distribution(scale)
    if drawn.bars:
        panel = panel.draw_style(common.GraphDrawStyle.BARS).fill_opacity(60)
    if drawn.counted:
        panel = panel.line_interpolation(common.LineInterpolation.STEP_AFTER).decimals(0)
    if drawn.threshold is not None:
        panel = panel.thresholds(_thresholds((None, "text"), (drawn.threshold, "red")))
        style = common_builders.GraphThresholdsStyleConfig().mode(common.GraphThresholdsStyleMode.DASHED)
        panel = panel.thresholds_style(style)
    if drawn.dashed is not None:
        dash = {"fill": "dash", "dash": [4, 6]}
        panel = panel.override_by_regexp(drawn.dashed, [dashboard.DynamicConfigValue("custom.lineStyle", dash)])
    for digit, colour in enumerate(ATTEMPTS if drawn.by_attempt else ()):
        panel = panel.override_by_regexp(f"/attempt \\d*{digit}$/", [_fixed(colour)])
    if drawn.links:
        panel = panel.data_links(list(drawn.links))
    return panel.targets(_targets(queries))


def number(
    title: str,
    query: Query,
    *,
    about: str,
    unit: str = "short",
    levels: Sequence[tuple[float | None, str]] = (),
    **say: Any,
) -> stat.Panel:
    """One value, now. `levels`: from which value on it has which colour. `named`: the series' name is what is shown."""
    panel = stat.Panel().title(title).description(about).datasource(DATASOURCE).unit(unit).span(3).height(4)
    panel = panel.no_value(say.get("nothing", "not known")).graph_mode(common.BigValueGraphMode.NONE)
    panel = panel.reduce_options(common_builders.ReduceDataOptions().calcs(["lastNotNull"]).values(False))
    panel = panel.thresholds(_thresholds(*(levels or [(None, "text")])))
    if say.get("named"):
        panel = panel.text_mode(common.BigValueTextMode.NAME).color_mode(common.BigValueColorMode.BACKGROUND)
        for verdict, colour in VERDICTS.items():
            panel = panel.override_by_name(verdict, [_fixed(colour)])
    return panel.targets(_targets([query]))


def states(title: str, query: Query, *, about: str, span: int = 24) -> statetimeline.Panel:
    """What held when: one row for each series, drawn where it has a value."""
    panel = statetimeline.Panel().title(title).description(about).datasource(DATASOURCE).span(span).height(6)
    panel = panel.show_value(common.VisibilityMode.NEVER).merge_values(True).legend(_legend())
    for verdict, colour in VERDICTS.items():
        panel = panel.override_by_regexp(f"/(^|, ){verdict}$/", [_fixed(colour)])
    return panel.targets(_targets([query]))


def table_of(
    title: str, columns: Mapping[str, Query], *, about: str, join: str, hidden: Sequence[str] = (), span: int = 24
) -> table.Panel:
    """One row for each value of the label `join`; {heading: what it shows}, in that order."""
    refs = [chr(ord("A") + number) for number in range(len(columns))]
    panel = table.Panel().title(title).description(about).datasource(DATASOURCE).span(span).height(10).filterable(True)
    panel = panel.targets(_targets(list(columns.values())))
    panel = panel.with_transformation(
        dashboard.DataTransformerConfig(id_val="joinByField", options={"byField": join, "mode": "outer"})
    )
    drop = {"Time": True} | {f"Time {place}": True for place in range(1, len(refs) + 1)} | dict.fromkeys(hidden, True)
    names = {f"Value #{ref}": heading for ref, heading in zip(refs, columns, strict=True)}
    options = {"excludeByName": drop, "renameByName": names, "indexByName": {}}
    return panel.with_transformation(dashboard.DataTransformerConfig(id_val="organize", options=options))


def by_step(title: str, y: Query, x: Query, *, about: str, each: str, span: int = 24) -> xychart.Panel:
    """y over x, both of the same moments, as one curve for each value of the label `each`."""
    panel = xychart.Panel().title(title).description(about).datasource(DATASOURCE).span(span).height(10)
    panel = panel.show(xychart_models.XYShowMode.POINTS_AND_LINES).mapping(xychart_models.SeriesMapping.AUTO)
    panel = panel.legend(_legend()).targets(_targets([x, y]))
    for ident, options in (
        ("merge", {}),
        ("organize", {"excludeByName": {"Time": True}, "renameByName": {"Value #A": "step", "Value #B": title}}),
        ("sortBy", {"sort": [{"field": "step"}]}),
        ("partitionByValues", {"fields": [each], "keepFields": False, "naming": {"asLabels": True}}),
    ):
        panel = panel.with_transformation(dashboard.DataTransformerConfig(id_val=ident, options=options))
    return panel


def coloured(panel: table.Panel, column: str) -> table.Panel:
    """Shows a column's verdicts in their colours."""
    words = {verdict: dashboard.ValueMappingResult(text=verdict, color=colour) for verdict, colour in VERDICTS.items()}
    background = {"type": "color-background", "mode": "basic"}
    return panel.override_by_name(
        column,
        [
            dashboard.DynamicConfigValue("mappings", [dashboard.ValueMap(options=words)]),
            dashboard.DynamicConfigValue("custom.cellOptions", background),
        ],
    )


def _targets(queries: Sequence[Query]) -> list[Any]:
    return [_target(chr(ord("A") + number), query) for number, query in enumerate(queries)]


def _target(ref: str, query: Query) -> prometheus.Dataquery:
    target = prometheus.Dataquery().ref_id(ref).expr(query.expr).legend_format(query.legend).datasource(DATASOURCE)
    form = prometheus_models.PromQueryFormat.TABLE if query.table else prometheus_models.PromQueryFormat.TIME_SERIES
    target = (target.instant() if query.instant else target.range()).format(form)
    if query.exemplars:
        target = target.exemplar(True)
    return target if query.step is None else target.interval(query.step)


def _legend(*, beside: bool = False) -> common_builders.VizLegendOptions:
    legend = common_builders.VizLegendOptions().display_mode(common.LegendDisplayMode.LIST).show_legend(True)
    return legend.placement(common.LegendPlacement.RIGHT if beside else common.LegendPlacement.BOTTOM)


def _thresholds(*steps: tuple[float | None, str]) -> builders.ThresholdsConfig:
    levels = [dashboard.Threshold(value=value, color=colour) for value, colour in steps]
    return builders.ThresholdsConfig().mode(dashboard.ThresholdsMode.ABSOLUTE).steps(levels)


def _fixed(colour: str) -> dashboard.DynamicConfigValue:
    return dashboard.DynamicConfigValue("color", {"mode": "fixed", "fixedColor": colour})
