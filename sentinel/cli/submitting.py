"""`sentinel sbatch-watch`: the watch as a Slurm job of its own, beside the run's."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

import typer

from sentinel.adapters.slurm import SlurmClient
from sentinel.config import Config
from sentinel.daemon import wiring
from sentinel.durable import write_atomically

__all__ = ["sbatch_watch"]

_SCRIPT = """\
#!/bin/bash
# Written by `sentinel sbatch-watch`. Slurm sends USR1 two minutes before the time is up: the watch ends after its turn,
# and the job goes back in the queue. (Not TERM, which is also what scancel sends.)
requeue() {{
    kill -TERM "$watch"
    wait "$watch"
    scontrol requeue "$SLURM_JOB_ID"
}}
trap requeue USR1
{command} &
watch=$!
wait "$watch"
"""


def sbatch_watch(config: Config, path: str, arguments: list[str], *, observe: bool) -> int:
    """Writes the script into the state folder and submits it. `path` names the run's configuration for it."""
    state_dir = wiring.state_dir_of(config)
    state_dir.mkdir(parents=True, exist_ok=True)
    words = [sys.executable, "-m", "sentinel", "watch", "--run", path, *(["--observe"] if observe else [])]
    script = state_dir / "watch.sh"
    write_atomically(script, _SCRIPT.format(command=shlex.join(words)))
    options = [
        f"--job-name=sentinel-{config.run.name}",
        "--dependency=singleton",
        "--ntasks=1",
        "--requeue",
        "--open-mode=append",
        "--signal=B:USR1@120",
        f"--chdir={Path.cwd()}",
        f"--output={state_dir / 'watch.log'}",
        *arguments,
    ]
    client = SlurmClient(user=config.launcher.user, timeout_s=config.launcher.slurm_timeout_s)
    client.test(options, script, ())
    job = client.submit(options, script, (), {})
    typer.echo(f"submitted job {job}: it watches {config.run.name}; its log is {state_dir / 'watch.log'}")
    return 0
