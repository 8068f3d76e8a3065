"""Run as `python ranks.py CASE:RANKS:FAN …`: forks that many gloo ranks for each case, which train without a model and
hand readings to the hook's own groups. One JSON line per rank, and one for the end of each process."""

from __future__ import annotations

import json
import math
import os
import random
import select
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d

from tests.adapters.pagers import until
from trainer_hooks.errors import Guard
from trainer_hooks.ranks import NotAgreedError, Ranks
from trainer_hooks.ranks.signs import Signs
from trainer_hooks.sample import gathering
from trainer_hooks.sample.gathering import Gathering

STEPS, EVERY = 60, 3  # steps of a case, and every how many a step has layers
SAVES = 20  # every how many steps the state is read in its parts
LAYERS = 90  # three frames


class Numbers:
    """The readings of one rank's step: others at each step and on each rank. Not on the host at once."""

    def __init__(self, step: int, rank: int) -> None:
        self.step, self.rank = step, rank
        self.there_at = time.monotonic() + random.choice((0, 0, 0.002, 0.02))

    def ready(self) -> bool:
        return time.monotonic() >= self.there_at

    def rank_reading(self) -> dict[str, float]:
        one = float(1000 * self.step + self.rank)
        squares = dict.fromkeys(("momentum_squares", "parameter_squares", "update_squares"), one**2)
        read = {"loss": one, "variance_l1": one, "variance_top": one**2, "batch_digest": self.step, "elements": 1.0}
        return read | squares | {"adam_step": self.step + self.rank, "state_layout": 7.0 + self.rank}

    def layer_rows(self, layers: list[str]) -> tuple[list[float], list[float], list[float]]:
        mine = [float(self.step + self.rank + n) for n in range(len(layers))]
        return mine, [0.0] * len(layers), [x**2 for x in mine]

    def layer_parts(self, layers: list[str]) -> tuple[list[float], ...]:
        each = [float(n) for n in range(len(layers))]
        return each, [float(self.rank)] * len(layers), [-n for n in each], [3.0 * n for n in each]


def expected(step: int, world: int, layers: int) -> dict[str, Any]:
    """What rank 0 is to report of a step; the last layer is one that the last rank alone has named."""
    of_ranks = [float(1000 * step + rank) for rank in range(world)]
    l1 = [float(sum(step + rank + n for rank in range(world))) for n in range(layers)]
    return {
        "loss": sum(of_ranks) / world,
        "adam_variance_l1": sum(of_ranks),
        "adam_variance_max": of_ranks[-1],
        "loss_spread": of_ranks[-1] - of_ranks[0] if world > 1 else None,
        "layers": None if step % EVERY else l1,
        "tops": None if step % EVERY else [float(step + world - 1 + n) for n in range(layers)],
    }


def equal(got: dict[str, Any], right: dict[str, Any]) -> bool:
    """To the last digit, but for the mean: it is added up rank after rank."""
    return math.isclose(got["loss"], right["loss"], rel_tol=1e-14) and got | {"loss": None} == right | {"loss": None}


class KeepsErrors(Guard):
    """What the hook would log once."""

    def __init__(self, kept: list[str]) -> None:
        super().__init__()
        self._kept = kept

    @contextmanager
    def __call__(self, _: str) -> Iterator[None]:
        try:
            yield
        except RuntimeError as error:
            self._kept.append(str(error))


class Training:
    """One rank: what its hook would do at each step, and what rank 0 has reported, {step: reading}."""

    def __init__(self, ranks: Ranks, layers: int = LAYERS) -> None:
        self.ranks = ranks
        self.reported: dict[int, dict[str, Any] | None] = {}
        self.states: dict[int, bool] = {}  # step -> whether the state's parts are those of all ranks, in their order
        self.errors: list[str] = []
        self.names = ranks.union([f"block {n}" for n in range(layers - (ranks.rank < ranks.world - 1))])
        self.gathering = Gathering(ranks, self.names, self._report, KeepsErrors(self.errors))

    def _report(self, facts: Any, reading: Any, layers: Any) -> None:
        if isinstance(facts, tuple):
            self.states[facts[0]] = layers is not None and self._is_state_of(facts[0], layers)
            return
        if reading is not None:
            names = ("loss", "adam_variance_l1", "adam_variance_max", "loss_spread")
            of_layers = layers or {"adam_variance_l1": None, "adam_variance_max": None}
            lists = (of_layers["adam_variance_l1"], of_layers["adam_variance_max"])
            rows = dict(zip(("layers", "tops"), (None if x is None else list(x) for x in lists), strict=True))
            reading = {name: reading[name] for name in names} | rows
        self.reported[facts] = reading

    def _is_state_of(self, step: int, parts: Any) -> bool:
        world, count = self.ranks.world, len(self.names.names or [])
        ones = tuple(float(1000 * step + rank) for rank in range(world))
        wanted = {
            "rank_variance_l1": ones,
            "rank_momentum_l2": ones,
            "rank_param_norm": ones,
            "adam_step": step + world - 1,
            "adam_step_least": step,
            "layer_momentum_l2": tuple(math.sqrt(world * n) for n in range(count)),
            "layer_param_norm": (math.sqrt(world * (world - 1) / 2),) * count,
        }
        return wanted.items() <= parts.items()

    def state(self, step: int) -> None:
        numbers: Any = Numbers(step, self.ranks.rank)
        facts = (step,) if self.ranks.rank == 0 else None
        self.gathering.add(step, facts, numbers, layered=True, state=True)

    def step(self, step: int) -> None:
        rank = self.ranks.rank
        numbers: Any = Numbers(step, rank)
        try:
            self.gathering.add(step, step if rank == 0 else None, numbers, layered=step % EVERY == 0)
        except RuntimeError as error:
            self.errors.append(str(error))
        self.gathering.advance()

    def end(self, wait_s: float = 60.0) -> None:
        deadline = time.monotonic() + wait_s
        while len(self.gathering) and time.monotonic() < deadline:
            self.gathering.advance(0.1)
        self.gathering.advance()

    def wrong(self) -> list[int]:
        """Steps whose reading is not that of the step on all ranks."""
        world, count = self.ranks.world, len(self.names.names or [])
        return [s for s, got in self.reported.items() if got is not None and not equal(got, expected(s, world, count))]

    def answer(self) -> dict[str, Any]:
        return {
            "right": len([got for got in self.reported.values() if got is not None]) - len(self.wrong()),
            "wrong": self.wrong(),
            "states": self.states,
            "errors": sorted(set(self.errors)),
            "over": self.ranks.why_over,
        }


def pauses(fan: int) -> dict[str, Any]:
    """Random pauses on every rank, several steps under way, the training's own collectives beside them."""
    random.seed(dist.get_rank())
    training, ranks = Training(Ranks(fan=fan)), dist.get_world_size()
    exchanged = []
    for step in range(1, STEPS + 1):
        time.sleep(random.choice((0, 0, 0.001, 0.01)))
        theirs = torch.tensor([10.0, 20.0]) * (dist.get_rank() + 1)
        if step % 10 == 0:
            dist.all_reduce(theirs)
            assert theirs.tolist() == [10.0 * ranks * (ranks + 1) / 2, 20.0 * ranks * (ranks + 1) / 2]
        training.step(step)
        if step % SAVES == 0:
            training.state(step)
        exchanged.append(training.ranks.exchange([step * (dist.get_rank() == step % ranks), -dist.get_rank()]))
    training.end()
    got = [exchange.wait(20) for exchange in exchanged]
    assert got == [[step, 0] for step in range(1, STEPS + 1)], got
    return training.answer() | {"levels": len(list(training.ranks._levels))}


def split(fan: int) -> dict[str, Any]:
    """torch's rule with a bound NCCL device: whoever is not in a new group calls a split on all ranks."""
    splits = []

    class Split:
        supports_splitting = True

        def perform_nocolor_split(self, device: Any) -> None:
            splits.append(device)
            time.sleep(1000)  # the ranks in the group never come

    distributed_c10d._get_default_group().bound_device_id = torch.device("cuda", 0)
    distributed_c10d._get_split_source = lambda _: Split()
    before = distributed_c10d._world.group_count
    training = Training(Ranks(fan=fan))
    for step in range(1, 4):
        training.step(step)
    training.end()
    own = distributed_c10d._world.group_count - before
    return training.answer() | {"splits": len(splits), "groups": own, "names": len(training.names.names or [])}


def next_group_of_the_user() -> float:
    """A group that the training makes next, and its sum."""
    ones = torch.ones(1)
    group = dist.new_group(timeout=timedelta(seconds=120))
    dist.all_reduce(ones, group=group)
    return ones.item()


def no_network_on_one(fan: int) -> dict[str, Any]:
    interface = os.environ["GLOO_SOCKET_IFNAME"]
    if dist.get_rank() == 1:
        os.environ["GLOO_SOCKET_IFNAME"] = "nosuch0"
    training = Training(Ranks(fan=fan, join_s=20))
    joined = training.ranks.joined()
    os.environ["GLOO_SOCKET_IFNAME"] = interface
    return without_groups(training, joined)


def one_hangs(fan: int) -> dict[str, Any]:
    """Its process group never gets made: a thread of torch waits for ever."""
    if dist.get_rank() == 1:
        make, hung = dist.ProcessGroupGloo, threading.Event()

        def hang(*arguments: Any) -> Any:
            hung.wait(20)
            return make(*arguments)

        dist.ProcessGroupGloo = hang
    training = Training(Ranks(fan=fan, join_s=2))
    joined = training.ranks.joined(5)
    if dist.get_rank() == 1:
        dist.ProcessGroupGloo = make
    return without_groups(training, joined)


def one_never_attaches(fan: int) -> dict[str, Any]:
    if dist.get_rank() == 1:
        time.sleep(3)
    training = Training(Ranks(fan=fan, join_s=2))
    return without_groups(training, training.ranks.joined(5))


def without_groups(training: Training, joined: bool) -> dict[str, Any]:
    theirs = next_group_of_the_user()
    for step in (1, 2):
        training.step(step)
    training.end(2)
    flags = training.ranks.exchange([1])
    flags.wait(2)
    return training.answer() | {"joined": joined, "theirs": theirs, "reported": training.reported, "done": flags.done()}


def one_without_value(_: int) -> dict[str, Any]:
    """Values that are agreed on: one that all get, then one that a rank comes too late for."""
    ranks = Ranks()
    first = ranks.agree({"lr_scale": 0.5, "free": None} if ranks.rank == 0 else "not looked at", 20)
    if ranks.rank == 1:
        time.sleep(2)
    try:
        second = ranks.agree([1], 1)
    except NotAgreedError as error:
        second = str(error)
    return {"first": first, "second": second, "third": ranks.agree("again", 20)}


def drops(fan: int) -> dict[str, Any]:
    """While one rank's thread stands still the others go on, and each leaves out other steps."""
    rank = dist.get_rank()
    gathering._MOST_STEPS = 5 + 3 * rank
    training = Training(Ranks(fan=fan))
    assert training.ranks.joined()
    training.names.wait(20)
    released = threading.Event()

    class StandStill:
        def run(self, _: Any) -> None:
            released.wait(60)

        def give_up(self) -> None: ...

    if rank == 1:
        training.ranks.submit(StandStill())
    for step in range(1, 41):
        training.step(step)
    dist.barrier()
    released.set()
    training.end()
    after = {}
    for step in range(41, 61):
        training.step(step)
        training.end()
        dist.barrier()
        after[step] = training.reported.get(step)
    return training.answer() | {"after": [step for step, got in after.items() if got is not None], "rank": rank}


def stopped(fan: int) -> dict[str, Any]:
    """The last rank is stopped by a signal while the others make steps, and goes on."""
    training, last = Training(Ranks(fan=fan)), dist.get_world_size() - 1
    assert training.ranks.joined()
    if dist.get_rank() == last:
        stop_for(2)
    longest = 0.0
    for step in range(1, 151):
        began = time.monotonic()
        training.step(step)
        longest = max(longest, time.monotonic() - began)
    dist.barrier()
    training.end()  # what is under way comes first: while it is too much, steps lose their payload
    for step in range(151, 161):
        training.step(step)
    training.end()
    return training.answer() | {"last": max(training.reported, default=None), "longest_s": longest}


def stop_for(seconds: float) -> None:
    """Stops this process, which another one wakes up."""
    pid = os.getpid()
    if os.fork() == 0:
        os.closerange(3, 1000)
        time.sleep(seconds)
        os.kill(pid, signal.SIGCONT)
        os._exit(0)
    os.kill(pid, signal.SIGSTOP)


def many(fan: int) -> dict[str, Any]:
    """A training whose ranks meet at every step: one is slow, then one is stopped, then one is killed. Where the
    training's own collective fails, as it does there, its rank goes on alone."""
    training, rank, steps = Training(Ranks(fan=fan)), dist.get_rank(), 40
    assert training.ranks.joined()
    ones = torch.ones(8)
    for step in range(1, steps + 1):
        time.sleep(0.05 if rank == 5 else 0.01)
        dist.all_reduce(ones)
        training.step(step)
    training.end()
    slow = training.answer()["right"]
    dist.barrier()
    if rank == 7:
        stop_for(5)
    for step in range(steps + 1, 2 * steps + 1):
        time.sleep(0.05)
        training.step(step)
    dist.barrier()
    training.end()
    after_stop = training.answer()["right"] - slow
    dist.barrier()
    if rank == 9:
        os.kill(os.getpid(), signal.SIGKILL)
    for step in range(2 * steps + 1, 2 * steps + 11):
        time.sleep(0.05)
        training.step(step)
    until(lambda: training.ranks.why_over is not None)
    training.end()
    return training.answer() | {"slow": slow, "steps": steps, "after_stop": after_stop}


def signs(fan: int) -> dict[str, Any]:
    """The last rank is stopped in the middle of a step that the others wait to end."""
    told: list[list[dict[str, Any]]] = []
    ranks, last = Ranks(fan=fan), dist.get_world_size() - 1
    left = Signs(ranks, lambda still: told.append([asdict(one) for one in still]), quiet_s=0.4, period_s=0.4)
    pid = torch.tensor([os.getpid() if ranks.rank == last else 0])
    dist.all_reduce(pid)
    left.came(1)
    left.came()
    if ranks.rank == last:
        stop_for(8)
    dist.barrier()
    left.came(2)
    if ranks.rank == 0:
        until(lambda: len(told) > 1)
    left.close()
    return {"told": told, "pid_of_the_last": int(pid.item())}


def killed(fan: int) -> dict[str, Any]:
    """One rank ends without a word; the others train on."""
    training, last = Training(Ranks(fan=fan)), dist.get_world_size() - 1
    for step in range(1, 4):
        training.step(step)
    training.end()
    before = training.answer()
    dist.barrier()
    if dist.get_rank() == last:
        os.kill(os.getpid(), signal.SIGKILL)
    for step in range(4, 30):
        time.sleep(0.05)
        training.step(step)
    until(lambda: training.ranks.why_over is not None)
    training.end()
    flags = training.ranks.exchange([1])
    return training.answer() | {"before": before, "flags": flags.wait(5), "done": flags.done()}


def leaves_a_frozen_peer(fan: int) -> dict[str, Any]:
    """Every way out of a process while a peer is stopped and readings are on their way to it."""
    training = Training(Ranks(fan=fan))
    assert training.ranks.joined()
    dist.barrier()
    if dist.get_rank() == 0:
        os.kill(os.getpid(), signal.SIGSTOP)
    time.sleep(0.5)
    for step in range(1, 4):
        training.step(step)
    if dist.get_rank() == 1:
        return {}
    if dist.get_rank() == 2:
        dist.destroy_process_group()
        sys.exit(3)
    raise ValueError("as a training that fails")


class Lingers:
    """The end of an interpreter that lasts, as a large program's does: other threads run on meanwhile."""

    def __init__(self, threads_over: threading.Event) -> None:
        self._arguments = (time.sleep, os._exit, threads_over.is_set)

    def __del__(self) -> None:
        sleep, end, threads_over = self._arguments
        sleep(1)
        if not threads_over():
            end(9)


def ends_with_a_slow_thread(fan: int) -> dict[str, Any]:
    """A thread that calls torch needs a moment to end; numbers and signs are under way."""
    ranks, over = Ranks(fan=fan), threading.Event()
    Signs(ranks, lambda _: None, quiet_s=0.0, period_s=0.001)
    assert ranks.joined()
    sys.lingers = Lingers(over)  # type: ignore[attr-defined]
    ranks.begin_thread("slow", lambda: (ranks.wait_to_leave(60), time.sleep(0.5), over.set())[0])
    for _ in range(200):
        ranks.exchange([1])
    return {}


CASES: dict[str, Callable[[int], dict[str, Any]]] = {
    case.__name__: case
    for case in (
        *(
            pauses,
            split,
            no_network_on_one,
            one_hangs,
            one_never_attaches,
            one_without_value,
            drops,
            stopped,
            killed,
            many,
            signs,
        ),
        leaves_a_frozen_peer,
        ends_with_a_slow_thread,
    )
}


def train(case: str, rank: int, world: int, fan: int, port: int, at_work: tuple[int, int]) -> None:
    """Ends when every rank of the case has answered or died: whoever leaves earlier takes its connections along."""
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), GLOO_SOCKET_IFNAME="lo")
    dist.init_process_group("gloo", rank=rank, world_size=world)
    answer = CASES[case](fan)
    line = json.dumps({"case": f"{case}:{world}:{fan}", "rank": rank, **answer}) + "\n"
    os.write(1, line.encode())
    if answer:
        reads, writes = at_work
        os.close(writes)
        select.select([reads], [], [], 60)  # its end: no rank holds the other end any more
        os._exit(0)


def run(name: str) -> bool:
    """Whether this process is one of its ranks, which is to end now."""
    case, world, fan = name.split(":")[0], *map(int, name.split(":")[1:])
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    processes = {}
    at_work = os.pipe()
    for rank in range(world):
        if (pid := os.fork()) == 0:
            train(case, rank, world, fan, port, at_work)
            return True
        processes[pid] = rank
    for end in at_work:
        os.close(end)
    began = time.monotonic()
    while processes:
        pid, status = os.waitpid(-1, 0)
        rank, seconds = processes.pop(pid), time.monotonic() - began
        ended = {"case": name, "rank": rank, "exit": os.waitstatus_to_exitcode(status), "after_s": seconds}
        os.write(1, (json.dumps(ended) + "\n").encode())
        if case == "leaves_a_frozen_peer" and len(processes) == 1:
            os.kill(next(iter(processes)), signal.SIGKILL)
    return False


def main() -> None:
    torch.set_num_threads(1)
    for name in sys.argv[1:]:
        if run(name):
            return  # through the interpreter's own end


if __name__ == "__main__":
    main()
