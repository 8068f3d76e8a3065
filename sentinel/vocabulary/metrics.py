"""Every exported metric: name, help, kind and where its value comes from. Once."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

# Characters of an exemplar's labels, names and values together; Prometheus takes none that is longer. Source:
# OpenMetrics 1.0, "Exemplars".
LONGEST = 128


@dataclass(frozen=True, slots=True)
class Exemplar:
    """Of one series of a counter. Its value is 1, what the thing has added to the counter, as in other exporters."""

    labels: Mapping[str, str]  # What would be too much for the labels of a series: the step, the incident
    # When it happened; None where that is not known, and whoever scrapes takes the scrape's time.
    time_unix_s: float | None
    value: float = 1.0


def exemplar(labels: Mapping[str, object], time_unix_s: float) -> Exemplar:
    """The labels that are not None, from the first one on, as far as there is room; floats with four digits."""
    fitting: dict[str, str] = {}
    room = LONGEST
    for name, value in labels.items():
        if value is None:
            continue
        text = f"{value:.4g}" if isinstance(value, float) else str(value)
        room -= len(name) + len(text)
        if room < 0:
            break
        fitting[name] = text
    return Exemplar(fitting, time_unix_s if math.isfinite(time_unix_s) else None)


PREFIX = "sentinel_"


@dataclass(frozen=True, slots=True, kw_only=True)
class Exported:
    name: str
    help: str
    kind: Literal["counter", "gauge"]
    labels: tuple[str, ...] = ("run", "attempt")


@dataclass(frozen=True, slots=True)
class Shown:
    """One series of a daemon's metric, with its value."""

    name: str  # Of DAEMON_METRICS
    value: float  # In the metric's unit; nan and inf are readings
    labels: tuple[str, ...]  # Values of the metric's labels, in their order
    exemplar: Exemplar | None = None  # Of a counter: the last thing that it has counted


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleMetric:
    """A gauge that shows one field of the latest Sample."""

    field: str
    help: str
    # Whether its largest value of the last steps is shown as well: a spike between two scrapes shows there.
    in_window: bool = False
    # Whether it is measured only every few steps; in between the last one that was measured is shown.
    at_intervals: bool = False

    @property
    def name(self) -> str:
        return PREFIX + self.field

    @property
    def maximum_name(self) -> str:
        return f"{self.name}_window_max"


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerMetric:
    """A gauge with a series for each layer. Its name is not the whole model's: a sum over one name adds no total to
    its parts."""

    field: str  # Of LayerVariance: one number for each of its layers
    help: str

    @property
    def name(self) -> str:
        return f"{PREFIX}layer_{self.field}"


HOOK_ERRORS = Exported(
    name=PREFIX + "hook_errors_total",
    help="Errors inside the hook that were kept from the training loop.",
    kind="counter",
)
# What an attempt has counted up, in the order of trainer_hooks.export.step_collector.Counts.
COUNTERS: tuple[Exported, ...] = tuple(
    Exported(name=PREFIX + name, help=text, kind="counter")
    for name, text in (
        ("steps_total", "Optimizer steps that the attempt has reported, the skipped ones included."),
        ("spike_steps_total", "Steps with a loss ratio above 1.2; a loss that is not finite counts."),
        ("nonfinite_loss_steps_total", "Steps whose loss was nan or infinite."),
        ("skipped_steps_total", "Steps whose update the optimizer skipped (overflow)."),
    )
)
# What /metrics of a trainer shows; all from one step, but for what is measured at intervals. None is left out.
SAMPLE_METRICS: tuple[SampleMetric, ...] = (
    SampleMetric(field="global_step", help="Completed optimizer updates."),
    SampleMetric(
        field="loss",
        help="Training loss of the step in nats, mean over tokens and data-parallel ranks.",
        in_window=True,
    ),
    SampleMetric(
        field="loss_ratio", help="Loss over the smallest loss of all previous steps at this seqlen.", in_window=True
    ),
    SampleMetric(
        field="adam_variance_l1",
        help="Sum over all parameters of sqrt(v), v being Adam's exp_avg_sq.",
        in_window=True,
    ),
    SampleMetric(
        field="adam_variance_max",
        help="Max over all parameters of sqrt(v), v being Adam's exp_avg_sq.",
        in_window=True,
    ),
    SampleMetric(field="grad_norm", help="Global L2 norm of the gradient before clipping.", in_window=True),
    SampleMetric(
        field="update_norm",
        help="Root mean square over all parameters of the update, before it is scaled by lr; at the last interval.",
        in_window=True,
        at_intervals=True,
    ),
    SampleMetric(
        field="momentum_l2",
        help="L2 norm of Adam's first moment; at the last interval.",
        in_window=True,
        at_intervals=True,
    ),
    SampleMetric(
        field="param_norm",
        help="L2 norm of the parameters that Adam updates; at the last interval.",
        in_window=True,
        at_intervals=True,
    ),
    SampleMetric(
        field="loss_spread", help="Largest minus smallest loss over the data-parallel ranks, in nats.", in_window=True
    ),
    SampleMetric(
        field="grad_norm_spread",
        help="Largest minus smallest norm of the data-parallel ranks' own gradients; at the last interval.",
        in_window=True,
        at_intervals=True,
    ),
    SampleMetric(field="loss_scale", help="Loss scale of fp16 training."),
    SampleMetric(field="lr", help="Learning rate of the step."),
    SampleMetric(field="seqlen", help="Tokens per sample of the step."),
    SampleMetric(
        field="kept_tokens", help="Tokens of a sample that a middle layer sees under random-LTD; absent where all."
    ),
    SampleMetric(
        field="curriculum_share", help="Share of the training samples that the curriculum admits; absent where all."
    ),
    SampleMetric(field="lr_warmup_steps", help="Length of the LR warmup in force, in steps."),
    SampleMetric(field="skipped", help="1 when the optimizer skipped the step's update, else 0."),
    SampleMetric(field="step_time_s", help="Wall time of the step in seconds.", in_window=True),
    SampleMetric(field="tokens_per_s", help="Tokens of the step over its wall time, all ranks together."),
    SampleMetric(field="global_batch_samples", help="Samples in the step, over all ranks and micro-batches."),
    SampleMetric(field="consumed_samples", help="Samples consumed by the run."),
    SampleMetric(field="consumed_tokens", help="Tokens consumed by the run."),
)
WINDOW_MAXIMA: tuple[SampleMetric, ...] = tuple(metric for metric in SAMPLE_METRICS if metric.in_window)
INTERVAL_METRICS: tuple[SampleMetric, ...] = tuple(metric for metric in SAMPLE_METRICS if metric.at_intervals)
WINDOW = Exported(
    name=PREFIX + "window_seconds",
    help="How far back the window maxima reach, in seconds: a scrape at least this often misses none.",
    kind="gauge",
)
LAYER_METRICS: tuple[LayerMetric, ...] = (
    LayerMetric(
        field="adam_variance_l1",
        help="Sum over the layer's parameters of sqrt(v), at the last step that it was measured.",
    ),
    LayerMetric(
        field="adam_variance_max",
        help="Max over the layer's parameters of sqrt(v), at the last step that it was measured.",
    ),
)
LAYER_STEP = Exported(
    name=PREFIX + "layer_global_step", help="The step after which the layers were measured.", kind="gauge"
)


def all_metrics() -> tuple[Exported, ...]:
    return (
        HOOK_ERRORS,
        *COUNTERS,
        *(Exported(name=m.name, help=m.help, kind="gauge") for m in SAMPLE_METRICS),
        WINDOW,
        *(
            Exported(name=m.maximum_name, help=f"Largest {m.name} of the window; nan counts as +Inf.", kind="gauge")
            for m in WINDOW_MAXIMA
        ),
        LAYER_STEP,
        *(Exported(name=m.name, help=m.help, kind="gauge", labels=("run", "attempt", "layer")) for m in LAYER_METRICS),
    )


def _daemons() -> tuple[Exported, ...]:
    def gauge(name: str, text: str, *labels: str, attempt: bool = False) -> Exported:
        known = ("run", "attempt") if attempt else ("run",)
        return Exported(name=PREFIX + name, help=text, kind="gauge", labels=(*known, *labels))

    def counter(name: str, text: str, *labels: str) -> Exported:
        return Exported(name=PREFIX + name, help=text, kind="counter", labels=("run", *labels))

    return (
        gauge("verdict", "1 for the verdict in force, 0 for each of the others.", "verdict", attempt=True),
        gauge("severity", "Of the verdict: 0 info, 1 warning, 2 critical.", attempt=True),
        gauge("judged_global_step", "The newest step that the judge has seen.", attempt=True),
        gauge("judged_loss", "Loss of that step in nats.", attempt=True),
        gauge(
            "judged_loss_ratio",
            "Loss over the level that the judge compares it with; absent where it has none yet.",
            attempt=True,
        ),
        gauge(
            "judged_loss_ratio_peak",
            "Largest judged ratio since the loss left its noise band; absent while it is inside.",
            attempt=True,
        ),
        gauge("onset_step", "First step of what is wrong; absent while nothing is.", "edge", attempt=True),
        gauge("alarm_step", "Step at which the divergence was known; absent while there is none.", attempt=True),
        gauge("led_by_steps", "Steps before the onset at which the signal left its band.", "signal", attempt=True),
        gauge(
            "correlation",
            "Correlation of the signal with the loss ratio, both prewhitened, at the lag where it is strongest.",
            "signal",
            attempt=True,
        ),
        gauge("correlation_lag_steps", "That lag: above 0 the signal comes first.", "signal", attempt=True),
        gauge("last_sample_timestamp_seconds", "When the newest sample was made, Unix time.", attempt=True),
        gauge("incidents", "Incidents of the run, by where they stand.", "status"),
        gauge("last_incident_timestamp_seconds", "When the newest incident was opened, Unix time; absent without one."),
        gauge(
            "mitigation",
            "Of the incident that is not closed, 1 for where its newest rollback stands; absent without one.",
            "state",
        ),
        counter("actions_total", "Actions over the run's life, by kind and outcome.", "action", "outcome"),
        gauge("last_action_failed", "1 when the last action has failed and nothing has come of it since, else 0."),
        gauge("budget_rollbacks_left", "Rollbacks that the policy still allows."),
        gauge("budget_lost_steps_left", "Optimizer steps that rollbacks may still throw away."),
        gauge(
            "budget_gpu_seconds_left",
            "GPU time that rollbacks may still cost, seconds times GPUs; absent without such a limit.",
        ),
        gauge("mode", "1 for the mode in force, 0 for the others.", "mode"),
        gauge("paused", "1 while a person has paused the run, else 0."),
        counter("turns_total", "Turns of sentinel's own loop since it began."),
        counter("turn_errors_total", "Turns, of those, that something went wrong in."),
        counter("turn_seconds_total", "Seconds that its turns have taken."),
        gauge("last_turn_seconds", "Seconds that the last turn took."),
        gauge("last_turn_late_seconds", "Seconds that the last turn began later than it was due."),
        gauge("last_look_timestamp_seconds", "When sentinel last saw the run, Unix time."),
        gauge("poll_interval_seconds", "Seconds from one turn to the next."),
        gauge("build_info", "1; the version is the label.", "version"),
    )


# What /metrics of `sentinel watch` shows. What outlives an attempt (incidents, actions, budgets, the loop) has the
# label `run` alone: a counter that began anew with each attempt would hide its own increase.
DAEMON_METRICS: tuple[Exported, ...] = _daemons()


def every_name() -> frozenset[str]:
    return frozenset(metric.name for metric in (*all_metrics(), *DAEMON_METRICS))
