"""`sentinel sbatch-watch`: the watch as a Slurm job of its own."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer

from sentinel.adapters.slurm import SlurmClient
from sentinel.cli.shared import RUNS, ConfigDir, Observe, Run, echo
from sentinel.config.run_files import config_path, find_config, state_dir_of
from sentinel.durable import write_atomically

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


def sbatch_watch(
    run: Run = None,
    config_dir: ConfigDir = RUNS,
    observe: Observe = False,
    cpus: Annotated[
        int,
        typer.Option(
            min=1, help="Cores of the job. A watch needs a part of one; verifying a checkpoint uses them all."
        ),
    ] = 4,
    sbatch: Annotated[list[str] | None, typer.Option(help="A further option of sbatch; may be repeated.")] = None,
) -> int:
    """Writes the script into the state folder."""
    path = str(config_path(run, config_dir).resolve())
    config = find_config(path, config_dir)
    state_dir = state_dir_of(config)
    state_dir.mkdir(parents=True, exist_ok=True)
    words = [sys.executable, "-m", "sentinel", "watch", "--run", path, *(["--observe"] if observe else [])]
    script = state_dir / "watch.sh"
    write_atomically(script, _SCRIPT.format(command=shlex.join(words)))
    options = [
        f"--job-name=sentinel-{config.run.name}",
        "--dependency=singleton",
        "--ntasks=1",
        f"--cpus-per-task={cpus}",
        "--requeue",
        "--open-mode=append",
        "--signal=B:USR1@120",
        f"--chdir={Path.cwd()}",
        f"--output={state_dir / 'watch.log'}",
        *(sbatch or ()),
    ]
    client = SlurmClient(user=config.launcher.user, timeout_s=config.launcher.slurm_timeout_s)
    client.test(options, script, ())
    job = client.submit(options, script, (), {})
    echo(f"submitted job {job}: it watches {config.run.name}; log: {state_dir / 'watch.log'}")
    return 0
