"""QK-clip and learning rates of a part: by head, by layout, under each sharding, against a plain loop."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from sentinel.vocabulary.errors import OverridesError
from tests.hooks.torchrun import lines_of
from trainer_hooks.qk_clip import Attention, AttentionOverride, largest_logits

CASES = (
    "0 fp32",
    "1 fp32",
    "2 fp32",
    "3 fp32",
    "0 bf16",
    "1 bf16",
    "2 fp16",
    "3 bf16",
    "2 bf16 offload",
    "3 fp32 offload",
)
WIDTH, D = 12, 4  # of the stream, of a head


@pytest.mark.full
@pytest.mark.timeout(300)
@pytest.mark.parametrize("ranks", [1, 2])
def test_under_zero_it_is_the_plain_training_and_the_16_bit_copies_follow(ranks: int) -> None:
    found = {told["case"]: told for told in lines_of("qk_clipped.py", *CASES, ranks=ranks)}
    assert list(found) == list(CASES)
    assert all(told["first_step"] < 1e-6 for told in found.values())
    assert all(told["copies_equal"] and told["untouched"] for told in found.values())
    assert all(told["clipped"] == told["passed"] > 0 for told in found.values())
    assert all(told["against_plain"] < 1e-5 for case, told in found.items() if "fp32" in case)


class Layer(nn.Module):
    """Attention logits of a layer with projections as a layout has them, and a rotation of each position's heads."""

    def __init__(self, *, heads: int = 3, key_heads: int = 3, fused: str = "", rotary: bool = False) -> None:
        super().__init__()
        torch.manual_seed(2)
        self.heads, self.key_heads, self.fused, self.rotary = heads, key_heads, fused, rotary
        if fused:
            self.qkv: Any = nn.Linear(WIDTH, 3 * heads * D)
            if fused == "columns":  # Hugging Face's Conv1D
                self.qkv.weight = nn.Parameter(self.qkv.weight.detach().T.contiguous())
        else:
            self.q, self.k, self.v = (nn.Linear(WIDTH, n * D) for n in (heads, key_heads, key_heads))

    def attention(self) -> Attention:
        if self.fused:
            axis = int(self.fused == "columns")
            return Attention.fused(self.qkv, self.heads, by_head=self.fused == "by head", axis=axis)
        return Attention.separate(self.q, self.k, self.v, width=D)

    def qkv_of(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """x (B, T, C) -> q (B, H, T, D), k and v (B, G, T, D)."""
        if not self.fused:
            parts = [one(x).unflatten(2, (-1, D)) for one in (self.q, self.k, self.v)]
        else:
            weight = self.qkv.weight.T if self.fused == "columns" else self.qkv.weight
            out = nn.functional.linear(x, weight, self.qkv.bias)
            sizes, axis = ((self.heads, 3, D), 3) if self.fused == "by head" else ((3, self.heads, D), 2)
            parts = list(out.unflatten(2, sizes).unbind(axis))
        q, k, v = (part.transpose(1, 2) for part in parts)
        return (_rotated(q), _rotated(k), v) if self.rotary else (q, k, v)

    def logits(self, x: Tensor) -> Tensor:
        """(H,): the largest of each head."""
        q, k, _ = self.qkv_of(x)
        return largest_logits(q, k, 1 / math.sqrt(D)).amax(0)


def _rotated(x: Tensor) -> Tensor:
    angles = torch.arange(x.shape[2])[:, None] / torch.tensor([1.0, 10.0])
    a, b = x.chunk(2, dim=3)
    return torch.cat([a * angles.cos() - b * angles.sin(), a * angles.sin() + b * angles.cos()], 3)


LAYOUTS: list[dict[str, Any]] = [
    {"fused": "rows"},
    {"fused": "by head"},
    {"fused": "columns"},
    {},
    {"heads": 6, "key_heads": 2},
    {"heads": 6, "key_heads": 1, "rotary": True},
]


def overridden(layer: Layer, *, lr: float = 0.0, **changes: Any) -> tuple[torch.optim.Optimizer, AttentionOverride]:
    optimizer = torch.optim.SGD(layer.parameters(), lr=lr)
    engine = SimpleNamespace(module=layer, optimizer=optimizer)
    return optimizer, AttentionOverride(engine, [layer.attention()], **{"qk_clip": 0.0, "lr_factor_of": {}, **changes})


def one_step(layer: Layer, optimizer: torch.optim.Optimizer, override: AttentionOverride, x: Tensor) -> None:
    q, k, v = layer.qkv_of(x)
    override.seen(0, q, k, 1 / math.sqrt(D))
    (q.sum() + k.sum() + v.sum()).backward()  # type: ignore[no-untyped-call]
    optimizer.step()


X = 4 * torch.randn(2, 5, WIDTH, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_each_head_gets_its_own_gamma_and_values_stay(layout: dict[str, Any]) -> None:
    layer = Layer(**layout)
    before, values = layer.logits(X), layer.qkv_of(X)[2]
    limit = float(before.median())
    optimizer, override = overridden(layer, qk_clip=limit)
    one_step(layer, optimizer, override, X)
    assert torch.allclose(layer.logits(X), before.clamp(max=limit), rtol=1e-5)
    assert layer.qkv_of(X)[2].equal(values)
    assert override.clipped_heads is not None
    assert int(override.clipped_heads) == int((before > limit).sum()) > 0


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_where_no_head_passes_the_limit_no_bit_changes(layout: dict[str, Any]) -> None:
    layer, plain = Layer(**layout), Layer(**layout)
    optimizer, override = overridden(layer, lr=0.1, qk_clip=1e6)
    one_step(layer, optimizer, override, X)
    alone = torch.optim.SGD(plain.parameters(), lr=0.1)
    sum(part.sum() for part in plain.qkv_of(X)).backward()  # type: ignore[union-attr]
    alone.step()
    assert all(one.equal(other) for one, other in zip(layer.parameters(), plain.parameters(), strict=True))


def test_grouped_queries_share_their_keys_and_no_weight_grows() -> None:
    layer = Layer(heads=4, key_heads=2)
    before, old = layer.logits(X), {name: p.detach().clone() for name, p in layer.named_parameters()}
    limit = float(before[:2].min()) * 0.99  # both of the first group pass it
    optimizer, override = overridden(layer, qk_clip=limit)
    one_step(layer, optimizer, override, X)
    gamma = (limit / before).clamp(max=1)
    shared = gamma[:2].max().sqrt()
    assert torch.allclose(layer.k.weight[:D], old["k.weight"][:D] * shared)
    assert torch.allclose(layer.q.weight[:D], old["q.weight"][:D] * gamma[0] / shared)
    assert all(bool((p.abs() <= old[name].abs() * (1 + 1e-6)).all()) for name, p in layer.named_parameters())


@pytest.mark.parametrize("fused", ["rows", "by head", "columns"])
@pytest.mark.parametrize(("role", "slowed"), [("attention.qk", (0.25, 0.25, 1)), ("attention.qkv", (0.25, 0.25, 0.25))])
def test_a_roles_learning_rate_is_that_of_its_rows(fused: str, role: str, slowed: tuple[float, ...]) -> None:
    layer, plain = Layer(fused=fused), Layer(fused=fused)
    optimizer, override = overridden(layer, lr=0.1, lr_factor_of={role: 0.25})
    one_step(layer, optimizer, override, X)
    alone = torch.optim.SGD(plain.parameters(), lr=0.1)
    sum(part.sum() for part in plain.qkv_of(X)).backward()  # type: ignore[union-attr]
    start = plain.qkv_of(X)
    alone.step()
    for now, whole, old, factor in zip(layer.qkv_of(X), plain.qkv_of(X), start, slowed, strict=True):
        assert torch.allclose(now, old + factor * (whole - old), rtol=1e-4, atol=1e-4)


def test_a_pattern_names_whole_parameters_and_multiplies_with_a_role() -> None:
    layer = Layer()
    old = {name: p.detach().clone() for name, p in layer.named_parameters()}
    optimizer, override = overridden(layer, lr=0.1, lr_factor_of={"q.*": 0.5, "attention.qk": 0.5})
    one_step(layer, optimizer, override, X)
    moved = {name: (p.detach() - old[name]) / p.grad for name, p in layer.named_parameters() if p.grad is not None}
    expected = {"q": 0.025, "k": 0.05, "v": 0.1}
    assert all(torch.allclose(-m, torch.tensor(expected[name[0]]), rtol=1e-3) for name, m in moved.items())


def test_masked_logits_do_not_count() -> None:
    q, k = torch.ones(1, 1, 4, D), torch.arange(4.0).view(1, 1, 4, 1).expand(1, 1, 4, D)
    assert float(largest_logits(q[:, :, :2], k[:, :, :2], 1.0)) == D
    first = torch.zeros(1, 1, 4, 4, dtype=torch.bool)
    first[..., :2] = True
    assert float(largest_logits(q, k, 1.0, mask=first)) == D
    assert float(largest_logits(q, k, 1.0, mask=torch.where(first, 0.0, -1e9))) == D
    assert float(largest_logits(q, k.flip(2), 1.0, window=1)) == 3 * D
    assert float(largest_logits(q, k, 1.0)) == 3 * D


def test_a_maximum_over_many_positions_is_that_of_all_at_once() -> None:
    q, k = torch.randn(2, 2, 600, D), torch.randn(2, 1, 600, D)
    logits = (q @ k.transpose(2, 3)).masked_fill(torch.ones(600, 600).triu(1).bool(), -math.inf)
    assert torch.allclose(largest_logits(q, k, 1.0), logits.amax((2, 3)))


def test_what_cannot_be_applied_is_refused() -> None:
    with pytest.raises(OverridesError, match="no parameter is named like 'nothing"):
        overridden(Layer(), lr_factor_of={"nothing.*": 0.5})
    layer = Layer()
    tensor_parallel = SimpleNamespace(get_model_parallel_world_size=lambda: 2)
    engine = SimpleNamespace(module=layer, optimizer=torch.optim.SGD(layer.parameters()), mpu=tensor_parallel)
    with pytest.raises(OverridesError, match="tensor parallelism"):
        AttentionOverride(engine, [layer.attention()], qk_clip=100, lr_factor_of={})
    engine.mpu = None
    with pytest.raises(OverridesError, match="attention layers are not known"):
        AttentionOverride(engine, [], qk_clip=100, lr_factor_of={})


def test_a_step_without_logits_is_an_error_not_a_step_that_is_not_clipped() -> None:
    layer = Layer()
    optimizer, _ = overridden(layer, qk_clip=100)
    sum(part.sum() for part in layer.qkv_of(X)).backward()  # type: ignore[union-attr]
    with pytest.raises(OverridesError, match="no attention logit was seen"):
        optimizer.step()
