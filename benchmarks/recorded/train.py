"""The training loop: AdamW and fp16's loss scaling written out, so that every signal can be read."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from recorded import schedule
from recorded.acts import DATA_ACTS, WEIGHT_ACTS
from recorded.corpora import samples, validation
from recorded.recipe import Act, Recipe
from recorded.small_gpt import HALF_MAX, SmallGPT

__all__ = ["Row", "Run", "train_pair"]

Row = dict[str, float | int | None]
VALIDATE_EVERY = 25
STEPS_AFTER_NAN = 150
"""A run whose loss is nan is stopped after so many more steps: a person would not wait longer either."""


@dataclass
class Settings:
    """What the optimizer runs with in one step: the recipe's, and what acts make of it."""

    beta1: float
    beta2: float
    eps: float
    weight_decay: float
    clip: float
    lr_by: float = 1.0
    corpus: str = ""
    frozen: str | None = None
    """A part of the model that gets no update."""

    negated: str | None = None
    """A part of the model whose gradient has the wrong sign."""


class Run:
    """One life of a recipe. `state` and `restore` make it go back."""

    def __init__(self, recipe: Recipe) -> None:
        torch.manual_seed(recipe.seed)
        self.recipe = recipe
        self.model = SmallGPT(recipe)
        self.m = torch.zeros_like(self.model.flat)
        self.v = torch.zeros_like(self.model.flat)
        self.updates = 0
        self.loss_scale = recipe.loss_scale
        self.clean_steps = 0
        self.consumed = 0
        self.attempt = 1
        self.data_seed = 0

    def state(self) -> tuple[Any, ...]:
        tensors = tuple(t.clone() for t in (self.model.flat, self.m, self.v))
        return (*tensors, self.updates, self.loss_scale, self.clean_steps, self.consumed)

    def restore(self, state: tuple[Any, ...]) -> None:
        for tensor, saved in zip((self.model.flat, self.m, self.v), state, strict=False):
            tensor.copy_(saved)
        self.updates, self.loss_scale, self.clean_steps, self.consumed = state[3:]

    def step(self, step: int, acts: tuple[Act, ...]) -> Row:
        """One step; its readings."""
        recipe = self.recipe
        for act in acts:
            if act.kind in WEIGHT_ACTS and act.start == step:
                WEIGHT_ACTS[act.kind](act, self)
        settings = self._settings(step, acts)
        length, batch = schedule.seqlen(recipe, step), schedule.batch(recipe, step)
        tokens = samples(recipe, settings.corpus, step, self.data_seed, batch, length)
        inputs, targets = tokens[:, :-1], tokens[:, 1:]
        for act in acts:
            if act.kind in DATA_ACTS and act.active(step):
                rng = np.random.default_rng((recipe.seed, self.data_seed, step, act.start))
                inputs, targets = DATA_ACTS[act.kind](act, inputs, targets, rng)
        loss, grad_norm, overflow = self._gradient(torch.tensor(inputs), torch.tensor(targets))
        if any(act.kind == "lost_reading" and act.active(step) for act in acts):
            loss, overflow, grad_norm = math.nan, True, math.nan
        lr = schedule.lr(recipe, step) * settings.lr_by
        used_scale = self.loss_scale
        update_norm = None if overflow else self._update(settings, lr, grad_norm)
        if recipe.fp16:
            self._rescale(overflow)
        self.consumed += batch * length
        return {
            "step": step,
            "loss": loss,
            "grad_norm": grad_norm,
            "lr": lr,
            "loss_scale": used_scale if recipe.fp16 else None,
            "tokens": self.consumed,
            "adam_variance_l1": float(self.v.sqrt().sum()),
            "adam_variance_max": math.sqrt(float(self.v.max())),
            "update_norm": update_norm,
            "seqlen": length,
            "global_batch_samples": batch,
            "skipped": int(overflow),
            "attempt": self.attempt,
            "epoch": self.consumed / recipe.seqlen / recipe.epoch_samples if recipe.epoch_samples else None,
            "validation_loss": self._validation() if step % VALIDATE_EVERY == 0 else None,
        }

    def _settings(self, step: int, acts: tuple[Act, ...]) -> Settings:
        recipe = self.recipe
        settings = Settings(recipe.beta1, recipe.beta2, recipe.eps, recipe.weight_decay, recipe.clip)
        settings.corpus = recipe.corpus
        for act in acts:
            if act.kind == "set" and act.active(step):
                for name, value in act.p.items():
                    setattr(settings, name, value)
        return settings

    def _gradient(self, inputs: Tensor, targets: Tensor) -> tuple[float, float, bool]:
        """Loss, gradient norm before clipping, and whether fp16 overflowed; the gradient is in model.grad."""
        grad = self.model.grad
        grad.zero_()
        loss = self.model.cross_entropy(inputs, targets)
        if self.recipe.fp16 and self.model.peak > HALF_MAX:
            return math.nan, math.nan, True
        loss.backward()  # type: ignore[no-untyped-call]
        if self.recipe.fp16:
            grad.copy_((grad * self.loss_scale).half().float() / self.loss_scale)
        norm = float(grad.norm())
        return float(loss.detach()), norm, self.recipe.fp16 and not math.isfinite(norm)

    def _update(self, settings: Settings, lr: float, grad_norm: float) -> float:
        """AdamW; returns the root mean square of the update before it is scaled by lr."""
        grad, flat = self.model.grad, self.model.flat
        if settings.negated is not None:
            grad[self.model.slice_of(settings.negated)] *= -1
        if settings.clip and grad_norm > settings.clip:
            grad *= settings.clip / (grad_norm + 1e-6)
        self.updates += 1
        self.m.mul_(settings.beta1).add_(grad, alpha=1 - settings.beta1)
        self.v.mul_(settings.beta2).addcmul_(grad, grad, value=1 - settings.beta2)
        m = self.m / (1 - settings.beta1**self.updates)
        v = self.v / (1 - settings.beta2**self.updates)
        update = m / (v.sqrt() + settings.eps)
        if settings.frozen is not None:
            where = self.model.slice_of(settings.frozen)
            kept = flat[where].clone()
        flat.mul_(1 - lr * settings.weight_decay).add_(update, alpha=-lr)
        if settings.frozen is not None:
            flat[where] = kept
        return float(update.square().mean().sqrt())

    def _rescale(self, overflow: bool) -> None:
        self.clean_steps = 0 if overflow else self.clean_steps + 1
        if overflow:
            self.loss_scale = max(1.0, self.loss_scale / 2)
        elif self.clean_steps % self.recipe.growth_interval == 0:
            self.loss_scale *= 2

    @torch.no_grad()
    def _validation(self) -> float:
        tokens = torch.tensor(validation(self.recipe.corpus, self.recipe.seqlen))
        return float(self.model.cross_entropy(tokens[:, :-1], tokens[:, 1:]))


def train_pair(recipe: Recipe) -> list[Row]:
    """Every step of the run; `reference_loss` is the sibling's loss at the same step on the same data, if it has one.

    Where the cause is an act, both are one run until it starts.
    """
    sibling = recipe.sibling()
    if sibling is None:
        return list(_life(Run(recipe), recipe, 1))
    onset = recipe.onset
    if onset is None or recipe.cure or recipe.restarts:
        rows, reference = list(_life(Run(recipe), recipe, 1)), list(_life(Run(sibling), sibling, 1))
        reference = reference[: len(rows)]
    else:
        run = Run(recipe)
        shared = [run.step(step, sibling.acts) for step in range(1, onset)]
        here = run.state()
        rows = shared + list(_life(run, recipe, onset))
        run.restore(here)
        reference = shared + list(_life(run, sibling, onset, stop=len(rows)))
    for row, other in zip(rows, reference, strict=False):
        row["reference_loss"] = other["loss"]
    return rows


def _life(run: Run, recipe: Recipe, first: int, stop: int | None = None) -> Iterator[Row]:
    restarts = list(recipe.restarts)
    saved: dict[int, tuple[Any, ...]] = {}
    wanted = {back for _, back in restarts}
    step, nans, last = first, 0, stop or recipe.steps
    while step <= last:
        row = run.step(step, recipe.acts)
        yield row
        nans = 0 if math.isfinite(float(row["loss"] or 0)) else nans + 1
        if nans > STEPS_AFTER_NAN:
            return
        if step in wanted:
            saved[step] = run.state()
        if restarts and step == restarts[0][0]:
            _, step = restarts.pop(0)
            run.restore(saved[step])
            run.attempt += 1
            run.data_seed += 1
        step += 1
