"""What the metrics journal and the exporter cost the training, unscraped and in a storm of scrapes.

    python benchmarks/exporter_cost.py [--quick] [--json]

- `on the training thread`: what each step pays there: the sample's line is encoded and queued, and the collector takes
  the sample. Microseconds, the median of many short stretches.
- `step`: a small training step (an MLP with AdamW, PyTorch on one thread and on two), without an exporter, with one
  that nobody scrapes, and with one that another process scrapes ten and a thousand times a second: so many connections
  begin each second, as far as fewer than 256 wait for their answer. A step pays for its journal line in all of them but
  the first. The conditions take turns, a second or so at a time, in an order that changes; each stretch's mean step
  is set beside that of the stretch without an exporter in the same round; the median of these ratios counts, and their
  quartiles are shown.
- `own ratio`: the same, less the time that the training thread was ready to run and had no core (Linux counts it): on a
  machine that others use as well, they are most of the difference. What is left is what the exporter's thread takes by
  holding Python's lock, and what it leaves cold in the caches. With two threads PyTorch's second one is not counted.
- `1,000/s at another process`: the same storm, scraping an exporter that is not the trainer's. What that costs is the
  machine's share in it (the scraping process and the kernel need a core as well); it is the floor for the line above.
- `core`: the share of one core's time that the exporter's thread has had, by its own clock.
- `answers`: how many scrapes were answered a second. The exporter's thread takes 1 % of a core's time: who asks more
  often waits. `slowest` is the longest that one took that was answered.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import random
import selectors
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import timeit
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from sentinel.vocabulary.sample import Sample, encode
from trainer_hooks.export.exporter import Exporter, ExporterSettings
from trainer_hooks.export.journal_writer import JournalWriter, create_attempt
from trainer_hooks.export.step_collector import StepCollector

REQUEST = b"GET /metrics HTTP/1.1\r\nHost: trainer\r\nAccept: text/plain;version=0.0.4\r\nAccept-Encoding: gzip\r\n\r\n"
IN_FLIGHT = 256
ELSEWHERE = "1,000/s at another process"
RATES = {"scraped 10/s": 10, "scraped 1,000/s": 1_000, ELSEWHERE: 1_000}
CONDITIONS = ("without", "unscraped", *RATES)


def sample(step: int) -> Sample:
    """A step as a trainer reports it."""
    return Sample(
        attempt=1,
        global_step=step,
        time_unix_s=1.7e9 + step * 0.3,
        loss=2.345678901,
        loss_ratio=1.0123456,
        adam_variance_l1=1234.56789,
        adam_variance_max=0.0123456,
        grad_norm=0.87654321,
        loss_spread=0.0123,
        loss_scale=65536.0,
        lr=6e-5,
        seqlen=2048,
        lr_warmup_steps=2000,
        step_time_s=0.31234,
        tokens_per_s=671088.64,
        global_batch_samples=2048,
        consumed_samples=step * 2048,
        consumed_tokens=step * 2048 * 2048,
    )


# What a step pays


def microseconds(work: Callable[[], object], *, number: int, prepare: Callable[[], object] = lambda: None) -> float:
    """Of one call; the median of 25 stretches of `number` calls."""
    stretches = []
    for _ in range(25):
        prepare()
        stretches.append(timeit.timeit(work, number=number) / number * 1e6)
    return statistics.median(stretches)


def on_the_training_thread(folder: Path, *, quick: bool) -> dict[str, float]:
    """µs a step: encode, put, push, and all three as a step makes them."""
    number = 200 if quick else 1_000
    _, descriptor = create_attempt(folder)
    journal, collector, step = JournalWriter(descriptor), StepCollector("run", 1), sample(7)
    line = encode(step)

    def drained() -> None:
        while journal._queue.qsize():
            time.sleep(0.01)

    def pay() -> None:
        collector.push(step)
        journal.put(encode(step))

    costs = {
        "encode_us": microseconds(lambda: encode(step), number=number),
        "put_us": microseconds(lambda: journal.put(line), number=number, prepare=drained),
        "collector_us": microseconds(lambda: collector.push(step), number=number),
        "together_us": microseconds(pay, number=number, prepare=drained),
    }
    journal.close()
    return costs


# The storm


def storm() -> None:
    """A process of its own: for each `PORT RATE SECONDS` line on stdin, scrapes, and prints what came of it."""
    for line in sys.stdin:
        port, rate, seconds = line.split()
        print(json.dumps(scrape_on(int(port), float(rate), float(seconds))), flush=True)


def scrape_on(port: int, rate: float, seconds: float) -> dict[str, float]:
    """Begins `rate` scrapes a second; asked, answered, and how long an answered one took at most."""
    begun: dict[socket.socket, float] = {}
    asked = answered = 0
    slowest = 0.0
    started = time.monotonic()
    with selectors.DefaultSelector() as waiting:
        while (now := time.monotonic()) < started + seconds:
            while asked < (now - started) * rate and len(begun) < IN_FLIGHT:
                client = socket.socket()
                client.setblocking(False)
                client.connect_ex(("127.0.0.1", port))
                begun[client] = now
                waiting.register(client, selectors.EVENT_WRITE)
                asked += 1
            for key, event in waiting.select(0.001):
                client = key.fileobj
                try:
                    if event & selectors.EVENT_WRITE:
                        client.send(REQUEST)
                        waiting.modify(client, selectors.EVENT_READ)
                        continue
                    if chunk := client.recv(1 << 16):
                        answered += chunk.startswith(b"HTTP/1.1 200")
                        continue
                except OSError:
                    pass
                waiting.unregister(client)
                client.close()
                slowest = max(slowest, time.monotonic() - begun.pop(client))
    for client in begun:
        client.close()
    return {"asked_per_s": asked / seconds, "answered_per_s": answered / seconds, "slowest_s": slowest}


@dataclass
class Stormer:
    """The other process."""

    process: subprocess.Popen[str] = field(
        default_factory=lambda: subprocess.Popen(
            [sys.executable, __file__, "--storm"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
    )

    def begin(self, port: int, rate: float, seconds: float) -> None:
        print(port, rate, seconds, file=self.process.stdin, flush=True)

    def end(self) -> dict[str, float]:
        assert self.process.stdout is not None  # noqa: S101 - it is a pipe
        return dict(json.loads(self.process.stdout.readline()))

    def close(self) -> None:
        self.process.communicate(timeout=10)


def serve_elsewhere(told: Any) -> None:
    """Another process with an exporter and no training."""
    collector = StepCollector("run", 1)
    collector.push(sample(7))
    exporter = Exporter(collector, ExporterSettings())
    told.send(exporter.port)
    told.recv()
    exporter.close()


# The training


class Training:
    """A small step, as real as a millisecond can be."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.net = torch.nn.Sequential(
            torch.nn.Linear(256, 1024),
            torch.nn.GELU(),
            torch.nn.Linear(1024, 1024),
            torch.nn.GELU(),
            torch.nn.Linear(1024, 256),
        )
        self.adam = torch.optim.AdamW(self.net.parameters(), lr=1e-4)
        self.x, self.y = torch.randn(64, 256), torch.randn(64, 256)

    def step(self) -> None:
        self.adam.zero_grad(set_to_none=True)
        torch.nn.functional.mse_loss(self.net(self.x), self.y).backward()
        self.adam.step()

    def stretch(self, seconds: float, pay: Callable[[], None]) -> tuple[float, float]:
        """Trains for so long; the mean step, s, and the mean step less the time that this thread had no core.

        The mean: what a storm costs falls on a few steps, which a median would pass over.
        """
        made, begun, waited, end = 0, time.perf_counter(), without_a_core_s(), time.perf_counter() + seconds
        while time.perf_counter() < end:
            self.step()
            pay()
            made += 1
        took = time.perf_counter() - begun
        return took / made, (took - without_a_core_s() + waited) / made


def without_a_core_s() -> float:
    """How long this thread has been able to run and was not let, so far: the second number of Linux's schedstat."""
    return int(Path(f"/proc/self/task/{threading.get_native_id()}/schedstat").read_text().split()[1]) / 1e9


def steps(folder: Path, *, threads: int, rounds: int, seconds: float) -> list[dict[str, Any]]:
    """One row for each condition."""
    torch.set_num_threads(threads)
    training, stormer = Training(), Stormer()
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    elsewhere = context.Process(target=serve_elsewhere, args=(theirs,))
    elsewhere.start()
    port_elsewhere = ours.recv()
    _, descriptor = create_attempt(folder)
    journal, step = JournalWriter(descriptor), sample(7)
    took: dict[str, list[tuple[float, float]]] = {condition: [] for condition in CONDITIONS}
    came: dict[str, list[dict[str, float]]] = {condition: [] for condition in CONDITIONS}
    shares: dict[str, list[float]] = {condition: [] for condition in CONDITIONS}
    training.stretch(1.0, lambda: None)
    shuffle = random.Random(0)  # noqa: S311 - an order
    for _ in range(rounds):
        for condition in shuffle.sample(CONDITIONS, len(CONDITIONS)):
            if condition == "without":
                took[condition].append(training.stretch(seconds, lambda: None))
                continue
            collector = StepCollector("run", 1)
            exporter = Exporter(collector, ExporterSettings())

            def pay(collector: StepCollector = collector) -> None:
                collector.push(step)
                journal.put(encode(step))

            if rate := RATES.get(condition, 0):
                stormer.begin(port_elsewhere if condition == ELSEWHERE else exporter.port, rate, seconds)
            clock = time.pthread_getcpuclockid(exporter._server._thread.ident or 0)
            spent, since = time.clock_gettime(clock), time.monotonic()
            took[condition].append(training.stretch(seconds, pay))
            shares[condition].append((time.clock_gettime(clock) - spent) / (time.monotonic() - since))
            if rate:
                came[condition].append(stormer.end())
            exporter.close()
    journal.close()
    stormer.close()
    ours.send(None)
    elsewhere.join(10)
    return [
        {"threads": threads, "condition": condition, "core_share": statistics.median(shares[condition] or [0.0])}
        | row(condition, took, came[condition])
        for condition in CONDITIONS
    ]


def row(condition: str, took: dict[str, list[tuple[float, float]]], came: list[dict[str, float]]) -> dict[str, Any]:
    """One condition beside that without an exporter."""
    pairs = list(zip(took[condition], took["without"], strict=True))
    low, ratio, high = statistics.quantiles([mine[0] / floor[0] for mine, floor in pairs], n=4)
    own_low, own_ratio, own_high = statistics.quantiles([mine[1] / floor[1] for mine, floor in pairs], n=4)
    return {
        "step_ms": statistics.median(t for t, _ in took[condition]) * 1e3,
        "ratio": ratio,
        "ratio_quartiles": [low, high],
        "own_ratio": own_ratio,
        "own_ratio_quartiles": [own_low, own_high],
        "asked_per_s": statistics.median(c["asked_per_s"] for c in came) if came else 0.0,
        "answered_per_s": statistics.median(c["answered_per_s"] for c in came) if came else 0.0,
        "slowest_s": max((c["slowest_s"] for c in came), default=0.0),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a fraction of the time, and noisier")
    parser.add_argument("--json", action="store_true", help="one JSON document")
    parser.add_argument("--storm", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.storm:
        storm()
        return
    rounds, seconds = (3, 0.5) if arguments.quick else (20, 2.0)
    with tempfile.TemporaryDirectory() as folder:
        thread = on_the_training_thread(Path(folder), quick=arguments.quick)
        rows = [r for n in (1, 2) for r in steps(Path(folder), threads=n, rounds=rounds, seconds=seconds)]
    if arguments.json:
        print(json.dumps({"training_thread": thread, "rows": rows}))
        return
    print("on the training thread, µs a step")
    for name, cost in thread.items():
        print(f"  {name.removesuffix('_us'):10} {cost:6.1f}")
    print(
        f"\n{'threads, condition':36} {'ms':>7} {'ratio':23} {'own ratio':23} {'core %':>7} asked/s answers/s slowest"
    )
    for r in rows:
        line = f"{r['threads']:2}  {r['condition']:32} {r['step_ms']:7.2f} "
        for name in ("ratio", "own_ratio"):
            low, high = r[f"{name}_quartiles"]
            line += f"{r[name]:.4f} ({low:.3f} {high:.3f})  "
        line += f"{100 * r['core_share']:7.2f} {r['asked_per_s']:6.0f} {r['answered_per_s']:7.1f} {r['slowest_s']:7.2f}"
        print(line)


if __name__ == "__main__":
    main()
