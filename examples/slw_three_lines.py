"""Sequence length warmup in any DeepSpeed training, three lines more: they are marked. On a CPU, or under torchrun.

    python examples/slw_three_lines.py --output out --steps 6
    python examples/slw_three_lines.py --output out --steps 16 --warmup-steps 8 --anchor 6

The second command goes on from the checkpoint of the first, at global_step6, with samples of 8 tokens that have grown
to 64 by step 14. The two lines more that are marked `checkpoint` keep the count of the tokens over a restart.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

import deepspeed
import torch
import torch.distributed as dist
from torch import Tensor, nn

from sentinel.vocabulary.pacing import FixedLinear
from trainer_hooks.seqlen_warmup import SHORTENINGS, SeqlenWarmup

SEQLEN, BATCH, WIDTH = 64, 8, 32


class SmallLanguageModel(nn.Module):
    """Two causal blocks over bytes."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(256, WIDTH)
        self.position = nn.Parameter(torch.zeros(SEQLEN, WIDTH))
        block = nn.TransformerEncoderLayer(WIDTH, 2, 4 * WIDTH, dropout=0.0, batch_first=True, norm_first=True)
        self.blocks = nn.TransformerEncoder(block, 2, enable_nested_tensor=False)
        self.head = nn.Linear(WIDTH, 256)

    def forward(self, tokens: Tensor) -> Tensor:
        """Mean loss in nats of predicting each of the tokens (B, T + 1) from those before it."""
        length = tokens.shape[1] - 1
        mask = nn.Transformer.generate_square_subsequent_mask(length)
        hidden = self.blocks(self.embedding(tokens[:, :-1]) + self.position[:length], mask=mask)  # (B, T, C)
        return nn.functional.cross_entropy(self.head(hidden).flatten(0, 1), tokens[:, 1:].flatten())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, required=True, help="for the checkpoints")
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--accumulate", type=int, default=1, help="micro-batches per step")
    parser.add_argument("--zero", type=int, default=0, choices=range(4))
    parser.add_argument("--warmup-steps", type=int, default=0, help="from 8 tokens to all; 0 is all from the beginning")
    parser.add_argument("--anchor", type=int, default=0, help="the completed step that the warmup counts from")
    parser.add_argument("--shorten", choices=[s for s in SHORTENINGS if not s.endswith("_keep")], default="truncate")
    options = parser.parse_args()

    _as_one_process_if_not_launched()
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = (
        False  # a minute's compilation that training has no use for
    )
    deepspeed.init_distributed("gloo", verbose=False)
    config = {
        "train_micro_batch_size_per_gpu": BATCH,
        "gradient_accumulation_steps": options.accumulate,
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-3, "torch_adam": True}},
        "zero_optimization": {"stage": options.zero},
        "gradient_clipping": 1.0,
    }
    torch.manual_seed(0)
    model = SmallLanguageModel()
    engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=config)
    schedule = FixedLinear(start=8, full=SEQLEN, total_steps=options.warmup_steps, anchor_step=options.anchor)
    warmup = SeqlenWarmup(schedule, options.shorten, engine=engine)  # 1

    checkpoints = options.output / "checkpoints"
    if (checkpoints / "latest").exists():
        _, client_state = engine.load_checkpoint(checkpoints)
        warmup.load(client_state["seqlen_warmup"])  # checkpoint
    text = torch.frombuffer(bytearray(Path(argparse.__file__).read_bytes()), dtype=torch.uint8).long()
    samples = text[: len(text) // (SEQLEN + 1) * (SEQLEN + 1)].view(-1, SEQLEN + 1)
    while engine.global_steps < options.steps:
        length = warmup.begin(engine.global_steps + 1)  # 2
        total = 0.0
        for micro_batch in range(options.accumulate):
            number = (engine.global_steps * options.accumulate + micro_batch) * dist.get_world_size() + dist.get_rank()
            batch = samples[torch.arange(number * BATCH, (number + 1) * BATCH) % len(samples)]
            loss = engine(warmup(batch))  # 3
            engine.backward(loss)
            engine.step()
            total += loss.item() / options.accumulate
        mean = torch.tensor(total / dist.get_world_size())
        dist.all_reduce(mean)
        if dist.get_rank() == 0:
            told = f"step {engine.global_steps} seqlen {length} tokens {warmup.consumed_tokens} loss {mean.item():.7f}"
            print(told, flush=True)
    engine.save_checkpoint(checkpoints, client_state={"seqlen_warmup": warmup.state()})  # checkpoint


def _as_one_process_if_not_launched() -> None:
    """DeepSpeed wants the variables that a launcher sets; without them it looks for MPI."""
    for name, value in {"RANK": 0, "LOCAL_RANK": 0, "WORLD_SIZE": 1, "MASTER_PORT": 29543}.items():
        os.environ.setdefault(name, str(value))
    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")


if __name__ == "__main__":
    sys.exit(main())
