"""Any DeepSpeed engine, three lines more: they are marked. On a CPU, as one process or under torchrun.

    python examples/deepspeed_three_lines.py --output out --steps 12
    torchrun --nproc_per_node 2 examples/deepspeed_three_lines.py --output out --steps 12 --zero 2

Without them this is an ordinary training of a small Transformer on Python's own source, a byte being a token. Run a
second time with more steps it goes on from its checkpoint, and the journal has a second attempt.
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

import trainer_hooks  # 1

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
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(SEQLEN), persistent=False)

    def forward(self, tokens: Tensor) -> Tensor:
        """Mean loss in nats of predicting each of the tokens (B, T + 1) from those before it."""
        hidden = self.blocks(self.embedding(tokens[:, :-1]) + self.position, mask=self.mask)  # (B, T, C)
        return nn.functional.cross_entropy(self.head(hidden).flatten(0, 1), tokens[:, 1:].flatten())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, required=True, help="checkpoints and the state folder go below it")
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--accumulate", type=int, default=1, help="micro-batches per step")
    parser.add_argument("--zero", type=int, default=0, choices=range(4))
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
    hook = trainer_hooks.attach(engine, state_dir=options.output / "state", run="three-lines")  # 2

    checkpoints = options.output / "checkpoints"
    if (checkpoints / "latest").exists():
        engine.load_checkpoint(checkpoints)
    text = torch.frombuffer(bytearray(Path(argparse.__file__).read_bytes()), dtype=torch.uint8).long()
    samples = text[: len(text) // (SEQLEN + 1) * (SEQLEN + 1)].view(-1, SEQLEN + 1)
    while engine.global_steps < options.steps:
        total = 0.0
        for micro_batch in range(options.accumulate):
            number = (engine.global_steps * options.accumulate + micro_batch) * dist.get_world_size() + dist.get_rank()
            loss = engine(samples[torch.arange(number * BATCH, (number + 1) * BATCH) % len(samples)])
            engine.backward(loss)
            engine.step()
            total += loss.item() / options.accumulate
        mean = torch.tensor(total / dist.get_world_size())
        dist.all_reduce(mean)
        if dist.get_rank() == 0:
            print(f"step {engine.global_steps} loss {mean.item():.7f}", flush=True)
    engine.save_checkpoint(checkpoints)
    hook.close("finished")  # 3


def _as_one_process_if_not_launched() -> None:
    """DeepSpeed wants the variables that a launcher sets; without them it looks for MPI."""
    for name, value in {"RANK": 0, "LOCAL_RANK": 0, "WORLD_SIZE": 1, "MASTER_PORT": 29542}.items():
        os.environ.setdefault(name, str(value))
    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")


if __name__ == "__main__":
    sys.exit(main())
