"""Run under torchrun: trains the same few steps under every fault, and prints what each run was like.

One JSON line per case: {"case", "losses": of the training loop itself, "errors": what the hook counted, "said": its
log lines, "records": what reached the journal, "seconds": for the steps}.
"""

from __future__ import annotations

import json
import logging
import os
import socket
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import deepspeed
import torch
import torch.distributed as dist
from torch import nn

from trainer_hooks import attach
from trainer_hooks.gpt.__main__ import leave
from trainer_hooks.gpt.train import leave_out_unused_ops
from trainer_hooks.hook import Hook

STEPS = 6


class Unreadable:
    """Stands in for a state that is not what it should be."""

    def detach(self) -> Any:
        raise RuntimeError("this part of Adam's state can't be read")


def spoil_state(hook: Hook, engine: Any) -> None:
    inner = getattr(engine.optimizer, "optimizer", engine.optimizer)
    inner.state[torch.nn.Parameter(torch.zeros(1))] = {"exp_avg_sq": Unreadable()}


def spoil_state_of_the_last_rank(hook: Hook, engine: Any) -> None:
    if dist.get_rank() == dist.get_world_size() - 1:
        spoil_state(hook, engine)


def fill_the_disk(hook: Hook, engine: Any) -> None:
    if hook._journal is not None:
        full = os.open("/dev/full", os.O_WRONLY)
        os.dup2(full, hook._journal._descriptor)
        os.close(full)


def hang_the_disk(hook: Hook, engine: Any) -> None:
    """A pipe that nobody reads, already full: every write waits for ever, as on a hung Lustre."""
    if hook._journal is not None:
        reader, writer = os.pipe()
        os.set_blocking(writer, False)
        try:
            while True:
                os.write(writer, b"x" * 4096)
        except BlockingIOError:
            os.set_blocking(writer, True)
        os.dup2(writer, hook._journal._descriptor)
        hook.kept_open = reader  # type: ignore[attr-defined]


def hide_the_loss(hook: Hook, engine: Any) -> None:
    """As with an engine that is not told its loss."""
    backward = engine.backward
    engine.backward = lambda loss: (backward(loss), hook._micro_losses.clear())


def no_gradient_norm(hook: Hook, engine: Any) -> None:
    hook._before_step = lambda: None  # type: ignore[method-assign]
    engine.get_global_grad_norm = lambda: 1 / 0


def nan_batch(hook: Hook, engine: Any) -> None:
    with torch.no_grad():
        next(engine.module.parameters()).view(-1)[0] = float("nan")


def nothing(hook: Hook, engine: Any) -> None:
    return


def raising() -> Any:
    raise RuntimeError("position does not know")


Case = tuple[str, dict[str, Any], Callable[[Hook, Any], None]]


def cases(folder: Path) -> list[Case]:
    a_file = folder / "a-file"
    taken = socket.create_server(("127.0.0.1", 0))
    cases.kept_open = taken  # type: ignore[attr-defined]
    return [
        ("nothing wrong", {}, nothing),
        ("state folder is a file", {"state_dir": a_file}, nothing),
        ("state folder can't be made", {"state_dir": "/proc/no/such"}, nothing),
        ("disk full", {}, fill_the_disk),
        ("disk hangs", {}, hang_the_disk),
        ("position raises", {"position": raising}, nothing),
        ("position is no Position", {"position": lambda: {"seqlen": 8}}, nothing),
        ("port taken", {"port": taken.getsockname()[1]}, nothing),
        ("address of another machine", {"address": "203.0.113.1"}, nothing),
        ("Adam's state unreadable", {}, spoil_state),
        ("Adam's state unreadable on one rank", {}, spoil_state_of_the_last_rank),
        ("loss not seen", {}, hide_the_loss),
        ("no gradient norm", {}, no_gradient_norm),
        ("nan in the weights", {}, nan_batch),
    ]


def run_case(name: str, arguments: dict[str, Any], spoil: Callable[[Hook, Any], None], folder: Path) -> dict[str, Any]:
    torch.manual_seed(1)
    net = nn.Sequential(nn.Linear(7, 13), nn.Tanh(), nn.Linear(13, 5))
    world = dist.get_world_size()
    config = {
        "train_batch_size": 4 * world,
        "steps_per_print": 10**9,
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-2, "torch_adam": True}},
    }
    engine, *_ = deepspeed.initialize(model=net, model_parameters=net.parameters(), config=config)
    said: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: said.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("trainer_hooks").addHandler(handler)
    state_dir = folder / name.replace(" ", "-")
    hook = attach(engine, **({"state_dir": state_dir} | arguments))
    spoil(hook, engine)
    losses = []
    started = time.monotonic()
    for step in range(STEPS):
        generator = torch.Generator().manual_seed(100 * step + dist.get_rank())
        x, y = torch.randn(4, 7, generator=generator), torch.randn(4, 5, generator=generator)
        loss = nn.functional.mse_loss(engine(x), y)
        losses.append(str(loss.item()))
        engine.backward(loss)
        engine.step()
    seconds = time.monotonic() - started
    hook.close("finished")
    logging.getLogger("trainer_hooks").removeHandler(handler)
    journal = state_dir / "attempts" / "0001.jsonl"
    lines = journal.read_text().splitlines() if journal.exists() else []
    return {
        "case": name,
        "losses": losses,
        "errors": hook.errors,
        "lost": hook._lost(),
        "said": said,
        "records": [json.loads(line) for line in lines],
        "seconds": seconds,
    }


def main() -> None:
    dist.init_process_group("gloo")
    leave_out_unused_ops()
    folder: list[Any] = [tempfile.mkdtemp() if dist.get_rank() == 0 else None]
    dist.broadcast_object_list(folder)
    Path(folder[0], "a-file").write_text("")
    for case in cases(Path(folder[0])):
        answer = run_case(*case, Path(folder[0]))
        dist.barrier()
        if dist.get_rank() == 0:
            print(json.dumps(answer), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
    leave(0)
