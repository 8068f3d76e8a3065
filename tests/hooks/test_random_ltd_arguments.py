"""What a layer gets along with its kept tokens: Hugging Face's layers, masks, padding, positions, other layouts."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from sentinel.vocabulary.errors import ConfigError
from tests.hooks.random_ltd_cases import Keeps
from trainer_hooks.random_ltd import RandomLtd
from trainer_hooks.random_ltd.draw import kept_indices, layer_key
from trainer_hooks.random_ltd.layer import Selection

B, T, KEPT = 3, 12, 5
CPU = torch.device("cpu")
INDICES = kept_indices(layer_key(1, 1, 1), 0, B, T, KEPT, CPU)


def selection(batch_first: bool = True, axes: dict[str, tuple[int, ...]] | None = None) -> Selection:
    return Selection(indices=INDICES, seqlen=T, batch_first=batch_first, axes=axes or {})


def llama(attention: str) -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=4,
        num_attention_heads=2,
        num_key_value_heads=1,
        vocab_size=32,
        max_position_embeddings=64,
        attn_implementation=attention,
        pad_token_id=0,
    )
    return LlamaForCausalLM(config).train()


def gpt2(attention: str) -> Any:
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    config = GPT2Config(
        n_embd=16,
        n_layer=4,
        n_head=2,
        vocab_size=32,
        n_positions=64,
        attn_implementation=attention,
        attn_pdrop=0.0,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        bos_token_id=1,
        eos_token_id=1,
    )
    return GPT2LMHeadModel(config).train()


def layers_of(model: Any) -> Any:
    return model.model.layers if hasattr(model, "model") else model.transformer.h


PADDING = [0, 3, 5]
"""Tokens at each sample's end that are none."""


def attention_mask(padded: bool) -> Tensor:
    mask = torch.ones(B, T, dtype=torch.int64)
    if padded:
        for row, count in enumerate(PADDING):
            mask[row, T - count :] = 0
    return mask


def by_hand(layer: nn.Module, received: dict[str, Any], out: Tensor, padded: bool, rotary: bool) -> None:
    """Each sample's kept tokens, put through the layer alone, without padding and with their own positions."""
    hidden = received["hidden"]
    mask = attention_mask(padded)
    layer.forward = type(layer).forward.__get__(layer)  # type: ignore[method-assign]
    for row in range(B):
        kept = INDICES[row]
        real = kept[mask[row, kept] == 1]
        extra: dict[str, Any] = {}
        if rotary:
            cos, sin = received["position_embeddings"]
            extra["position_embeddings"] = (cos[:, real], sin[:, real])
        causal = torch.full((1, 1, len(real), len(real)), torch.finfo(torch.float32).min).triu(1)
        alone = layer(hidden[row : row + 1, real], attention_mask=causal, **extra)
        alone = alone[0] if isinstance(alone, tuple) else alone
        torch.testing.assert_close(out[row, real], alone[0], rtol=1e-4, atol=1e-5)
        dropped = [t for t in range(T) if t not in kept.tolist()]
        assert torch.equal(out[row, dropped], hidden[row, dropped])


@pytest.mark.parametrize("padded", [False, True], ids=["packed", "padded"])
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("make", [llama, gpt2])
def test_a_hugging_face_layer_sees_its_kept_tokens_with_their_masks_and_positions(
    make: Any, attention: str, padded: bool
) -> None:
    model = make(attention)
    layer = layers_of(model)[1]
    received: dict[str, Any] = {}

    def note(_: nn.Module, args: Any, kwargs: Any, out: Any) -> None:
        received.update(kwargs, hidden=args[0].detach(), out=(out[0] if isinstance(out, tuple) else out).detach())

    layer.register_forward_hook(note, with_kwargs=True)
    RandomLtd(model, type(layer), Keeps(KEPT), seed=1).begin(1, 0)
    inputs = torch.randint(1, 32, (B, T), generator=torch.Generator().manual_seed(0))
    out = model(input_ids=inputs, attention_mask=attention_mask(padded), labels=inputs)
    out.loss.backward()
    assert all(p.grad is not None and bool(p.grad.isfinite().all()) for p in layer.parameters())
    layer._forward_hooks.clear()
    with torch.no_grad():
        by_hand(layer, received, received["out"], padded, rotary=make is llama)


@pytest.mark.parametrize("make", [llama, gpt2])
def test_hugging_faces_own_gradient_checkpointing_changes_nothing(make: Any) -> None:
    model = make("sdpa")
    inputs = torch.randint(1, 32, (B, T), generator=torch.Generator().manual_seed(0))
    RandomLtd(model, type(layers_of(model)[1]), Keeps(KEPT), seed=1).begin(1, 0)

    def gradients() -> list[Tensor]:
        model.zero_grad()
        model(input_ids=inputs, labels=inputs, use_cache=False).loss.backward()
        return [p.grad.clone() for p in model.parameters()]

    plain = gradients()
    model.activation_checkpointing_enable()
    assert all(map(torch.equal, plain, gradients()))


def test_hugging_face_names_stay() -> None:
    model = llama("sdpa")
    names = list(model.state_dict())
    RandomLtd(model, type(layers_of(model)[1]), Keeps(KEPT), seed=1)
    assert list(model.state_dict()) == names


class SequenceFirst(nn.Module):
    """Megatron's layout: (T, B, C), a mask (1, 1, T, T) of what is not to be seen, rotary angles (T, 1, 1, C)."""

    def __init__(self) -> None:
        super().__init__()
        self.mix = nn.Linear(4, 4)

    def forward(self, hidden_states: Tensor, attention_mask: Tensor, rotary_pos_emb: Tensor) -> tuple[Tensor, None]:
        x = self.mix(hidden_states) * rotary_pos_emb[:, :, 0]
        sees = (~attention_mask[:, 0]).to(x.dtype)  # (b, T, T)
        return hidden_states + torch.einsum("bts,sbc->tbc", sees.expand(x.shape[1], -1, -1), x), None


def test_the_sequence_may_come_first() -> None:
    torch.manual_seed(0)
    model = nn.ModuleList(SequenceFirst() for _ in range(3))
    x, angles = torch.randn(T, B, 4), torch.randn(T, 1, 1, 4)
    mask = torch.ones(T, T).triu(1).bool()[None, None]
    RandomLtd(model, SequenceFirst, Keeps(KEPT), seed=1, batch_first=False).begin(1, 0)
    out = model[1](x, mask, rotary_pos_emb=angles)[0]
    layer = model[1]
    for row in range(B):
        kept = INDICES[row]
        causal = torch.ones(KEPT, KEPT).triu(1).bool()[None, None]
        alone = SequenceFirst.forward(layer, x[kept, row : row + 1], causal, angles[kept])[0]
        torch.testing.assert_close(out[kept, row], alone[:, 0])
        dropped = [t for t in range(T) if t not in kept.tolist()]
        assert torch.equal(out[dropped, row], x[dropped, row])


@pytest.mark.parametrize(
    ("name", "shape", "axes"),
    [
        ("attention_mask", (B, T), (1,)),
        ("attention_mask", (1, T), (1,)),
        ("attention_mask", (B, 1, T, T), (2, 3)),
        ("attention_mask", (1, 1, T, T), (2, 3)),
        ("attention_mask", (B, 2, T, T), (2, 3)),
        ("attention_mask", (B, T, T), (1, 2)),
        ("attention_mask", (B, 1, 1, T), (3,)),
        ("attention_bias", (1, 2, T, T), (2, 3)),
        ("position_ids", (B, T), (1,)),
        ("position_ids", (1, T), (1,)),
        ("cos", (1, T, 8), (1,)),
        ("cos", (1, T, T), (1,)),  # as wide as there are tokens, and no mask
        ("cos", (B, 1, T, 8), (2,)),
        ("residual", (B, T, 16), (1,)),
        ("scale", (16,), ()),
        ("gate", (B, 1, 8), ()),
    ],
)
def test_the_axes_of_tokens_are_told_by_name_and_shape(
    name: str, shape: tuple[int, ...], axes: tuple[int, ...]
) -> None:
    x = torch.arange(torch.tensor(shape).prod().item()).reshape(shape)
    got = selection().of(name, x)
    for row in range(B):
        expected = x[row if shape[0] == B else 0] if axes else x
        for axis in axes:
            expected = expected.index_select(axis - 1, INDICES[row])
        assert torch.equal(got[row] if axes else got, expected)


def test_what_is_nested_is_gone_through_and_what_is_no_tensor_stays() -> None:
    x = torch.randn(1, T, 8)
    cos, more = selection().of("position_embeddings", (x, {"sin": [x, None]}))
    assert cos.shape == more["sin"][0].shape == (B, KEPT, 8)
    assert more["sin"][1] is None
    cache = object()
    assert selection().of("past_key_values", cache) is cache
    assert selection().of("attention_mask", None) is None
    assert selection().of("use_cache", True) is True
    encoder = torch.randn(B, T, 16)
    assert selection().of("encoder_hidden_states", encoder) is encoder
    assert selection().of("cache_position", torch.arange(T)).tolist() == list(range(KEPT))


@pytest.mark.parametrize(
    ("name", "value", "advice"),
    [
        ("attention_mask", torch.ones(T, T), r"\(1, 1, T, T\)"),
        ("attention_mask", torch.ones(2 * B, T, T), r"\(1, 1, T, T\)"),
        ("freqs_cis", torch.ones(T, 8), r"\(1, T, …\)"),
        ("positions", torch.arange(T), r"\(1, T, …\)"),
        ("attention_mask", object(), "give the mask as a tensor"),
    ],
)
def test_what_is_one_for_all_samples_is_refused_with_advice(name: str, value: Any, advice: str) -> None:
    with pytest.raises(ConfigError, match=advice):
        selection().of(name, value)


def test_the_caller_may_know_better() -> None:
    x = torch.ones(B, 2, 2, T)
    assert selection(axes={"odd": (3,)}).of("odd", x).shape == (B, 2, 2, KEPT)
    assert selection(axes={"attention_mask": ()}).of("attention_mask", torch.ones(T, T)).shape == (T, T)


class Other(nn.Module):
    def __init__(self, what: str) -> None:
        super().__init__()
        self.what = what

    def forward(self, x: Any) -> Any:
        return {"x": x} if self.what == "a dict" else x


@pytest.mark.parametrize(
    ("what", "given", "reason"),
    [
        ("a tuple", (torch.ones(B, T, 4),), "hidden states first"),
        ("flat", torch.ones(B * T, 4), "hidden states first"),
        ("a dict", torch.ones(B, T, 4), "gives back a dict"),
    ],
)
def test_a_layer_of_another_shape_is_refused(what: str, given: Any, reason: str) -> None:
    model = nn.ModuleList(Other(what) for _ in range(3))
    RandomLtd(model, Other, Keeps(KEPT), seed=1).begin(1, 0)
    with pytest.raises(ConfigError, match=reason):
        model[1](given)
