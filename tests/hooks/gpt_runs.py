"""Runs of the reference trainer, one after the other in one process: `gpt_runs.py RUNS.json`, under torchrun.

RUNS.json is a list of {"case", "folder", "arguments", "overrides"}, the last the text of overrides.json or null. Prints
how each ended.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import torch.distributed as dist

from sentinel.vocabulary.errors import SentinelError
from tests.hooks.patient import patient
from trainer_hooks.gpt.arguments import parse
from trainer_hooks.gpt.train import Trainer


def main() -> None:
    patient()
    dist.init_process_group("gloo")
    for run in json.loads(Path(sys.argv[1]).read_text()):
        state = Path(run["folder"]) / "state"
        state.mkdir(parents=True, exist_ok=True)
        if run["overrides"] is not None:
            (state / "overrides.json").write_text(run["overrides"])
        dist.barrier()
        os.chdir(run["folder"])
        try:
            ended = Trainer(parse(run["arguments"])).train()
        except SentinelError as error:
            ended = f"{type(error).__name__}: {error}"
        if dist.get_rank() == 0:
            print(json.dumps({"case": run["case"], "ended": ended}), flush=True)
        dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
    sys.stdout.flush()
    os._exit(0)  # see trainer_hooks.gpt.__main__.leave
