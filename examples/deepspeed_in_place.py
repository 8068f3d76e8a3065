"""A loop of a DeepSpeed engine that can be resumed in place: what that takes is marked. On a CPU, or under torchrun.

    python examples/deepspeed_in_place.py --output out --steps 40
    torchrun --nproc_per_node 2 examples/deepspeed_in_place.py --output out --steps 40 --zero 2

`load` is what any start of this training does after deepspeed.initialize: it is also what a resume in place does.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import Any

import deepspeed
import torch
import torch.distributed as dist
from torch import Tensor, nn

import trainer_hooks
from sentinel.vocabulary.parking import ResumeRequest

SEQLEN, BATCH, WIDTH, SAVE_EVERY = 64, 8, 32, 10


class SmallLanguageModel(nn.Module):
    """One causal block over bytes, with dropout: its generator's state is a part of the training's."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(256, WIDTH)
        self.block = nn.TransformerEncoderLayer(WIDTH, 2, 4 * WIDTH, dropout=0.1, batch_first=True, norm_first=True)
        self.head = nn.Linear(WIDTH, 256)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(SEQLEN), persistent=False)

    def forward(self, tokens: Tensor) -> Tensor:
        """Mean loss in nats of predicting each of the tokens (B, T + 1) from those before it."""
        hidden = self.block(self.embedding(tokens[:, :-1]), src_mask=self.mask)  # (B, T, C)
        return nn.functional.cross_entropy(self.head(hidden).flatten(0, 1), tokens[:, 1:].flatten())


class Training:
    """The loop, and where it stands."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.checkpoints: Path = options.output / "checkpoints"
        config = {
            "train_micro_batch_size_per_gpu": BATCH,
            "optimizer": {"type": "AdamW", "params": {"lr": 1e-3, "torch_adam": True}},
            "scheduler": {"type": "WarmupDecayLR", "params": {"total_num_steps": 200, "warmup_num_steps": 15}},
            "zero_optimization": {"stage": options.zero},
        }
        torch.manual_seed(0)
        model = SmallLanguageModel()
        self.engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=config)
        self.hook = trainer_hooks.attach(
            self.engine,
            state_dir=options.output / "state",
            run="in-place",
            reload=self.resume,  # what a start does, in the engine that is there
            close_files=self.close_log,  # nothing of this loop may be written to while it is parked
            memory_targets=options.memory_targets,  # states that each rank keeps in its host's memory, or 0
            memory_every=SAVE_EVERY // 2,
            client_state=self.client_state,
        )
        self.log: Any = None
        self.open_log()
        self.load("latest")
        text = torch.frombuffer(bytearray(Path(argparse.__file__).read_bytes()), dtype=torch.uint8).long()
        self.samples = text[: len(text) // (SEQLEN + 1) * (SEQLEN + 1)].view(-1, SEQLEN + 1)

    def load(self, tag: str) -> None:
        """The checkpoint, schedules and generators; `latest`: whichever there is."""
        if tag != "latest" or (self.checkpoints / "latest").exists():
            given = None if tag == "latest" else tag
            path, client_state = self.engine.load_checkpoint(self.checkpoints, tag=given)
            if path is None:
                raise SystemExit(f"{self.checkpoints} has no {tag}")
            torch.set_rng_state(client_state["generator"])

    def resume(self, resume: ResumeRequest) -> dict[str, Any]:
        """Called on every rank where the training is resumed in place, between two steps."""
        if resume.target is None:
            raise SystemExit("this training can't begin from scratch in place: start it anew")
        if (client_state := self.hook.from_memory(resume)) is not None:
            torch.set_rng_state(client_state["generator"])
        else:
            self.load(resume.target)
        self.open_log()
        return {"seed": 0}  # what else is reported at a start; overrides.json would be read and applied here

    def train(self, steps: int) -> str:
        engine = self.engine
        while engine.global_steps < steps:
            number = engine.global_steps * dist.get_world_size() + dist.get_rank()
            loss = engine(self.samples[torch.arange(number * BATCH, (number + 1) * BATCH) % len(self.samples)])
            engine.backward(loss)
            engine.step()
            self.log.write(f"{engine.global_steps} {loss.item()!r}\n")
            if engine.global_steps % SAVE_EVERY == 0:
                self.save()
            asked = self.hook.boundary()  # the last line of the loop: stop, save, park
            if asked.released:
                self.open_log()
            if asked.save:  # the file SAVE, or the first step after a state in memory
                self.save()
            if asked.stop is not None:
                return asked.stop
        return "finished"

    def client_state(self) -> dict[str, Any]:
        """What is saved, or kept in memory, beside the engine's state."""
        return {"generator": torch.get_rng_state()}

    def save(self) -> None:
        self.engine.save_checkpoint(self.checkpoints, client_state=self.client_state())

    def open_log(self) -> None:
        self.log = (self.checkpoints.parent / f"losses-{dist.get_rank()}.txt").open("a")

    def close_log(self) -> None:
        self.log.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, required=True, help="checkpoints and the state folder go below it")
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--memory-targets", type=int, default=0)
    parser.add_argument("--zero", type=int, default=0, choices=range(4))
    options = parser.parse_args()

    _as_one_process_if_not_launched()
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # a minute's compilation for nothing
    deepspeed.init_distributed("gloo", verbose=False)
    options.output.mkdir(parents=True, exist_ok=True)
    training = Training(options)
    reason = training.train(options.steps)
    training.close_log()
    training.hook.close(reason)


def _as_one_process_if_not_launched() -> None:
    """DeepSpeed wants the variables that a launcher sets; without them it looks for MPI."""
    for name, value in {"RANK": 0, "LOCAL_RANK": 0, "WORLD_SIZE": 1, "MASTER_PORT": 29542}.items():
        os.environ.setdefault(name, str(value))
    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")


if __name__ == "__main__":
    sys.exit(main())
