"""qk_clip on models of Hugging Face's: each head's logits, times its gamma; refused where it is not known how."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from sentinel.vocabulary.overrides import TrainingSettings
from trainer_hooks.integrations.huggingface_attention import attention_layers, override_attention, why_not_clipped

transformers = pytest.importorskip("transformers")

SIZES = {"vocab_size": 32, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2}
LLAMA = {**SIZES, "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 32}
NO_DROPOUT = {"embd_pdrop": 0.0, "attn_pdrop": 0.0, "resid_pdrop": 0.0}
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("Llama", LLAMA),
    "mistral, a window": ("Mistral", {**LLAMA, "sliding_window": 3}),
    "qwen2, biases": ("Qwen2", LLAMA),
    "gpt2, fused columns": (
        "GPT2",
        {"vocab_size": 32, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 32, **NO_DROPOUT},
    ),
    "gpt_neox, fused by head": ("GPTNeoX", {**SIZES, "num_attention_heads": 4, "max_position_embeddings": 32}),
}
TOKENS = torch.randint(32, (2, 9), generator=torch.Generator().manual_seed(1))


def model_of(name: str, attention: str = "eager") -> Any:
    family, keys = MODELS[name]
    torch.manual_seed(4)
    config = getattr(transformers, f"{family}Config")(**keys, attn_implementation=attention)
    made = getattr(transformers, "GPT2LMHeadModel" if family == "GPT2" else f"{family}ForCausalLM")(config)
    for parameter in (
        p for n, p in made.named_parameters() if any(w in n for w in ("q_proj", "k_proj", "c_attn", "query"))
    ):
        torch.nn.init.normal_(parameter, std=0.4)
    return made.train()


def trainer_of(**arguments: Any) -> Any:
    return SimpleNamespace(args=SimpleNamespace(**{"torch_compile": False, **arguments}), data_collator=None)


def seen_logits(model: Any, monkeypatch: pytest.MonkeyPatch) -> list[Tensor]:
    """(H,) of each layer: the largest logit by the model's own softmax, whose logarithm differs by a constant a row."""
    found: list[Tensor] = []
    softmax = torch.nn.functional.softmax

    def watched(logits: Tensor, *given: Any, **named: Any) -> Tensor:
        masked = logits.detach().masked_fill(logits < -1e4, -torch.inf)
        found.append(masked.amax((0, 2, 3)))
        return softmax(logits, *given, **named)

    with monkeypatch.context() as patch:
        patch.setattr(torch.nn.functional, "softmax", watched)
        model(input_ids=TOKENS)
    return found


@pytest.mark.parametrize("name", MODELS)
def test_each_heads_logits_are_scaled_by_its_own_gamma(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = model_of(name)
    assert why_not_clipped(trainer_of(), model) is None
    first = seen_logits(model, monkeypatch)[0]  # a later layer's inputs change with the first one's weights
    limit = float(first.sort().values[-2]) * 0.9
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    engine = SimpleNamespace(module=model, optimizer=optimizer)
    restore = override_attention(engine, TrainingSettings(qk_clip=limit))
    model(input_ids=TOKENS, labels=TOKENS).loss.backward()
    optimizer.step()
    restore()
    assert int((first > limit).sum()) > 0
    assert torch.allclose(seen_logits(model, monkeypatch)[0], first.clamp(max=limit), rtol=1e-4)


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_both_ways_to_compute_attention_clip_alike_and_are_given_back(attention: str) -> None:
    trained: list[dict[str, Tensor]] = []
    for one in ("eager", attention):
        model = model_of("llama", one)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, eps=1e-4)
        engine = SimpleNamespace(module=model, optimizer=optimizer)
        restore = override_attention(engine, TrainingSettings(qk_clip=1.0))
        for _ in range(2):
            mask = torch.ones_like(TOKENS)
            mask[1, 6:] = 0
            model(input_ids=TOKENS, attention_mask=mask, labels=TOKENS).loss.backward()
            optimizer.step()
        restore()
        trained.append({name: p.detach() for name, p in model.named_parameters()})
    assert all(torch.allclose(p, trained[1][name], atol=1e-4) for name, p in trained[0].items())
    functions = transformers.modeling_utils.ALL_ATTENTION_FUNCTIONS
    assert functions.get("eager") is None
    assert functions["sdpa"].__name__ == "sdpa_attention_forward"


def test_models_that_are_not_known_are_refused() -> None:
    normed = transformers.Qwen3ForCausalLM(transformers.Qwen3Config(**LLAMA, head_dim=8))
    assert "norms queries and keys" in str(why_not_clipped(trainer_of(), normed))
    bloom = transformers.BloomForCausalLM(transformers.BloomConfig(vocab_size=32, hidden_size=32, n_layer=1, n_head=4))
    assert attention_layers(bloom) == []
    assert "projections are not known" in str(why_not_clipped(trainer_of(), bloom))
    capped = transformers.Gemma2ForCausalLM(transformers.Gemma2Config(**LLAMA, head_dim=8))
    assert "caps its logits" in str(why_not_clipped(trainer_of(), capped))
    assert "torch.compile" in str(why_not_clipped(trainer_of(torch_compile=True), model_of("llama")))
