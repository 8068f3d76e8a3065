"""The paper's result on one GPU: the LR doubled until the baseline diverges, then SLW at that LR."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from .cases import BASELINE, SLW, Case, Run, Task
from .reading import Curve, diverged
from .running import Runs

__all__ = ["GPT3_125M", "on", "search"]

GPT3_125M = Task(
    words=("--preset", "gpt3-125M", "--precision", "bf16"),
    seqlen=1024,
    batch=128,
    micro=16,
    steps=300,
    lr_warmup=30,
    shortest=64,
    validate_every=20,
    validation_samples=128,
    rates=(6e-4,),
)
"""12 layers, 768 wide, a vocabulary of 50304: GPT-3's smallest, at half of its length and a fifth of its batch."""

LARGEST_RATE = 6e-4 * 2**7
"""Beyond 128 times GPT-3's own LR the search gives up."""


def on(data: Path, *, seqlen: int, batch: int) -> Task:
    """The task on a token file or a text."""
    return replace(GPT3_125M, words=(*GPT3_125M.words, f"--data={data}"), seqlen=seqlen, batch=batch)


def search(
    task: Task,
    runs: Runs,
    seeds: list[int],
    say: Callable[[str], None],
    *,
    cases: Sequence[Case] = (BASELINE, SLW),
    largest: float = LARGEST_RATE,
) -> list[Run]:
    """Performs the baseline of the first seed at ever higher LRs, then all cases with all seeds at the last.

    Returns all runs that were asked for, made or not: the minutes may have ended before.
    """
    asked, rate = [], task.rates[0]
    while True:
        run = BASELINE.run(task, rate, seeds[0])
        asked.append(run)
        runs.perform([run])
        records = runs.records(run)
        if records is None:
            return asked
        if diverged([s.loss for s in Curve.of(run, records).samples]):
            break
        if rate >= largest:
            say(f"the baseline does not diverge within {task.steps} steps up to lr {rate:g}; the cases are run there")
            break
        rate *= 2
    there = [case.run(task, rate, seed) for seed in seeds for case in cases]
    runs.perform(there)
    return [*asked, *(run for run in there if run.name != asked[-1].name)]
