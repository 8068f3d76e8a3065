"""The reference trainer's GPT in one flat vector, with the ways to build it wrong."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from recorded.corpora import VOCABULARY
from recorded.recipe import Recipe
from trainer_hooks.gpt.model import GPT, Block, Shape

__all__ = ["HALF_MAX", "SmallGPT"]

HALF_MAX = 65504.0
"""The largest number of fp16."""


class SmallGPT(GPT):
    """trainer_hooks.gpt's model; its parameters and gradients are views into `flat` and `grad`."""

    def __init__(self, recipe: Recipe) -> None:
        super().__init__(
            Shape(
                layers=recipe.layers,
                width=recipe.width,
                heads=recipe.heads,
                seqlen=recipe.seqlen,
                block_layernorm=recipe.norm != "none",
            ),
            VOCABULARY,
        )
        self.post_norm = recipe.norm == "post"
        self.relu = recipe.relu
        self.watch_peak = recipe.fp16
        self.peak = 0.0
        """Largest activation of the last forward pass, where it is watched."""

        with torch.no_grad():
            for name, parameter in self.named_parameters():
                if "norm" not in name:
                    parameter.mul_(recipe.init_gain)
                if "qkv.weight" in name:
                    parameter[: 2 * recipe.width].mul_(recipe.attention_gain)
        self.flat, self.grad = self._flatten()

    def _flatten(self) -> tuple[Tensor, Tensor]:
        parameters = list(self.parameters())
        flat = torch.cat([p.detach().reshape(-1) for p in parameters])
        grad = torch.zeros_like(flat)
        at = 0
        for p in parameters:
            p.data = flat[at : at + p.numel()].view_as(p)
            p.grad = grad[at : at + p.numel()].view_as(p)
            at += p.numel()
        return flat, grad

    def slice_of(self, name: str) -> slice:
        """Where a parameter, or all of a module's, lie in `flat`."""
        at, found = 0, []
        for known, p in self.named_parameters():
            if known.startswith(name):
                found += [at, at + p.numel()]
            at += p.numel()
        return slice(min(found), max(found))

    def cross_entropy(self, inputs: Tensor, targets: Tensor) -> Tensor:
        """Both (B, T) -> mean over B * T predictions, nats."""
        x = self.tokens(inputs) + self.positions(torch.arange(inputs.shape[1]))  # (B, T, C)
        peaks = []
        for block in self.blocks:
            assert isinstance(block, Block)  # noqa: S101 - what ModuleList does not say
            x = self._block(block, x)
            peaks.append(x.detach().abs().max())
        self.peak = float(torch.stack(peaks).max()) if self.watch_peak else 0.0
        logits = functional.linear(self.norm(x), self.tokens.weight)  # (B, T, V), tied
        return functional.cross_entropy(logits.flatten(0, 1), targets.flatten())

    def _block(self, block: Block, x: Tensor) -> Tensor:
        bend = functional.relu if self.relu else functional.gelu
        if self.post_norm:
            x = block.norm_1(x + block._attention(x))
            return _normed(block.norm_2, x + block.mlp_out(bend(block.mlp_in(x))))
        x = x + block._attention(block.norm_1(x))
        out: Tensor = x + block.mlp_out(bend(block.mlp_in(block.norm_2(x))))
        return out


def _normed(norm: nn.Module, x: Tensor) -> Tensor:
    out: Tensor = norm(x)
    return out
