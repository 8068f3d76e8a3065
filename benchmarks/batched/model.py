"""The reference trainer's GPT, R of them at once. R runs, B samples, T tokens, C width, H heads, V vocabulary."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor
from torch.nn import functional

from trainer_hooks.gpt.model import GPT, Shape
from trainer_hooks.qk_clip.logits import largest_logits

__all__ = ["Models", "Peaks"]

Peaks = dict[str, Tensor]
"""Largest magnitudes of a forward pass, (R,) each: `attention_logit`, `output_logit`."""


Watched = tuple[Peaks | None, list[Tensor] | None]


class Models:
    """R models of one shape in one matrix (R, N). Run r of them computes what trainer_hooks.gpt's GPT does."""

    def __init__(self, shape: Shape, vocabulary: int, seeds: Sequence[int], *, qk_norm: bool = False) -> None:
        """`qk_norm`: a LayerNorm of queries and keys (Dehghani et al. 2023, arXiv:2302.05442), which GPT has not."""
        self.shape = shape
        self.runs = len(seeds)
        first = _initial(shape, vocabulary, seeds[0])
        self.sizes = {name: p.shape for name, p in first.named_parameters()}
        rows = [torch.cat([p.detach().reshape(-1) for p in _initial(shape, vocabulary, s).parameters()]) for s in seeds]
        if qk_norm:
            gains = [f"blocks.{layer}.{one}_gain" for layer in range(shape.layers) for one in ("q", "k")]
            self.sizes |= {name: torch.Size([shape.width // shape.heads]) for name in gains}
            rows = [torch.cat([row, torch.ones(2 * shape.layers * shape.width // shape.heads)]) for row in rows]
        self.flat = torch.stack(rows)
        self.p = {name: view.requires_grad_() for name, view in self.views(self.flat).items()}

    def views(self, flat: Tensor) -> dict[str, Tensor]:
        """Each parameter of a matrix (R, N), by its name, (R, …)."""
        views, at = {}, 0
        for name, size in self.sizes.items():
            views[name] = flat[:, at : at + size.numel()].view(self.runs, *size)
            at += size.numel()
        return views

    def gradients(self, losses: Tensor) -> Tensor:
        """(R, N) of `losses`, each run's of its own."""
        found = torch.autograd.grad(losses.sum(), list(self.p.values()))
        return torch.cat([one.reshape(self.runs, -1) for one in found], 1)

    def losses(
        self,
        tokens: Tensor,
        peaks: Peaks | None = None,
        kept: Sequence[Tensor] = (),
        z_loss: float = 0.0,
        head_peaks: list[Tensor] | None = None,
    ) -> Tensor:
        """tokens (R, B, T + 1) -> (R,) mean cross entropy of each, nats. `peaks` is filled, and costs time.

        `z_loss`: weight of the squared log of the softmax's sum (PaLM, arXiv:2204.02311), which is added.

        `head_peaks` is filled with the largest attention logit of each head, (R, H) of each layer.

        `kept`: random-LTD; for each layer but the first and the last the positions that it sees, (R B, K) ascending.
        """
        inputs, targets = tokens[..., :-1], tokens[..., 1:]
        r, b, t = inputs.shape
        watched = (peaks, head_peaks)
        rows = torch.arange(r)[:, None]
        x = self.p["tokens.weight"][rows, inputs.reshape(r, b * t)]  # (R, B T, C)
        x = (x.view(r, b, t, -1) + self.p["positions.weight"][:, None, :t]).view(r, b * t, -1)
        for layer in range(self.shape.layers):
            part = {
                k.removeprefix(f"blocks.{layer}."): v for k, v in self.p.items() if k.startswith(f"blocks.{layer}.")
            }
            if kept and 0 < layer < self.shape.layers - 1:
                places = kept[layer - 1]
                wide = places[..., None].expand(-1, -1, x.shape[-1])
                whole = x.view(r * b, t, -1)
                inside = whole.gather(1, wide).view(r, b * places.shape[1], -1)
                seen = self._block(part, inside, (r, b, places.shape[1]), watched)
                x = whole.scatter(1, wide, seen.view(r * b, places.shape[1], -1)).view(r, b * t, -1)
            else:
                x = self._block(part, x, (r, b, t), watched)
        logits = torch.bmm(_normed(x, self.p, "norm"), self.p["tokens.weight"].transpose(1, 2))  # (R, B T, V), tied
        if peaks is not None:
            peaks["output_logit"] = logits.detach().abs().amax((1, 2))
        each = functional.cross_entropy(logits.flatten(0, 1), targets.reshape(-1), reduction="none")
        if z_loss:
            each = each + z_loss * logits.logsumexp(2).square().flatten()
        return each.view(r, -1).mean(1)

    def _block(self, part: Mapping[str, Tensor], x: Tensor, sizes: tuple[int, int, int], watched: Watched) -> Tensor:
        x = x + self._attention(part, self._norm(x, part, "norm_1"), sizes, watched)
        return x + _linear(functional.gelu(_linear(self._norm(x, part, "norm_2"), part, "mlp_in")), part, "mlp_out")

    def _norm(self, x: Tensor, part: Mapping[str, Tensor], name: str) -> Tensor:
        return _normed(x, part, name) if self.shape.block_layernorm else x

    def _attention(
        self, part: Mapping[str, Tensor], x: Tensor, sizes: tuple[int, int, int], watched: Watched
    ) -> Tensor:
        peaks, head_peaks = watched
        r, b, t = sizes
        heads = self.shape.heads
        qkv = _linear(x, part, "qkv").view(r * b, t, 3, heads, -1)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)  # each (R B, H, T, C/H)
        if "q_gain" in part:
            q, k = _per_head(q, part["q_gain"]), _per_head(k, part["k_gain"])
        if head_peaks is not None:
            with torch.no_grad():
                head_peaks.append(largest_logits(q, k, 1 / math.sqrt(q.shape[-1])).view(r, b, heads).amax(1))
        if peaks is not None:
            seen = torch.ones(t, t).tril().bool()
            logits = (q @ k.transpose(2, 3)).detach().abs() / math.sqrt(q.shape[-1]) * seen
            largest = logits.view(r, -1).amax(1)
            peaks["attention_logit"] = torch.maximum(peaks.get("attention_logit", largest), largest)
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return _linear(y.transpose(1, 2).reshape(r, b * t, -1), part, "attention_out")


def _linear(x: Tensor, part: Mapping[str, Tensor], name: str) -> Tensor:
    return torch.baddbmm(part[f"{name}.bias"][:, None], x, part[f"{name}.weight"].transpose(1, 2))


def _normed(x: Tensor, part: Mapping[str, Tensor], name: str) -> Tensor:
    plain = functional.layer_norm(x, x.shape[-1:])
    return torch.addcmul(part[f"{name}.bias"][:, None], plain, part[f"{name}.weight"][:, None])


def _per_head(x: Tensor, gain: Tensor) -> Tensor:
    wide = gain.repeat_interleave(x.shape[0] // gain.shape[0], 0)[:, None, None]  # (R B, 1, 1, C/H)
    return functional.layer_norm(x, x.shape[-1:]) * wide


def _initial(shape: Shape, vocabulary: int, seed: int) -> GPT:
    torch.manual_seed(seed)
    return GPT(shape, vocabulary)
