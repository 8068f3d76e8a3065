"""What a trainer, or the job script that starts it, can apply of a decision: known before anything is done."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields

from sentinel.plan.baseline import Baseline
from sentinel.plan.mitigation import plain_overrides
from sentinel.plan.observation import RunState
from sentinel.vocabulary.overrides import Free, Overrides, Standing

__all__ = ["changed_keys", "not_applied"]

_WORDS = {
    "lr": "the LR schedule",
    "seqlen": "the sequence-length schedule",
    "shorten": "how batches are shortened",
    "batch_size": "the batch-size schedule",
    "random_ltd": "random-LTD",
    "curriculum": "the curriculum",
    "total_tokens": "the end by tokens",
    "adam_beta1": "Adam's beta1",
    "adam_beta2": "Adam's beta2",
    "weight_decay": "the weight decay",
    "clip_grad": "the gradient clipping",
    "seed": "the seed",
    "skip_samples": "the skipping of data",
    "reset_moments": "the reset of Adam's moments",
    "loss_scale": "the loss scale",
}
"""Key of overrides.json -> what a person calls it; `free` is called by its options and variables."""


def changed_keys(overrides: Overrides, baseline: Baseline) -> tuple[str, ...]:
    """The keys of overrides.json, of `standing` and `once`, that differ from what the run ran with."""
    before = plain_overrides(baseline, incident="", rollback="", anchor=overrides.anchor).standing
    standing, once = overrides.standing, overrides.once
    keys = [f.name for f in fields(Standing) if getattr(standing, f.name) != getattr(before, f.name)]
    if once is not None:
        keys += [key for key in ("seed", "skip_samples", "reset_moments", "loss_scale") if getattr(once, key)]
        keys += ["seed"] if once.seed == 0 else []
    return tuple(keys)


def not_applied(overrides: Overrides, baseline: Baseline, run: RunState) -> str | None:
    """The changes that neither the trainer nor its job script applies, as a sentence; None where there are none.

    What the trainer applies is what its hook has declared. None declared is unknown: nothing is refused for it.
    """
    by_script = run.jobs.carries if run.jobs.rewrites_script else frozenset()
    if run.applies is None and not run.jobs.rewrites_script:
        return None
    applied = by_script | (run.applies or frozenset())
    left = [key for key in changed_keys(overrides, baseline) if key != "skipped" and key not in applied]
    if not left:
        return None
    words = ", ".join(word for key in left for word in _called(key, overrides, baseline))
    who = run.trainer or "the trainer"
    if run.jobs.rewrites_script:
        return f"neither {who} nor a changed job script applies {words}"
    return f"{who} does not apply {words}: it would train on as before"


def _called(key: str, overrides: Overrides, baseline: Baseline) -> Iterator[str]:
    if key != "free":
        yield f"{_WORDS[key]} ({key})"
        return
    now, before = overrides.standing.free or Free(), baseline.free or Free()
    yield from (option for option in now.options if option not in before.options)
    yield from (f"{flag} removed" for flag in now.removed if flag not in before.removed)
    yield from (f"{name}={value}" for name, value in now.environment.items() if before.environment.get(name) != value)
