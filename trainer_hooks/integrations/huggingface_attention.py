"""qk_clip and lr_factor_of of overrides.json, for models of Hugging Face's.

An attention layer is known by its projections: `q_proj`, `k_proj`, `v_proj` (Llama, Mistral, Qwen 2, …; grouped
queries too), GPT-2's `c_attn`, GPT-NeoX's `query_key_value`. Its queries and keys, after a rotary embedding, are seen
where the layer calls the attention function of the configuration, which transformers looks up by name.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import Any

from torch import Tensor

from sentinel.vocabulary.overrides import TrainingSettings
from trainer_hooks.qk_clip import Attention, AttentionOverride

_SEPARATE = ("q_proj", "k_proj", "v_proj")
_FUSED = ("GPT2Attention", "GPTNeoXAttention")
_NORMS = ("q_norm", "k_norm", "q_layernorm", "k_layernorm", "query_layernorm", "key_layernorm")


def why_not_clipped(trainer: Any, model: Any) -> str | None:
    """Why the attention logits of this model can't be clipped, as a phrase; None where they can."""
    layers = attention_layers(model)
    if not layers:
        return "the names of its attention layers' projections are not known"
    if trainer.args.torch_compile:
        return "torch.compile has taken the model"
    collator = trainer.data_collator
    if getattr(collator, "padding_free", False) or type(collator).__name__ == "DataCollatorWithFlattening":
        return "the samples of a batch are packed into one sequence, without padding"
    return next((f"{type(layer).__name__} {fault}" for layer in layers for fault in _faults(layer)), None)


def attention_layers(model: Any) -> list[Any]:
    """The modules whose projections are known, in the model's order."""
    return [m for m in model.modules() if type(m).__name__ in _FUSED or all(hasattr(m, name) for name in _SEPARATE)]


def override_attention(engine: Any, standing: TrainingSettings) -> Callable[[], None]:
    """From now on each step is changed as `standing` says. Returns what takes it out of transformers again.
    OverridesError where it can't be done."""
    limit, factors = standing.qk_clip or 0.0, standing.lr_factor_of or {}
    if not limit and not factors:
        return lambda: None
    layers = attention_layers(engine.module)
    override = AttentionOverride(engine, [_attention(layer) for layer in layers], qk_clip=limit, lr_factor_of=factors)
    return _watch(layers, override) if limit else lambda: None


def _attention(layer: Any) -> Attention:
    if type(layer).__name__ not in _FUSED:
        return Attention.separate(layer.q_proj, layer.k_proj, layer.v_proj, width=int(layer.head_dim))
    heads = int(layer.config.num_attention_heads)
    if hasattr(layer, "c_attn"):
        return Attention.fused(layer.c_attn, heads, axis=1)
    return Attention.fused(layer.query_key_value, heads, by_head=True)


def _faults(layer: Any) -> Iterator[str]:
    config, home = layer.config, sys.modules[type(layer).__module__]
    if any(hasattr(layer, name) for name in _NORMS):
        yield "norms queries and keys: a scale of the weights changes no logit"
    if getattr(layer, "attn_logit_softcapping", None) is not None:
        yield "caps its logits"
    if getattr(layer, "is_cross_attention", False) or getattr(config, "is_encoder_decoder", False):
        yield "attends to another sequence"
    if not hasattr(home, "ALL_ATTENTION_FUNCTIONS") or getattr(layer, "reorder_and_upcast_attn", False):
        yield "does not look its attention function up by name"
    implementation = str(config._attn_implementation)
    if implementation not in ("eager", "sdpa") and not implementation.startswith("flash_attention"):
        yield f"computes attention by {implementation}, which is not known"
    if type(layer).__name__ not in _FUSED:
        heads = int(config.num_attention_heads)
        if not hasattr(layer, "head_dim") or layer.q_proj.out_features != heads * layer.head_dim:
            yield "has queries of another width than its heads"


def _watch(layers: list[Any], override: AttentionOverride) -> Callable[[], None]:
    """Puts a function in the place of the configured one that looks at queries and keys and calls it."""
    home: Any = sys.modules[type(layers[0]).__module__]
    functions, name = home.ALL_ATTENTION_FUNCTIONS, layers[0].config._attn_implementation
    registered = functions.get(name)  # None of eager: each family has its own
    numbers = {id(layer): number for number, layer in enumerate(layers)}

    def attend(layer: Any, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, **more: Any) -> Any:
        number, given = numbers.get(id(layer)), more.get("scaling")
        if number is not None and layer.training:
            scale = query.shape[-1] ** -0.5 if given is None else float(given)
            seen = mask if mask is not None and mask.dim() == 4 else None
            override.seen(number, query, key, scale, mask=seen, window=more.get("sliding_window"))
        own = registered or sys.modules[type(layer).__module__].eager_attention_forward
        return own(layer, query, key, value, mask, **more)

    def restore() -> None:
        del functions[name]
        if registered is not None and functions.get(name) is not registered:
            functions[name] = registered

    functions[name] = attend
    return restore
