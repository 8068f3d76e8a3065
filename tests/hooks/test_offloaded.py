"""An offloaded state: read beside the next forward, never beside an update, and so rarely that updates hardly wait."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest
import torch
from torch import nn

from tests.adapters.pagers import until
from tests.hooks.alone import Training
from trainer_hooks.sample import offloaded
from trainer_hooks.sample.offloaded import OffloadedReader, Pending, Rarity, threads_of_the_reader
from trainer_hooks.sample.one_pass import Stop, Stopped


def _large() -> Training:
    """Its state lies on the CPU; the training is said to run on CUDA."""
    return Training(nn.Sequential(nn.Linear(64, 40_000), nn.Linear(40_000, 64)), device="cuda:0", interval_steps=2)


def _step(training: Training) -> Any:
    """One step's measurement, under way."""
    loss = training.forward()
    training.meter.loss_seen(loss, of_many=True)
    loss.backward()
    training.meter.update_coming()
    training.optimizer.step()
    training.optimizer.zero_grad()
    training.engine.global_steps += 1
    return training.meter.measure(with_moments=training.engine.global_steps % 2 == 0)


def test_the_update_waits_until_v_of_the_step_before_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(offloaded, "MOST_OF_A_STEP", 1e9)  # at every step
    training = _large()
    for _ in range(6):
        measured = _step(training)
        states = training.optimizer.state.values()
        roots = sum(float(s["exp_avg_sq"].double().sqrt().sum()) for s in states)
        training.meter.update_coming()
        for state in states:
            state["exp_avg_sq"].fill_(1e6)  # as an update that is made now would
        assert measured.ready()
        assert measured.rank_reading()["variance_l1"] == pytest.approx(roots, rel=1e-6)
        for state in states:
            state["exp_avg_sq"].fill_(1e-6)
    assert training.guard.errors == 0


def test_before_a_load_the_reading_ends_and_is_left_out() -> None:
    training = _large()
    _step(training)
    training.meter.update_coming()
    entered, left = threading.Event(), threading.Event()

    def endless(stop: Stop) -> Any:
        entered.set()
        while not stop:
            time.sleep(0.001)
        left.set()
        raise Stopped

    reader = training.meter._reader
    assert reader is not None
    pending = reader.begin(endless)
    entered.wait(10)
    training.meter.settle()
    assert left.is_set()
    assert (pending.done(), pending.rows) == (True, None)


def test_a_reading_that_takes_too_long_is_stopped_said_and_made_at_fewer_steps(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(offloaded, "LONGEST_WAIT_S", 0.05)
    training = _large()
    _step(training)
    reader = training.meter._reader
    assert reader is not None

    def slow(stop: Stop) -> Any:
        until(lambda: bool(stop))
        raise Stopped

    for _ in range(2):
        reader._updated_s = time.monotonic()  # the step is short, however busy the machine is
        reader.begin(slow)
        reader.update_coming()
    assert sum("is not read within" in message for message in caplog.messages) == 1
    assert reader.rarity.every > 1
    training.engine.global_steps = 1  # no multiple of it: v is left alone
    training.meter.loss_seen(training.forward(), of_many=True)
    read = training.meter.measure(with_moments=False).rank_reading()
    assert "variance_l1" not in read
    assert training.of_all_ranks(read)["adam_variance_l1"] is None
    assert training.of_all_ranks(read)["adam_variance_coverage"] == 1.0


def test_what_a_reading_fails_by_is_an_error_at_the_update_and_no_more() -> None:
    reader = OffloadedReader(10)
    reader.begin(lambda _: 1 / 0)  # type: ignore[arg-type,return-value]
    with pytest.raises(ZeroDivisionError):
        reader.update_coming()
    reader.update_coming()


@pytest.mark.parametrize(
    ("waits", "every"),
    [
        ([(0.0, 1.0)], 1),
        ([(0.009, 1.0)], 1),
        ([(0.02, 1.0)], 10),  # 2 % of a step: 0.2 % of ten
        ([(0.15, 1.0)], 20),
        ([(10.0, 1.0)], 640),  # the rarest
        ([(0.15, 1.0), (0.0, 1.0)], 10),
        ([(0.15, 1.0), (0.0, 1.0), (0.0, 1.0)], 1),
        ([(0.15, 1.0), (0.06, 1.0)], 20),  # it would be 0.6 % of ten steps: not by half below
    ],
)
def test_the_share_of_the_time_that_updates_wait_is_bounded(waits: list[tuple[float, float]], every: int) -> None:
    rarity = Rarity(10)
    for waited_s, step_s in waits:
        rarity.waited(waited_s, step_s)
    assert rarity.every == every
    assert waits[-1][0] <= 0.01 * rarity.every * waits[-1][1] or rarity.every == 640


def test_ranks_that_wait_differently_have_common_steps() -> None:
    rare = [Rarity(10) for _ in range(4)]
    for rarity, waited_s in zip(rare, (0.0, 0.02, 0.15, 0.9), strict=True):
        rarity.waited(waited_s, 1.0)
    assert [rarity.every for rarity in rare] == [1, 10, 20, 160]
    assert all(rarity.due(step) for rarity in rare for step in (160, 320))


def test_the_reader_takes_a_quarter_of_the_ranks_share_of_the_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(offloaded.os, "sched_getaffinity", lambda _: range(96))
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "8")
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    assert threads_of_the_reader() == 3
    monkeypatch.setattr(torch, "get_num_threads", lambda: 12)
    assert threads_of_the_reader() == 12


def test_a_state_that_is_read_when_the_process_ends_is_left_alone() -> None:
    ended = threading.Event()

    def endless(stop: Stop) -> Any:
        until(lambda: bool(stop))
        ended.set()
        raise Stopped

    Pending(endless).stop()
    assert ended.is_set()
