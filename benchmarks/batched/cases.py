"""What is trained: five instabilities, and the rungs that are tried on each, from scratch and at a restart."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache

import numpy as np
from recorded.corpora import VOCABULARY, corpus

from benchmarks.batched.training import Setting, Text
from sentinel.demo.configuration import made_up
from sentinel.vocabulary.pacing import BatchSizeSchedule, FixedLinear, LrSchedule, Position
from sentinel.vocabulary.pacing.slw_changes import SlwRun, slw_changes
from trainer_hooks.gpt.data import load_corpus
from trainer_hooks.gpt.model import Shape

__all__ = ["RESTARTS", "SCRATCH", "TASKS", "Rung", "Task", "text"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One instability: a model, its data, and the setting in which the baseline fails."""

    name: str
    shape: Shape
    corpus: str
    """`zipf`: benchmarks/recorded's made-up language of words; `code`: Python's library as bytes."""

    batch: int
    setting: Setting
    held: int
    """Steps at the peak LR after the warmup, in every case."""

    save_every: int
    """Steps between two checkpoints of the baseline."""

    near: int
    """Checkpoint that a rung restarts from: shortly before the first seed's onset."""

    earlier: int
    """A checkpoint from well before it."""

    slw: tuple[int, int]
    """Start and T, of `instabilities.py tune`; of `stale` they are not tuned."""

    healthy: str = "baseline"
    """The rung whose median best loss is a healthy one."""

    @property
    def steps(self) -> int:
        return self.setting.warmup + self.held


@dataclass(frozen=True, slots=True, kw_only=True)
class Rung:
    """One case: what it changes of the task's setting, and where it begins."""

    name: str
    changed: Callable[[Task], Setting] = lambda task: task.setting
    reseed: bool = False
    held: int | None = None
    """Steps at the peak; None is the task's."""

    begins: str = "scratch"
    """`scratch`, `near`, `earlier`."""

    reset_moments: bool = False
    bound_logits: float | None = None
    """Of `Training.bound_logits`, once at the restart."""

    def begin(self, task: Task) -> int:
        return {"scratch": 0, "near": task.near, "earlier": task.earlier}[self.begins]

    def setting(self, task: Task) -> Setting:
        return self.changed(task)

    def tokens(self, task: Task) -> int:
        """Where the case ends: the same steps at the peak LR as the baseline, after a restart too; with
        shorter sequences or smaller batches, by as many tokens as those steps have."""
        setting, begin = self.setting(task), self.begin(task)
        full = task.batch * task.shape.seqlen
        shortened = setting.seqlen is not None or setting.batch is not None
        warmed = task.setting.warmup if shortened else setting.anchor + setting.warmup
        return (max(warmed, task.setting.warmup, begin) + (self.held or task.held)) * full


TASKS: Mapping[str, Task] = {
    task.name: task
    for task in (
        Task(
            name="logits",
            shape=Shape(layers=4, width=64, heads=4, seqlen=64),
            corpus="zipf",
            batch=8,
            setting=Setting(lr=0.13, warmup=520),
            held=80,
            save_every=50,
            near=300,
            earlier=200,
            slw=(8, 1560),
        ),
        Task(
            name="qknorm",
            shape=Shape(layers=2, width=32, heads=2, seqlen=64),
            corpus="zipf",
            batch=8,
            setting=Setting(lr=1.0, warmup=800, qk_norm=True),
            held=80,
            save_every=50,
            near=550,
            earlier=400,
            slw=(8, 800),
        ),
        Task(
            name="early",
            shape=Shape(layers=2, width=32, heads=2, seqlen=64),
            corpus="zipf",
            batch=8,
            setting=Setting(lr=0.03, warmup=10),
            held=390,
            save_every=50,
            near=100,
            earlier=50,
            slw=(8, 320),
            healthy="LR warmup x 8",
        ),
        Task(
            name="tiny",
            shape=Shape(layers=4, width=64, heads=4, seqlen=128, block_layernorm=False),
            corpus="code",
            batch=16,
            setting=Setting(lr=1.5e-2, warmup=20),
            held=140,
            save_every=10,
            near=30,
            earlier=10,
            slw=(8, 80),
        ),
        Task(
            name="stale",
            shape=Shape(layers=2, width=48, heads=3, seqlen=64),
            corpus="zipf",
            batch=8,
            setting=Setting(lr=0.02, warmup=150, padded_steps=400, padded_scale=1 / 64),
            held=350,
            save_every=50,
            near=400,
            earlier=300,
            slw=(8, 300),
        ),
    )
}
"""logits: attention logits grow without bound at a high LR, as in Wortsman et al. 2023 (arXiv:2309.14322), section 3.1.
tiny: benchmarks/stability.py's model and LR. stale: the gradient grows at once, and Adam's variance lags behind it."""


def _with(**changes: object) -> Callable[[Task], Setting]:
    return lambda task: replace(task.setting, **changes)  # type: ignore[arg-type]


def _warmup(times: int) -> Callable[[Task], Setting]:
    return lambda task: replace(task.setting, warmup=times * task.setting.warmup)


def _lr(share: float) -> Callable[[Task], Setting]:
    return lambda task: replace(task.setting, lr=share * task.setting.lr)


def _slw(task: Task, *, total: int | None = None, schedule_alone: bool = False) -> Setting:
    """The tutorial's five changes: the length; no batch warmup; the end by tokens; no decay that could go by them; the
    LR warmup re-sized."""
    start, tuned = task.slw
    schedule = FixedLinear(start=start, full=task.shape.seqlen, total_steps=total or tuned)
    return replace(task.setting, seqlen=schedule) if schedule_alone else _with_slw(task, schedule, 0)


def _slw_reshaped(task: Task) -> Setting:
    """A step keeps its tokens, so that changes 3 to 5 do not apply."""
    return replace(_slw(task, schedule_alone=True), reshaped=True)


def _slw_again(task: Task) -> Setting:
    """At a restart, as the default ladder's rung: from 8 tokens over three LR warmups, with the five changes."""
    total = 3 * task.setting.warmup
    schedule = FixedLinear(start=8, full=task.shape.seqlen, total_steps=total, anchor_step=task.near)
    return _with_slw(task, schedule, task.near)


def _with_slw(task: Task, schedule: FixedLinear, step: int) -> Setting:
    run = SlwRun(
        full_seqlen=task.shape.seqlen,
        batch=BatchSizeSchedule(start=task.batch, full=task.batch, increment=1, ramp_samples=0),
        lr=LrSchedule(peak=task.setting.lr, warmup=task.setting.warmup, decay_end=0),
        at=Position(step=step, samples=step * task.batch, tokens=step * task.batch * task.shape.seqlen),
    )
    lr = slw_changes(run, schedule).lr
    if lr is None:
        raise ValueError("a run whose LR is known keeps one")
    return replace(task.setting, seqlen=schedule, warmup=lr.warmup, anchor=lr.anchor)


def _batch_warmup(task: Task) -> Setting:
    """From a quarter of the batch, until as many tokens as SLW takes to come to the full length."""
    start, total = task.slw
    part = max(1, task.batch // 4)
    samples = total * task.batch * (start + task.shape.seqlen) // (2 * task.shape.seqlen)
    grown = BatchSizeSchedule(start=part, full=task.batch, increment=part, ramp_samples=samples)
    return replace(task.setting, batch=grown)


def _again(begins: str, times: float) -> Callable[[Task], Setting]:
    """The LR warms up anew from the checkpoint, over `times` its own warmup."""

    def changed(task: Task) -> Setting:
        at = task.near if begins == "near" else task.earlier
        return replace(task.setting, anchor=at, warmup=int(times * task.setting.warmup))

    return changed


_QKV = _with(qk_lr_factor=0.25, v_lr_factor=0.25)

SCRATCH: Mapping[str, Rung] = {
    rung.name: rung
    for rung in (
        Rung(name="baseline"),
        Rung(name="other data order", reseed=True),
        Rung(name="LR warmup x 2", changed=_warmup(2)),
        Rung(name="LR warmup x 4", changed=_warmup(4)),
        Rung(name="LR warmup x 2, held longer", changed=_warmup(2), held=400),
        Rung(name="LR warmup x 4, held longer", changed=_warmup(4), held=400),
        Rung(name="LR warmup x 8", changed=_warmup(8)),
        Rung(name="LR warmup x 8, held longer", changed=_warmup(8), held=800),
        Rung(name="LR / 2", changed=_lr(0.5)),
        Rung(name="LR / 2, held longer", changed=_lr(0.5), held=400),
        Rung(name="LR / 4", changed=_lr(0.25)),
        Rung(name="beta2 0.95", changed=_with(beta2=0.95)),
        Rung(name="beta2 0.95, held longer", changed=_with(beta2=0.95), held=400),
        Rung(name="beta2 0.99", changed=_with(beta2=0.99)),
        Rung(name="clip 0.25", changed=_with(clip=0.25)),
        Rung(name="weight decay 0.1", changed=_with(weight_decay=0.1)),
        Rung(name="eps 1e-6", changed=_with(eps=1e-6)),
        Rung(name="whole gradients", changed=_with(padded_steps=0)),
        Rung(name="qk LayerNorm", changed=_with(qk_norm=True)),
        Rung(name="qk LayerNorm, held longer", changed=_with(qk_norm=True), held=400),
        Rung(name="qk-clip 100", changed=_with(qk_clip=100.0)),
        Rung(name="qk-clip 100, held longer", changed=_with(qk_clip=100.0), held=400),
        Rung(name="qk LR / 4", changed=_with(qk_lr_factor=0.25)),
        Rung(name="qk LR / 4, held longer", changed=_with(qk_lr_factor=0.25), held=400),
        Rung(name="qkv LR / 4", changed=_QKV),
        Rung(name="qkv LR / 4, held longer", changed=_QKV, held=400),
        Rung(name="z-loss 1e-2", changed=_with(z_loss=1e-2)),
        Rung(name="SLW, five changes", changed=_slw),
        Rung(name="SLW, T = LR warmup", changed=lambda task: _slw(task, total=task.setting.warmup)),
        Rung(name="SLW, length alone", changed=lambda task: _slw(task, schedule_alone=True)),
        Rung(name="SLW, reshaped", changed=_slw_reshaped),
        Rung(name="batch warmup", changed=_batch_warmup),
    )
}

RESTARTS: Mapping[str, Rung] = {
    rung.name: rung
    for rung in (
        Rung(name="near: nothing changed", begins="near"),
        Rung(name="near: reseed", begins="near", reseed=True),
        Rung(name="near: reseed, SLW", begins="near", reseed=True, changed=_slw_again),
        Rung(name="near: warmup again x 1", begins="near", changed=_again("near", 1)),
        Rung(name="near: warmup again x 8", begins="near", changed=_again("near", 8)),
        Rung(name="near: beta2 0.95", begins="near", changed=_with(beta2=0.95)),
        Rung(name="near: beta2 0.99", begins="near", changed=_with(beta2=0.99)),
        Rung(name="near: clip 0.25", begins="near", changed=_with(clip=0.25)),
        Rung(name="near: LR / 4", begins="near", changed=_lr(0.25)),
        Rung(name="near: qk-clip 100", begins="near", changed=_with(qk_clip=100.0)),
        Rung(name="near: qk-clip 100, held longer", begins="near", changed=_with(qk_clip=100.0), held=400),
        Rung(name="near: qk LR / 4", begins="near", changed=_with(qk_lr_factor=0.25)),
        Rung(name="near: qkv LR / 4", begins="near", changed=_QKV),
        Rung(name="near: qkv LR / 4, held longer", begins="near", changed=_QKV, held=400),
        Rung(name="near: moments reset", begins="near", reset_moments=True),
        Rung(name="near: update clipping", begins="near", changed=_with(clips_updates=True)),
        Rung(name="near: z-loss 1e-2", begins="near", changed=_with(z_loss=1e-2)),
        Rung(name="near: logits bound to 100 once", begins="near", bound_logits=100.0),
        Rung(name="near: embedding gradient x 0.1", begins="near", changed=_with(embedding_scale=0.1)),
        Rung(name="near: updates above 6 sigma left out", begins="near", changed=_with(skips_from=6.0)),
        Rung(name="earlier: reseed", begins="earlier", reseed=True),
        Rung(name="earlier: warmup again x 2", begins="earlier", changed=_again("earlier", 2)),
        Rung(name="earlier: beta2 0.95", begins="earlier", changed=_with(beta2=0.95)),
        Rung(name="earlier: LR / 4", begins="earlier", changed=_lr(0.25)),
    )
}


@cache
def text(name: str, seqlen: int, draw: int = 1) -> Text:
    """A corpus of benchmarks/recorded, or Python's library as the reference trainer reads it. Draw 2: another made-up
    language of the same kind; of Python's library its first half alone, at whose end validation is."""
    if name == "code":
        found = load_corpus([], seqlen=seqlen, vocabulary=None, validation_share=0.02)
        if draw == 1:
            return found
        tokens, vocabulary = found.tokens[: len(found.tokens) // draw], found.vocabulary
    else:
        tokens = corpus(name) if draw == 1 else made_up(seed=99 + draw, words=300)
        vocabulary = VOCABULARY
    samples = (len(tokens) - 1) // seqlen
    held = max(64, samples // 50)
    return Text(
        tokens=np.asarray(tokens),
        vocabulary=vocabulary,
        seqlen=seqlen,
        training_samples=samples - held,
        validation_samples=held,
    )
