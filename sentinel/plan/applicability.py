"""What a trainer, or the job script that starts it, can apply of a decision: known before anything is done."""

from __future__ import annotations

from dataclasses import fields

from sentinel.plan.baseline import Baseline
from sentinel.plan.mitigation import added_words
from sentinel.plan.observation import RunState
from sentinel.vocabulary.overrides import Overrides, words_of
from sentinel.vocabulary.training_settings import difference

__all__ = ["changed_keys", "not_applied"]


def changed_keys(overrides: Overrides, baseline: Baseline) -> tuple[str, ...]:
    """The keys of overrides.json, of `standing` and `once`, that differ from what the run ran with."""
    once = overrides.once
    keys = list(difference(baseline.standing, overrides.standing))
    if once is not None:
        changed = {f.name: getattr(once, f.name) for f in fields(once) if f.name != "id"}
        keys += [key for key, value in changed.items() if value is not None and value is not False]
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
    free = added_words(overrides.standing.free, baseline.free)
    words = ", ".join(word for key in left for word in (free if key == "free" else (f"{words_of(key)} ({key})",)))
    who = run.trainer or "the trainer"
    if run.jobs.rewrites_script:
        return f"neither {who} nor a changed job script applies {words}"
    return f"{who} does not apply {words}: it would train on as before"
