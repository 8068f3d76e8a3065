"""Starts the reference trainer as a user does, and reads what it left behind."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import psutil

from sentinel.adapters.journal import Journals
from sentinel.vocabulary.sample import Record, RunStarted, Sample
from tests.adapters.pagers import until
from tests.support.forked_programs import forked

SMALL = ("--seqlen", "32", "--global-batch", "4", "--lr", "1e-3", "--lr-warmup", "5", "--validation-batches", "1")


def command(folder: Path, *more: str, ranks: int = 1) -> list[str]:
    launcher = ["-m"]
    if ranks > 1:
        launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc_per_node={ranks}", "-m"]
    return [sys.executable, *launcher, "trainer_hooks.gpt", *_words(folder, more)]


def _words(folder: Path, more: Sequence[str]) -> list[str]:
    return [*SMALL, "--save", str(folder / "checkpoints"), "--state-dir", str(folder / "state"), *more]


def environment() -> dict[str, str]:
    return dict(os.environ, OMP_NUM_THREADS="1")


def train(folder: Path, *more: str, ranks: int = 1, expect: int = 0) -> subprocess.CompletedProcess[str]:
    folder.mkdir(exist_ok=True)
    ran = forked("trainer_hooks.gpt", *_words(folder, more), ranks=ranks, cwd=folder, env=environment())
    assert ran.returncode == expect, f"exit {ran.returncode}\n{ran.stdout[-1500:]}\n{ran.stderr[-3000:]}"
    return ran


def records(folder: Path) -> list[Record]:
    return Journals(folder / "state").poll()


def losses(folder: Path) -> dict[int, float]:
    """Of each step the last attempt's loss."""
    return {r.global_step: r.loss for r in records(folder) if isinstance(r, Sample)}


def starts(folder: Path) -> list[RunStarted]:
    return [r for r in records(folder) if isinstance(r, RunStarted)]


@contextmanager
def under_way(folder: Path, *more: str, ranks: int = 1) -> Iterator[subprocess.Popen[bytes]]:
    """A trainer that has made a few steps; whatever comes of it, none is left running."""
    arguments = command(folder, "--steps", "1000000", "--lr-decay", "100", *more, ranks=ranks)
    journals, steps = Journals(folder / "state"), 0

    def has_made_some() -> bool:
        nonlocal steps
        assert trainer.poll() is None, (folder / "log").read_text()[-2000:]
        steps += sum(isinstance(r, Sample) for r in journals.poll())
        return steps >= 5

    with (folder / "log").open("wb") as log:
        trainer = subprocess.Popen(arguments, cwd=folder, env=environment(), stdout=log, stderr=log)
    try:
        until(has_made_some)
        yield trainer
    finally:
        for process in psutil.Process(trainer.pid).children(recursive=True) if trainer.poll() is None else ():
            process.kill()
        trainer.kill()
        trainer.wait(60)
