"""GPT-2: pre-LN, learned positions, tied embeddings, scaled residual init. B batch, T tokens, C width, V vocabulary."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from sentinel.vocabulary.errors import ConfigError
from trainer_hooks.sample.logits import every_few_positions


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    layers: int
    width: int
    heads: int
    seqlen: int  # Full length, tokens per sample; there are as many positions
    # False leaves out the LayerNorms inside the blocks and keeps the final one: such a model really diverges.
    block_layernorm: bool = True
    dropout: float = 0.0

    def __post_init__(self) -> None:
        if self.width % self.heads:
            raise ConfigError(f"width {self.width} should be a multiple of the {self.heads} heads")


PRESETS = {
    "tiny": Shape(layers=4, width=64, heads=4, seqlen=128),
    # GPT-2: Radford et al. 2019, Table 2, as in Li, Zhang & He 2022, section 3
    "117M": Shape(layers=12, width=768, heads=12, seqlen=1024),
    "350M": Shape(layers=24, width=1024, heads=16, seqlen=1024),
    "1.5B": Shape(layers=48, width=1600, heads=25, seqlen=1024),
    # GPT-3: Brown et al. 2020, Table 2.1
    "gpt3-125M": Shape(layers=12, width=768, heads=12, seqlen=2048),
    "gpt3-1.3B": Shape(layers=24, width=2048, heads=16, seqlen=2048),
}


_QUERIES = 32  # Last positions of each sample whose attention logits are reported, over all keys that they see


class Block(nn.Module):
    """x + attention(norm(x)), then x + mlp(norm(x))."""

    report: Callable[..., None] | None = None  # see GPT.report_logits_to
    heads_seen: Callable[[Tensor, Tensor, float], None] | None = None  # gets q, k, 1 / sqrt(D) of each training pass

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        width = shape.width
        self.heads = shape.heads
        self.dropout = shape.dropout
        self.norm_1 = nn.LayerNorm(width) if shape.block_layernorm else nn.Identity()
        self.norm_2 = nn.LayerNorm(width) if shape.block_layernorm else nn.Identity()
        self.qkv = nn.Linear(width, 3 * width)
        self.attention_out = nn.Linear(width, width)
        self.mlp_in = nn.Linear(width, 4 * width)
        self.mlp_out = nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self._drop(self._attention(self.norm_1(x)))
        return x + self._drop(self.mlp_out(functional.gelu(self.mlp_in(self.norm_2(x)))))

    def _attention(self, x: Tensor) -> Tensor:
        b, t, c = x.shape
        qkv = self.qkv(x).view(b, t, 3, self.heads, c // self.heads)  # (B, T, 3, H, C/H)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)  # each (B, H, T, C/H)
        if self.report is not None and self.training:
            self.report(attention=lambda: _last_attention_logits(q, k))
        if self.heads_seen is not None and self.training:
            self.heads_seen(q, k, 1 / math.sqrt(q.shape[3]))
        drop = self.dropout if self.training else 0.0
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=True, dropout_p=drop)
        out: Tensor = self.attention_out(y.transpose(1, 2).reshape(b, t, c))  # (B, T, C)
        return out

    def _drop(self, x: Tensor) -> Tensor:
        return functional.dropout(x, self.dropout, self.training)


def _last_attention_logits(q: Tensor, k: Tensor) -> Tensor:
    """q, k (B, H, T, D) -> (B, H, N, T): of the last N positions; 0 where a key is behind the mask."""
    t = q.shape[2]
    last = q.detach()[:, :, -_QUERIES:] / math.sqrt(q.shape[3])
    return (last @ k.detach().transpose(2, 3)).tril(t - last.shape[2])


class GPT(nn.Module):
    """Tokens in, mean cross entropy out."""

    report: Callable[..., None] | None = None

    def __init__(self, shape: Shape, vocabulary: int) -> None:
        super().__init__()
        self.shape = shape
        self.tokens = nn.Embedding(vocabulary, shape.width)
        self.positions = nn.Embedding(shape.seqlen, shape.width)
        self.blocks = nn.ModuleList(Block(shape) for _ in range(shape.layers))
        self.norm = nn.LayerNorm(shape.width)
        self.apply(_initialise)
        for block in self.blocks:  # each residual sum has 2 * layers terms: GPT-2's scaled init
            for name in ("attention_out", "mlp_out"):
                weight = block.get_submodule(name).get_parameter("weight")
                nn.init.normal_(weight, std=0.02 / math.sqrt(2 * shape.layers))

    def report_logits_to(self, report: Callable[..., None]) -> None:
        """Calls `report` in each forward pass of the training: `Hook.report_logits`, which decides what is read."""
        for module in self.modules():
            if isinstance(module, GPT | Block):
                module.report = report

    def forward(self, tokens: Tensor) -> Tensor:
        """tokens (B, T + 1) of whole numbers -> loss, a scalar: mean over B * T predictions, nats."""
        inputs, targets = tokens[:, :-1], tokens[:, 1:]  # (B, T)
        positions = torch.arange(inputs.shape[1], device=tokens.device)
        x = self.tokens(inputs) + self.positions(positions)  # (B, T, C)
        x = functional.dropout(x, self.shape.dropout, self.training)
        for block in self.blocks:
            x = block(x)
        logits = functional.linear(self.norm(x), self.tokens.weight)  # (B, T, V), tied
        if self.report is not None and self.training:
            self.report(output=lambda: every_few_positions(logits))
        return functional.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())


def _initialise(module: nn.Module) -> None:
    if isinstance(module, nn.Linear | nn.Embedding):
        nn.init.normal_(module.weight, std=0.02)
    if isinstance(module, nn.Linear):
        nn.init.zeros_(module.bias)
