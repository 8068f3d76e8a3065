"""A small training loop whose loader does at a resume what a reported bug does. Rebuilt, and said to be: the loop is
ours; the loaders are the libraries' own where they are installed at the versions with the bug, else stand-ins.

What is trained is one layer, by torch; the journal is written as the hook writes it, with the digests of its batches.
"""

from __future__ import annotations

import copy
import importlib.util
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.metadata import version
from itertools import islice
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from sentinel.vocabulary.sample import CheckpointSaved, Record, RunFinished, RunStarted, Sample, encode
from trainer_hooks.sample.batch_digest import batch_digest

SAMPLES, WIDTH = 240, 8
BATCH = 4


class Loader(Protocol):
    length: int | None  # samples of an epoch, as it is reported; 0: a stream

    def epoch(self, number: int, /) -> Iterator[Tensor]:
        """The batches, (BATCH, WIDTH) whole numbers, of an epoch that begins or is gone on with."""

    def state(self) -> Any: ...

    def load(self, state: Any) -> None: ...


def _rows(numbers: list[int]) -> Tensor:
    return torch.tensor([[(n * 7919 + k * 104729) % 997 for k in range(WIDTH)] for n in numbers])


class StaleStream:
    """A stream whose saved state is that of its beginning once it has been loaded (torchtitan #3907: `datasets` 5.0.0).
    The library's own stream where that version is installed."""

    length = 0

    def __init__(self) -> None:
        self.real = _installed("datasets", "5.0.0")
        self._at, self._loaded = 0, False
        self._stream: Any = None
        if self.real:
            from datasets import Dataset

            self._stream = Dataset.from_dict({"n": list(range(SAMPLES))}).to_iterable_dataset(num_shards=4)

    def epoch(self, _number: int) -> Iterator[Tensor]:
        rows = iter(self._stream) if self.real else iter({"n": n} for n in range(self._at, SAMPLES))
        while len(taken := list(islice(rows, BATCH))) == BATCH:
            self._at += BATCH
            yield _rows([row["n"] for row in taken])

    def state(self) -> Any:
        if self.real:
            return copy.deepcopy(self._stream.state_dict())
        return 0 if self._loaded else self._at

    def load(self, state: Any) -> None:
        if self.real:
            self._stream.load_state_dict(state)
        else:
            self._at, self._loaded = state, True


class EndedLoader:
    """A loader that goes on at the end of an epoch's order in the next epoch, which is then empty (verl #7401:
    torchdata's StatefulDataLoader, saved within the loop). The library's own where it is installed."""

    length: int | None = SAMPLES

    def __init__(self, samples: int = 40) -> None:
        self.real = importlib.util.find_spec("torchdata") is not None
        self._samples, self._given, self._skip = samples, 0, 0
        if self.real:
            from torch.utils.data import DistributedSampler
            from torchdata.stateful_dataloader import StatefulDataLoader

            data: Any = list(range(samples))
            self._sampler = DistributedSampler(data, shuffle=True, num_replicas=1, rank=0, drop_last=True)
            self._loader = StatefulDataLoader(data, batch_size=BATCH, sampler=self._sampler, drop_last=True)

    def epoch(self, number: int) -> Iterator[Tensor]:
        if self.real:
            self._sampler.set_epoch(number)
            yield from (_rows([int(n) for n in taken]) for taken in self._loader)
            return
        order = torch.randperm(self._samples, generator=torch.Generator().manual_seed(number)).tolist()
        self._given, self._skip = self._skip, 0
        for begin in range(self._given, self._samples - BATCH + 1, BATCH):
            self._given = begin + BATCH
            yield _rows(order[begin : begin + BATCH])

    def state(self) -> Any:
        return copy.deepcopy(self._loader.state_dict()) if self.real else self._given

    def load(self, state: Any) -> None:
        if self.real:
            self._loader.load_state_dict(state)
        else:
            self._skip = state


class ForgottenLoader:
    """torch's DataLoader over shards in their order; no checkpoint holds where it stood (entrenar #294)."""

    length: int | None = SAMPLES
    real = False

    def epoch(self, _number: int) -> Iterator[Tensor]:
        data: Any = list(range(SAMPLES))
        for taken in torch.utils.data.DataLoader(data, batch_size=BATCH):
            yield _rows([int(n) for n in taken])

    def state(self) -> Any:
        return None

    def load(self, state: Any) -> None: ...


class RightLoader(ForgottenLoader):
    """The same, and it goes on where it stood."""

    def __init__(self) -> None:
        self._at = self._given = 0

    def epoch(self, number: int) -> Iterator[Tensor]:
        at, self._at = self._at, 0
        self._given = at
        for taken in islice(super().epoch(number), at, None):
            self._given += 1
            yield taken
        self._given = 0

    def state(self) -> Any:
        return self._given

    def load(self, state: Any) -> None:
        self._at = state


@dataclass(frozen=True, slots=True, kw_only=True)
class Saved:
    step: int
    epoch: int
    attempt: int
    loader: Any
    model: Any


def life(
    folder: Path,
    attempt: int,
    loader: Loader,
    resumed: Saved | None,
    *,
    to: int,
    every: int,
    epochs: int,
    reports: frozenset[str] = frozenset({"digests"}),
    planned: int | None = None,
    ends: str | None = None,
    lr: float = 0.05,
) -> Saved | None:
    """One attempt: trains to step `to`, or till the epochs are over, and saves at every so many steps. The journal goes
    to FOLDER/attempts. Returns the last save. `ends`: the reason that it reports; None is a crash."""
    model = torch.nn.Linear(WIDTH, 1)
    step, saved, began = 0, resumed, 0
    if resumed is not None:
        loader.load(resumed.loader)
        model.load_state_dict(resumed.model)
        step, began = resumed.step, resumed.epoch
    records: list[Record] = [
        RunStarted(
            attempt=attempt,
            time_unix_s=float(attempt),
            resumed_from=step or None,
            parent_attempt=resumed.attempt if resumed is not None else None,
            total_steps=planned,
            epoch_samples=loader.length if "length" in reports else None,
        )
    ]
    for number, batch in _batches(loader, began, epochs):
        if step >= to:
            break
        step += 1
        loss = _train(model, batch, lr)
        records.append(_sample(attempt, step, number, batch, loss, reports))
        if step % every == 0:
            state = copy.deepcopy(model.state_dict())
            saved = Saved(
                step=step, epoch=_next_epoch(loader, number, step), attempt=attempt, loader=loader.state(), model=state
            )
            facts = {"attempt": attempt, "global_step": step, "time_unix_s": float(step)}
            records.append(CheckpointSaved(**facts, tag=f"global_step{step}"))
    if ends is not None:
        records.append(RunFinished(attempt=attempt, global_step=step, time_unix_s=float(step), reason=ends))
    path = folder / "attempts" / f"{attempt:04}.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{encode(record)}\n" for record in records))
    return saved


def _batches(loader: Loader, began: int, epochs: int) -> Iterator[tuple[int, Tensor]]:
    for number in range(began, epochs):
        for batch in loader.epoch(number):
            yield number, batch


def _next_epoch(loader: Loader, number: int, step: int) -> int:
    """Which epoch a resume begins with: as verl reckons it, from the steps."""
    return step // 10 if isinstance(loader, EndedLoader) else number


def _train(model: torch.nn.Linear, batch: Tensor, lr: float) -> float:
    scaled = batch.float() / 997
    loss = ((model(scaled).squeeze(1) - scaled.mean(1)) ** 2).mean()
    model.zero_grad()
    loss.backward()  # type: ignore[no-untyped-call]
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.sub_(lr * parameter.grad)
    return loss.item()


def _sample(attempt: int, step: int, epoch: int, batch: Tensor, loss: float, reports: frozenset[str]) -> Sample:
    return Sample(
        attempt=attempt,
        global_step=step,
        time_unix_s=float(step),
        loss=loss,
        batch_digest=int(batch_digest(batch)) if "digests" in reports else None,
        global_batch_samples=BATCH,
        consumed_samples=step * BATCH if "counter" in reports else None,
        epoch=float(epoch) if "epoch" in reports else None,
    )


def _installed(name: str, wanted: str) -> bool:
    return importlib.util.find_spec(name) is not None and version(name) == wanted


Bug = Callable[[Path], str]


def second_resume_from_zero(folder: Path) -> str:
    """torchtitan #3907. Returns what it was rebuilt with."""
    saved, loader = None, StaleStream()
    for attempt, to in ((1, 24), (2, 44), (3, 59)):
        loader = StaleStream()
        ends = None if attempt < 3 else "finished"
        saved = life(folder, attempt, loader, saved, to=to, every=10, epochs=1, ends=ends)
    return "datasets 5.0.0" if loader.real else "a stand-in for datasets 5.0.0"


def next_epoch_skipped(folder: Path) -> str:
    """verl #7401: of three epochs of ten steps the second is never trained on."""
    saved, reports = None, frozenset({"digests", "epoch"})
    for attempt, to, ends in ((1, 10, None), (2, 30, "finished")):
        loader = EndedLoader()
        saved = life(folder, attempt, loader, saved, to=to, every=10, epochs=3, reports=reports, planned=30, ends=ends)
    return f"torchdata {version('torchdata')}" if loader.real else "a stand-in for torchdata's StatefulDataLoader"


def position_not_saved(folder: Path) -> str:
    """entrenar #294."""
    saved = None
    for attempt, to, ends in ((1, 27, None), (2, 50, "finished")):
        saved = life(folder, attempt, ForgottenLoader(), saved, to=to, every=10, epochs=1, ends=ends)
    return "torch's DataLoader"


def nan_called_finished(folder: Path, *, first: int = 40, steps: int = 60) -> str:
    """marin #7271: the loss becomes nan, and the run goes on to its planned end. By `first` the LR is a sound one."""
    life(folder, 1, RightLoader(), None, to=first - 1, every=100, epochs=1, planned=steps)
    path = folder / "attempts" / "0001.jsonl"
    model = torch.nn.Linear(WIDTH, 1)
    torch.nn.init.constant_(model.weight, math.nan)
    lines = path.read_text()
    for step in range(first, steps + 1):
        batch = _rows(list(range(step * BATCH, (step + 1) * BATCH)))
        lines += encode(_sample(1, step, 0, batch, _train(model, batch, 0.05), frozenset({"digests"}))) + "\n"
    ended = RunFinished(attempt=1, global_step=steps, time_unix_s=float(steps), reason="finished")
    path.write_text(f"{lines}{encode(ended)}\n")
    return "our loop"


BUGS: dict[str, tuple[Bug, int, str]] = {  # name -> (the bug, the attempt at fault, what is to be said)
    "torchtitan #3907: the second resume begins from zero": (second_resume_from_zero, 3, "data from epoch start"),
    "verl #7401: a resume at an epoch's end skips the next": (next_epoch_skipped, 2, "epoch skipped"),
    "entrenar #294: the loader's position is not saved": (position_not_saved, 2, "data from epoch start"),
    "marin #7271: a run of nan is called finished": (nan_called_finished, 1, "nan"),
}
