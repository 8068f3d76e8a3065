"""One incident's bisect, from the run's configuration."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from sentinel.act.bisect import Bisect, question_about
from sentinel.config import Config
from sentinel.daemon.probes import nodes_of, probe_jobs
from sentinel.daemon.run_files import bisect_folder
from sentinel.judge.history import History
from sentinel.plan.bisect_probes import Means
from sentinel.plan.incident import Incident
from sentinel.plan.observation import RunState
from sentinel.plan.probe import Limits
from sentinel.vocabulary.sample import RunStarted


def bisect_about(
    config: Config,
    incident: Incident,
    history: History,
    run: RunState,
    started: Sequence[RunStarted],
    say: Callable[[str], None],
    gpu_hours: float | None = None,
) -> Bisect:
    """ConfigError where there is nothing to repeat, or no probe can be run from here. `gpu_hours`: what its probes may
    take beside what `[bisect]` says; None is no limit."""
    settings, question = (
        config.bisect,
        question_about(incident, history, run, config.judge, config.policy, _means(config, started, incident.attempt)),
    )
    hours = (settings.gpu_hours, gpu_hours)
    limits = Limits(
        parallel=settings.parallel,
        gpu_hours=min((left for left in hours if left is not None), default=None),
        probe_s=3600 * settings.probe_hours,
        count=settings.max_probes,
    )
    folder = bisect_folder(config) / incident.id
    return Bisect(question, folder, config.run.checkpoints, probe_jobs(config), limits, say)


def _means(config: Config, started: Sequence[RunStarted], attempt: int) -> Means:
    settings = config.bisect
    other = dict(variable.split("=", 1) for variable in settings.other_node_environment)
    begun = next((one for one in started if one.attempt == attempt), None)
    return Means(
        window_steps=settings.window_steps,
        fp32_options=settings.fp32_options,
        other_node_environment=other or None,
        nodes=nodes_of(config, begun),
    )
