"""Runs of the reference trainer, one after the other: reads each as a line of JSON, trains it, says how it ended.

A line is {"arguments": [...]}, the answer {"ended": "finished"}. One process saves the imports, which take as long as a
small run.
"""

from __future__ import annotations

import json
import os
import sys

import torch
import torch.distributed as dist

from sentinel.vocabulary.errors import SentinelError
from trainer_hooks.gpt.__main__ import be_a_launcher
from trainer_hooks.gpt.arguments import parse
from trainer_hooks.gpt.train import Trainer


def main() -> None:
    be_a_launcher()
    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    print(json.dumps({"ended": "ready"}), flush=True)
    for line in sys.stdin:
        try:
            ended = Trainer(parse(json.loads(line)["arguments"])).train()
        except SentinelError as error:
            ended = f"{type(error).__name__}: {error}"
        print(json.dumps({"ended": ended}), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
    sys.stdout.flush()
    os._exit(0)  # see trainer_hooks.gpt.__main__.leave
