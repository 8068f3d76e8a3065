"""The loop: data, learning rate, clipping, AdamW, each run with its own settings; what is recorded of each step."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from benchmarks.batched.model import Models, Peaks
from sentinel.vocabulary.pacing import BatchSizeSchedule, FixedLinear, RandomLtdSchedule
from trainer_hooks.gpt.data import Corpus as Text
from trainer_hooks.gpt.model import Shape
from trainer_hooks.gpt.order import DataOrder
from trainer_hooks.random_ltd.draw import kept_indices, layer_key

__all__ = ["Recorded", "Setting", "State", "Text", "Training"]

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """How one run is trained. The LR warms up by steps and is then held: a rung that only postpones shows it."""

    lr: float
    warmup: int
    """Steps from `anchor` to the peak."""

    anchor: int = 0
    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8
    weight_decay: float = 0.01
    clip: float = 1.0
    padded_steps: int = 0
    """Up to this step gradients are multiplied by `padded_scale`, as where the loss of padding is masked and its
    positions count in the mean all the same; from then on they are whole, as where samples are packed."""

    padded_scale: float = 1.0
    seqlen: FixedLinear | None = None
    """Of all runs that are trained together; None is full length."""

    reshaped: bool = False
    """Samples are cut into pieces of the length, and all are trained on: a step keeps its tokens."""

    batch: BatchSizeSchedule | None = None
    random_ltd: RandomLtdSchedule | None = None
    qk_norm: bool = False
    """A LayerNorm of queries and keys; of all runs that are trained together, as is z_loss."""

    z_loss: float = 0.0
    qk_clip: float = math.inf
    """Queries' and keys' weights of a head whose largest logit passes this limit are scaled down after the step."""

    qk_lr_factor: float = 1.0
    """Of the LR, for the weights and biases of queries and keys."""

    v_lr_factor: float = 1.0
    """Of the LR, for those of values."""

    clips_updates: bool = False
    """StableAdamW (Wortsman et al. 2023, arXiv:2304.13013): the LR of each tensor over max(1, the root of the mean of
    g^2 / v), which is large where v lags behind grown gradients."""

    embedding_scale: float = 1.0
    """Of the gradient of the token embedding (GLM-130B, arXiv:2210.02414: 0.1)."""

    skips_from: float = math.inf
    """An update is left out where the gradient's norm is so many standard deviations above the mean of the 128 steps
    before it, of 64 at least (OLMo-core's SkipStepOptimizer: 6)."""

    decay_tokens: int = 0
    """Where a cosine over the tokens has brought the LR to 0; 0 holds it at the peak."""

    def rate(self, step: int, tokens: int = 0) -> float:
        """Of the update that makes `step`; `tokens` are those before it."""
        decay = 0.5 + 0.5 * math.cos(math.pi * min(1.0, tokens / self.decay_tokens)) if self.decay_tokens else 1.0
        return self.lr * min(1.0, max(0, step - self.anchor) / self.warmup) * decay


@dataclass(slots=True, kw_only=True)
class State:
    """What a checkpoint holds, of R runs."""

    step: int = 0
    updates: int = 0
    """Adam's own count, which a reset of its moments sets to 0."""

    samples: int = 0
    tokens: int = 0
    flat: Tensor
    m: Tensor
    v: Tensor

    def save(self, path: Path) -> None:
        """As .npz."""
        counts = {name: getattr(self, name) for name in ("step", "updates", "samples", "tokens")}
        np.savez(path, **counts, **{name: getattr(self, name).numpy() for name in ("flat", "m", "v")})  # type: ignore[arg-type]

    @classmethod
    def read(cls, path: Path) -> State:
        """What `save` wrote."""
        with np.load(path, allow_pickle=False) as saved:
            counts = {name: int(saved[name]) for name in ("step", "updates", "samples", "tokens")}
            return cls(**counts, **{name: torch.from_numpy(saved[name]) for name in ("flat", "m", "v")})


@dataclass(slots=True, kw_only=True)
class Recorded:
    """(steps, R) of each signal; (validations, R) of what is measured every so often."""

    steps: list[int] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    validated: list[int] = field(default_factory=list)
    rows: dict[str, list[Floats]] = field(default_factory=dict)

    def add(self, name: str, row: Tensor) -> None:
        self.rows.setdefault(name, []).append(row.detach().double().numpy().copy())

    def of(self, name: str) -> Floats:
        return np.stack(self.rows[name])


class Training:
    """R runs, one per (setting, seed). All have the same lengths and batches at each step."""

    def __init__(
        self,
        shape: Shape,
        corpus: Text,
        settings: Sequence[Setting],
        seeds: Sequence[int],
        *,
        batch: int,
        validate_every: int = 10,
        validation_samples: int = 16,
        order: Callable[[int], Any] | None = None,
    ) -> None:
        """`order`: of a seed, in place of DataOrder; a curriculum."""
        if len({(s.seqlen, s.reshaped, s.batch, s.random_ltd, s.qk_norm, s.z_loss) for s in settings}) > 1:
            raise ValueError("runs that are trained together have the same lengths, batches, qk_norm and z_loss")
        self.shape, self.corpus, self.settings, self.batch = shape, corpus, list(settings), batch
        self.validate_every = validate_every
        self.models = Models(shape, corpus.vocabulary, seeds, qk_norm=settings[0].qk_norm)
        self.seeds = list(seeds)
        self.orders = [(order or partial(DataOrder, corpus.training_samples))(seed) for seed in seeds]
        flat = self.models.flat
        self.state = State(flat=flat, m=torch.zeros_like(flat), v=torch.zeros_like(flat))
        self.recorded = Recorded()
        self.tokens: Tensor | None = None  # (R, B, T + 1) of the last step
        self._norms: list[Tensor] = []  # (R,) gradient norms of the last steps
        held = torch.from_numpy(corpus.validation(np.arange(min(validation_samples, corpus.validation_samples))))
        self.held = held.expand(len(seeds), *held.shape)

    def saved(self) -> State:
        s = self.state
        return replace(s, flat=s.flat.clone(), m=s.m.clone(), v=s.v.clone())

    def load(self, saved: State, *, reset_moments: bool = False) -> None:
        """Goes on from there."""
        for name in ("flat", "m", "v"):
            getattr(self.state, name).copy_(getattr(saved, name))
        for name in ("step", "updates", "samples", "tokens"):
            setattr(self.state, name, getattr(saved, name))
        if reset_moments:
            self.state.m.zero_()
            self.state.v.zero_()
            self.state.updates = 0

    @torch.no_grad()
    def bound_logits(self, limit: float) -> None:
        """Scales the weights and biases of each layer's queries and keys down, once, so that
        width x s(Wq) x s(Wk) / sqrt(D), s the largest singular value, is `limit` at most: then no attention logit of
        inputs with unit variance, as after a LayerNorm, is larger."""
        for layer in range(self.shape.layers):
            views = self.models.views(self.state.flat)
            weight, bias = (views[f"blocks.{layer}.qkv.{name}"] for name in ("weight", "bias"))
            query, key, _ = weight.unflatten(1, (3, -1)).unbind(1)  # (R, C, C) each
            norms = torch.linalg.matrix_norm(query, 2) * torch.linalg.matrix_norm(key, 2)
            bound = self.shape.width * norms / math.sqrt(self.shape.width // self.shape.heads)
            scale = (limit / bound).clamp(max=1.0).sqrt()
            weight.unflatten(1, (3, -1))[:, :2].mul_(scale[:, None, None, None])
            bias.unflatten(1, (3, -1))[:, :2].mul_(scale[:, None, None])

    def reseed(self, more: int) -> None:
        """`more` is added to each run's seed, for the data that is not yet consumed."""
        for order in self.orders:
            order.reseed(self.state.samples, order.seed + more)

    def train(self, *, steps: int | None = None, tokens: int | None = None) -> Recorded:
        """Up to this step, or until so many tokens are consumed by each run."""
        while (steps is None or self.state.step < steps) and (tokens is None or self.state.tokens < tokens):
            self._step()
            if self.state.step % self.validate_every == 0:
                self._validate()
        return self.recorded

    def _step(self) -> None:
        state, first = self.state, self.settings[0]
        state.step += 1
        state.updates += 1
        batch = first.batch.samples(state.samples) if first.batch else self.batch
        length = first.seqlen.seqlen(state.step) if first.seqlen else self.shape.seqlen
        rows = [self.corpus.training(order.take(state.samples, batch, state.step)[0]) for order in self.orders]
        pieces = self.shape.seqlen // length if first.reshaped else 1
        whole = np.stack(rows)
        cut = [whole[..., at : at + length + 1] for at in range(0, pieces * length, length)]
        self.tokens = tokens = torch.from_numpy(np.concatenate(cut, 1))
        kept = first.random_ltd.kept_tokens(state.step, length) if first.random_ltd else length
        drawn = self._drawn(batch * pieces, length, kept) if kept < length else ()
        clips = any(math.isfinite(s.qk_clip) for s in self.settings)
        head_peaks: list[Tensor] | None = [] if clips else None
        losses = self.models.losses(tokens, kept=drawn, z_loss=first.z_loss, head_peaks=head_peaks)
        g = self.models.gradients(losses)
        self.recorded.add("loss", losses)
        with torch.no_grad():
            self._update(g)
            self._clip(head_peaks or ())
        state.samples += batch
        state.tokens += batch * pieces * self._effective(length, kept)
        self.recorded.steps.append(state.step)
        self.recorded.tokens.append(state.tokens)

    def _effective(self, length: int, kept: int) -> int:
        """The mean over the layers: the tokens that Li et al. 2022 (arXiv:2212.03597) count as consumed."""
        dropping = max(0, self.shape.layers - 2)
        return (length * (self.shape.layers - dropping) + kept * dropping) // self.shape.layers

    def _drawn(self, batch: int, length: int, kept: int) -> list[Tensor]:
        def of(seed: int, layer: int) -> Tensor:
            return kept_indices(layer_key(seed, self.state.step, layer), 0, batch, length, kept, torch.device("cpu"))

        return [torch.cat([of(seed, layer) for seed in self.seeds]) for layer in range(1, self.shape.layers - 1)]

    def _update(self, g: Tensor) -> None:
        """torch.optim.AdamW's arithmetic, after clipping by the norm of each run's gradient."""
        state = self.state
        scales = [s.padded_scale if state.step <= s.padded_steps else 1.0 for s in self.settings]
        g.mul_(torch.tensor(scales)[:, None])
        if any(s.embedding_scale != 1.0 for s in self.settings):
            self.models.views(g)["tokens.weight"].mul_(self._each("embedding_scale")[:, None, None])
        norm = g.norm(dim=1)
        left_out = self._left_out(norm)
        before = [(one, one[left_out].clone()) for one in (state.m, state.v, state.flat)] if left_out.any() else ()
        limit, beta1, beta2 = self._each("clip"), self._each("beta1"), self._each("beta2")
        g.mul_((limit / (norm + 1e-6)).clamp(max=1.0)[:, None])
        lr = torch.tensor([s.rate(state.step, state.tokens) for s in self.settings])
        state.m.lerp_(g, (1 - beta1)[:, None])
        state.v.lerp_(g.square_(), (1 - beta2)[:, None])
        lr = self._slower(g, lr, 1 - beta2**state.updates) if any(s.clips_updates for s in self.settings) else lr
        root = state.v.sqrt()
        self.recorded.add("adam_variance_l1", root.sum(1))
        self.recorded.add("adam_variance_max", root.amax(1))
        root.div_((1 - beta2**state.updates).sqrt()[:, None]).add_(self._each("eps")[:, None])
        self.recorded.add("lr", lr if lr.dim() == 1 else lr.amax(1))
        lr = lr.view(len(norm), -1)
        change = torch.div(state.m, root, out=root).mul_(lr / (1 - beta1**state.updates)[:, None])
        self.recorded.add("grad_norm", norm)
        self.recorded.add("update_norm", change.norm(dim=1))
        if any((s.qk_lr_factor, s.v_lr_factor) != (1.0, 1.0) for s in self.settings):
            change.mul_(self.lr_factors)
            lr = lr * self.lr_factors
        state.flat.mul_(1 - lr * self._each("weight_decay")[:, None]).sub_(change)
        for one, rows in before:
            one[left_out] = rows

    def _left_out(self, norm: Tensor) -> Tensor:
        """(R,): whether the step's update is left out, by the gradients' norms before it."""
        earlier, limit = self._norms, self._each("skips_from")
        if not limit.isfinite().any():
            return torch.zeros_like(norm, dtype=torch.bool)
        found = torch.zeros_like(norm, dtype=torch.bool)
        if len(earlier) >= 64:
            past = torch.stack(earlier)
            found = limit.isfinite() & ~(norm <= past.mean(0) + limit * past.std(0))
        self._norms = [*earlier, norm.clone()][-128:]
        return found

    def _slower(self, squares: Tensor, lr: Tensor, correction: Tensor) -> Tensor:
        """(R, N): each element's LR where updates are clipped by tensor. `squares`: g^2."""
        ratio = squares / (self.state.v / correction[:, None]).clamp(min=1e-16)
        slower = torch.ones_like(ratio)
        clips = torch.tensor([s.clips_updates for s in self.settings])
        for name, view in self.models.views(slower).items():
            rms = self.models.views(ratio)[name].flatten(1).mean(1).sqrt()
            view.div_(rms.clamp(min=1.0).where(clips, 1.0).view(-1, *[1] * (view.dim() - 1)))
        return lr[:, None] * slower

    @cached_property
    def lr_factors(self) -> Tensor:
        """(R, N), of each element's LR."""
        factors = torch.ones_like(self.state.flat)
        whose = ("qk_lr_factor", "qk_lr_factor", "v_lr_factor")  # (3 C, C) of qkv.weight: queries, keys, values
        for name, view in self.models.views(factors).items():
            if ".qkv." in name:
                for part, factor in zip(view.unflatten(1, (3, -1)).unbind(1), whose, strict=True):
                    part.mul_(self._each(factor).view(-1, *[1] * (part.dim() - 1)))
        return factors

    def _clip(self, head_peaks: Sequence[Tensor]) -> None:
        """QK-clip (trainer_hooks.qk_clip), of the logits before the update, (R, H) of each layer."""
        views = self.models.views(self.state.flat)
        for layer, largest in enumerate(head_peaks):
            gamma = (self._each("qk_clip")[:, None] / largest).where(largest > self._each("qk_clip")[:, None], 1.0)
            for name in ("weight", "bias"):
                view = views[f"blocks.{layer}.qkv.{name}"]
                heads = view.unflatten(1, (3, self.shape.heads, -1))[:, :2]  # (R, 2, H, D[, C]): queries and keys
                heads.mul_(gamma.sqrt().view(gamma.shape[0], 1, -1, *[1] * (heads.dim() - 3)))

    def _each(self, name: str) -> Tensor:
        return torch.tensor([getattr(s, name) for s in self.settings])

    @torch.no_grad()
    def validated(self, peaks: Peaks | None = None) -> Floats:
        """(R,) validation losses at full length, nats."""
        found: Floats = self.models.losses(self.held, peaks).double().numpy()
        return found

    def _validate(self) -> None:
        peaks: Peaks = {}
        losses = self.validated(peaks)
        self.recorded.validated.append(self.state.step)
        self.recorded.rows.setdefault("validation_loss", []).append(losses)
        for name, peak in peaks.items():
            self.recorded.add(name, peak)
