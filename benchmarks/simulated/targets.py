"""A process that is many trainers' /metrics: /run-0007 shows the step that this run is at, once a second another.

    python -m benchmarks.simulated.targets PLAN

The plan is JSON, as the journals'; `port` is where it listens, on 127.0.0.1. What is shown is what the hook's exporter
shows of such a step, but for the window's maxima, of which only the loss's is more than the present reading.
"""

from __future__ import annotations

import asyncio
import json
import math
import sys
import time
from functools import lru_cache
from pathlib import Path
from typing import Any

from prometheus_client import CollectorRegistry, generate_latest

from benchmarks.simulated.runs import FIRST_STEP, SimulatedRun
from sentinel.vocabulary.metrics import COUNTERS, SAMPLE_METRICS, WINDOW
from sentinel.vocabulary.sample import Sample
from trainer_hooks.export.step_collector import StepCollector

__all__ = ["main"]

_WINDOW_S = 120
_NAMED = "the-run"


def _shape(sample: Sample) -> list[tuple[str, str]]:
    """The exporter's own text of a step: each line up to its value, and the metric that it is of."""
    registry, collector = CollectorRegistry(), StepCollector(_NAMED, sample.attempt)
    collector.push(sample)
    registry.register(collector)
    lines = generate_latest(registry).decode().splitlines()
    return [(line, "") if line[0] == "#" else (line.rsplit(" ", 1)[0], line.split("{")[0]) for line in lines]


class Exposed:
    """The text of each run at each step."""

    def __init__(self) -> None:
        self._shape = _shape(SimulatedRun(number=0, diverges_at=None).sample(FIRST_STEP, 0.0))
        self._healthy = lru_cache(maxsize=64)(self._text)

    def text(self, run: SimulatedRun, step: int) -> str:
        """At a step; made once for the healthy runs on one curve."""
        if run.diverges_at is None or step < run.diverges_at:
            return self._healthy(SimulatedRun(number=run.curve, diverges_at=None), step).replace(_NAMED, run.name)
        return self._text(run, step).replace(_NAMED, run.name)

    def _text(self, run: SimulatedRun, step: int) -> str:
        sample, past = run.sample(step, 0.0), range(max(FIRST_STEP, step - _WINDOW_S), step + 1)
        window = [run.sample(one, 0.0).loss for one in (past if run.is_ill(step) else past[-3:])]
        shown: dict[str, float] = {WINDOW.name: _WINDOW_S}
        for metric in SAMPLE_METRICS:
            if (reading := getattr(sample, metric.field)) is not None:
                shown[metric.name] = float(reading)
                shown[metric.maximum_name] = math.inf if math.isnan(reading) else float(reading)
                if metric.field == "loss":
                    shown[metric.maximum_name] = max(math.inf if math.isnan(loss) else loss for loss in window)
        ill = 0 if run.diverges_at is None else max(0, step - run.diverges_at + 1)
        counts = (step - FIRST_STEP + 1, ill, ill if run.ends_in_nan else 0, 0)
        shown |= {counter.name: count for counter, count in zip(COUNTERS, counts, strict=True)}
        values = (line + (f" {_number(shown.get(name, 0.0))}" if name else "") for line, name in self._shape)
        return "\n".join(values) + "\n"


def _number(value: float) -> str:
    return "NaN" if math.isnan(value) else "+Inf" if value == math.inf else repr(float(value))


class _Connection(asyncio.Protocol):
    def __init__(self, runs: dict[str, SimulatedRun], exposed: Exposed, begin_unix_s: float) -> None:
        self._runs, self._exposed, self._begin = runs, exposed, begin_unix_s
        self._asked = b""

    def connection_made(self, transport: Any) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._asked += data
        while b"\r\n\r\n" in self._asked:
            head, self._asked = self._asked.split(b"\r\n\r\n", 1)
            run = self._runs[head.split(b" ", 2)[1].decode().lstrip("/")]
            offset = run.number / len(self._runs)  # a run's step ends when its journal's line would be written
            step = FIRST_STEP + int(time.time() - self._begin - offset)
            body = self._exposed.text(run, step).encode()
            kind = b"text/plain; version=0.0.4; charset=utf-8"
            said = b"HTTP/1.1 200 OK\r\nContent-Type: %b\r\nContent-Length: %d\r\n\r\n%b"
            self._transport.write(said % (kind, len(body), body))


async def _serve(plan: dict[str, Any]) -> None:
    runs = {run.name: run for run in (SimulatedRun(**run) for run in plan["runs"])}
    exposed, loop = Exposed(), asyncio.get_running_loop()
    server = await loop.create_server(
        lambda: _Connection(runs, exposed, plan["begin_unix_s"]), "127.0.0.1", plan["port"], backlog=4096
    )
    print("ready", flush=True)
    async with server:
        await asyncio.sleep(max(0.0, plan["until_unix_s"] - time.time()))


def main() -> None:
    """Serves until it is over."""
    asyncio.run(_serve(json.loads(Path(sys.argv[1]).read_text())))


if __name__ == "__main__":
    main()
