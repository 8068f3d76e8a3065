"""Layers of a model, from its parameters' names."""

from __future__ import annotations

from collections.abc import Iterable

EMBEDDING, HEAD = "embedding", "head"

_EMBEDDINGS = ("emb", "wte", "wpe")
"""What a module's name begins with, or has after an underscore, where it embeds: GPT-2's wte and wpe, Megatron's
word_embeddings, Llama's embed_tokens, torchtitan's tok_embeddings."""

_MOST_LAYERS = 1024
"""A model with more blocks than this has them as one layer: what is exported has a fixed, small size."""


def layer_of(name: str) -> str:
    """`transformer.h.3` for `transformer.h.3.attn.weight`: the path up to the first number, the block's index, which is
    the same on every rank of a pipeline. Outside the blocks: the embedding by its name, else the head (the final norm
    and the projection to the vocabulary)."""
    parts = name.split(".")
    for position, part in enumerate(parts[:-1]):
        if part.isdecimal():
            return ".".join(parts[: position + 1])
    embeds = any(word.startswith(_EMBEDDINGS) for part in parts for word in part.lower().split("_"))
    return EMBEDDING if embeds else HEAD


def layers_of(names: Iterable[str]) -> dict[str, str]:
    """{parameter's name: its layer}. A model without numbered blocks has its modules as layers: `fc1` for `fc1.bias`. A
    model of more than 1024 blocks has the two ends and everything between them as one, `blocks`."""
    layers = {name: layer_of(name) for name in names}
    if layers and set(layers.values()) <= {EMBEDDING, HEAD}:
        layers = {name: name.rpartition(".")[0] or name for name in layers}
    if len(set(layers.values())) > _MOST_LAYERS:
        return {name: layer if layer in (EMBEDDING, HEAD) else "blocks" for name, layer in layers.items()}
    return layers
