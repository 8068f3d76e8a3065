"""Every exported metric: name, help, kind and where its value comes from. Once."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

# Characters of an exemplar's labels, names and values together; Prometheus takes none that is longer. Source:
# OpenMetrics 1.0, "Exemplars".
LONGEST = 128


@dataclass(frozen=True, slots=True)
class Exemplar:
    """Of one series of a counter. Its value is 1, what the thing has added to the counter, as in other exporters."""

    labels: Mapping[str, str]  # What would be too much for the labels of a series: the step, the incident
    time_unix_s: float | None  # When it happened; None where that is not known: then the scrape's time counts
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
    kind: Literal["counter", "gauge"] = "gauge"
    labels: tuple[str, ...] = ("run", "attempt")
    field: str = ""  # Of the latest Sample, or of the latest LayerVariance, which has a series for each layer
    in_window: bool = False  # Whether its largest value of the last steps is shown too, for spikes between two scrapes
    at_intervals: bool = False  # Whether it is measured every few steps only; the last measured one is shown

    @property
    def maximum_name(self) -> str:
        return f"{self.name}_window_max"


@dataclass(frozen=True, slots=True)
class Shown:
    name: str  # Of DAEMON_METRICS
    value: float  # In the metric's unit; nan and inf are readings
    labels: tuple[str, ...]  # Values of the metric's labels, in their order
    exemplar: Exemplar | None = None  # Of a counter: the last thing that it has counted


def _counter(name: str, text: str) -> Exported:
    return Exported(name=PREFIX + name, help=text, kind="counter")


HOOK_ERRORS = _counter("hook_errors_total", "Errors inside the hook that were kept from the training loop.")
# What an attempt has counted up, in the order of `hits` in trainer_hooks.export.step_collector.
COUNTERS = (
    _counter("steps_total", "Optimizer steps that the attempt has reported, the skipped ones included."),
    _counter("spike_steps_total", "Steps with a loss ratio above 1.2; a loss that is not finite counts."),
    _counter("nonfinite_loss_steps_total", "Steps whose loss was nan or infinite."),
    _counter("skipped_steps_total", "Steps whose update the optimizer skipped (overflow)."),
)
_READINGS = {
    "global_step": "Completed optimizer updates.",
    "loss": "Training loss of the step in nats, mean over tokens and data-parallel ranks.",
    "loss_ratio": "Loss over the smallest loss of all previous steps at this seqlen.",
    "loss_ratio_all_lengths": "The same over all lengths, as in Li, Zhang & He 2022; absent where there was one.",
    "adam_variance_l1": "Sum over all parameters of sqrt(v), v being Adam's exp_avg_sq.",
    "adam_variance_max": "Max over all parameters of sqrt(v), v being Adam's exp_avg_sq.",
    "adam_variance_coverage": (
        "Share of the trainable parameters' elements whose v is known; below 1 no norm of Adam's state is reported."
    ),
    "grad_norm": "Global L2 norm of the gradient before clipping.",
    "update_norm": (
        "Root mean square over all parameters of the update, before it is scaled by lr; at the last interval."
    ),
    "momentum_l2": "L2 norm of Adam's first moment; at the last interval.",
    "param_norm": "L2 norm of the parameters that Adam updates; at the last interval.",
    "loss_spread": "Largest minus smallest loss over the data-parallel ranks, in nats.",
    "grad_norm_spread": "Largest minus smallest norm of the data-parallel ranks' own gradients; at the last interval.",
    "attention_logit_max": "Largest magnitude of an attention logit that the trainer has given; at the last interval.",
    "output_logit_max": "Largest magnitude of an output logit; at the last interval.",
    "loss_scale": "Loss scale of fp16 training.",
    "lr": "Learning rate of the step.",
    "seqlen": "Tokens per sample of the step.",
    "kept_tokens": "Tokens of a sample that a middle layer sees under random-LTD; absent where all.",
    "curriculum_share": "Share of the training samples that the curriculum admits; absent where all.",
    "lr_warmup_steps": "Length of the LR warmup in force, in steps.",
    "skipped": "1 when the optimizer skipped the step's update, else 0.",
    "step_time_s": "Wall time of the step in seconds.",
    "tokens_per_s": "Tokens of the step over its wall time, all ranks together.",
    "global_batch_samples": "Samples in the step, over all ranks and micro-batches.",
    "consumed_samples": "Samples consumed by the run.",
    "consumed_tokens": "Tokens consumed by the run.",
}
_AT_INTERVALS = (
    *("update_norm", "momentum_l2", "param_norm", "grad_norm_spread"),
    *("attention_logit_max", "output_logit_max"),
)
_IN_WINDOW = (
    *("loss", "loss_ratio", "adam_variance_l1", "adam_variance_max", "grad_norm", "loss_spread", "step_time_s"),
    *_AT_INTERVALS,
)
# What /metrics of a trainer shows; all from one step, but for what is measured at intervals. None is left out.
SAMPLE_METRICS = tuple(
    Exported(
        name=PREFIX + field,
        help=text,
        field=field,
        in_window=field in _IN_WINDOW,
        at_intervals=field in _AT_INTERVALS,
    )
    for field, text in _READINGS.items()
)
WINDOW_MAXIMA = tuple(metric for metric in SAMPLE_METRICS if metric.in_window)
INTERVAL_METRICS = tuple(metric for metric in SAMPLE_METRICS if metric.at_intervals)
WINDOW = Exported(
    name=PREFIX + "window_seconds",
    help="How far back the window maxima reach, in seconds: a scrape at least this often misses none.",
)
LAYER_METRICS = tuple(
    Exported(
        name=f"{PREFIX}layer_adam_variance_{kind}",  # a name of its own, so that no sum counts a value twice
        help=f"{word} over the layer's parameters of sqrt(v), at the last step that it was measured.",
        labels=("run", "attempt", "layer"),
        field=f"adam_variance_{kind}",
    )
    for kind, word in (("l1", "Sum"), ("max", "Max"))
)
LAYER_STEP = Exported(name=PREFIX + "layer_global_step", help="The step after which the layers were measured.")


def all_metrics() -> tuple[Exported, ...]:
    largest = "Largest {} of the window; nan counts as +Inf."
    return (
        *(HOOK_ERRORS, *COUNTERS, *SAMPLE_METRICS, WINDOW),
        *(Exported(name=m.maximum_name, help=largest.format(m.name)) for m in WINDOW_MAXIMA),
        *(LAYER_STEP, *LAYER_METRICS),
    )


# Name, with its labels but run and attempt -> help. Of the attempt that is judged:
_JUDGED = {
    "verdict{verdict}": "1 for the verdict in force, 0 for each of the others.",
    "severity": "Of the verdict: 0 info, 1 warning, 2 critical.",
    "judged_global_step": "The newest step that the judge has seen.",
    "judged_loss": "Loss of that step in nats.",
    "judged_loss_ratio": "Loss over the level that the judge compares it with; absent where it has none yet.",
    "judged_loss_ratio_peak": "Largest judged ratio since the loss left its noise band; absent while it is inside.",
    "onset_step{edge}": "First step of what is wrong; absent while nothing is.",
    "alarm_step": "Step at which the divergence was known; absent while there is none.",
    "attention_logit_warning": "1 while the largest attention logit has passed its limit, else 0; see [policy] warn.",
    "early_warning": "1 while signals rise together against their own trends, else 0. Nothing follows from it.",
    "led_by_steps{signal}": "Steps before the onset at which the signal left its noise; of the open incident.",
    "correlation{signal}": (
        "Correlation of the signal with the loss ratio, both prewhitened, at the lag where it is strongest."
    ),
    "correlation_lag_steps{signal}": "That lag: above 0 the signal comes first.",
    "start_audit{verdict}": (
        "1 for the verdict on whether the attempt continues the run, 0 for the others; absent before it is known."
    ),
    "last_sample_timestamp_seconds": "When the newest sample was made, Unix time.",
}
# Of the run: what outlives an attempt has the label `run` alone, since a counter that began anew with each attempt
# would hide its own increase.
_OF_THE_RUN = {
    "incidents{status}": "Incidents of the run, by status.",
    "last_incident_timestamp_seconds": "When the newest incident was opened, Unix time; absent without one.",
    "mitigation{state}": (
        "Of the incident that is not closed, 1 for the state of its newest rollback; absent without one."
    ),
    "actions_total{action, outcome}": "Actions over the run's life, by kind and outcome.",
    "last_action_failed": "1 when the last action has failed and nothing has come of it since, else 0.",
    "budget_rollbacks_left": "Rollbacks that the policy still allows.",
    "budget_lost_steps_left": "Optimizer steps that rollbacks may still throw away.",
    "budget_gpu_seconds_left": (
        "GPU time that rollbacks may still cost, seconds times GPUs; absent without such a limit."
    ),
    "mode{mode}": "1 for the mode in force, 0 for the others.",
    "paused": "1 while a person has paused the run, else 0.",
    "turns_total": "Turns of sentinel's own loop since it began.",
    "turn_errors_total": "Turns, of those, that something went wrong in.",
    "turn_seconds_total": "Seconds that its turns have taken.",
    "last_turn_seconds": "Seconds that the last turn took.",
    "last_turn_late_seconds": "Seconds that the last turn began later than it was due.",
    "last_look_timestamp_seconds": "When sentinel last saw the run, Unix time.",
    "poll_interval_seconds": "Seconds from one turn to the next.",
    "build_info{version}": "1; the version is the label.",
}


def _daemons(labels: tuple[str, ...], table: Mapping[str, str]) -> Iterator[Exported]:
    for key, text in table.items():
        name, _, further = key.rstrip("}").partition("{")
        kind: Literal["counter", "gauge"] = "counter" if name.endswith("_total") else "gauge"
        yield Exported(name=PREFIX + name, help=text, kind=kind, labels=(*labels, *further.split(", ") * bool(further)))


# What /metrics of `sentinel watch` shows.
DAEMON_METRICS = (*_daemons(("run", "attempt"), _JUDGED), *_daemons(("run",), _OF_THE_RUN))


def every_name() -> frozenset[str]:
    return frozenset(metric.name for metric in (*all_metrics(), *DAEMON_METRICS))
