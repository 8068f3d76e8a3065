"""A small GPT-2 from transformers, trained by Hugging Face's Trainer on DeepSpeed, on a CPU, with the callback.

    python examples/huggingface_gpt2.py --output out --steps 12
    torchrun --nproc_per_node 2 examples/huggingface_gpt2.py --output out --steps 12
    python examples/huggingface_gpt2.py --output out --steps 20 --resume     # from the last checkpoint in out

The weights are random and the data is Python's own source, a byte being a token: nothing is downloaded.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

import deepspeed
import torch
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

from trainer_hooks.huggingface import StabilityCallback

SEQLEN = 64
DEEPSPEED = {
    "train_micro_batch_size_per_gpu": "auto",
    "gradient_accumulation_steps": "auto",
    "gradient_clipping": "auto",
    "zero_allow_untested_optimizer": True,  # the optimizer is Trainer's own AdamW
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, required=True, help="checkpoints and the state folder go below it")
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--accumulate", type=int, default=2, help="micro-batches per step")
    parser.add_argument("--zero", type=int, default=0, choices=range(4))
    parser.add_argument("--every", type=int, default=4, help="steps between evaluations, and between checkpoints")
    parser.add_argument("--resume", action="store_true", help="go on from the last checkpoint")
    options = parser.parse_args()

    _as_one_process_if_not_launched()
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = (
        False  # a minute's compilation that training has no use for
    )
    arguments = TrainingArguments(
        output_dir=str(options.output / "checkpoints"),
        deepspeed=DEEPSPEED | {"zero_optimization": {"stage": options.zero}},
        use_cpu=True,
        max_steps=options.steps,
        per_device_train_batch_size=4,
        gradient_accumulation_steps=options.accumulate,
        learning_rate=1e-3,
        warmup_steps=5,
        logging_steps=1,
        eval_strategy="steps",
        eval_steps=options.every,
        save_steps=options.every,
        report_to="none",
        disable_tqdm=True,
        seed=7,
    )
    text = Path(argparse.__file__).read_bytes()
    torch.manual_seed(arguments.seed)
    shape = {"vocab_size": 256, "n_positions": SEQLEN, "n_embd": 32, "n_layer": 2, "n_head": 2}
    model = GPT2LMHeadModel(GPT2Config(**shape, bos_token_id=0, eos_token_id=0))
    model.loss_type = "ForCausalLM"  # Trainer can't tell by GPT-2's name, and divides by T labels where T - 1 count
    trainer = Trainer(
        model=model,
        args=arguments,
        train_dataset=Bytes(text[: -64 * SEQLEN]),
        eval_dataset=Bytes(text[-64 * SEQLEN :]),
    )
    trainer.add_callback(StabilityCallback(trainer, state_dir=options.output / "state", run="gpt2", full_seqlen=SEQLEN))
    trainer.train(resume_from_checkpoint=options.resume)


def _as_one_process_if_not_launched() -> None:
    """DeepSpeed wants the variables that a launcher sets; without them it looks for MPI."""
    for name, value in {"RANK": 0, "LOCAL_RANK": 0, "WORLD_SIZE": 1, "MASTER_PORT": 29541}.items():
        os.environ.setdefault(name, str(value))
    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")


if __name__ == "__main__":
    sys.exit(main())
