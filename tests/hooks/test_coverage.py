"""A part of v is never reported as the whole: what is read is compared with what the model has."""

from __future__ import annotations

import logging
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any, Self

import pytest
import torch
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef

from tests.hooks.alone import Training
from trainer_hooks.sample.one_pass import native
from trainer_hooks.sample.owners import numbers_of_groups
from trainer_hooks.sample.reading import reading_of, rows_of

NORMS = ("adam_variance_l1", "adam_variance_max", "update_norm", "momentum_l2", "param_norm")


class Wrapped(torch.Tensor):
    """As torchao's states: its numbers are in another tensor, its own address is 0."""

    @staticmethod
    def __new__(cls, inner: Tensor) -> Self:
        made: Self = torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)  # type: ignore[attr-defined]
        return made

    def __init__(self, inner: Tensor) -> None:
        self.inner = inner

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*[x.inner if isinstance(x, Wrapped) else x for x in args], **(kwargs or {}))


def swapped_out(state: dict[str, Any]) -> None:
    state["exp_avg_sq"] = torch.empty(0)


def of_muon(state: dict[str, Any]) -> None:
    state["momentum_buffer"] = state.pop("exp_avg")
    del state["exp_avg_sq"]


def wrapped(state: dict[str, Any]) -> None:
    state["exp_avg_sq"] = Wrapped(state["exp_avg_sq"])


def of_eight_bits(state: dict[str, Any]) -> None:
    state["exp_avg_sq"] = state["exp_avg_sq"].to(torch.uint8)


def cut(state: dict[str, Any]) -> None:
    state["exp_avg_sq"] = state["exp_avg_sq"].flatten()[:3]


def freed(state: dict[str, Any]) -> None:
    state["exp_avg_sq"].untyped_storage().resize_(0)


def sparse(state: dict[str, Any]) -> None:
    state["exp_avg_sq"] = state["exp_avg_sq"].to_sparse()


@pytest.mark.parametrize(
    ("spoil", "why"),
    [
        (swapped_out, "is empty: swapped out"),
        (of_muon, "has no exp_avg_sq, but momentum_buffer, step"),
        (wrapped, "is a tests.hooks.test_coverage.Wrapped"),
        (of_eight_bits, "is of torch.uint8"),
        (cut, "is shorter than its parameters"),
        (freed, "has no memory"),
        (sparse, "is sparse"),
    ],
)
def test_where_a_part_of_v_is_not_read_its_share_is_reported_and_no_norm(
    spoil: Callable[[dict[str, Any]], None], why: str, caplog: pytest.LogCaptureFixture
) -> None:
    training = Training()
    first, second = training.net[0], training.net[1]  # type: ignore[index]

    def spoil_the_second() -> None:
        for parameter in second.parameters():
            spoil(training.optimizer.state[parameter])

    with caplog.at_level(logging.WARNING):
        whole = training.of_all_ranks(training.step())
        part = training.of_all_ranks(training.step(spoil=spoil_the_second))
    assert whole["adam_variance_coverage"] == 1.0
    assert all(whole[name] > 0 for name in NORMS)
    assert part["adam_variance_coverage"] == 0.5
    assert [part[name] for name in NORMS] == [None] * 5
    assert part["loss"] > 0
    assert part["grad_norm"] > 0
    assert training.guard.errors == 0
    (said,) = [r.getMessage() for r in caplog.records if "is not read" in r.getMessage()]
    assert why in said
    assert sum(p.numel() for p in first.parameters()) == sum(p.numel() for p in second.parameters())


@pytest.mark.full
def test_a_subclass_of_tensor_ends_no_process() -> None:
    """In a process of its own: a kernel that reads at its address is a SIGSEGV."""
    program = (
        "import torch; from torch import nn; from tests.hooks.alone import Training;"
        "from tests.hooks.test_coverage import Wrapped; t = Training(); t.step()\n"
        "def spoil():\n"
        "    for s in t.optimizer.state.values(): s.update({n: Wrapped(s[n]) for n in ('exp_avg_sq', 'exp_avg')})\n"
        "print(t.of_all_ranks(t.step(spoil=spoil))['adam_variance_coverage'], t.guard.errors)"
    )
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=200, check=False)
    assert (ran.returncode, ran.stdout) == (0, "0.0 0\n"), ran.stderr


class Routed(nn.Module):
    """An expert that no token reaches at first, a frozen part, and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.frozen, self.expert, self.head = nn.Linear(64, 64), nn.Linear(64, 64), nn.Linear(64, 1)
        self.frozen.requires_grad_(False)
        self.reached = False

    def forward(self, x: Tensor) -> Tensor:
        x = self.frozen(x)
        return self.head(self.expert(x) if self.reached else x)  # type: ignore[no-any-return]


def test_a_parameter_without_a_gradient_so_far_has_no_v_and_misses_nothing() -> None:
    net = Routed()
    training = Training(net)
    before = training.of_all_ranks(training.step())
    assert before["adam_variance_coverage"] == 1.0
    assert before["adam_variance_l1"] > 0
    net.reached = True
    after = training.of_all_ranks(training.step())
    assert after["adam_variance_coverage"] == 1.0
    states = training.optimizer.state
    assert len(states) == 4
    roots = sum(float(s["exp_avg_sq"].double().sqrt().sum()) for s in states.values())
    assert after["adam_variance_l1"] == pytest.approx(roots, rel=1e-6)


def test_a_state_that_a_gradient_should_have_made_is_missing_until_it_comes() -> None:
    """As with a worker that keeps it: v is not 0."""
    net = Routed()
    training = Training(net)
    training.step()
    net.reached = True
    kept: dict[Any, Any] = {}

    def take_away() -> None:
        kept.update({p: training.optimizer.state.pop(p) for p in net.expert.parameters()})

    assert training.of_all_ranks(training.step(spoil=take_away))["adam_variance_l1"] is None
    net.reached = False
    part = training.of_all_ranks(training.step())
    assert part["adam_variance_coverage"] == pytest.approx(65 / (65 + 65 * 64))
    training.optimizer.state.update(kept)
    assert training.of_all_ranks(training.step())["adam_variance_coverage"] == 1.0


def test_a_skipped_update_has_seen_no_gradient() -> None:
    net = Routed()
    training = Training(net)
    training.step()
    net.reached = True
    loss = training.forward()
    training.meter.loss_seen(loss, of_many=True)
    loss.backward()
    training.meter.gradients_whole()
    training.meter.update_coming()
    training.engine.global_steps += 1
    training.engine.skipped_steps += 1
    read = training.meter.measure(with_moments=False).rank_reading()
    assert training.of_all_ranks(read)["adam_variance_coverage"] == 1.0


def test_parameters_that_another_optimizer_updates_are_missing() -> None:
    training = Training(make=lambda parameters: torch.optim.AdamW(list(parameters)[:2]))
    assert training.of_all_ranks(training.step())["adam_variance_coverage"] == 0.5


def test_an_optimizer_that_is_no_adam_has_no_v_and_says_nothing(caplog: pytest.LogCaptureFixture) -> None:
    training = Training(make=lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9))
    read = training.of_all_ranks(training.step())
    assert (read["adam_variance_coverage"], read["adam_variance_l1"], caplog.messages) == (0.0, None, [])


def test_before_the_first_update_nothing_is_covered_and_nothing_is_missing() -> None:
    training = Training()
    training.meter.loss_seen(training.forward(), of_many=True)
    training.engine.global_steps = training.engine.skipped_steps = 1
    read = training.meter.measure(with_moments=False).rank_reading()
    assert training.of_all_ranks(read)["adam_variance_coverage"] is None


@pytest.mark.parametrize("world", [1, 3, 7, 1000])
def test_shares_that_do_not_add_up_exactly_are_whole_and_one_element_is_seen(world: int) -> None:
    elements = 1e9 + 7

    def of(known: float) -> Any:
        read = {"loss": 1.0, "variance_l1": 1.0, "elements_known": known / world, "elements_owned": elements / world}
        rows = [rows_of(read, world=world) for _ in range(world)]
        sums = [sum(column) for column in zip(*(row[0] for row in rows), strict=True)]
        return reading_of(sums, rows[0][1], global_step=5, world=world)

    assert of(elements)["adam_variance_coverage"] == 1.0
    assert 0 < of(elements - 1)["adam_variance_coverage"] < 1
    assert of(elements - 1)["adam_variance_l1"] is None


def test_one_rank_that_reads_no_v_leaves_the_norm_out_on_all() -> None:
    read = {"loss": 1.0, "variance_l1": 1.0, "elements_known": 4.0, "elements_owned": 4.0}
    without = {name: value for name, value in read.items() if name != "variance_l1"}
    rows = [rows_of(some, world=2) for some in (read, without)]
    sums = [a + b for a, b in zip(rows[0][0], rows[1][0], strict=True)]
    told = reading_of(sums, rows[0][1], global_step=1, world=2)
    assert (told["adam_variance_l1"], told["adam_variance_coverage"]) == (None, 1.0)


class Counting(list[Any]):
    """Counts what is taken out of it one by one."""

    taken = 0

    def __iter__(self) -> Iterator[Any]:
        for item in super().__iter__():
            Counting.taken += 1
            yield item


def test_the_groups_are_gone_through_once_however_many_parameters_there_are() -> None:
    parameters = [nn.Parameter(torch.zeros(1)) for _ in range(3000)]
    optimizer = torch.optim.AdamW([{"params": parameters[:1000]}, {"params": parameters[1000:]}])
    for group in optimizer.param_groups:
        group["params"] = Counting(group["params"])
    net = nn.Module()
    for number, parameter in enumerate(parameters):
        net.register_parameter(f"p{number}", parameter)
    for parameter in parameters:
        optimizer.state[parameter] = {
            name: torch.zeros(1) if name != "step" else torch.ones(()) for name in ("step", "exp_avg", "exp_avg_sq")
        }
    Counting.taken = 0
    training = Training(net, make=lambda _: optimizer)
    assert 0 < Counting.taken <= 4 * 3000
    assert training.meter._state.elements == 3000
    assert numbers_of_groups([optimizer], None)[id(parameters[2999])] == (0, 1)


def test_a_load_in_the_process_frees_the_old_moments_at_once() -> None:
    assert native.kernel() is not None
    training = Training()
    training.step()
    kept = [
        StorageWeakRef(s[name].untyped_storage())  # type: ignore[no-untyped-call]
        for s in training.optimizer.state.values()
        for name in ("exp_avg_sq", "exp_avg")
    ]
    training.meter.loss_seen(training.forward(), of_many=True)
    under_way = training.meter.measure(with_moments=True)  # nothing of a reading on its way keeps them either
    saved = training.optimizer.state_dict()
    loaded = {number: {k: v.clone() for k, v in s.items()} for number, s in saved["state"].items()}
    training.optimizer.load_state_dict({**saved, "state": loaded})
    del saved, loaded
    assert all(reference.expired() for reference in kept)
    told = training.of_all_ranks(training.step())
    new = [s["exp_avg_sq"] for s in training.optimizer.state.values()]
    assert told["adam_variance_l1"] == pytest.approx(sum(float(v.double().sqrt().sum()) for v in new), rel=1e-6)
    assert under_way.rank_reading()["variance_l1"] > 0
    assert training.guard.errors == 0
