"""Run under torchrun: trains a tiny GPT with AttentionOverride on one sharding after the other. One JSON line per case.

against_plain: largest difference of a weight from a plain loop in one process after STEPS steps (it trains in fp32).
first_step: the same after one step, from the same engine without the override, scaled by hand. copies_equal: whether
the weights of the forward pass are the masters' in its precision. untouched: whether a limit that no head passes leaves
each weight bit for bit. clipped, passed: heads that were clipped in the first step, and that passed the limit by hand.
"""

from __future__ import annotations

import itertools
import json
import math
import sys
from functools import partial
from typing import Any

import deepspeed
import torch
import torch.distributed as dist
from deepspeed.accelerator import get_accelerator
from torch import Tensor

from sentinel.vocabulary.overrides import TrainingSettings
from tests.hooks.patient import patient
from trainer_hooks.gpt.__main__ import leave
from trainer_hooks.gpt.attention import override_attention
from trainer_hooks.gpt.model import GPT, Shape
from trainer_hooks.gpt.train import leave_out_unused_ops
from trainer_hooks.qk_clip.masters import parts_of
from trainer_hooks.sample.owners import inner_optimizers

SHAPE, VOCABULARY, STEPS, LIMIT = Shape(layers=2, width=12, heads=3, seqlen=8), 31, 4, 6.0
ADAM = {"lr": 1e-2, "weight_decay": 0.1, "eps": 1e-4}  # the gradient of a key's bias is rounding noise: eps hides it
CHANGED = TrainingSettings(qk_clip=LIMIT, lr_factor_of={"attention.qk": 0.25, "blocks.*.mlp_in.*": 0.5})
Weights = dict[str, Tensor]


def model() -> GPT:
    torch.manual_seed(3)
    made = GPT(SHAPE, VOCABULARY)
    for name, parameter in made.named_parameters():
        if "qkv" in name:
            torch.nn.init.normal_(parameter, std=0.6)
    return made


def batch(step: int, rank: int) -> Tensor:
    return torch.randint(VOCABULARY, (2, SHAPE.seqlen + 1), generator=torch.Generator().manual_seed(10 * step + rank))


def engine_of(stage: int, precision: str, *, offloaded: bool = False) -> Any:
    config: dict[str, Any] = {
        "train_micro_batch_size_per_gpu": 2,
        "gradient_clipping": 0.0,
        "steps_per_print": 10**9,
        "zero_optimization": {"stage": stage, "stage3_param_persistence_threshold": 0, "sub_group_size": 400},
        "zero_allow_untested_optimizer": True,
    }
    if offloaded:
        config["zero_optimization"]["offload_optimizer"] = {"device": "cpu", "pin_memory": False}
        config["zero_force_ds_cpu_optimizer"] = False
    if precision == "bf16":
        config["bf16"] = {"enabled": True}
    if precision == "fp16":
        config["fp16"] = {"enabled": True, "initial_scale_power": 4}
    net = model()
    optimizer = torch.optim.AdamW(net.parameters(), **ADAM)
    return deepspeed.initialize(model=net, optimizer=optimizer, config=config)[0]


def masters(engine: Any) -> Weights:
    """The whole of each parameter as the optimizer goes on with it, fp32."""
    named = {id(p): (name, getattr(p, "ds_shape", p.shape)) for name, p in engine.module.named_parameters()}
    parts = parts_of(engine)
    held = [m for inner in inner_optimizers(engine.optimizer) for group in inner.param_groups for m in group["params"]]
    held += list(getattr(engine.optimizer, "fp32_partitioned_groups_flat", ()))
    own = [
        (named[id(part.parameter)], part.offset, m.detach().reshape(-1)[part.start : part.start + part.size].clone())
        for m in held
        for part in parts.get(id(m), ())
    ]
    everywhere: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(everywhere, own)
    whole = {name: torch.full((shape.numel(),), math.nan) for name, shape in named.values()}
    for (name, _), offset, values in itertools.chain.from_iterable(everywhere):
        whole[name][offset : offset + len(values)] = values.float()
    return {name: whole[name].view(shape) for name, shape in named.values()}


def copies(engine: Any) -> Weights:
    """The weights of the forward pass."""
    with deepspeed.zero.GatheredParameters(
        list(engine.module.parameters()), enabled=engine.zero_optimization_stage() == 3
    ):
        return {name: p.detach().clone() for name, p in engine.module.named_parameters()}


def trained(engine: Any, steps: int) -> None:
    for step in range(steps):
        engine.backward(engine(batch(step, dist.get_rank())))
        engine.step()


def largest_by_hand(net: GPT, tokens: Tensor) -> list[Tensor]:
    """(H,) of each layer: the largest logit, by a loop over heads and pairs of positions."""
    found: list[Tensor] = []
    width = SHAPE.width // SHAPE.heads

    def of_layer(module: Any, given: tuple[Tensor], out: Tensor) -> None:
        q, k, _ = out.detach().split(SHAPE.width, dim=2)
        heads = [slice(h * width, (h + 1) * width) for h in range(SHAPE.heads)]
        logits = [q[:, :, h] @ k[:, :, h].transpose(1, 2) / math.sqrt(width) for h in heads]
        pairs = [(i, j) for i in range(tokens.shape[1] - 1) for j in range(i + 1)]
        found.append(torch.stack([max(one[:, i, j].max() for i, j in pairs) for one in logits]).float())

    handles = [block.get_submodule("qkv").register_forward_hook(of_layer) for block in net.blocks]
    net(tokens)
    for handle in handles:
        handle.remove()
    return found


def clip_by_hand(weights: Weights, largest: list[Tensor]) -> None:
    width = SHAPE.width // SHAPE.heads
    for layer, of_heads in enumerate(largest):
        for head, logit in enumerate(of_heads.tolist()):
            for name, begin in itertools.product(("weight", "bias"), (0, SHAPE.width)):  # queries, then keys
                rows = weights[f"blocks.{layer}.qkv.{name}"][begin + head * width : begin + (head + 1) * width]
                rows *= math.sqrt(min(1.0, LIMIT / logit))


def plain(world: int) -> Weights:
    """The same training in a plain loop, on the batches of all ranks."""
    net = model()
    slower = [p for name, p in net.named_parameters() if "mlp_in" in name]
    others = [p for name, p in net.named_parameters() if "mlp_in" not in name]
    groups = [{"params": others}, {"params": slower, "lr": 0.5 * ADAM["lr"]}]
    optimizer = torch.optim.AdamW(groups, **ADAM)
    weights = {name: p.data for name, p in net.named_parameters()}
    for step in range(STEPS):
        tokens = torch.cat([batch(step, rank) for rank in range(world)])
        largest = largest_by_hand(net, tokens)
        before = {name: w.clone() for name, w in weights.items() if "qkv" in name}
        optimizer.zero_grad()
        net(tokens).backward()
        optimizer.step()
        for name, old in before.items():
            rows = slice(0, 2 * SHAPE.width)
            weights[name][rows] = old[rows] + 0.25 * (weights[name][rows] - old[rows])
        clip_by_hand(weights, largest)
    return weights


def difference(one: Weights, other: Weights) -> float:
    return max(float((w - other[name]).abs().max()) for name, w in one.items())


def case(name: str) -> dict[str, Any]:
    stage, precision, *more = name.split()
    made = partial(engine_of, int(stage), precision, offloaded=bool(more))
    world = dist.get_world_size()
    dtype = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}[precision]
    first = made()
    alone = override_attention(first, first.module, TrainingSettings(qk_clip=LIMIT))
    largest = largest_by_hand(model().to(dtype), torch.cat([batch(0, rank) for rank in range(world)]))
    unchanged, high = made(), made()
    override_attention(high, high.module, TrainingSettings(qk_clip=1e9))
    for engine in (first, unchanged, high):
        trained(engine, 1)
    by_hand, bits = masters(unchanged), copies(unchanged)
    untouched = all(w.equal(bits[name]) for name, w in copies(high).items()) and difference(masters(high), by_hand) == 0
    clip_by_hand(by_hand, largest)
    whole = made()
    override_attention(whole, whole.module, CHANGED)
    trained(whole, STEPS)
    after = masters(whole)
    return {
        "case": name,
        "against_plain": difference(after, plain(world)),
        "first_step": difference(masters(first), by_hand),
        "copies_equal": all(w.equal(after[name].to(dtype)) for name, w in copies(whole).items()),
        "untouched": untouched,
        "clipped": int(alone.clipped_heads) if alone is not None and alone.clipped_heads is not None else None,
        "passed": sum(int((one > LIMIT).sum()) for one in largest),
        "of": SHAPE.layers * SHAPE.heads,
    }


def main() -> None:
    patient()
    dist.init_process_group("gloo")
    leave_out_unused_ops()
    type(get_accelerator()).is_fp16_supported = lambda _: True  # type: ignore[method-assign]
    for name in sys.argv[1:]:
        found = case(name)
        if dist.get_rank() == 0:
            print(json.dumps(found), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
    leave(0)
