"""Layers, from the parameters' names that real models have."""

from __future__ import annotations

import pytest

from trainer_hooks.sample.layers import EMBEDDING, HEAD, layer_of, layers_of


@pytest.mark.parametrize(
    ("name", "layer"),
    [
        ("transformer.h.3.attn.c_attn.weight", "transformer.h.3"),  # GPT-2
        ("transformer.wte.weight", EMBEDDING),
        ("transformer.wpe.weight", EMBEDDING),
        ("transformer.ln_f.bias", HEAD),
        ("lm_head.weight", HEAD),
        ("model.layers.11.mlp.experts.0.up_proj.weight", "model.layers.11"),  # Mixtral: an expert is part of its block
        ("model.embed_tokens.weight", EMBEDDING),
        ("gpt_neox.embed_in.weight", EMBEDDING),
        ("tok_embeddings.weight", EMBEDDING),
        ("language_model.embedding.word_embeddings.weight", EMBEDDING),  # Megatron
        ("language_model.encoder.layers.0.self_attention.dense.bias", "language_model.encoder.layers.0"),
        ("language_model.encoder.final_layernorm.weight", HEAD),
        ("tied_modules.embed.word_embeddings.weight", EMBEDDING),  # a pipeline of DeepSpeed's
        ("7.attention.dense.weight", "7"),
        ("encoder.block.2.layer.0.SelfAttention.q.weight", "encoder.block.2"),  # T5
        ("decoder.block.2.layer.0.SelfAttention.q.weight", "decoder.block.2"),
        ("member.weight", HEAD),  # has "emb" in it, and does not embed
    ],
)
def test_a_parameter_belongs_to_its_block_to_the_embedding_or_to_the_head(name: str, layer: str) -> None:
    assert layer_of(name) == layer


def test_a_model_without_numbered_blocks_has_its_modules_as_layers() -> None:
    assert layers_of(["fc1.weight", "fc1.bias", "fc2.weight", "scale"]) == {
        "fc1.weight": "fc1",
        "fc1.bias": "fc1",
        "fc2.weight": "fc2",
        "scale": "scale",
    }


def test_a_great_many_blocks_are_told_apart_no_further() -> None:
    layers = layers_of(["wte.weight", *(f"h.{i}.weight" for i in range(2000)), "head.weight"])
    assert set(layers.values()) == {EMBEDDING, "blocks", HEAD}
