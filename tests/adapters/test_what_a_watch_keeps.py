"""The daemon's own look at a long run: from its journals, or from a log that is gone since."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from sentinel.act.observe import Observer
from sentinel.act.past import PastReader
from sentinel.adapters.journal import Journals
from sentinel.config import Config
from sentinel.daemon.wiring import neighbours_of, observer_of
from sentinel.judge.history import LAST_SAMPLES
from sentinel.judge.verdict import VerdictKind
from sentinel.plan.choose.policy import Policy
from sentinel.vocabulary.overrides import Anchor
from sentinel.vocabulary.sample import Record, RunStarted, Sample, encode
from tests.sources.reading import megatron
from tests.support.kept_configs import config_of, saved

STEPS = 3000


class Counted(Journals):
    """Journals that count how often they are asked for an attempt's samples again."""

    def __init__(self, state_dir: Path) -> None:
        super().__init__(state_dir)
        self.asked: list[int] = []

    def again(self, attempt: int, after: int = -1) -> Iterator[Sample]:
        self.asked.append(attempt)
        return super().again(attempt, after)


def tell(folder: Path, attempt: int, *records: Record) -> None:
    with (folder / "s" / "attempts" / f"{attempt:04d}.jsonl").open("a") as file:
        file.writelines(encode(record) + "\n" for record in records)


def sample(attempt: int, step: int, loss: float | None = None) -> Sample:
    return Sample(
        attempt=attempt,
        global_step=step,
        time_unix_s=float(step),
        loss=3.0 + 0.01 * (step % 7) if loss is None else loss,
        consumed_samples=16 * step,
        consumed_tokens=2048 * step + attempt,
    )


def at(attempt: int, step: int) -> Anchor:
    return Anchor(global_step=step, consumed_samples=16 * step, consumed_tokens=2048 * step + attempt)


def kept() -> int:
    """Samples that this process holds."""
    gc.collect()
    return sum(type(one) is Sample for one in gc.get_objects())


def watched(config: Config) -> tuple[Observer, Counted]:
    near = neighbours_of(config)
    source = Counted(near.state_dir)
    return observer_of(config, replace(near, source=source)), source


def test_a_look_at_a_long_run_keeps_its_last_samples_and_asks_for_none_again(tmp_path: Path) -> None:
    config = config_of(tmp_path)
    tell(tmp_path, 1, RunStarted(attempt=1, time_unix_s=0.0), *(sample(1, s) for s in range(1, STEPS + 1)))
    before, (observer, source) = kept(), watched(config)
    look = observer.look(STEPS + 1.0)
    assert kept() - before <= LAST_SAMPLES * 5 // 4
    saved(tmp_path, 3100)
    for step in range(STEPS + 1, STEPS + 201):
        tell(tmp_path, 1, sample(1, step))
        look = observer.look(step + 1.0)
    assert look.facts.readings.positions == {1000: at(1, 1000), 3100: at(1, 3100)}
    assert look.history.latest is not None
    assert (look.history.latest.made, look.series.last_step) == (STEPS + 200, STEPS + 200)
    assert kept() - before <= LAST_SAMPLES * 5 // 4
    assert source.asked == []


def test_a_new_attempt_has_its_ancestors_told_again_once(tmp_path: Path) -> None:
    config = config_of(tmp_path)
    saved(tmp_path, 1010)
    tell(tmp_path, 1, RunStarted(attempt=1, time_unix_s=0.0), *(sample(1, s) for s in range(1, STEPS + 1)))
    before, (observer, source) = kept(), watched(config)
    observer.look(STEPS + 1.0)
    tell(tmp_path, 2, RunStarted(attempt=2, time_unix_s=0.0, parent_attempt=1, resumed_from=1000))
    for step in range(1001, 1021):
        tell(tmp_path, 2, sample(2, step))
        look = observer.look(step + 1.0)
    assert source.asked == [1]
    assert look.facts.readings.positions == {1000: at(1, 1000), 1010: at(2, 1010)}
    assert look.history.latest is not None
    assert [s.attempt for s in look.history.lineage(look.history.latest)] == [1] * 1000 + [2] * 20
    assert kept() - before <= LAST_SAMPLES * 5 // 4
    again, _ = watched(config)
    anew = again.look(step + 1.0)
    assert (anew.facts.readings.positions, anew.verdict) == (look.facts.readings.positions, look.verdict)
    assert (anew.series.level, anew.series.events) == (look.series.level, look.series.events)


def test_an_incident_is_opened_with_all_that_came_before_it(tmp_path: Path) -> None:
    config = config_of(tmp_path)
    past = [sample(1, s, 2.0 if 100 < s <= 120 else None) for s in range(1, STEPS + 1)]
    tell(tmp_path, 1, RunStarted(attempt=1, time_unix_s=0.0), *past)
    observer, _ = watched(config)
    observer.look(STEPS + 1.0)
    tell(tmp_path, 1, *(sample(1, s, 9.0) for s in range(STEPS + 1, STEPS + 600)))
    look = observer.look(STEPS + 600.0)
    assert (look.verdict.kind, look.verdict.onset_range) == (VerdictKind.DIVERGED, (STEPS + 1, STEPS + 1))
    onset = PastReader().read(look, Policy(), lambda _: None).facts.on_demand.onset
    assert onset is not None
    assert onset.best_mean == 2.0
    assert (onset.onset_samples, onset.onset_tokens) == (16 * (STEPS + 1), 2048 * (STEPS + 1) + 1)


@pytest.mark.full
@pytest.mark.parametrize("away", ["rotated", "cut", "gone"])
def test_what_a_log_told_is_told_again_when_the_log_is_no_more(tmp_path: Path, away: str) -> None:
    log = tmp_path / "log.txt"
    config = config_of(tmp_path, '[source]\nkind = "log"\npath = "log.txt"\n')
    log.write_text("".join(megatron(s, 3.0 + 0.01 * (s % 7)) + "\n" for s in range(1, STEPS + 1)))
    before, observer = kept(), observer_of(config, neighbours_of(config))
    observer.look(1000.0)
    assert kept() - before <= LAST_SAMPLES * 5 // 4 + 256
    if away == "rotated":
        log.rename(tmp_path / "log.1")
    elif away == "cut":
        log.write_text("")
    else:
        log.unlink()
    saved(tmp_path, 2000)
    look = observer.look(1010.0)
    assert look.history.latest is not None
    assert [s.global_step for s in look.history.lineage(look.history.latest)] == list(range(1, STEPS + 1))
    assert sorted(look.facts.readings.positions) == [1000, 2000]
