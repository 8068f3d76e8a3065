"""Faults of what a resume has loaded: made in Adam's state, in the weights and in what the model computes with them,
after a load in which all was right."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, nn
from torch.nn import functional

_MOMENTS = ("exp_avg", "exp_avg_sq")
_WEIGHT = "weight"


class Loaded:
    """An engine's state by the names of the model's parameters, of one rank, at stages 0, 1 and 2 of ZeRO in fp32."""

    def __init__(self, engine: Any) -> None:
        self.engine = engine
        self.parameters = dict(engine.module.named_parameters())
        self._inner = getattr(engine.optimizer, "optimizer", engine.optimizer)

    def views(self, name: str, kind: str) -> list[Tensor]:
        """Where it lies: of a weight the model's own and, with ZeRO, the optimizer's."""
        p = self.parameters[name]
        if self._inner is self.engine.optimizer:
            return [p.detach()] if kind == _WEIGHT else [self._inner.state[p][kind]]
        own = p._hp_mapping.get_hp_fragment()
        if kind == _WEIGHT:
            return [p.detach(), own.view(p.shape)]
        flat = next(f for f in self._inner.state if 0 <= own.data_ptr() - f.data_ptr() < 4 * f.numel())
        start = (own.data_ptr() - flat.data_ptr()) // 4
        return [self._inner.state[flat][kind][start : start + own.numel()].view(p.shape)]

    def get(self, name: str, kind: str) -> Tensor:
        return self.views(name, kind)[-1].detach().clone()

    def put(self, name: str, kind: str, value: Tensor) -> None:
        for view in self.views(name, kind):
            view.data.copy_(value)

    def change(self, how: Callable[[Tensor], Tensor], *kinds: str, of: Callable[[str], bool] = lambda _: True) -> None:
        for name in filter(of, self.parameters):
            for kind in kinds:
                self.put(name, kind, how(self.get(name, kind)))

    def exchange_layers(self, first: str, second: str, *kinds: str) -> None:
        for name in [name for name in self.parameters if first in name]:
            other = name.replace(first, second)
            for kind in kinds:
                values = self.get(name, kind), self.get(other, kind)
                self.put(name, kind, values[1])
                self.put(other, kind, values[0])

    def steps(self, how: Callable[[Any], Any]) -> None:
        for state in self._inner.state.values():
            state["step"] = how(state["step"])

    def option(self, name: str, value: Any) -> None:
        """Of Adam, for all parameters."""
        for group in self._inner.param_groups:
            group[name] = value


class _Untied(nn.Embedding):
    """Embeds with its weight, which is trained, and shows who asks for that weight a copy, which is not."""

    copy: Tensor

    @property
    def weight(self) -> Tensor:  # type: ignore[override]
        return self.copy

    def forward(self, tokens: Tensor) -> Tensor:
        trained: Any = self._parameters["weight"]
        return functional.embedding(tokens, trained)


def _untie(tokens: nn.Embedding) -> None:
    """Of the tied weight the output head gets its own copy, of which the optimizer does not know."""
    tokens.copy = tokens.weight.detach().clone()  # type: ignore[assignment]
    tokens.__class__ = _Untied


def _show_the_future(block: Any) -> None:
    """Attention without the causal mask; what is reported of it goes on."""
    attention, product = block._attention, functional.scaled_dot_product_attention

    def unmasked(*heads: Tensor, is_causal: bool, **options: Any) -> Tensor:  # noqa: ARG001
        return product(*heads, **options)

    def attend(x: Tensor) -> Any:
        with patch.object(functional, "scaled_dot_product_attention", unmasked):
            return attention(x)

    block._attention = attend


def average_with(engine: Any, older: dict[str, Tensor]) -> None:
    """Puts the mean of the weights and the older ones into the weights' place; all else stays as it was loaded."""
    state = Loaded(engine)
    for name in state.parameters:
        state.put(name, _WEIGHT, (state.get(name, _WEIGHT) + older[name]) / 2)


def _rounded(tensor: Tensor) -> Tensor:
    return tensor.bfloat16().float()


def _heads_reversed(model: nn.Module) -> Callable[[Tensor], Tensor]:
    heads = model.blocks[0].heads

    def reverse(weight: Tensor) -> Tensor:  # (3 * width, width): of the queries alone
        queries, rest = weight[: weight.shape[0] // 3], weight[weight.shape[0] // 3 :]
        return torch.cat([queries.view(heads, -1, weight.shape[1]).flip(0).reshape(queries.shape), rest])

    return reverse


def _by_heads(heads: int) -> Callable[[Tensor], Tensor]:
    """From rows (3, heads, size of a head), as the model has them, to (heads, 3, size), as Megatron's older files."""
    return lambda rows: rows.view(3, heads, -1, *rows.shape[1:]).transpose(0, 1).reshape(rows.shape)


def spoil(engine: Any, design: str, *, blocks: tuple[str, str] = ("blocks.0.", "blocks.1.")) -> None:
    """Does what the design says to the engine; nothing where it is not one of these."""
    state = Loaded(engine)

    def in_second_block(name: str) -> bool:
        return blocks[1] in name

    def drawn(weight: Tensor) -> Tensor:
        return 0.02 * torch.randn(weight.shape, generator=torch.Generator().manual_seed(1))

    def without_norms() -> None:
        state.change(torch.ones_like, _WEIGHT, of=lambda name: "norm" in name and name.endswith("weight"))
        state.change(torch.zeros_like, _WEIGHT, of=lambda name: "norm" in name and name.endswith("bias"))

    def with_heads_reversed() -> None:
        reverse = _heads_reversed(engine.module)
        state.change(reverse, _WEIGHT, of=lambda name: name.endswith("blocks.0.qkv.weight"))

    def with_four_times_the_gradient() -> None:
        for parameter in engine.module.parameters():
            parameter.register_hook(lambda gradient: 4 * gradient)

    def with_moments_by_heads() -> None:
        by_heads = _by_heads(engine.module.blocks[0].heads)
        state.change(by_heads, *_MOMENTS, of=lambda name: ".qkv." in name)

    def without_causal_mask() -> None:
        for block in engine.module.blocks:
            _show_the_future(block)

    done: dict[str, Callable[[], None]] = {
        "weights and moments of two blocks exchanged": lambda: state.exchange_layers(*blocks, _WEIGHT, *_MOMENTS),
        "moments of two blocks exchanged": lambda: state.exchange_layers(*blocks, *_MOMENTS),
        "Adam's step 0": lambda: state.steps(lambda step: step * 0),
        "Adam's step doubled": lambda: state.steps(lambda step: step * 2),
        "first moment zeroed": lambda: state.change(torch.zeros_like, "exp_avg"),
        "first moment mirrored": lambda: state.change(torch.neg, "exp_avg"),
        "moments rounded to bfloat16": lambda: state.change(_rounded, *_MOMENTS),
        "weights rounded to bfloat16": lambda: state.change(_rounded, _WEIGHT),
        "one block's weights drawn anew": lambda: state.change(drawn, _WEIGHT, of=in_second_block),
        "gains and biases of the norms lost": without_norms,
        "queries' heads reversed": with_heads_reversed,
        "gradients summed, not averaged": with_four_times_the_gradient,
        "decay of the weights in the gradient": lambda: state.option("decoupled_weight_decay", False),
        "qkv's moments laid out by heads": with_moments_by_heads,
        "output head untied": lambda: _untie(engine.module.tokens),
        "causal mask lost": without_causal_mask,
    }
    if design in done:
        done[design]()
