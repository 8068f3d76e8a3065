"""Recoveries in place of the reference trainer on two ranks, under SIGKILL of ranks, torchrun, the watch, the command.

As `parked`, with `torchrun --nproc_per_node 2 -m trainer_hooks.gpt` (ZeRO 1): one rank, all of the trainer, torchrun
alone, the command alone, and the command together with one rank or all. A person's command begins each rollback. 40
kills, one run after the other; SIGTERM ends the campaign after the run under way.
"""

from __future__ import annotations

import os
import signal
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

from benchmarks.campaigns.parked import killed, processes
from benchmarks.campaigns.table import Row, campaign
from tests.support.killed_runs import Trainer

KILLS, SHORT_KILLS = 40, 1
LAUNCHER = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2"]
ARGUMENTS = "--zero 1 --seqlen 32 --global-batch 32 --lr 1e-3 --lr-warmup 5 --lr-decay 100000 --validation-batches 1"


def command(folder: Path) -> list[str]:
    files = {"save": "checkpoints", "state-dir": "state", "tensorboard": "tensorboard"}
    places = [word for option, name in files.items() for word in (f"--{option}", str(folder / name))]
    steps = ["--steps", "1000000", "--save-interval", "50"]
    return [sys.executable, *LAUNCHER, "-m", "trainer_hooks.gpt", *ARGUMENTS.split(), *steps, *places]


def alive(folder: Path) -> dict[int, str]:
    """The ranks and their launcher."""
    own = os.fsencode(folder / "checkpoints")
    found = {pid: words for pid, words in processes() if own in words and b"trainer_hooks.gpt" in words}
    return {pid: "launcher" if b"torch.distributed.run" in words else "rank" for pid, words in found.items()}


def end(folder: Path) -> None:
    """SIGTERM of the launcher, which hands it to the ranks."""
    for pid, what in alive(folder).items():
        if what == "launcher":
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)


TRAINER = Trainer(
    command=command,
    alive=alive,
    at_once=3,
    trained_to="global_step100",
    rollback=("rollback", "--to", "global_step50", "--yes"),
    diverges=None,
    ends=end,
    victims=("one rank", "trainer", "one launcher", "command", "command and one rank", "command and trainer"),
    load_s=3.0,
)


def rows(short: bool) -> tuple[list[Row], list[str]]:
    """Kills by whom and in the midst of what, and how the runs ended."""
    with tempfile.TemporaryDirectory(prefix="parked-ranks-") as name:
        root = Path(name).resolve()
        (root / "template" / "state").mkdir(parents=True)
        (root / "template" / "checkpoints").mkdir()
        return killed(root, TRAINER, SHORT_KILLS if short else KILLS, workers=1)


if __name__ == "__main__":
    campaign(__doc__, ("killed", "after the event", "kills"), rows)
