"""Writes what a training program reads: a tiny Llama that does not bear a high learning rate, its tokenizer, a text.

    python tests/integrations/tiny_model.py FOLDER

FOLDER/model is a folder of transformers, FOLDER/data one of JSON lines, FOLDER/factory has the index that
LLaMA-Factory reads. A letter is a token. Nothing is downloaded.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

LETTERS = 32  # of a sample
SAMPLES = 2400

_END = "<end>"
_FLAT = 1e6
"""`rms_norm_eps`, with weights of its root: such a norm hands on what it gets, and the model diverges at a high LR."""


def main(folder: Path) -> None:
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({letter: n for n, letter in enumerate([*letters, _END])}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=_END, pad_token=_END).save_pretrained(
        folder / "model"
    )

    torch.manual_seed(7)
    shape = {"vocab_size": 257, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 4}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 2, "bos_token_id": None, "eos_token_id": 256}
    config = LlamaConfig(**shape, **heads, max_position_embeddings=4 * LETTERS, rms_norm_eps=_FLAT)
    model = LlamaForCausalLM(config)
    for layer in model.model.layers:
        for norm in (layer.input_layernorm, layer.post_attention_layernorm):
            torch.nn.init.constant_(norm.weight, _FLAT**0.5)
    torch.nn.init.constant_(model.model.norm.weight, _FLAT**0.5)
    torch.nn.init.normal_(model.model.embed_tokens.weight, std=0.5)
    model.save_pretrained(folder / "model")

    (folder / "data").mkdir(parents=True)
    source = "".join(path.read_text() for path in sorted(Path(argparse.__file__).parent.glob("[a-d]*.py")))
    source = source.encode("ascii", "ignore").decode()
    samples = [source[at : at + LETTERS] for at in range(0, SAMPLES * LETTERS, LETTERS)]
    with (folder / "data" / "train.jsonl").open("w") as lines:
        lines.writelines(json.dumps({"text": sample}) + "\n" for sample in samples)
    index = {"letters": {"file_name": "../data/train.jsonl", "columns": {"prompt": "text"}}}
    (folder / "factory").mkdir()
    (folder / "factory" / "dataset_info.json").write_text(json.dumps(index))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
