"""Spike triage: one run. What broke, what led, what sentinel did, and whether it helped."""

from __future__ import annotations

from typing import Any

from grafana_foundation_sdk.builders import dashboard as builders
from grafana_foundation_sdk.models import dashboard

from dashboards.build import links, variables
from dashboards.build.marks import marks
from dashboards.build.names import RUN, SELECTED, help_of
from dashboards.build.panels import PanelBuilder, Query, by_step, curve, number, states

__all__ = ["spike_triage"]

_ATTEMPT = "attempt {{attempt}}"


def spike_triage() -> builders.Dashboard:
    """One run, its attempts laid over one another, what was decided marked on every chart."""
    board = builders.Dashboard("Spike triage").uid(links.TRIAGE).tags(["sentinel"]).link(links.to_others())
    board = board.description("What broke, what led, what sentinel did, and whether it helped.").timezone("browser")
    board = board.tooltip(dashboard.DashboardCursorSync.TOOLTIP).time("now-6h", "now").refresh("30s")
    for variable in (variables.datasource(), variables.run(), variables.attempts(), variables.incidents()):
        board = board.with_variable(variable)
    board = board.annotations(marks())
    for panel in _now():
        board = board.with_panel(panel)
    for title, panels in (
        ("Loss", _loss()),
        ("What may have led", _leading()),
        ("Schedule", _schedule()),
        ("What sentinel made of it, and did", _sentinel()),
    ):
        board = board.with_row(builders.Row(title))
        for panel in panels:
            board = board.with_panel(panel)
    return board


def _now() -> list[PanelBuilder]:
    verdict = Query(expr=f"max by (verdict) (sentinel_verdict{{{RUN}}}) == 1", legend="{{verdict}}", instant=True)
    levels = [(None, "green"), (1.2, "red")]
    return [
        number("Verdict", verdict, about=help_of("sentinel_verdict"), named=True, nothing="no watch"),
        _newest(
            "Attempts",
            f"count by (run) (count by (run, attempt) (last_over_time(sentinel_global_step{{{RUN}}}[$__range])))",
            "Lives of the trainer that were seen within the time range.",
        ),
        _newest("Step", f"max by (run) (sentinel_global_step{{{RUN}}})", help_of("sentinel_global_step")),
        number(
            "Judged ratio",
            Query(expr=f"max by (run) (sentinel_judged_loss_ratio{{{RUN}}})", instant=True),
            about=help_of("sentinel_judged_loss_ratio"),
            levels=levels,
        ),
        number(
            "Worst ratio",
            Query(
                expr=f"max by (run) (max_over_time(sentinel_loss_ratio_window_max{{{SELECTED}}}[$__range]))",
                instant=True,
            ),
            about="The largest loss ratio of the time range, of every step: the exporter keeps maxima, so none is lost "
            "between two scrapes.",
            levels=levels,
        ),
        number(
            "Sample age",
            Query(expr=f"time() - max by (run) (sentinel_last_sample_timestamp_seconds{{{RUN}}})", instant=True),
            about=help_of("sentinel_last_sample_timestamp_seconds"),
            unit="s",
        ),
        _newest("Incidents", f"sum by (run) (sentinel_incidents{{{RUN}}})", help_of("sentinel_incidents")),
        _newest(
            "Budget left",
            f"min by (run) (sentinel_budget_rollbacks_left{{{RUN}}})",
            help_of("sentinel_budget_rollbacks_left"),
        ),
    ]


def _newest(title: str, expr: str, about: str) -> PanelBuilder:
    return number(title, Query(expr=expr, instant=True), about=about)


def _loss() -> list[PanelBuilder]:
    here = [links.to_triage(), links.to_incidents()]
    return [
        by_step(
            "loss",
            y=Query(expr=f"max by (run, attempt) (sentinel_loss{{{SELECTED}}})", table=True),
            x=Query(expr=f"max by (run, attempt) (sentinel_global_step{{{SELECTED}}})", table=True),
            about="The loss over the global step, attempts laid over one another. Prometheus knows no axis but time: "
            "this is the loss and the step of the same scrape. A step between two scrapes is not on it; "
            "`sentinel compare` and the journal have every one.",
            each="attempt",
        ),
        curve(
            "Loss, over time",
            *_both("loss"),
            about=help_of("sentinel_loss") + " Dashed: the largest within the exporter's window. nan is drawn nowhere: "
            "see the red marks and the panel of steps that went wrong.",
            dashed="/worst/",
            by_attempt=True,
            links=here,
        ),
        curve(
            "Loss ratio",
            *_both("loss_ratio"),
            Query(expr=f"sentinel_loss_ratio_all_lengths{{{SELECTED}}}", legend=f"all lengths, {_ATTEMPT}"),
            about=help_of("sentinel_loss_ratio") + " Above 1.2 counts as a spike step (Li, Zhang & He 2022). "
            "`all lengths`: over the smallest loss at any seqlen, as in the paper; drawn once the seqlen has changed.",
            threshold=1.2,
            dashed="/worst/",
            by_attempt=True,
            links=here,
        ),
        curve(
            "Steps that went wrong",
            *(
                Query(
                    expr=f"increase(sentinel_{name}_total{{{SELECTED}}}[$__rate_interval])",
                    legend=f"{said}, {_ATTEMPT}",
                    exemplars=True,
                )
                for name, said in (
                    ("spike_steps", "ratio above 1.2"),
                    ("nonfinite_loss_steps", "not finite"),
                    ("skipped_steps", "skipped"),
                )
            ),
            about="Steps with a loss ratio above 1.2, with a loss that is nan or infinite, and that were skipped for "
            "an overflow. Counted by the trainer: none is lost between two scrapes. The points say which step it was, "
            "where Prometheus keeps exemplars.",
            bars=True,
            many=True,
            links=here,
        ),
        _reading(
            "global_step",
            "Step over time",
            note=" The step axis of the other charts: at the crosshair's moment.",
            span=12,
        ),
    ]


def _leading() -> list[PanelBuilder]:
    layers = f"run_attempt_layer:sentinel_layer_adam_variance_max:top8{{{SELECTED}}}"
    return [
        _with_worst("adam_variance_l1", "Adam's variance, l1"),
        _with_worst("adam_variance_max", "Adam's variance, max", unit="sci", logarithmic=True),
        _with_worst("grad_norm", "Gradient norm", unit="sci", logarithmic=True),
        _with_worst("update_norm", "Update norm"),
        curve(
            "Layers with the largest variance",
            Query(expr=layers, legend="{{layer}}, " + _ATTEMPT),
            about=help_of("sentinel_layer_adam_variance_max")
            + " The eight whose variance is largest at the moment, nan first.",
            many=True,
            unit="sci",
            logarithmic=True,
        ),
        curve(
            "Correlation with the loss ratio",
            Query(expr=f"sentinel_correlation{{{SELECTED}}}", legend="{{signal}}, " + _ATTEMPT),
            about=help_of("sentinel_correlation") + " `sentinel correlate` says how far to trust it.",
            many=True,
        ),
        curve(
            "… at which lag, steps",
            Query(expr=f"sentinel_correlation_lag_steps{{{SELECTED}}}", legend="{{signal}}, " + _ATTEMPT),
            about=help_of("sentinel_correlation_lag_steps"),
            many=True,
        ),
        curve(
            "What moved before the onset, steps",
            Query(expr=f"sentinel_led_by_steps{{{SELECTED}}}", legend="{{signal}}, " + _ATTEMPT),
            about=help_of("sentinel_led_by_steps"),
            many=True,
            links=[links.to_incidents()],
        ),
    ]


def _schedule() -> list[PanelBuilder]:
    return [
        _reading("lr", "Learning rate", unit="sci"),
        _reading("seqlen", "Sequence length", counted=True),
        _reading("loss_scale", "Loss scale", note=" Only of fp16 runs.", logarithmic=True),
        _reading("tokens_per_s", "Tokens per second"),
        _reading("step_time_s", "Step time", unit="s"),
        _reading("consumed_tokens", "Tokens consumed"),
    ]


def _sentinel() -> list[PanelBuilder]:
    standing = Query(expr=f"sum by (status) (sentinel_incidents{{{RUN}}})", legend="{{status}}")
    verdicts = Query(expr=f"max by (verdict) (sentinel_verdict{{{RUN}}}) == 1", legend="{{verdict}}")
    rollback = Query(expr=f"max by (state) (sentinel_mitigation{{{RUN}}}) == 1", legend="{{state}}")
    done = f"sum by (action, outcome) (increase(sentinel_actions_total{{{RUN}}}[$__rate_interval]))"
    here = [links.to_incidents("$run")]
    return [
        states("Verdict over time", verdicts, about=help_of("sentinel_verdict") + " Nothing where nobody watched."),
        states("The newest rollback", rollback, about=help_of("sentinel_mitigation") + " Nothing without an incident."),
        curve(
            "Onset and alarm, step",
            Query(expr=f"sentinel_onset_step{{{SELECTED}}}", legend="onset, {{edge}}, " + _ATTEMPT),
            Query(expr=f"sentinel_alarm_step{{{SELECTED}}}", legend="alarm, " + _ATTEMPT),
            about=help_of("sentinel_onset_step") + " " + help_of("sentinel_alarm_step"),
            counted=True,
            links=[links.to_incidents("$run", there=links.STEP)],
        ),
        curve(
            "Actions",
            Query(expr=done, legend="{{action}}, {{outcome}}", exemplars=True),
            about=help_of("sentinel_actions_total")
            + " The points name the incident, where Prometheus keeps exemplars.",
            bars=True,
            many=True,
        ),
        curve(
            "Incidents by status",
            standing,
            about=help_of("sentinel_incidents") + " Each mark `Incident log` above says what was done, where pushed.",
            counted=True,
            links=here,
        ),
        curve(
            "Budget",
            Query(expr=f"min by (run) (sentinel_budget_rollbacks_left{{{RUN}}})", legend="rollbacks left"),
            about=help_of("sentinel_budget_rollbacks_left"),
            counted=True,
        ),
    ]


def _both(field: str) -> tuple[Query, Query]:
    """A reading, and its largest value within the exporter's window."""
    return (
        Query(expr=f"sentinel_{field}{{{SELECTED}}}", legend=_ATTEMPT),
        Query(expr=f"sentinel_{field}_window_max{{{SELECTED}}}", legend=f"worst, {_ATTEMPT}"),
    )


def _with_worst(field: str, title: str, **look: Any) -> PanelBuilder:
    about = help_of(f"sentinel_{field}")
    return curve(title, *_both(field), about=about, dashed="/worst/", by_attempt=True, **look)


def _reading(field: str, title: str, *, note: str = "", span: int = 8, **look: Any) -> PanelBuilder:
    query = Query(expr=f"sentinel_{field}{{{SELECTED}}}", legend=_ATTEMPT)
    return curve(title, query, about=help_of(f"sentinel_{field}") + note, span=span, by_attempt=True, **look)
