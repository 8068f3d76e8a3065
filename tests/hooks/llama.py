"""A tiny Llama, trained by Hugging Face's Trainer on DeepSpeed; started again, it resumes from its last checkpoint.

    python llama.py FOLDER --steps 8            # with the callback; STATE is SENTINEL_STATE_DIR or FOLDER/state
    python llama.py FOLDER --steps 8 --bare     # without it: its log is all that there is

What overrides.json says in free form is given to TrainingArguments, as a script of a user's own would do it. Whether
Trainer then trains with it is Trainer's affair: it loads optimizer, LR scheduler and clipping from the checkpoint.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path
from typing import Any

import deepspeed
import torch
from torch.utils.data import Dataset
from transformers import HfArgumentParser, LlamaConfig, LlamaForCausalLM, Trainer, TrainerCallback, TrainingArguments

from sentinel.vocabulary.overrides import Free
from trainer_hooks.huggingface import StabilityCallback
from trainer_hooks.restart import read_overrides

SEQLEN = 32
DEEPSPEED = {
    "train_micro_batch_size_per_gpu": "auto",
    "gradient_accumulation_steps": "auto",
    "gradient_clipping": "auto",
    "zero_optimization": {"stage": 1},
    "zero_allow_untested_optimizer": True,
}


class Tokens(Dataset[dict[str, torch.Tensor]]):
    def __init__(self) -> None:
        self.tokens = torch.randint(64, (4096, SEQLEN), generator=torch.Generator().manual_seed(0))

    def __len__(self) -> int:
        return len(self.tokens)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"input_ids": self.tokens[index], "labels": self.tokens[index]}


class Slow(TrainerCallback):  # type: ignore[misc]
    """So that the job lives while it is looked at; stops at a step, as a job's walltime does."""

    def __init__(self, stop_after: int | None) -> None:
        self._stop_after = stop_after

    def on_step_end(self, _: Any, state: Any, control: Any, **__: Any) -> None:
        time.sleep(0.1)
        control.should_training_stop = state.global_step == self._stop_after


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--stop-after", type=int)
    parser.add_argument("--bare", action="store_true")
    parser.add_argument("--applies", nargs="*", default=[], help="what the script says that it applies")
    options = parser.parse_args()

    for name, value in {"RANK": 0, "LOCAL_RANK": 0, "WORLD_SIZE": 1, "MASTER_ADDR": "127.0.0.1"}.items():
        os.environ.setdefault(name, str(value))
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    state_dir = Path(os.environ.get("SENTINEL_STATE_DIR") or options.folder / "state")
    decided = read_overrides(state_dir)
    free = (decided.standing.free if decided else None) or Free()
    words = ["--output_dir", str(options.folder / "checkpoints"), "--learning_rate=1e-3", "--max_grad_norm=1.0"]
    (arguments,) = HfArgumentParser(TrainingArguments).parse_args_into_dataclasses(
        [
            *words,
            *("--use_cpu", "--max_steps=2000", "--lr_scheduler_type=cosine", "--per_device_train_batch_size=2"),
            *("--logging_steps=1", "--save_steps=4", "--report_to=none", "--disable_tqdm=true", "--seed=7"),
            *free.options,  # argparse takes the last
        ]
    )
    arguments.deepspeed = DEEPSPEED
    arguments.__post_init__()
    torch.manual_seed(0)
    shape = {"vocab_size": 64, "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1}
    model = LlamaForCausalLM(LlamaConfig(**shape, num_attention_heads=2, max_position_embeddings=SEQLEN))
    trainer = Trainer(model=model, args=arguments, train_dataset=Tokens())
    if not options.bare:
        trainer.add_callback(StabilityCallback(trainer, state_dir=state_dir, run="llama", applies=options.applies))
    trainer.add_callback(Slow(options.stop_after))
    resume = any((options.folder / "checkpoints").glob("checkpoint-*"))
    trainer.train(resume_from_checkpoint=resume)


if __name__ == "__main__":
    sys.exit(main())
