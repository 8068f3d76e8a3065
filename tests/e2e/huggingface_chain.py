"""A tiny Llama, trained by Hugging Face's Trainer over several epochs: one attempt of a chain of resumes.

python huggingface_chain.py FOLDER STOP_AFTER SAMPLES [OPTIONS of TrainingArguments]
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import Dataset
from transformers import HfArgumentParser, LlamaConfig, LlamaForCausalLM, Trainer, TrainerCallback, TrainingArguments

from trainer_hooks.huggingface import StabilityCallback

SEQLEN = 16


class Tokens(Dataset[dict[str, torch.Tensor]]):
    def __init__(self, samples: int) -> None:
        self.tokens = torch.randint(64, (samples, SEQLEN), generator=torch.Generator().manual_seed(0))

    def __len__(self) -> int:
        return len(self.tokens)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"input_ids": self.tokens[index], "labels": self.tokens[index]}


class Stop(TrainerCallback):  # type: ignore[misc]
    def __init__(self, after: int) -> None:
        self._after = after

    def on_step_end(self, _: Any, state: Any, control: Any, **__: Any) -> None:
        control.should_training_stop = state.global_step >= self._after


def main() -> None:
    folder, after, samples, options = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4:]
    (arguments,) = HfArgumentParser(TrainingArguments).parse_args_into_dataclasses(
        [
            *("--output_dir", str(folder / "checkpoints"), "--use_cpu", "--max_steps=40", "--save_steps=5"),
            *("--per_device_train_batch_size=2", "--report_to=none", "--disable_tqdm=true", "--seed=7", *options),
        ]
    )
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    model = LlamaForCausalLM(LlamaConfig(vocab_size=64, max_position_embeddings=SEQLEN, **sizes))
    trainer = Trainer(model=model, args=arguments, train_dataset=Tokens(samples), callbacks=[Stop(after)])
    trainer.add_callback(StabilityCallback(trainer, run="a", full_seqlen=SEQLEN, state_dir=folder / "state"))
    trainer.train(resume_from_checkpoint=any((folder / "checkpoints").glob("checkpoint-*")))


if __name__ == "__main__":
    main()
