"""Run under torchrun: trains the same few steps under every fault, and prints what each run was like.

One JSON line per case: {"case", "losses": of the training loop itself, "errors": what the hook counted, "said": its
log lines, "records": what reached the journal, "patience_s": with which rank 0 would wait at the next step}.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
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

from tests.adapters.pagers import until
from tests.hooks.patient import PATIENT_S, patient
from trainer_hooks import ExporterSettings, attach
from trainer_hooks.gpt.__main__ import leave
from trainer_hooks.gpt.train import leave_out_unused_ops
from trainer_hooks.hook import Hook
from trainer_hooks.ranks import Ranks
from trainer_hooks.sample.meter import Meter

STEPS = 6
TWICE = "attached twice"
AGAIN = "attached again after the end"
LATE = "a rank is late with one step's collectives"
LATE_AT_THE_END = "a rank stands still at the last step"
NEVER_COME = (
    "a rank leaves one step's collectives out",
    "a rank takes part no more",
    "collectives fail on one rank",
)
"""Here readings never come together, and are waited for in vain."""


class Unreadable:
    """Stands in for a state that is not what it should be."""


def spoil_state(hook: Hook, engine: Any) -> None:
    """Between the updates exp_avg_sq is no tensor."""
    inner = getattr(engine.optimizer, "optimizer", engine.optimizer)
    step = inner.step

    def step_and_spoil(*args: Any, **kwargs: Any) -> Any:
        for state in inner.state.values():
            state["exp_avg_sq"] = state.pop("hidden", state.get("exp_avg_sq"))
        answer = step(*args, **kwargs)
        for state in inner.state.values():
            state["hidden"], state["exp_avg_sq"] = state["exp_avg_sq"], Unreadable()
        return answer

    inner.step = step_and_spoil


def no_loss_on_the_last_rank(hook: Hook, engine: Any) -> None:
    if dist.get_rank() == dist.get_world_size() - 1:
        hide_the_loss(hook, engine)


def fill_the_disk(hook: Hook, engine: Any) -> None:
    if hook._reports.outputs is not None:
        full = os.open("/dev/full", os.O_WRONLY)
        os.dup2(full, hook._reports.outputs.journal._descriptor)
        os.close(full)


def hang_the_disk(hook: Hook, engine: Any) -> None:
    """A pipe that nobody reads, already full: every write waits for ever, as on a hung Lustre."""
    if hook._reports.outputs is not None:
        reader, writer = os.pipe()
        os.set_blocking(writer, False)
        try:
            while True:
                os.write(writer, b"x" * 4096)
        except BlockingIOError:
            os.set_blocking(writer, True)
        os.dup2(writer, hook._reports.outputs.journal._descriptor)
        hook.kept_open = reader  # type: ignore[attr-defined]


def remove_the_state(hook: Hook, engine: Any) -> None:
    """As a person who cleans up; the writer looks after its file at once, and not after ten seconds."""
    if hook._reports.outputs is not None:
        hook._reports.outputs.journal._looks_s = 0.0
        folder = hook._reports.outputs.journal._path.parent.parent
        until(lambda: shutil.rmtree(folder, ignore_errors=True) or not folder.exists())  # heartbeats are written there


def break_the_exporter(hook: Hook, engine: Any) -> None:
    """Its thread gets an error in the place where it waits."""
    if hook._reports.outputs is not None:
        hook._reports.outputs.exporter._server._listening.shutdown(socket.SHUT_RDWR)
        until(lambda: hook.errors)


def hide_the_loss(hook: Hook, engine: Any) -> None:
    """As with an engine that is not told its loss."""
    hook.loss_seen = lambda *_, **__: None  # type: ignore[method-assign]


def no_gradient_norm(hook: Hook, engine: Any) -> None:
    hook.gradients_whole = lambda: None  # type: ignore[method-assign]
    engine.get_global_grad_norm = lambda: 1 / 0


def nan_batch(hook: Hook, engine: Any) -> None:
    with torch.no_grad():
        next(engine.module.parameters()).view(-1)[0] = float("nan")


def on_the_last_rank() -> bool:
    return dist.get_rank() == dist.get_world_size() - 1


def refuse_collectives(hook: Hook, engine: Any) -> None:
    """One rank never takes part again: the others are left in theirs."""
    if on_the_last_rank():
        hook.ranks.submit = lambda _: 1 / 0  # type: ignore[method-assign,assignment]


def before_step(hook: Hook, number: int, what: Callable[[Callable[[], None]], None]) -> None:
    """`what` gets the call that would hand the step over to the ranks' thread; `number` counts from 0."""
    submit, calls = hook.ranks.submit, iter(range(1000))

    def hand_over(task: Any) -> None:
        what(lambda: submit(task)) if next(calls) == number else submit(task)

    if on_the_last_rank():
        hook.ranks.submit = hand_over  # type: ignore[method-assign]


def miss_one_step(hook: Hook, engine: Any) -> None:
    """One rank leaves one step out, so that from then on its readings meet those of other steps."""
    before_step(hook, 2, lambda _: None)


class Pause:
    def run(self, _: Any) -> None:
        time.sleep(1.5)

    def give_up(self) -> None:
        raise AssertionError


def late_with_one_step(hook: Hook, engine: Any) -> None:
    """One rank's thread stands still once, for longer than a step's patience."""
    submit = hook.ranks.submit

    def after_a_pause(hand_over: Callable[[], None]) -> None:
        submit(Pause())
        hand_over()

    before_step(hook, 2, after_a_pause)


def stand_still_at_the_end(hook: Hook, engine: Any) -> None:
    """For longer than a step's patience, and a second one's."""

    def late(hand_over: Callable[[], None]) -> None:
        time.sleep(4.0)
        hand_over()

    before_step(hook, STEPS - 1, late)


def lose_a_collective(hook: Hook, engine: Any) -> None:
    """gloo's own call fails on one rank."""
    assert hook.ranks.joined()
    if on_the_last_rank():

        def failing(*_: Any, **__: Any) -> Any:
            raise RuntimeError("the network is gone")

        hook.ranks._levels.top_of = failing  # type: ignore[method-assign]


def state_of_another_shape(hook: Hook, engine: Any) -> None:
    """exp_avg_sq that does not fit its parameter any more."""
    inner = getattr(engine.optimizer, "optimizer", engine.optimizer)
    step = inner.step

    def step_and_cut(*args: Any, **kwargs: Any) -> Any:
        for state in inner.state.values():
            if "whole" in state:
                state["exp_avg_sq"] = state.pop("whole")
        answer = step(*args, **kwargs)
        for state in inner.state.values():
            state["whole"], state["exp_avg_sq"] = state["exp_avg_sq"], state["exp_avg_sq"].flatten()[:3]
        return answer

    inner.step = step_and_cut


def no_state(hook: Hook, engine: Any) -> None:
    """An optimizer that is no Adam."""
    inner = getattr(engine.optimizer, "optimizer", engine.optimizer)
    step = inner.step

    def step_and_hide(*args: Any, **kwargs: Any) -> Any:
        for state in inner.state.values():
            state["exp_avg_sq"] = state.pop("hidden", state.get("exp_avg_sq"))
        answer = step(*args, **kwargs)
        for state in inner.state.values():
            state["hidden"] = state.pop("exp_avg_sq")
        return answer

    inner.step = step_and_hide


def logits_raise(hook: Hook, engine: Any) -> None:
    engine.module.register_forward_pre_hook(lambda *_: hook.report_logits(output=lambda: 1 / 0))


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
        ("certificate missing", {"exporter": ExporterSettings(certificate="/no/such.pem")}, nothing),
        ("password missing", {"exporter": ExporterSettings(user="p", password_file=folder / "none")}, nothing),
        ("exporter settings are none", {"exporter": "9400"}, nothing),
        ("exporter's thread dies", {}, break_the_exporter),
        ("state folder removed", {}, remove_the_state),
        ("Adam's state unreadable", {}, spoil_state),
        ("loss not seen on one rank", {}, no_loss_on_the_last_rank),
        ("loss not seen", {}, hide_the_loss),
        ("no gradient norm", {}, no_gradient_norm),
        ("logits can't be read", {"interval_steps": 1}, logits_raise),
        ("nan in the weights", {}, nan_batch),
        ("Adam's state of another shape", {}, state_of_another_shape),
        ("no Adam's state", {}, no_state),
        (TWICE, {"announce": "a-node"}, nothing),
        (AGAIN, {"interval_steps": 1}, nothing),
        (NEVER_COME[0], {}, miss_one_step),
        (LATE, {}, late_with_one_step),
        (LATE_AT_THE_END, {}, stand_still_at_the_end),
        (NEVER_COME[1], {}, refuse_collectives),
        (NEVER_COME[2], {}, lose_a_collective),
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
    patient(1.0 if name in (*NEVER_COME, LATE, LATE_AT_THE_END) else PATIENT_S)
    if name in (*NEVER_COME, LATE, LATE_AT_THE_END):  # groups of its own, which are not to be used afterwards
        arguments = arguments | {"ranks": Ranks()}
    hook = attach(engine, **({"state_dir": state_dir} | arguments))
    spoil(hook, engine)
    first, made = hook, [0]
    if name == AGAIN:
        hook.close("finished")
        hook = attach(engine, state_dir=state_dir / "again", interval_steps=1)
        begun = Meter.measure
        Meter.measure = lambda *a, **k: made.append(1) or begun(*a, **k)  # type: ignore[method-assign]
    if name == TWICE:
        again = attach(engine, state_dir=state_dir)
        assert again is hook
    losses = []
    for step in range(STEPS):
        generator = torch.Generator().manual_seed(100 * step + dist.get_rank())
        x, y = torch.randn(4, 7, generator=generator), torch.randn(4, 5, generator=generator)
        loss = nn.functional.mse_loss(engine(x), y)
        losses.append(str(loss.item()))
        engine.backward(loss)
        engine.step()
    patience_s = hook._readings.arrivals.patience_s if hook._readings.arrivals is not None else None
    if name == AGAIN:
        Meter.measure = begun  # type: ignore[method-assign]
        assert first.latest is None
        assert sum(made) == STEPS
        state_dir = state_dir / "again"
    scrape = state_dir / "scrape.json"
    announced = json.loads(scrape.read_text() or "[]") if scrape.is_file() else []
    patient(1.0, last_s=1.0 if name in NEVER_COME else PATIENT_S)
    hook.close("finished")
    logging.getLogger("trainer_hooks").removeHandler(handler)
    journal = state_dir / "attempts" / "0001.jsonl"
    lines = journal.read_text().splitlines() if journal.exists() else []
    return {
        "case": name,
        "losses": losses,
        "errors": hook.errors,
        "lost": hook._reports.outputs.lost if hook._reports.outputs else 0,
        "said": said,
        "records": [json.loads(line) for line in lines],
        "patience_s": patience_s,
        "announced": [target for each in announced for target in each["targets"]],
        "attempts": sorted(path.name for path in journal.parent.glob("*")),
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
