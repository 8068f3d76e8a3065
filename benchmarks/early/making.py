"""Trains the runs of runs.py, with two readings that the recorded curves lack: largest logits."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import torch
from recorded import train
from recorded.curves import COLUMNS, REFERENCE_COLUMNS
from recorded.label import label
from recorded.recipe import Recipe
from recorded.small_gpt import SmallGPT
from torch import Tensor, nn

__all__ = ["COLUMNS_HERE", "make"]

LOGITS = ("output_logit", "attention_logit")
COLUMNS_HERE = (*COLUMNS, *REFERENCE_COLUMNS, *LOGITS)


class _Watched(train.Run):
    """A run that also reads the largest output logit, and a bound of the largest attention logit."""

    def __init__(self, recipe: Recipe) -> None:
        super().__init__(recipe)
        self._attention = self._output = 0.0
        for name, module in self.model.named_modules():
            if name.endswith("qkv"):
                module.register_forward_hook(self._of_attention)
        self.model.norm.register_forward_hook(self._of_output)

    def step(self, step: int, acts: Any) -> train.Row:
        self._attention = 0.0
        seen = super().step(step, acts)  # a validation may follow the training's forward: its logits count alike
        return {**seen, "output_logit": self._output, "attention_logit": self._attention}

    def _of_attention(self, _module: nn.Module, _: Any, out: Tensor) -> None:
        heads, (b, t, c) = self.recipe.heads, out.shape
        q, k, _v = out.detach().view(b, t, 3, heads, c // 3 // heads).unbind(2)
        bound = (q.norm(dim=-1).amax((0, 1)) * k.norm(dim=-1).amax((0, 1))).max() / math.sqrt(c // 3 // heads)
        self._attention = max(self._attention, float(bound))

    def _of_output(self, _module: nn.Module, _: Any, out: Tensor) -> None:
        assert isinstance(self.model, SmallGPT)  # noqa: S101 - what it is made as
        self._output = float((out.detach()[:, ::4] @ self.model.tokens.weight.detach().T).abs().max())


def make(recipe: Recipe, folder: Path) -> None:
    """Trains the recipe, labels the run with hindsight, and writes both as NAME.npz. Its sibling is trained only where
    the label needs it: where the cause is an act."""
    train.Run, kept = _Watched, train.Run  # type: ignore[misc]
    try:
        rows = list(train._life(_Watched(recipe), recipe, 1)) if recipe.cure else train.train_pair(recipe)
    finally:
        train.Run = kept  # type: ignore[misc]
    curve = {name: [row.get(name) for row in rows] for name in COLUMNS_HERE}
    name, events = _by_validation(curve) if recipe.cure else _by_sibling(recipe, curve)
    columns = {n: np.array([math.nan if v is None else v for v in c], dtype=np.float64) for n, c in curve.items()}
    missing = {f"has_{n}": np.array([v is not None for v in c]) for n, c in curve.items()}
    about = {"label": name, "events": events, "cause": recipe.cause}
    beside = folder / f"{recipe.name}.new.npz"
    np.savez_compressed(beside, about=json.dumps(about), **columns, **missing)
    beside.replace(folder / f"{recipe.name}.npz")


def _by_sibling(recipe: Recipe, curve: dict[str, list[Any]]) -> tuple[str, tuple[str, ...]]:
    found = label(recipe, curve)
    return found.label, found.events


def _by_validation(curve: dict[str, list[Any]]) -> tuple[str, tuple[str, ...]]:
    """As the recorded curves' rule has it where the cause is a setting: the onset is where the validation loss was last
    within 1 % of its minimum; diverged where the last tenth's median is 5 % above it."""
    points = [(s, v) for s, v in zip(curve["step"], curve["validation_loss"], strict=True) if v is not None]
    known = [v for _, v in points if math.isfinite(v)]
    last = [v if math.isfinite(v) else math.inf for _, v in points[-max(3, len(points) // 10) :]]
    if float(np.median(last)) <= 1.05 * min(known):
        return "ambiguous", ()
    onset = max(s for s, v in points if v <= 1.01 * min(known))
    return "diverged", (f"diverge:{onset}-{points[-1][0]}-{curve['step'][-1]}",)


def main(folder: Path, share: int, of: int) -> None:
    """Makes every `of`-th run that is not there yet, from number `share` on."""
    from early.runs import recipes

    torch.set_num_threads(1)
    folder.mkdir(parents=True, exist_ok=True)
    for number, recipe in enumerate(recipes()):
        if number % of == share and not (folder / f"{recipe.name}.npz").exists():
            make(recipe, folder)
            print(recipe.name, flush=True)
