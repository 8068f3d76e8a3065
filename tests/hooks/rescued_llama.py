"""A tiny Llama or Qwen whose learning rate is too high: under Hugging Face's Trainer it diverges by itself.

    python rescued_llama.py FOLDER [--lr 0.06] [--zero 2 | --no-deepspeed] [--model qwen2]

Nothing is injected, and no step is given at which it diverges. It resumes from the last checkpoint that it finds.
"""

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path
from typing import Any

import deepspeed
import torch
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)

from tests.hooks.diverging_llama import DEEPSPEED, SEQLEN, Bytes
from trainer_hooks.huggingface import StabilityCallback


class Slow(TrainerCallback):  # type: ignore[misc]
    """So that the job lives while it is looked at."""

    def on_step_end(self, *_: Any, **__: Any) -> None:
        time.sleep(0.05)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--lr", type=float, default=0.06)
    parser.add_argument("--steps", type=int, default=240)
    parser.add_argument("--zero", type=int, default=1)
    parser.add_argument("--no-deepspeed", action="store_true")
    parser.add_argument("--model", choices=("llama", "qwen2"), default="llama")
    options = parser.parse_args()
    for name, value in {"RANK": 0, "LOCAL_RANK": 0, "WORLD_SIZE": 1, "MASTER_ADDR": "127.0.0.1"}.items():
        os.environ.setdefault(name, str(value))
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    arguments = TrainingArguments(
        output_dir=str(options.folder / "checkpoints"),
        deepspeed=None if options.no_deepspeed else DEEPSPEED | {"zero_optimization": {"stage": options.zero}},
        use_cpu=True,
        max_steps=options.steps,
        per_device_train_batch_size=8 // int(os.environ["WORLD_SIZE"]),
        learning_rate=options.lr,
        warmup_steps=60,
        max_grad_norm=1.0,
        logging_steps=1,
        save_steps=10,
        report_to="none",
        disable_tqdm=True,
        seed=7,
    )
    torch.manual_seed(arguments.seed)
    shape = {"vocab_size": 256, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 4}
    config, kind = (LlamaConfig, LlamaForCausalLM) if options.model == "llama" else (Qwen2Config, Qwen2ForCausalLM)
    heads = {"num_attention_heads": 2, "num_key_value_heads": 2}
    model = kind(config(**shape, **heads, max_position_embeddings=SEQLEN))
    for layer in model.model.layers:  # with them these models bear any learning rate
        layer.input_layernorm = layer.post_attention_layernorm = torch.nn.Identity()
    text = b"".join(sorted(path.read_bytes() for path in Path(argparse.__file__).parent.glob("[a-d]*.py")))
    trainer = Trainer(model=model, args=arguments, train_dataset=Bytes(text))
    callback = StabilityCallback(trainer, state_dir=options.folder / "state", run="llama", full_seqlen=SEQLEN)
    trainer.add_callback(callback)
    trainer.add_callback(Slow())
    trainer.train(resume_from_checkpoint=any((options.folder / "checkpoints").glob("checkpoint-*")))


if __name__ == "__main__":
    main()
