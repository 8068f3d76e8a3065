"""DeepSpeed's own Adams, compiled once per checkout.

torch guards a build by a file; a process that is killed while it builds leaves it there, and every later one waits for
it without end (pytorch/pytorch#189245). So the tests build into a folder of their own, one process at a time by a lock
that dies with its holder, and what is left of torch's own is taken away first.
"""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from functools import cache
from pathlib import Path

__all__ = ["BUILDERS", "EXTENSIONS", "compile_adams"]

EXTENSIONS = Path(__file__).parents[2] / ".make" / "torch_extensions"
"""TORCH_EXTENSIONS_DIR of whatever the tests start."""

_BUILD = "from deepspeed.accelerator import get_accelerator; get_accelerator().get_op_builder({!r})().load()"
BUILDERS = ("FusedAdamBuilder", "CPUAdamBuilder")


@cache
def compile_adams(builders: tuple[str, ...] = BUILDERS) -> None:
    """Returns once they are there to be loaded; each takes minutes of two processors the first time."""
    EXTENSIONS.mkdir(parents=True, exist_ok=True)
    with (EXTENSIONS / "being-built").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        for left in EXTENSIONS.glob("*/lock"):
            left.unlink(missing_ok=True)
        building = [
            subprocess.Popen(
                [sys.executable, "-c", _BUILD.format(name)],
                env=dict(os.environ, TORCH_EXTENSIONS_DIR=str(EXTENSIONS)),
            )
            for name in builders
        ]
        assert [process.wait(1000) for process in building] == [0] * len(building)
