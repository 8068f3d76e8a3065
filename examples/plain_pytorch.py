"""A plain PyTorch loop with the hook, and with what sentinel decides at a restart. On a CPU, in one process or several.

    python examples/plain_pytorch.py --output out --steps 40
    torchrun --nproc_per_node 2 examples/plain_pytorch.py --output out --steps 40 --ddp      # or --fsdp

Without the marked lines this is an ordinary training of a small GPT on Python's own source, a byte being a token, in
the shape of nanoGPT's: the LR of each step by a function, gradient accumulation, clipping. Lines marked `hook` measure
it; those marked `decision` apply what was decided. Run a second time it goes on from its newest checkpoint, `step-N`,
which torch.distributed.checkpoint makes. `--without-norms --lr 0.06` is a model that does not bear its learning rate.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DistributedSampler

import trainer_hooks  # hook

SEQLEN, BATCH, WIDTH, WARMUP = 32, 8, 32, 60


class Block(nn.Module):
    def __init__(self, *, norms: bool) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH, bias=False), nn.Linear(WIDTH, WIDTH, bias=False)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)
        self.norm_1, self.norm_2 = (nn.LayerNorm(WIDTH) if norms else nn.Identity() for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (part.unflatten(-1, (2, -1)).transpose(1, 2) for part in self.qkv(self.norm_1(x)).chunk(3, -1))
        seen = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)  # (B, heads, T, C / heads)
        x = x + self.out(seen.transpose(1, 2).flatten(2))
        return x + self.down(nn.functional.gelu(self.up(self.norm_2(x))))


class GPT(nn.Module):
    def __init__(self, *, norms: bool) -> None:
        super().__init__()
        self.wte, self.wpe = nn.Embedding(256, WIDTH), nn.Embedding(SEQLEN, WIDTH)
        self.blocks = nn.ModuleList(Block(norms=norms) for _ in range(4))
        self.head = nn.Linear(WIDTH, 256, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        """Mean loss in nats of predicting each of the tokens (B, T + 1) from those before it."""
        x = self.wte(tokens[:, :-1]) + self.wpe.weight[: tokens.shape[1] - 1]  # (B, T, C)
        for block in self.blocks:
            x = block(x)
        return nn.functional.cross_entropy(self.head(x).flatten(0, 1), tokens[:, 1:].flatten())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, required=True, help="checkpoints and the state folder go below it")
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--accumulate", type=int, default=1, help="micro-batches per step")
    parser.add_argument("--save-every", type=int, default=10)
    parser.add_argument("--without-norms", action="store_true")
    parser.add_argument("--pause", type=float, default=0.0, help="seconds after each step")
    parser.add_argument("--ddp", action="store_true")
    parser.add_argument("--fsdp", action="store_true")
    options = parser.parse_args()
    if options.ddp or options.fsdp:
        dist.init_process_group("gloo")
    rank, world = (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)

    text = b"".join(sorted(path.read_bytes() for path in Path(argparse.__file__).parent.glob("[a-d]*.py")))
    tokens = torch.frombuffer(bytearray(text), dtype=torch.uint8).long()
    samples = tokens[: len(tokens) // (SEQLEN + 1) * (SEQLEN + 1)].view(-1, SEQLEN + 1)

    torch.manual_seed(7)
    model = (
        sharded(GPT(norms=not options.without_norms), world) if options.fsdp else GPT(norms=not options.without_norms)
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=options.lr, weight_decay=0.0)

    checkpoints = options.output / "checkpoints"
    step, client_state = load(checkpoints, model, optimizer)
    trained = DistributedDataParallel(model) if options.ddp else model

    def lr(done: int) -> float:
        """Of the update after so many."""
        if done < WARMUP:
            return options.lr * (done + 1) / (WARMUP + 1)
        share = min(1.0, (done - WARMUP) / (options.steps - WARMUP)) if options.steps > WARMUP else 1.0
        return options.lr * 0.5 * (1.0 + math.cos(math.pi * share))

    per_step = BATCH * options.accumulate * world
    sampler = DistributedSampler(samples, num_replicas=world, rank=rank, seed=7, drop_last=True)
    state = options.output / "state"
    decisions = trainer_hooks.decisions(state, run="plain", step=step, client_state=client_state)  # decision
    drawn_by = decisions.sampler(sampler, consumed_samples=step * per_step)  # decision
    decisions.apply(optimizer, lr, warmup_steps=WARMUP, total_steps=options.steps)  # decision
    max_norm = decisions.clip(1.0)  # decision
    hook = trainer_hooks.attach(  # hook
        model=trained,
        optimizer=optimizer,
        decisions=decisions,
        step=step,
        state_dir=state,
        run="plain",
        trainer="examples/plain_pytorch.py",
        position=lambda: trainer_hooks.Position(
            consumed_samples=(step + 1) * per_step, global_batch_samples=per_step, seqlen=SEQLEN
        ),
    )
    hook.run_started(total_steps=options.steps, checkpoint_interval_steps=options.save_every)  # the proof

    batches = drawn(drawn_by, step * per_step // world)
    while step < options.steps:
        for group in optimizer.param_groups:
            group["lr"] = lr(step)
        for micro_batch in range(options.accumulate):
            if options.ddp:
                trained.require_backward_grad_sync = micro_batch == options.accumulate - 1
            batch = samples[torch.tensor(next(batches))]
            hook.batch_seen(batch)  # data that a restart skips or repeats
            loss = trained(batch) / options.accumulate
            hook.loss(loss)  # hook
            loss.backward()
        if max_norm:
            torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        step += 1
        if step % options.save_every == 0:
            hook.save_coming()  # the start audit compares the state
            client = {"step": step}
            decisions.once_done(client)  # decision
            save(checkpoints, model, optimizer, client)
            hook.checkpoint_saved(f"step-{step}", consumed_samples=step * per_step)
        time.sleep(options.pause)
    hook.close("finished")  # hook
    if dist.is_initialized():
        dist.destroy_process_group()


def sharded(model: nn.Module, world: int) -> nn.Module:
    mesh = dist.device_mesh.init_device_mesh("cpu", (world,))
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def drawn(sampler: DistributedSampler, consumed: int) -> Iterator[list[int]]:
    """This rank's batches, from its sample `consumed` on."""
    epoch, passed = divmod(consumed, len(sampler))
    while True:
        sampler.set_epoch(epoch)
        numbers = islice(sampler, passed, None)
        while len(batch := list(islice(numbers, BATCH))) == BATCH:
            yield batch
        epoch, passed = epoch + 1, 0


def load(folder: Path, model: nn.Module, optimizer: torch.optim.Optimizer) -> tuple[int, dict]:
    """From the newest whole checkpoint: completed updates and what else it holds."""
    found = {int(path.parent.name.removeprefix("step-")): path.parent for path in folder.glob("step-*/.metadata")}
    if not found:
        return 0, {}
    newest = found[max(found)]
    weights, moments = get_state_dict(model, optimizer)
    dcp.load({"model": weights, "optimizer": moments}, checkpoint_id=newest)
    set_state_dict(model, optimizer, model_state_dict=weights, optim_state_dict=moments)
    return max(found), json.loads((newest / "client.json").read_text())


def save(folder: Path, model: nn.Module, optimizer: torch.optim.Optimizer, client: dict) -> None:
    """The folder has its .metadata last: without it, it is no checkpoint."""
    place = folder / f"step-{client['step']}"
    if not dist.is_initialized() or dist.get_rank() == 0:
        place.mkdir(parents=True, exist_ok=True)
        (place / "client.json").write_text(json.dumps(client))
    weights, moments = get_state_dict(model, optimizer)
    dcp.save({"model": weights, "optimizer": moments}, checkpoint_id=place)


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
