"""The settings that an attempt runs with, as it reported them at its start."""

from __future__ import annotations

from dataclasses import fields

from sentinel.vocabulary.codec import Form, read
from sentinel.vocabulary.errors import ConfigError
from sentinel.vocabulary.sample import RunStarted
from sentinel.vocabulary.training_settings import SharedSettings, TrainingSettings, settings_of

# Settings that a run reports: the ranges that a configuration must keep are not checked.
AS_REPORTED = Form(
    error=ConfigError, name="run_started", prints_whole_as_float=True, ignores_unknown=True, checks_ranges=False
)


_MOST_KEPT = 4096
_kept: dict[int, tuple[RunStarted, TrainingSettings]] = {}  # by identity: a start holds dicts and has no hash


def reported_settings(started: RunStarted) -> TrainingSettings:
    """What the attempt reports that it trains with. ConfigError where a schedule is of no known kind.

    Kept for the last 4096 starts: a daemon asks for the same one twice in each turn.
    """
    kept = _kept.get(id(started))
    if kept is not None and kept[0] is started:
        return kept[1]
    settings = _settings_of(started)
    while len(_kept) >= _MOST_KEPT:
        _kept.pop(next(iter(_kept), 0), None)
    _kept[id(started)] = started, settings
    return settings


def _settings_of(started: RunStarted) -> TrainingSettings:
    renamed = {name: setting.reported_as for name, setting in settings_of().items() if setting.reported_as}
    same = {name: name for name in ("free", *(f.name for f in fields(SharedSettings)))}
    told = {name: getattr(started, reported_as) for name, reported_as in (renamed | same).items()}
    empty = [name for name in ("lr", "seqlen") if told[name] == {}]
    return read(TrainingSettings, told | dict.fromkeys(empty), form=AS_REPORTED)
