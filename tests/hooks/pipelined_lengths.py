"""Run under torchrun: a GPT in as many pipeline stages as there are ranks, whose length changes from step to step.

Beside it the same layers in one piece are trained on the same batches, in plain torch. One JSON line per case.
"""

from __future__ import annotations

import json
from typing import Any

import deepspeed
import torch
import torch.distributed as dist
from deepspeed.pipe import LayerSpec, PipelineModule
from torch import Tensor, nn

from trainer_hooks.gpt.__main__ import leave
from trainer_hooks.gpt.model import Block, Shape
from trainer_hooks.gpt.train import leave_out_unused_ops
from trainer_hooks.seqlen_warmup import SeqlenWarmup

FULL, VOCABULARY, MICRO, ACCUMULATION = 16, 31, 2, 3
SHAPE = Shape(layers=4, width=8, heads=2, seqlen=FULL)
LENGTHS = [4, 4, 8, 16, 5, 12, 16, 16, 4]
"""Up, down, and full in between; 5 does not divide."""


class First(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(100)
        self.tokens, self.positions = nn.Embedding(VOCABULARY, SHAPE.width), nn.Embedding(FULL, SHAPE.width)

    def forward(self, tokens: Tensor) -> Tensor:
        hidden: Tensor = self.tokens(tokens) + self.positions(torch.arange(tokens.shape[1]))
        return hidden


class Middle(Block):
    def __init__(self, number: int) -> None:
        torch.manual_seed(number)
        super().__init__(SHAPE)


class Last(nn.Linear):
    def __init__(self) -> None:
        torch.manual_seed(200)
        super().__init__(SHAPE.width, VOCABULARY)


def specs() -> list[Any]:
    return [LayerSpec(First), *(LayerSpec(Middle, number) for number in range(SHAPE.layers)), LayerSpec(Last)]


def cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    return nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten())


def tokens(number: int) -> Tensor:
    """(MICRO, FULL + 1) of a micro-batch."""
    return torch.randint(VOCABULARY, (MICRO, FULL + 1), generator=torch.Generator().manual_seed(number))


def inputs_and_labels(rows: Tensor) -> tuple[Tensor, Tensor]:
    return rows[:, :-1].contiguous(), rows[:, 1:].contiguous()


class Lengths:
    full = FULL

    def seqlen(self, step: int) -> int:
        return LENGTHS[step - 1]


class InOnePiece:
    """The same layers, the same optimizer, no pipeline, and its own way to shorten a batch."""

    def __init__(self, reshapes: bool) -> None:
        self.reshapes = reshapes
        self.model = nn.Sequential(*(spec.build() for spec in specs()))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-2)

    def rows(self, step: int, length: int) -> list[Tensor]:
        rows = [row for micro in range(ACCUMULATION) for row in tokens(100 * step + micro)]
        if not self.reshapes:
            return [row[: length + 1] for row in rows]
        starts = range(0, FULL - length + 1, length)
        return [row[start : start + length + 1] for row in rows for start in starts]

    def step(self, step: int, length: int) -> float:
        loss = cross_entropy(*self._out(torch.stack(self.rows(step, length))))
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss.item()

    @torch.no_grad()
    def validate(self) -> float:
        return cross_entropy(*self._out(torch.cat([tokens(-1 - micro) for micro in range(ACCUMULATION)]))).item()

    def _out(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        return self.model(rows[:, :-1]), rows[:, 1:]


def case(shorten: str) -> dict[str, Any]:
    net = PipelineModule(
        layers=specs(), num_stages=dist.get_world_size(), loss_fn=cross_entropy, partition_method="uniform"
    )
    config = {
        "train_micro_batch_size_per_gpu": MICRO,
        "gradient_accumulation_steps": ACCUMULATION,
        "steps_per_print": 10**9,
        "zero_allow_untested_optimizer": True,
    }
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2)
    engine, *_ = deepspeed.initialize(model=net, optimizer=optimizer, config=config)
    engine.set_batch_fn(inputs_and_labels)
    warmup = SeqlenWarmup(Lengths(), shorten, engine=engine)
    plain = InOnePiece(shorten == "reshape")
    read: dict[str, Any] = {"losses": [], "reference": [], "validations": [], "reference_validations": []}
    for step in range(1, len(LENGTHS) + 1):
        length = warmup.begin(step)
        loss = engine.train_batch(iter([tokens(100 * step + micro) for micro in range(ACCUMULATION)]))
        read["losses"].append(loss.item())
        read["reference"].append(plain.step(step, length))
        if step in (2, 5, 6):  # at a short length, between two of the same, before the full one
            validation = engine.eval_batch(iter([tokens(-1 - micro) for micro in range(ACCUMULATION)]))
            read["validations"].append(validation.item())
            read["reference_validations"].append(plain.validate())
    counts: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(counts, [warmup.consumed_tokens, warmup.dropped_tokens])
    return {"case": shorten, **read, "tokens": counts, "samples": MICRO * ACCUMULATION * len(LENGTHS)}


def main() -> None:
    leave_out_unused_ops()
    dist.init_process_group("gloo")
    deepspeed.init_distributed("gloo")
    for shorten in ("truncate", "reshape"):
        told = case(shorten)
        dist.barrier()
        if dist.get_rank() == 0:
            print(json.dumps(told), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
    leave(0)
