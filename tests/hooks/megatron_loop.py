"""Megatron-DeepSpeed's loop in small, on DeepSpeed's pipeline over 2 ranks: the calls that docs/MEGATRON.md adds to it.

args has the names that both forks have, and is counted up after train_batch, as their training.py does.
"""

from __future__ import annotations

import json
import sys
from argparse import Namespace
from pathlib import Path
from typing import Any

import deepspeed
import torch
import torch.distributed as dist
from deepspeed.pipe import PipelineModule
from torch import Tensor, nn

from tests.hooks.patient import patient
from trainer_hooks.gpt.train import leave_out_unused_ops
from trainer_hooks.megatron import attach_to_megatron

MICRO, ACCUMULATE, SEQLEN = 2, 2, 8
deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False


def batches() -> Any:
    generator = torch.Generator().manual_seed(0)
    while True:
        tokens = torch.randint(17, (MICRO, SEQLEN + 1), generator=generator)
        yield tokens[:, :-1], tokens[:, 1:]


def loss(logits: Tensor, labels: Tensor) -> Tensor:
    return nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten())


def train(folder: Path, steps: int) -> None:
    args = Namespace(
        iteration=0,
        consumed_train_samples=0,
        consumed_train_tokens=0,
        micro_batch_size=MICRO,
        seq_length=SEQLEN,
        curriculum_learning=True,
        curriculum_seqlen=SEQLEN // 2,
        train_iters=steps,
        save_interval=2,
        lr_warmup_iters=0,
        seed=3,
        device=torch.device("cpu"),
    )
    torch.manual_seed(0)
    layers = [nn.Embedding(17, 8), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 17)]
    net = PipelineModule(layers, num_stages=2, loss_fn=loss, partition_method="uniform")
    config = {
        "train_micro_batch_size_per_gpu": MICRO,
        "gradient_accumulation_steps": ACCUMULATE,
        "optimizer": {"type": "Adam", "params": {"lr": 1e-2, "torch_adam": True}},
        "steps_per_print": 10**9,
    }
    engine, *_ = deepspeed.initialize(model=net, model_parameters=net.parameters(), config=config)
    sentinel = attach_to_megatron(engine, args, engine.grid, lambda: ACCUMULATE, state_dir=folder / "state", run="m")
    _, state = engine.load_checkpoint(folder / "checkpoints") if (folder / "checkpoints/latest").exists() else (0, None)
    if state is not None:
        args.iteration, args.consumed_train_samples = state["iteration"], state["samples"]
        args.consumed_train_tokens = state["tokens"]
    sentinel.started()
    data, losses, validations = batches(), {}, {}
    while args.iteration < args.train_iters:
        mean = engine.train_batch(data_iter=data)
        args.iteration += 1
        args.consumed_train_samples += MICRO * ACCUMULATE
        args.consumed_train_tokens += MICRO * ACCUMULATE * args.curriculum_seqlen
        losses[args.iteration] = float(mean)
        if args.iteration % 2 == 0:
            told = [engine.eval_batch(batches()), engine.eval_batch(batches())]
            validations[args.iteration] = sum(map(float, told)) / 2
            sentinel.evaluated({"lm loss": sum(told) / 2} if engine.is_last_stage() else {})
            engine.eval_batch(data)
            sentinel.evaluated({})  # a second set
            counted = {"samples": args.consumed_train_samples, "tokens": args.consumed_train_tokens}
            engine.save_checkpoint(folder / "checkpoints", client_state={"iteration": args.iteration, **counted})
        if "early" in sys.argv and args.iteration == 2:  # as for a time limit
            break
    if "break" in sys.argv:
        raise RuntimeError("a node was lost")
    sentinel.finished()
    if dist.get_rank() == 0:
        print(json.dumps({"case": steps, "losses": losses, "validations": validations}), flush=True)


if __name__ == "__main__":
    leave_out_unused_ops()
    patient()
    deepspeed.init_distributed("gloo", verbose=False)
    train(Path(sys.argv[1]), int(sys.argv[2]))
