"""A tiny Llama under Hugging Face's Trainer that can be resumed in place; saves every 10 steps.

    python parked_llama.py FOLDER [--zero 1] [--ends]

`FOLDER/digests` gets a line for each attempt: its first step, what the weights are 15 steps later, and how many steps a
callback has seen that exports its count, as EarlyStoppingCallback does.
`--ends`: the training ends there.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import time
from pathlib import Path
from typing import Any

import deepspeed
import torch
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainerCallback, TrainingArguments
from transformers.trainer_callback import ExportableState

from tests.hooks.diverging_llama import DEEPSPEED, SEQLEN, Bytes
from trainer_hooks.huggingface import StabilityCallback, train_in_place

AFTER = 15


class Digests(TrainerCallback, ExportableState):  # type: ignore[misc]
    def __init__(self, folder: Path, *, ends: bool) -> None:
        self.folder, self.ends, self.first, self.seen = folder, ends, 0, 0

    def state(self) -> dict[str, Any]:
        return {"args": {}, "attributes": {"seen": self.seen}}

    def on_train_begin(self, _: Any, state: Any, *__: Any, **___: Any) -> None:
        self.first = state.global_step

    def on_step_end(self, _: Any, state: Any, control: Any, model: Any = None, **__: Any) -> None:
        time.sleep(0.02)
        self.seen += 1
        if state.global_step == self.first + AFTER:
            weights = b"".join(p.detach().float().numpy().tobytes() for p in model.parameters())
            with (self.folder / "digests").open("a") as file:
                file.write(f"{self.first} {hashlib.sha256(weights).hexdigest()} {self.seen}\n")
            control.should_training_stop = self.ends


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--zero", type=int)
    parser.add_argument("--ends", action="store_true")
    options = parser.parse_args()
    for name, value in {"RANK": 0, "LOCAL_RANK": 0, "WORLD_SIZE": 1, "MASTER_ADDR": "127.0.0.1"}.items():
        os.environ.setdefault(name, str(value))
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    arguments = TrainingArguments(
        output_dir=str(options.folder / "checkpoints"),
        deepspeed=None if options.zero is None else DEEPSPEED | {"zero_optimization": {"stage": options.zero}},
        use_cpu=True,
        max_steps=2000,
        per_device_train_batch_size=4,
        learning_rate=1e-3,
        warmup_steps=20,
        neftune_noise_alpha=5.0,  # a forward hook that each call of train adds
        logging_steps=1,
        save_steps=10,
        report_to="tensorboard",
        disable_tqdm=True,
        seed=7,
    )
    torch.manual_seed(arguments.seed)
    shape = {"vocab_size": 256, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 2, "attention_dropout": 0.1}
    model = LlamaForCausalLM(LlamaConfig(**shape, **heads, max_position_embeddings=SEQLEN))
    text = b"".join(sorted(path.read_bytes() for path in Path(argparse.__file__).parent.glob("[a-d]*.py")))
    trainer = Trainer(model=model, args=arguments, train_dataset=Bytes(text))
    trainer.add_callback(StabilityCallback(trainer, state_dir=options.folder / "state", run="llama"))
    trainer.add_callback(Digests(options.folder, ends=options.ends))
    latest = sorted((options.folder / "checkpoints").glob("checkpoint-*"), key=lambda p: int(p.name.split("-")[1]))
    train_in_place(trainer, resume_from_checkpoint=str(latest[-1]) if latest else None)


if __name__ == "__main__":
    main()
