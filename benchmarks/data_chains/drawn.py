"""Chains of resumes as journals tell them: data, batches, reports and lives drawn by a seed; clean or at fault."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from sentinel.plan.incident.incident import Rollback
from sentinel.vocabulary.overrides import Anchor, Once, Overrides
from sentinel.vocabulary.sample import CheckpointSaved, Record, RunFinished, RunStarted, Sample
from sentinel.vocabulary.training_settings import TrainingSettings

RESUMES = 5
FAULTS = ("data from zero", "epoch's data from its start", "batches skipped", "next epoch skipped")


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """What is drawn of a run."""

    samples: int  # of an epoch
    batch: int
    ramp_at: int  # the step from which on the batch is twice as large; beyond the run: never
    shuffled: bool
    drop_last: bool
    reports_batches: bool
    position: str  # "none"; "order": where the order stands; "counter": samples of all steps
    epoch: str  # "none", "index", "index from 1", "fraction", "printed" (a fraction with two decimals)
    reports_length: bool
    loses: float  # share of the samples that the hook loses
    foresees: bool  # whether a save names the batches to come
    stops_at_saves: bool
    seed: int

    @classmethod
    def of(cls, rng: Generator, seed: int) -> Shape:
        batch = int(rng.integers(1, 17))
        return cls(
            samples=int(rng.integers(3 * batch, 30 * batch)),
            batch=batch,
            ramp_at=int(rng.choice([10**9, rng.integers(5, 60)])),
            shuffled=bool(rng.random() < 0.6),
            drop_last=bool(rng.random() < 0.5),
            reports_batches=bool(rng.random() < 0.75),
            position=str(rng.choice(["none", "order", "counter"])),
            epoch=str(rng.choice(["none", "none", "index", "index from 1", "fraction", "printed"])),
            reports_length=bool(rng.random() < 0.5),
            loses=float(rng.choice([0.0, 0.0, 0.03])),
            foresees=bool(rng.random() < 0.3),
            stops_at_saves=bool(rng.random() < 0.5),
            seed=seed,
        )


@dataclass(slots=True)
class Loader:
    """Where a loader stands; a copy of it is what a checkpoint holds."""

    shape: Shape
    epoch: int = 0
    offset: int = 0  # samples of the epoch that were handed out or left out
    consumed: int = 0  # samples of all steps
    reseeds: tuple[tuple[int, int], ...] = ()  # (epoch, offset) from which on another seed permutes
    skipped: int = 0  # samples that mitigations left out

    def copy(self) -> Loader:
        return Loader(self.shape, self.epoch, self.offset, self.consumed, self.reseeds, self.skipped)

    def order(self) -> NDArray[np.int64]:
        shape = self.shape
        order = np.arange(shape.samples)
        if shape.shuffled:
            order = np.random.default_rng([shape.seed, self.epoch]).permutation(shape.samples)
        for n, (epoch, offset) in enumerate(self.reseeds):
            begin = offset if epoch == self.epoch else 0
            if epoch <= self.epoch:
                order[begin:] = np.random.default_rng([shape.seed, 77 + n, self.epoch]).permutation(order[begin:])
        return order

    def take(self, step: int) -> NDArray[np.int64]:
        """The sample numbers of a step."""
        shape = self.shape
        batch = shape.batch * (2 if step >= shape.ramp_at else 1)
        left = shape.samples - self.offset
        if left <= 0 or (shape.drop_last and left < batch):
            self.epoch, self.offset = self.epoch + 1, 0
        taken = self.order()[self.offset : self.offset + batch]
        self.offset += len(taken)
        self.consumed += len(taken)
        return taken

    def stands(self, batch: int) -> int:
        """The position in the order of all epochs; what drop_last leaves out counts with the last batch before."""
        left = self.shape.samples - self.offset
        dropped = left if self.shape.drop_last and left < batch else 0
        return self.epoch * self.shape.samples + self.offset + dropped


@dataclass(slots=True)
class Chain:
    shape: Shape
    records: list[Record]
    rollbacks: tuple[Rollback, ...] = ()
    faulty: int | None = None  # the attempt whose start is at fault


def chain(seed: int, *, fault: str | None = None, shape: Shape | None = None) -> Chain:
    """Six attempts. `fault` happens at the start of the third; one that the reports can't show is made all the same."""
    rng = np.random.default_rng([seed, 4])
    drawn = Shape.of(rng, seed) if shape is None else shape
    made = Chain(drawn, [])
    hashes = np.random.default_rng([seed, 5]).integers(1, 2**31, drawn.samples)
    saves: dict[int, tuple[Loader, int]] = {0: (Loader(drawn), 0)}  # step -> (the loader, the attempt that saved it)
    at, rollbacks = 0, list[Rollback]()
    for attempt in range(1, RESUMES + 2):
        loader, parent = saves[at][0].copy(), saves[at][1]
        saves = {step: saved for step, saved in saves.items() if step <= at}
        rollback = None
        if fault is None and at and drawn.position != "counter" and rng.random() < 0.3:
            rollback = _decided(rng, loader, at, len(rollbacks))
            rollbacks.append(rollback)
        if fault is not None and attempt == 3:
            stood = loader.epoch, loader.offset % drawn.samples
            _break(loader, fault)
            changed = at and stood != (loader.epoch, loader.offset % drawn.samples)
            made.faulty = attempt if changed else None
        first = None if drawn.position == "none" else _position(drawn, loader, at + 1, before=True)
        made.records.append(
            RunStarted(
                attempt=attempt,
                time_unix_s=float(attempt),
                parent_attempt=parent or None,
                resumed_from=at or None,
                world_size=int(rng.choice([1, 2, 4])) if attempt == 1 else 2,
                epoch_samples=drawn.samples if drawn.reports_length else None,
                first_sample_index=first if rng.random() < 0.5 and fault is None else None,
                skipped_samples=loader.skipped if drawn.position != "none" else None,
                rollback=rollback.id if rollback else None,
            )
        )
        at = _life(rng, made, loader, hashes, saves, attempt, at)
    made.records.append(RunFinished(attempt=attempt, global_step=at, time_unix_s=0.0, reason="finished"))
    made.rollbacks = tuple(rollbacks)
    return made


def _life(
    rng: Generator,
    made: Chain,
    loader: Loader,
    hashes: NDArray[np.int64],
    saves: dict[int, tuple[Loader, int]],
    attempt: int,
    at: int,
) -> int:
    """An attempt's steps; which save the next one goes on from."""
    shape, last = made.shape, attempt == RESUMES + 1
    steps, every = int(rng.integers(22, 60)), int(rng.integers(4, 20))
    by_epochs = rng.random() < 0.3
    for step in range(at + 1, at + steps + 1):
        taken = loader.take(step)
        if rng.random() >= shape.loses:
            made.records.append(_sample(shape, loader, attempt, step, taken, hashes))
        ends = _ends(loader, step)
        if (ends if by_epochs else step % every == 0) or (step == at + steps and shape.stops_at_saves):
            saves[step] = loader.copy(), attempt
            ahead = loader.copy()
            digests = tuple(int(hashes[ahead.take(step + n)].sum()) for n in range(1, 9)) if shape.foresees else ()
            made.records.append(
                CheckpointSaved(
                    attempt=attempt,
                    global_step=step,
                    time_unix_s=0.0,
                    tag=f"global_step{step}",
                    next_batch_digests=digests if shape.reports_batches else (),
                )
            )
    own = [step for step in saves if step > at]
    if last or not own:
        return at + steps if last else at
    if rng.random() < 0.25:  # a rollback, to an earlier save
        return int(rng.choice(sorted(saves)[1:] or own))
    return max(own)


def _ends(loader: Loader, step: int) -> bool:
    """Whether the next step begins an epoch."""
    ahead = loader.copy()
    ahead.take(step + 1)
    return ahead.epoch > loader.epoch


def _sample(
    shape: Shape, loader: Loader, attempt: int, step: int, taken: NDArray[np.int64], hashes: NDArray[np.int64]
) -> Sample:
    epoch: float | None = None
    if shape.epoch.startswith("index"):
        epoch = float(loader.epoch + (shape.epoch == "index from 1"))
    elif shape.epoch != "none":
        epoch = loader.epoch + loader.offset / shape.samples
        epoch = round(epoch, 2) if shape.epoch == "printed" else epoch
        if _ends(loader, step):
            epoch = float(loader.epoch + 1)
    return Sample(
        attempt=attempt,
        global_step=step,
        time_unix_s=float(step),
        loss=3.0,
        batch_digest=int(hashes[taken].sum()) if shape.reports_batches else None,
        consumed_samples=None if shape.position == "none" else _position(shape, loader, step),
        global_batch_samples=len(taken),
        epoch=epoch,
    )


def _position(shape: Shape, loader: Loader, step: int, *, before: bool = False) -> int:
    if shape.position == "counter":
        return loader.consumed
    at = step if before else step + 1
    return loader.stands(shape.batch * (2 if at >= shape.ramp_at else 1))


def _decided(rng: Generator, loader: Loader, at: int, number: int) -> Rollback:
    """Skips samples or permutes those that are left, as a rung does."""
    skip: int | None = None
    if rng.random() < 0.5:
        skip = int(min(rng.integers(1, 3 * loader.shape.batch), max(1, loader.shape.samples - loader.offset)))
        loader.offset, loader.skipped = loader.offset + skip, loader.skipped + skip
    else:
        loader.reseeds = (*loader.reseeds, (loader.epoch, loader.offset))
    name = f"incident-1-r{number + 1}"
    overrides = Overrides(
        incident="incident-1",
        rollback=name,
        anchor=Anchor(global_step=at, consumed_samples=None),
        standing=TrainingSettings(),
        once=Once(id=name, skip_samples=skip, seed=None if skip else 100 + number),
    )
    about: dict[str, Any] = {"target_tag": f"global_step{at}", "target_step": at, "changes": (), "lost_steps": 0}
    return Rollback(id=name, rung="drawn", hypothesis="", overrides=overrides, decided_unix_s=0.0, **about)


def _break(loader: Loader, fault: str) -> None:
    """What the loader's state is after a resume that goes wrong; the trainer counts on where it counts itself."""
    if fault == FAULTS[0]:
        loader.epoch, loader.offset = 0, 0
    elif fault == FAULTS[1]:
        loader.offset = 0
    elif fault == FAULTS[2]:
        loader.offset += 3 * loader.shape.batch
    else:
        loader.epoch, loader.offset = loader.epoch + 2, 0


def clean(count: int, first: int = 0) -> Iterator[Chain]:
    for seed in range(first, first + count):
        yield chain(seed)
