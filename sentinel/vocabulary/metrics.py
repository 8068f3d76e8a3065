"""Every exported metric: name, help and where its value comes from. Once."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["HOOK_ERRORS", "PREFIX", "SAMPLE_METRICS", "SampleMetric"]

PREFIX = "sentinel_"
HOOK_ERRORS = PREFIX + "hook_errors"
"""Counter of what went wrong inside the hook and was kept from the training loop (exposed as …_total)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleMetric:
    """A gauge that shows one field of the latest Sample."""

    field: str
    help: str

    @property
    def name(self) -> str:
        return PREFIX + self.field


SAMPLE_METRICS: tuple[SampleMetric, ...] = (
    SampleMetric(field="global_step", help="Completed optimizer updates."),
    SampleMetric(field="loss", help="Training loss of the step in nats, mean over tokens and data-parallel ranks."),
    SampleMetric(field="loss_ratio", help="Loss over the smallest loss of all previous steps at this seqlen."),
    SampleMetric(field="adam_variance_l1", help="Sum over all parameters of sqrt(v), v being Adam's exp_avg_sq."),
    SampleMetric(field="adam_variance_max", help="Max over all parameters of sqrt(v), v being Adam's exp_avg_sq."),
    SampleMetric(field="grad_norm", help="Global L2 norm of the gradient before clipping."),
    SampleMetric(field="loss_scale", help="Loss scale of fp16 training."),
    SampleMetric(field="lr", help="Learning rate of the step."),
    SampleMetric(field="seqlen", help="Tokens per sample of the step."),
    SampleMetric(field="lr_warmup_steps", help="Length of the LR warmup in force, in steps."),
    SampleMetric(field="skipped", help="1 when the optimizer skipped the step's update, else 0."),
    SampleMetric(field="step_time_s", help="Wall time of the step in seconds."),
    SampleMetric(field="global_batch_samples", help="Samples in the step, over all ranks and micro-batches."),
    SampleMetric(field="consumed_samples", help="Samples consumed by the run."),
    SampleMetric(field="consumed_tokens", help="Tokens consumed by the run."),
)
"""What /metrics of a trainer shows, all from one step; a field that is None is left out."""
