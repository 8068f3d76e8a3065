"""Numbers on their way from a device, as the ranks' thread sees them: no call to CUDA is made there."""

from __future__ import annotations

import threading
import weakref
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.adapters.pagers import until
from trainer_hooks.errors import Guard
from trainer_hooks.sample import to_host
from trainer_hooks.sample.gathering import Gathering


def test_copies_are_ready_by_a_number_that_is_copied_last(monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[tuple[Tensor, Tensor]] = []

    def begin(tensor: Tensor) -> Tensor:
        host = torch.zeros(tensor.shape, dtype=tensor.dtype)
        begun.append((host, tensor))
        return host

    monkeypatch.setattr(to_host, "on_device", lambda number: isinstance(number, Tensor))
    monkeypatch.setattr(to_host, "_begun_to_copy", begin)
    copies = to_host.Copies([torch.tensor(3.0), torch.tensor([4.0, 0.0])])
    for host, tensor in begun:  # in the order of the stream
        assert not copies.ready()
        host.copy_(tensor)
    assert copies.ready()
    assert [t.tolist() for t in copies.on_host] == [3.0, [4.0, 0.0]]


class Numbers:
    """A measurement."""


@pytest.mark.parametrize("steps", [1, 3])
def test_a_measurement_is_freed_on_the_training_thread(steps: int) -> None:
    freed: list[threading.Thread] = []
    given: list[Any] = []
    ranks: Any = SimpleNamespace(world=2, why_over="gone", submit=given.append)
    gathering = Gathering(ranks, SimpleNamespace(names=()), lambda *_: None, Guard())  # type: ignore[arg-type]
    for step in range(steps):
        numbers: Any = Numbers()
        weakref.finalize(numbers, lambda: freed.append(threading.current_thread()))
        gathering.add(step, None, numbers, layered=False)
        del numbers

    taken = threading.Event()

    def serve() -> None:
        kept = list(given)  # as the ranks' thread keeps its last task until the next one comes
        given.clear()
        for task in kept:
            task.give_up()
        taken.wait(60)

    thread = threading.Thread(target=serve)
    thread.start()
    until(lambda: not len(gathering))
    assert freed == []
    gathering.advance()
    taken.set()
    thread.join()
    assert freed == [threading.current_thread()] * steps
