"""Checks of what sentinel knows of the run: its configuration, its readings, its ladder, its paging channels."""

from __future__ import annotations

import math
from collections.abc import Iterator
from importlib.metadata import version

from sentinel.config import Config
from sentinel.daemon.doctor.finding import Finding
from sentinel.daemon.run_files import clock, source_log_of, state_dir_of
from sentinel.daemon.wiring import neighbours_of, observer_of
from sentinel.plan.ladder import Rung
from sentinel.plan.liveness import life_of
from sentinel.plan.look import Look
from sentinel.plan.mitigation import not_applied, overrides_for
from sentinel.plan.observation import Life, RunState
from sentinel.vocabulary.errors import ConfigError
from sentinel.vocabulary.overrides import Anchor

__all__ = ["configuration", "journal", "ladder", "paging"]


def configuration(config: Config) -> Iterator[Finding]:
    """The run, its mode and its launcher."""
    policy = config.policy
    yield Finding("ok", "configuration", f"{config.run.name}, mode {policy.mode}, launcher {config.launcher.kind}")
    if policy.mode == "observe":
        yield Finding("note", "mode", 'sentinel does not act; [policy] mode = "approve" or "act" lets it')


def journal(config: Config) -> Iterator[Finding]:
    """Whether there are samples and a start report, whether the hook's version is the daemon's, and the job's state."""
    look = _look(config)
    attempt = look.history.latest
    if attempt is None:
        yield _no_attempt(config)
        return
    last = attempt.samples[-1] if attempt.samples else None
    if last is None:
        age = "no sample yet"
    elif math.isfinite(last.time_unix_s):
        age = f"its last sample is {clock() - last.time_unix_s:.0f} s old"
    else:
        age = f"its last sample, of step {last.global_step}, has no time"
    yield Finding("ok", "journal", f"attempt {attempt.number}, {attempt.made} samples; {age}")
    if attempt.started is None:
        unproved = "the trainer has not reported its settings: a restart can't be proved"
        yield Finding("note", "start report", unproved)
        return
    ours, hooks = version("training-sentinel"), attempt.started.hook_version
    if hooks == ours:
        yield Finding("ok", "versions", f"hook and daemon are both {ours}")
    else:
        yield Finding("note", "versions", f"the hook is {hooks or 'not reported'}, the daemon {ours}")
    yield _job(look.run)


def _no_attempt(config: Config) -> Finding:
    if config.source.kind == "log":
        path = source_log_of(config, state_dir_of(config))
        return Finding("bad", "log", f"{path}: no training step found, or no such file; see docs/SOURCES.md")
    if config.source.kind == "prometheus":
        none = f"{config.source.url} has no samples of run {config.run.name!r}, or does not answer"
        return Finding("bad", "Prometheus", none)
    none = "no attempt has written one; call `trainer_hooks.attach` in the trainer, with this state_dir"
    return Finding("bad", "journal", none)


def _job(run: RunState) -> Finding:
    jobs = run.jobs
    if not jobs.known:
        return Finding("note" if jobs.elsewhere else "bad", "job", jobs.why_unknown)
    if jobs.writers:
        return Finding("ok", "job", ", ".join(w.id + (" (waiting)" if w.pending else "") for w in jobs.writers))
    known = life_of(run)
    if known.life is Life.UNKNOWN:
        return Finding("bad", "job", known.sentence)
    return Finding("note", "job", "no job of this run is running")


def ladder(config: Config) -> Iterator[Finding]:
    """Whether each rung can be carried out, with the settings that the trainer has reported and can apply."""
    run = _look(config).run
    rungs = {rung: _refusal(rung, run) for rung in config.policy.ladder}
    none_left = None not in rungs.values()
    for rung, why in rungs.items():
        if why is not None:
            follows = "no rung is left" if none_left else "it is skipped, and the next rung is tried"
            yield Finding("bad" if none_left else "note", "ladder", f"rung {rung.name!r}: {why}; {follows}")
    names = ", ".join(rung.name for rung in config.policy.ladder)
    yield Finding("ok", "ladder", f"{len(config.policy.ladder)} rungs: {names}")


def _refusal(rung: Rung, run: RunState) -> str | None:
    """Why the rung can't be carried out, as a sentence; None where it can, or where it restarts nothing."""
    if rung.page or rung.wait_steps is not None:
        return None
    anchor = Anchor(global_step=1, consumed_samples=1, consumed_tokens=1)
    try:
        overrides = overrides_for(
            rung, run.baseline, incident="doctor", rollback="doctor", anchor=anchor, new_seed=1, onset_past=2
        )
    except ConfigError as error:
        return str(error)
    return not_applied(overrides, run.baseline, run)


def paging(config: Config) -> Iterator[Finding]:
    """The channels that are configured."""
    names = ", ".join(channel.name for channel in config.paging.channels)
    if names:
        yield Finding("ok", "paging", f"{names}; `sentinel page --test` sends a test page through each")
    else:
        yield Finding("note", "paging", "no channel is configured; [[paging.webhook]] adds one (docs/PAGING.md)")


def _look(config: Config) -> Look:
    return observer_of(config, neighbours_of(config)).look(clock())
