"""QK-clip, and learning rates of a part of the weights.

QK-clip (MuonClip: Kimi Team 2025, "Kimi K2", arXiv:2507.20534, section 2.1): after the update, the weights of each head
whose largest attention logit S passed the limit tau in the step's forward passes are scaled down:

    gamma = min(1, tau / S),  W_q <- sqrt(gamma) W_q,  W_k <- sqrt(gamma) W_k

S is the largest logit (q k / sqrt(d), not its magnitude) over the step's micro-batches and all ranks, after a rotary
embedding, which a scale passes through. Biases are scaled as weights are, so that the same inputs give gamma x the
logit. A head of keys that several heads of queries share is scaled by sqrt(g), g the largest gamma among them, and each
of their W_q by gamma / sqrt(g): each gets its own gamma, and no weight grows. K2 has its shared keys left as they are
and scales those queries by gamma: the same where one of them is within the limit.

A part's learning rate, `factor` times that of the rest, is taken from the update: w <- w_old + factor (w_new - w_old),
AdamW's decoupled weight decay included. So it can be that of some rows of a fused weight.

Both are done right after each step of the inner optimizer, on what that one updates (masters.py), before a wrapping
optimizer copies it to the 16-bit weights: after an update that was skipped (overflow) nothing is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from sentinel.vocabulary.errors import OverridesError
from sentinel.vocabulary.training_settings import LR_ROLES
from trainer_hooks.qk_clip.attention import Attention, shape_of
from trainer_hooks.qk_clip.logits import largest_logits
from trainer_hooks.qk_clip.masters import parts_of, rectangles, why_not
from trainer_hooks.sample.owners import inner_optimizers

__all__ = ["AttentionOverride"]


@dataclass(slots=True)
class _Changed:
    """A parameter whose update is changed: by factors of its rows, or along `axis` 1 of its columns."""

    rows: int
    columns: int
    axis: int = 0
    lr: Tensor | None = None  # (outputs,) float32, or (1,) of all; None leaves the learning rate
    layer: int | None = None  # whose heads are clipped; None clips nothing
    index: Tensor | None = None  # as Rows has it

    def grid(self, factors: Tensor) -> Tensor:
        """(rows, columns), without memory of its own."""
        return (factors[:, None] if self.axis == 0 else factors[None]).expand(self.rows, self.columns)


class AttentionOverride:
    """Made after the checkpoint is loaded, on every rank; from then on it acts at each step by itself."""

    def __init__(
        self, engine: Any, layers: Sequence[Attention], *, qk_clip: float, lr_factor_of: Mapping[str, float]
    ) -> None:
        """`qk_clip`: tau, 0 clips nothing; `lr_factor_of`: {role or pattern: factor}. `engine`: DeepSpeed's, or what
        has `module` and `optimizer`. OverridesError where it can't be done, and for a name of `lr_factor_of` that no
        parameter has."""
        if (why := why_not(engine)) is not None:
            raise OverridesError(
                f"overrides.json: qk_clip and lr_factor_of can't be applied: {why}; nothing was trained"
            )
        self._limit, self._layers = qk_clip, tuple(layers)
        self._largest: list[Tensor | None] = [None] * len(layers)  # (H,) of the step under way, on this rank
        self._tables: list[Tensor] = []  # of each layer, by the numbers of Rows.index: what its rows are scaled by
        self._parts, self._changed = parts_of(engine), self._changes(engine, lr_factor_of)
        self._old: dict[tuple[int, int], Tensor] = {}
        self.clipped_heads: Tensor | None = None  # () int64: of the last step, on the device; None before the first
        self._handles: list[Any] = []
        for inner in inner_optimizers(engine.optimizer):
            self._handles.append(inner.register_step_pre_hook(self.update_coming))
            self._handles.append(inner.register_step_post_hook(self.update_made))

    def remove(self) -> None:
        """No later step is changed."""
        for handle in self._handles:
            handle.remove()

    def seen(self, layer: int, q: Tensor, k: Tensor, scale: float, **masked: Any) -> None:
        """Queries and keys of a layer's forward pass in training, as `largest_logits` takes them."""
        if self._limit:
            largest = largest_logits(q, k, scale, **masked).amax(0)
            before = self._largest[layer]
            self._largest[layer] = largest if before is None else torch.maximum(before, largest)

    def _changes(self, engine: Any, lr_factor_of: Mapping[str, float]) -> dict[int, _Changed]:
        changed: dict[int, _Changed] = {}
        for number, layer in enumerate(self._layers):
            for rows in layer.rows:
                one = changed[id(rows.parameter)] = _as_matrix(rows.parameter, rows.axis)
                one.layer, one.index = number if self._limit else None, rows.index
                for role in LR_ROLES & lr_factor_of.keys():
                    of_role = rows.index < layer.heads + layer.key_heads + (role == "attention.qkv")
                    one.lr = _times(one.lr, torch.where(of_role, lr_factor_of[role], 1.0))
        if (LR_ROLES & lr_factor_of.keys() or self._limit) and not self._layers:
            raise OverridesError("overrides.json: the model's attention layers are not known; nothing was trained")
        for pattern in lr_factor_of.keys() - LR_ROLES:
            found = [p for name, p in engine.module.named_parameters() if fnmatchcase(name, pattern)]
            if not found:
                raise OverridesError(f"overrides.json: lr_factor_of: no parameter is named like {pattern!r}")
            for parameter in found:
                one = changed.setdefault(id(parameter), _as_matrix(parameter, 0))
                one.lr = _times(one.lr, torch.tensor([lr_factor_of[pattern]]))
        return changed

    def update_coming(self, optimizer: Any, *_: Any) -> None:
        """Called by the inner optimizer, once for each of its calls in a step: ZeRO makes one for each group."""
        if any(largest is not None for largest in self._largest):
            self._agree()
        elif self._limit and not self._tables:
            raise OverridesError("overrides.json: qk_clip: no attention logit was seen in the first step")

        def keep(view: Tensor, _: Tensor, key: tuple[int, int]) -> None:
            self._old[key] = view.clone()

        self._visit(optimizer, lambda one: one.lr, keep)

    def update_made(self, optimizer: Any, *_: Any) -> None:
        """Called by the inner optimizer, after it has updated its groups."""

        def slow(view: Tensor, grid: Tensor, key: tuple[int, int]) -> None:
            old = self._old.pop(key)
            view.copy_(torch.where(grid == 1, view, torch.lerp(old, view, grid)))

        self._visit(optimizer, lambda one: one.lr, slow)
        self._visit(optimizer, self._scales, lambda view, grid, _: view.mul_(grid))

    def _agree(self) -> None:
        """The largest logits over all ranks, and by what each layer's rows are scaled."""
        missing = next((number for number, largest in enumerate(self._largest) if largest is None), None)
        if missing is not None:
            raise OverridesError(f"overrides.json: qk_clip: no attention logit of layer {missing} was seen in a step")
        largest = torch.cat([one for one in self._largest if one is not None])
        if dist.is_initialized() and dist.get_world_size() > 1:
            dist.all_reduce(largest, op=dist.ReduceOp.MAX)
        self._largest = [None] * len(self._layers)
        gammas = torch.where(largest > self._limit, self._limit / largest, 1.0)
        self.clipped_heads = (largest > self._limit).sum()
        by_layer = torch.split(gammas, [layer.heads for layer in self._layers])
        self._tables = [_table(gamma, layer) for gamma, layer in zip(by_layer, self._layers, strict=True)]

    def _scales(self, one: _Changed) -> Tensor | None:
        if one.layer is None or one.index is None:
            return None
        table = self._tables[one.layer]
        one.index = one.index.to(table.device)
        return table[one.index]

    @torch.no_grad()
    def _visit(
        self,
        optimizer: Any,
        factors_of: Callable[[_Changed], Tensor | None],
        act: Callable[[Tensor, Tensor, tuple[int, int]], object],
    ) -> None:
        """Calls `act` with each rectangle of what the optimizer is about to update, or has, and its factors."""
        for master in (master for group in optimizer.param_groups for master in group["params"]):
            for part in self._parts.get(id(master), ()):
                one = self._changed.get(id(part.parameter))
                if one is None or not part.size or (factors := factors_of(one)) is None:
                    continue
                grid = one.grid(factors.to(master.device))
                run = master.data.view(-1)[part.start : part.start + part.size]
                for view, row, column in rectangles(run, part.offset, one.columns):
                    beside = grid[row : row + len(view), column : column + view.shape[1]]
                    act(view, beside, (id(part.parameter), row * one.columns + column))


def _as_matrix(parameter: Any, axis: int) -> _Changed:
    shape = shape_of(parameter)
    rows = shape[0] if shape else 1
    return _Changed(rows=rows, columns=shape.numel() // rows, axis=axis)


def _times(before: Tensor | None, factors: Tensor) -> Tensor:
    return factors if before is None else before * factors


def _table(gamma: Tensor, layer: Attention) -> Tensor:
    """(H,) -> (H + G + 1,): the factors of each head's queries, of each head's keys, of the values."""
    shared = layer.heads // layer.key_heads
    keys = gamma.view(layer.key_heads, shared).amax(1).sqrt()
    return torch.cat([gamma / keys.repeat_interleave(shared), keys, keys.new_ones(1)])
