"""The loss of a shortened batch is the full model's on the same tokens, with learned and with rotary positions."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

from tests.support.warmups import begun
from trainer_hooks.gpt.model import GPT, Shape

VOCABULARY, FULL, SAMPLES = 61, 32, 3


@cache
def learned() -> GPT:
    torch.manual_seed(0)
    return GPT(Shape(layers=2, width=16, heads=2, seqlen=FULL), VOCABULARY)


@cache
def rotary() -> Any:
    torch.manual_seed(0)
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=VOCABULARY,
            hidden_size=16,
            intermediate_size=32,
            num_hidden_layers=2,
            num_attention_heads=2,
            max_position_embeddings=FULL,
            attn_implementation="eager",
        )
    )


@cache
def told_positions() -> Any:
    """Learned positions that the batch gives: GPT-2."""
    torch.manual_seed(0)
    return GPT2LMHeadModel(
        GPT2Config(
            vocab_size=VOCABULARY,
            n_embd=16,
            n_layer=2,
            n_head=2,
            n_positions=FULL,
            resid_pdrop=0.0,
            embd_pdrop=0.0,
            attn_pdrop=0.0,
            attn_implementation="eager",
        )
    )


def row_losses(model: str, batch: Any) -> Tensor:
    """(B, T) losses of each target; (B,) of each row from our GPT, which gives no more."""
    if model == "learned":
        return torch.stack([learned()(row[None]) for row in batch["tokens"]])
    logits = (rotary if model == "rotary" else told_positions)()(
        input_ids=batch["inputs"], position_ids=batch["position_ids"], attention_mask=batch["attention_mask"]
    ).logits
    return functional.cross_entropy(logits.transpose(1, 2), batch["labels"], reduction="none")


def whole() -> dict[str, Tensor]:
    torch.manual_seed(1)
    tokens = torch.randint(VOCABULARY, (SAMPLES, FULL + 1))
    causal = torch.full((FULL, FULL), float("-inf")).triu(1)
    return {
        "tokens": tokens,
        "inputs": tokens[:, :-1],
        "labels": tokens[:, 1:],
        "position_ids": torch.arange(FULL).expand(SAMPLES, FULL),
        "attention_mask": causal.expand(1, 1, FULL, FULL),
    }


@pytest.mark.parametrize("model", ["rotary", "told positions"])
def test_a_truncated_batch_has_the_full_models_losses_on_the_prefix(model: str) -> None:
    short = begun(8)(whole())
    torch.testing.assert_close(row_losses(model, short), row_losses(model, whole())[:, :8])


def prefix_loss(model: GPT, tokens: Tensor, length: int) -> Tensor:
    """The full model on the full rows; of its predictions only the first `length` are counted."""
    logits: list[Tensor] = []
    hook = model.norm.register_forward_hook(lambda *a: logits.append(functional.linear(a[2], model.tokens.weight)))
    model(tokens)
    hook.remove()
    return functional.cross_entropy(logits[0][:, :length].flatten(0, 1), tokens[:, 1 : length + 1].flatten())


@pytest.mark.parametrize("length", [1, 8, 24, 31])
def test_a_truncated_batch_has_the_loss_of_learned_positions_on_the_prefix(length: int) -> None:
    tokens = whole()["tokens"]
    short = learned()(begun(length)(tokens))
    torch.testing.assert_close(short, prefix_loss(learned(), tokens, length))


@pytest.mark.parametrize("length", [5, 8, 16])
@pytest.mark.parametrize("model", ["learned", "rotary", "told positions"])
def test_a_reshaped_batch_has_the_losses_of_its_pieces(model: str, length: int) -> None:
    batch, count = whole(), FULL // length
    reshaped = begun(length, "reshape")(batch)
    assert len(reshaped["tokens"]) == SAMPLES * count
    together = row_losses(model, reshaped)
    for sample in range(SAMPLES):
        for piece in range(count):
            at = slice(piece * length, (piece + 1) * length)
            alone = {
                "tokens": batch["tokens"][sample : sample + 1, piece * length : (piece + 1) * length + 1],
                "inputs": batch["inputs"][sample : sample + 1, at],
                "labels": batch["labels"][sample : sample + 1, at],
                "position_ids": torch.arange(length)[None],
                "attention_mask": batch["attention_mask"][:, :, :length, :length],
            }
            torch.testing.assert_close(together[sample * count + piece], row_losses(model, alone)[0])


def hugging_face(batch: dict[str, Tensor]) -> float:
    return float(rotary()(**batch).loss.item())


def alone(ids: Tensor) -> float:
    return hugging_face({"input_ids": ids, "labels": ids})


@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
def test_hugging_faces_own_loss_of_pieces_is_the_mean_of_all_its_targets(implementation: str) -> None:
    """Labels are shifted within the model: no target between two pieces is lost."""
    rotary().set_attn_implementation(implementation)
    row = torch.randint(VOCABULARY, (2, 29), generator=torch.Generator().manual_seed(2))
    batch = {"input_ids": row, "labels": row, "attention_mask": torch.ones(2, 29, dtype=torch.long)}
    pieces = begun(8, "reshape", full=29, shifts_inside=True)(batch)
    losses = [alone(row[sample : sample + 1, 7 * k : 7 * k + 8]) for sample in range(2) for k in range(4)]
    assert hugging_face(pieces) == pytest.approx(sum(losses) / len(losses), rel=1e-5)
    short = begun(8, full=29, shifts_inside=True)(batch)
    assert hugging_face(short) == pytest.approx(alone(row[:, :8]), rel=1e-5)
    rotary().set_attn_implementation("eager")
