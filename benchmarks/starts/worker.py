"""Under torchrun: the trainings of a plan, one after the other: `python -m benchmarks.starts.worker PLAN`

PLAN is a list of what `cases.Job.prepared` gave. Prints one JSON line for each that has ended.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import shutil
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from deepspeed.accelerator import get_accelerator

from benchmarks.starts.state_faults import average_with, spoil
from trainer_hooks.control.start import Start
from trainer_hooks.gpt import checkpoint, train
from trainer_hooks.gpt.arguments import parse
from trainer_hooks.gpt.data import Corpus
from trainer_hooks.gpt.order import DataOrder
from trainer_hooks.sample import arrivals

OTHER_DECAY = "decay of the weights in the gradient"  # a checkpoint holds the groups' options: made at its load


class Displaced:
    """An LR schedule that stands elsewhere than where it says."""

    def __init__(self, lr: Any, place: Callable[[int], int]) -> None:
        self._lr, self._place = lr, place

    def __getattr__(self, name: str) -> Any:
        return getattr(self._lr, name)

    def lr(self, *, step: int, **position: int) -> float:
        return float(self._lr.lr(step=self._place(step), **position))


class Trainer(train.Trainer):
    """Ours, with one fault at the resume."""

    def __init__(self, job: dict[str, Any]) -> None:
        self.fault, at, amount = job["design"], job["at"], job["amount"]
        with _patched(self.fault, at):
            super().__init__(parse(self._arguments(job)))
        match self.fault:
            case "scheduler lost":
                self._displace(lambda step: step - at)
            case "scheduler stepped twice":
                self._displace(lambda step: 2 * step - at)
            case "data from epoch start":
                self._feed_from(-self.progress.consumed_samples)
            case "samples skipped":
                self._feed_from(amount * self.settings.global_batch)
            case "samples replayed":
                self._feed_from(-amount * self.settings.global_batch)
            case "data order of another seed":
                self.data.order = DataOrder(self.corpus.training_samples, self.settings.seed + 1000)
            case "loss scale reset":
                self.engine.optimizer.loss_scale = 2.0**10
            case "half a batch skipped":
                self._feed_from(self.settings.global_batch // 2)
            case "other dropout masks":
                torch.manual_seed(12345)
            case str():
                self._spoil(Path(job["folder"]) / "checkpoints", at)

    def _spoil(self, saves: Path, at: int) -> None:
        match self.fault:
            case "text in lower case":
                self.corpus = self.data._corpus = _in_lower_case(self.corpus)
            case "average of the weights in their place":
                average_with(self.engine, _weights_of(saves / f"global_step{at // 2}"))
            case str():
                spoil(self.engine, self.fault)

    @staticmethod
    def _arguments(job: dict[str, Any]) -> list[str]:
        folder = Path(job["folder"])
        return [*job["arguments"], "--save", str(folder / "checkpoints"), "--state-dir", str(folder / "state")]

    def _displace(self, place: Callable[[int], int]) -> None:
        lr: Any = Displaced(self.schedules.lr, place)
        self.schedules = replace(self.schedules, lr=lr)

    def _feed_from(self, shift: int) -> None:
        take = self.data.order.take

        def displaced(position: int, count: int, step: int | None = None) -> Any:
            taken, end = take(position + shift, count, step)
            return taken, end - shift

        self.data.order.take = displaced  # type: ignore[method-assign]


@contextlib.contextmanager
def _patched(fault: str | None, at: int) -> Any:
    """Around the start of a trainer."""
    load, start = checkpoint.load, train.agreed_start
    if fault == "optimizer state not loaded":
        checkpoint.load = _without_optimizer  # type: ignore[assignment]
    if fault == "wrong checkpoint":
        checkpoint.load = lambda engine, folder, *_: _older(engine, folder, at)
    if fault == OTHER_DECAY:
        checkpoint.load = _then_spoiled(load)
    if fault == "override ignored":
        train.agreed_start = lambda folder: _ignored(start(folder))  # type: ignore[attr-defined]
    try:
        yield
    finally:
        checkpoint.load, train.agreed_start = load, start  # type: ignore[attr-defined]


def _then_spoiled(load: Any) -> Any:
    def loaded(engine: Any, *arguments: Any) -> Any:
        found = load(engine, *arguments)
        spoil(engine, OTHER_DECAY)
        return found

    return loaded


def _without_optimizer(engine: Any, folder: Path, *_: Any) -> Any:
    tag = (folder / "latest").read_text().strip()
    _, state = engine.load_checkpoint(str(folder), tag=tag, load_optimizer_states=False)
    return checkpoint.progress_of(state), state["rng"]


def _older(engine: Any, folder: Path, at: int) -> Any:
    """The counters of the right checkpoint, the weights and moments of the one before."""
    tag, counters = f"global_step{at}", ("global_steps", "global_samples", "skipped_steps", "micro_steps")
    _, state = engine.load_checkpoint(str(folder), tag=tag)
    kept = {name: getattr(engine, name) for name in counters}
    engine.load_checkpoint(str(folder), tag=f"global_step{at // 2}")
    for name, value in kept.items():
        setattr(engine, name, value)
    return checkpoint.progress_of(state), state["rng"]


def _weights_of(save: Path) -> Any:
    """The model's, by their names, as stages 0, 1 and 2 of ZeRO save them."""
    return torch.load(save / "mp_rank_00_model_states.pt", weights_only=False)["module"]


def _in_lower_case(corpus: Corpus) -> Corpus:
    """As a tokenizer that lowers its text makes it: of as many tokens, so that each sample is where it was."""
    text = corpus.tokens
    capital = (text >= ord("A")) & (text <= ord("Z"))
    return replace(corpus, tokens=np.where(capital, text + (ord("a") - ord("A")), text))


def _ignored(start: Start) -> Start:
    overrides = start.overrides
    if overrides is None:
        return start
    return replace(start, overrides=replace(overrides, standing=replace(overrides.standing, lr=None)))


def _files_for(job: dict[str, Any]) -> None:
    """Faults of the files themselves; on rank 0."""
    folder = Path(job["folder"]) / "checkpoints"
    if job["design"] == "started from scratch":
        (folder / "latest").unlink(missing_ok=True)
    for shard in (folder / f"global_step{job['at']}").glob("*pp_rank_1_*optim_states.pt"):
        of_rank_0 = shard.with_name(shard.name.replace("pp_rank_1_", "pp_rank_0_"))
        match job["design"]:
            case "wrong shard of one rank":
                shutil.copyfile(of_rank_0, shard)
            case "two ranks' shards exchanged":
                of_rank_0.rename(kept := shard.with_suffix(".kept"))
                shard.rename(of_rank_0)
                kept.rename(shard)
            case "older shard of one rank":
                shutil.copyfile(folder / f"global_step{job['at'] // 2}" / shard.name, shard)


def _train(job: dict[str, Any]) -> str:
    if job["trainer"] == "HF":
        from benchmarks.starts.huggingface import train_llama

        return train_llama(job)
    return str(Trainer(job).train())


def main() -> None:
    arrivals.PATIENCE_S = arrivals.LAST_PATIENCE_S = 100.0
    type(get_accelerator()).is_fp16_supported = lambda _: True  # type: ignore[method-assign]  # slowly, on a CPU
    dist.init_process_group("gloo")
    for job in json.loads(Path(sys.argv[1]).read_text()):
        Path(job["folder"]).mkdir(parents=True, exist_ok=True)
        if dist.get_rank() == 0 and job["begun"]:
            _files_for(job)
        dist.barrier()
        try:
            with contextlib.redirect_stdout(io.StringIO()):
                ended = _train(job)
        except Exception as error:  # noqa: BLE001 - it is one result
            ended = f"{type(error).__name__}: {error}"[:300]
        if dist.get_rank() == 0:
            print(json.dumps({"case": job["case"], "ended": ended}), flush=True)
        dist.barrier()


if __name__ == "__main__":
    main()
    sys.stdout.flush()
    os._exit(0)  # see trainer_hooks.gpt.__main__.leave
