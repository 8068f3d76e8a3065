"""`python -m trainer_hooks.gpt`: one process needs no launcher; torchrun and deepspeed work too."""
# ruff: noqa: T201 - a trainer's log is what it prints

from __future__ import annotations

import os
import socket
import sys
from typing import NoReturn

from sentinel.vocabulary.errors import CheckpointError, ConfigError
from sentinel.vocabulary.parking import EXIT_PARKED_TOO_LONG, PARKED_TOO_LONG
from trainer_hooks.gpt.arguments import parse


def main() -> int:
    """Exit codes: 0 the run ended (or --stop-exit-code when it was asked to), 2 wrong arguments, data or overrides, 75
    it was parked, and neither RESUME nor RELEASE came, or a rank was lost: to be started again."""
    settings = parse()
    be_a_launcher()
    import torch
    import torch.distributed as dist

    from trainer_hooks.control.parking import ParkLostError
    from trainer_hooks.gpt.process import Process
    from trainer_hooks.gpt.train import run

    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    process = Process()
    try:
        reason = run(settings, process)
        if not process.ended_parked:
            dist.barrier()  # no rank tears its connections down while another still talks
    except (ConfigError, CheckpointError) as error:
        print(f"trainer: {error}", file=sys.stderr)
        return 2
    except ParkLostError as error:
        print(f"trainer: {error}", file=sys.stderr)
        return EXIT_PARKED_TOO_LONG
    finally:
        dist.destroy_process_group()
    if reason == PARKED_TOO_LONG:
        print("trainer: parked too long: neither RESUME nor RELEASE came before the deadline of PARK", file=sys.stderr)
        return EXIT_PARKED_TOO_LONG
    return 0 if reason == "finished" else int(settings.stop_exit_code)


def be_a_launcher() -> None:
    """Sets for a single process what a launcher would have set; without it DeepSpeed asks for mpi4py."""
    if "RANK" in os.environ:
        return
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    alone = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    os.environ.update(alone)


def leave(code: int) -> NoReturn:
    """Ends the process without Python's own teardown; everything is written and closed by now. A thread of gloo frees
    the last collective's tensors when it gets to it; if Python is being torn down by then, the process aborts (seen
    about once in fifty exits on a busy machine), and a run that ended well looks like a crash."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    leave(main())
