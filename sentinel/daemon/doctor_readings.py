"""The checks of `sentinel doctor` that read the run's own readings: its newest attempt, what of a restart's changes
would reach the training, and the ladder."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from importlib.metadata import version
from typing import Literal

from sentinel.act.observation import Observation
from sentinel.config import Config
from sentinel.config.run_files import clock, source_log_of, state_dir_of
from sentinel.daemon.finding import Checked, Near
from sentinel.daemon.wiring import observer_of
from sentinel.judge.history import Attempt
from sentinel.judge.verdict import Verdict, VerdictKind
from sentinel.plan.choose.ladder import Rung
from sentinel.plan.choose.mitigation import not_applied, overrides_for
from sentinel.plan.facts import Facts
from sentinel.plan.observation import Life
from sentinel.plan.restart.liveness import life_of
from sentinel.vocabulary.errors import ConfigError
from sentinel.vocabulary.overrides import Anchor


def journal(config: Config, near: Near) -> Iterator[Checked]:
    """What the readings tell, read once: of the newest attempt, and of the ladder."""
    look = observer_of(config, near()).look(clock())
    yield from _newest_attempt(config, look)
    yield from _changes(config, look)
    yield from _ladder(config.policy.ladder, look.facts)


def _newest_attempt(config: Config, look: Observation) -> Iterator[Checked]:
    """Whether there are samples and a start report, whether the hook's version is the daemon's, and the job's state."""
    attempt = look.history.latest
    if attempt is None:
        yield _no_attempt(config, look.verdict)
        return
    yield _samples(attempt)
    if attempt.started is None:
        yield Checked("note", "start report", "the trainer has not reported its settings: a restart can't be proved")
        return
    ours, hooks = version("training-sentinel"), attempt.started.hook_version
    both, differ = f"hook and daemon are both {ours}", f"the hook is {hooks or 'not reported'}, the daemon {ours}"
    yield Checked("ok", "versions", both) if hooks == ours else Checked("note", "versions", differ)
    jobs, known = look.facts.jobs, life_of(look.facts.liveness)
    if not jobs.known:
        yield Checked("note" if jobs.elsewhere else "bad", "job", jobs.why_unknown)
    elif jobs.writers:
        yield Checked("ok", "job", ", ".join(w.id + (" (waiting)" if w.pending else "") for w in jobs.writers))
    elif known.life is Life.UNKNOWN:
        yield Checked("bad", "job", known.sentence)
    else:
        yield Checked("note", "job", "no job of this run is running")


def _samples(attempt: Attempt) -> Checked:
    """How old the last sample is; of an attempt without one, what makes the first."""
    if attempt.samples:
        last = attempt.samples[-1]
        age = f"its last sample is {clock() - last.time_unix_s:.0f} s old"
        if not math.isfinite(last.time_unix_s):
            age = f"its last sample, of step {last.global_step}, has no time"
        return Checked("ok", "journal", f"attempt {attempt.number}, {attempt.made} samples; {age}")
    trained = f"has saved {attempt.saved[-1].tag}" if attempt.saved else "has ended" if attempt.finished else None
    made = f"attempt {attempt.number} {trained or 'is there'} and has made no sample"
    if trained is None:
        return Checked("note", "journal", f"{made} yet: the first comes with its first optimizer step. {_MEASURED}")
    return Checked("bad", "journal", f"{made}: its steps are not measured, and nothing is judged. {_MEASURED}")


_MEASURED = (
    "A step is measured where attach got the optimizer whose step() is called, or the engine, and hook.loss(loss) is "
    "called before each loss.backward(), or engine.backward(loss); the trainer's own output says why the hook could "
    "not measure one (docs/ATTACH.md)"
)


def _changes(config: Config, look: Observation) -> Iterator[Checked]:
    """Whether what a restart changes would reach the training, as far as the trainer says."""
    settings, start = look.facts.settings, look.facts.jobs.start
    if config.launcher.kind == "elsewhere" or start.rewrites_script or look.history.latest is None:
        return
    who = settings.trainer or "the trainer"
    if settings.applies is None:
        unknown = "does not say which keys of overrides.json it applies: that a change was ignored is seen only after"
        yield Checked("note", "changes", f"{who} {unknown} a restart. attach(applies=…) says it (docs/ATTACH.md)")
    elif not settings.applies:
        nothing = "applies nothing of overrides.json: a restart can change the checkpoint alone. A plain loop applies"
        answer: Literal["bad", "note"] = "note" if config.policy.mode == "observe" else "bad"
        how = "changes by trainer_hooks.decisions(…), given to attach (docs/ATTACH.md)"
        yield Checked(answer, "changes", f"{who} {nothing} {how}")
    else:
        yield Checked("ok", "changes", f"{who} applies {', '.join(sorted(settings.applies))}")


def _no_attempt(config: Config, verdict: Verdict) -> Checked:
    source = config.source
    log = source_log_of(config, state_dir_of(config))
    what, none = {
        "log": ("log", f"{log}: no training step found, or no such file; see docs/SOURCES.md"),
        "prometheus": ("Prometheus", f"{source.url} has no samples of run {config.run.name!r}, or does not answer"),
        "journal": ("journal", "no attempt has begun yet; if the training already runs, see docs/ATTACH.md"),
    }[source.kind]
    if source.kind == "log" and verdict.kind is VerdictKind.BLIND:
        none = verdict.reason
    return Checked("bad", what, none)


def _ladder(rungs: Sequence[Rung], facts: Facts) -> Iterator[Checked]:
    """Whether each rung can be carried out, with the settings that the trainer has reported and can apply."""
    refusals = [_refusal(rung, facts) for rung in rungs]
    none_left = None not in refusals
    for why in refusals:
        if why is not None:
            follows = "no rung is left" if none_left else "it is skipped, and the next rung is tried"
            yield Checked("bad" if none_left else "note", "ladder", f"{why}; {follows}")
    if rungs and all(rung.instability is not None for rung in rungs):
        yield Checked("note", "ladder", "each rung is for one instability: any other incident waits for a person")
    names = ", ".join(rung.name if rung.instability is None else f"{rung.name} ({rung.instability})" for rung in rungs)
    yield Checked("ok", "ladder", f"{len(rungs)} rungs: {names}")


def _refusal(rung: Rung, facts: Facts) -> str | None:
    """Why the rung can't be carried out, a sentence that names it; None where it can, or where it restarts nothing."""
    if not rung.restarts:
        return None
    anchor = Anchor(global_step=1, consumed_samples=1, consumed_tokens=1)
    ids = {"incident": "doctor", "rollback": "doctor"}
    try:
        overrides = overrides_for(rung, facts.settings.baseline, **ids, anchor=anchor, new_seed=1, onset_past=2)
    except ConfigError as error:
        return str(error)
    why = not_applied(overrides, facts.settings.baseline, facts.settings, facts.jobs.start)
    return None if why is None else f"rung {rung.name!r}: {why}"
