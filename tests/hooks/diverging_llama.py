"""A small Llama that diverges under Hugging Face's Trainer on DeepSpeed ZeRO-1 in fp32, on a CPU.

    python tests/hooks/diverging_llama.py --output out

From step 360 on a wrong schedule doubles the learning rate at each step. The loss leaves its band first; some steps
later the gradient is not finite, and ZeRO-1 skips every update. The weights are random and the data is Python's own
source, a byte being a token. `tests/data/journals/llama_zero1_fp32.jsonl.xz` is the journal of one such run.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Any

import deepspeed
import torch
from torch.utils.data import Dataset
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainerCallback, TrainingArguments

from trainer_hooks.huggingface import StabilityCallback

SEQLEN = 32
DEEPSPEED = {
    "train_micro_batch_size_per_gpu": "auto",
    "gradient_accumulation_steps": "auto",
    "gradient_clipping": "auto",
    "zero_allow_untested_optimizer": True,
    "zero_optimization": {"stage": 1},
}


class Bytes(Dataset[dict[str, torch.Tensor]]):
    """Samples of SEQLEN bytes, one after another; labels are the same bytes, which the model shifts itself."""

    def __init__(self, data: bytes) -> None:
        self.tokens = torch.frombuffer(bytearray(data), dtype=torch.uint8).long()

    def __len__(self) -> int:
        return len(self.tokens) // SEQLEN

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        tokens = self.tokens[index * SEQLEN : (index + 1) * SEQLEN]  # (T,)
        return {"input_ids": tokens, "labels": tokens}


class WrongSchedule(TrainerCallback):  # type: ignore[misc]
    """Doubles the learning rate at each step from one on."""

    def __init__(self, trainer: Trainer, first_step: int) -> None:
        self.trainer = trainer
        self.first_step = first_step

    def on_step_begin(self, args: Any, state: Any, _control: Any, **_: Any) -> None:
        """Before the step's first micro-batch."""
        for group in self.trainer.model_wrapped.optimizer.param_groups:
            group["lr"] = args.learning_rate * 2.0 ** max(0, state.global_step - self.first_step)


def main() -> None:
    """Trains until the last step; the journal is OUT/state/attempts/0001.jsonl."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=420)
    parser.add_argument("--doubles-from", type=int, default=360, help="step from which the learning rate doubles")
    options = parser.parse_args()
    for name, value in {"RANK": 0, "LOCAL_RANK": 0, "WORLD_SIZE": 1, "MASTER_PORT": 29547}.items():
        os.environ.setdefault(name, str(value))
    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # a minute's compilation that is not needed here
    arguments = TrainingArguments(
        output_dir=str(options.output / "checkpoints"),
        deepspeed=DEEPSPEED,
        use_cpu=True,
        max_steps=options.steps,
        per_device_train_batch_size=8,
        learning_rate=3e-3,
        weight_decay=0.1,
        max_grad_norm=1e30,  # no clipping
        lr_scheduler_type="constant",
        logging_steps=50,
        save_steps=25,
        save_total_limit=2,
        report_to="none",
        disable_tqdm=True,
        seed=7,
    )
    torch.manual_seed(arguments.seed)
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=256,
            hidden_size=32,
            intermediate_size=64,
            num_hidden_layers=2,
            num_attention_heads=2,
            max_position_embeddings=SEQLEN,
            bos_token_id=0,
            eos_token_id=0,
        )
    )
    text = b"".join(sorted(p.read_bytes() for p in Path(argparse.__file__).parent.glob("[a-d]*.py")))
    trainer = Trainer(model=model, args=arguments, train_dataset=Bytes(text))
    trainer.add_callback(WrongSchedule(trainer, options.doubles_from))
    trainer.add_callback(StabilityCallback(trainer, state_dir=options.output / "state", run="llama"))
    trainer.train()


if __name__ == "__main__":
    main()
