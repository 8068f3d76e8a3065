"""Run under torchrun: random-LTD in real engines. One JSON line per case, {"case", …: [ours, reference]}.

On one rank: DeepSpeed's own layers and its activation checkpointing. On two: ZeRO 0 to 3 and a pipeline, beside a plain
loop over the whole global batch in one process.
"""

from __future__ import annotations

import copy
import json
import tempfile
from collections.abc import Iterable
from typing import Any

import deepspeed
import torch
import torch.distributed as dist
from deepspeed.ops.random_ltd import dropping_utils
from deepspeed.pipe import LayerSpec, PipelineModule
from torch import Tensor, nn

from tests.hooks.random_ltd_cases import (
    KEPT,
    ROUTING,
    SHAPE,
    VOCABULARY,
    Block,
    Keeps,
    StandInOp,
    run_blocks,
    seen_lengths,
    small_gpt,
    tokens,
)
from trainer_hooks.gpt.__main__ import leave
from trainer_hooks.gpt.train import leave_out_unused_ops
from trainer_hooks.random_ltd import DataRank, RandomLtd
from trainer_hooks.random_ltd.deepspeed_layers import DeepSpeedLtd

BATCH, MICRO = 8, 2
SCHEDULE = Keeps(KEPT, steps=8)
Answer = dict[str, Any]


def config(stage: int = 0, precision: str = "fp32", **more: Any) -> dict[str, Any]:
    made: dict[str, Any] = {
        "train_batch_size": BATCH,
        "train_micro_batch_size_per_gpu": MICRO,
        "gradient_clipping": 1.0,
        "steps_per_print": 10**9,
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-3, "torch_adam": True}},
        "zero_optimization": {"stage": stage},
    }
    if precision != "fp32":
        made[precision] = {"enabled": True}
    return made | more


def engine(model: nn.Module, settings: dict[str, Any]) -> Any:
    made, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=settings)
    return made


def train(made: Any, ltd: Any, steps: Iterable[int], seqlen: int = SHAPE.seqlen) -> list[float]:
    """Each step's loss, mean over ranks and micro-batches. `ltd` is called with (step, micro-batch)."""
    losses = []
    for step in steps:
        mean = torch.zeros(())
        mine = tokens(BATCH, step, seqlen).reshape(-1, dist.get_world_size(), MICRO, seqlen + 1)[:, dist.get_rank()]
        for number, batch in enumerate(mine):
            ltd(step, number)
            loss = made(batch)
            made.backward(loss)
            made.step()
            mean += loss.detach().float() / len(mine)
        dist.all_reduce(mean)
        losses.append(float(mean) / dist.get_world_size())
    return losses


def plainly(model: Any, ltd: Any, steps: Iterable[int], optimizer: Any = None, micro: int = BATCH) -> list[float]:
    """The same in one process, without DeepSpeed."""
    optimizer = optimizer or torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.0)
    losses = []
    for step in steps:
        total = 0.0
        for number, batch in enumerate(tokens(BATCH, step).split(micro)):
            ltd(step, number)
            loss = model(batch) * micro / BATCH
            loss.backward()
            total += loss.item()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(total)
    return losses


def off(_step: int, _micro_batch: int) -> None:
    """No random-LTD."""


def whole_batch(model: nn.Module) -> RandomLtd:
    return RandomLtd(model, Block, SCHEDULE, seed=1)


def here(made: Any) -> RandomLtd:
    return RandomLtd(made.module, Block, SCHEDULE, seed=1, data_rank=DataRank.of(made))


def zero(stage: int, precision: str) -> Answer:
    """Two steps without, four with random-LTD, two without again; the last four once more from the checkpoint."""
    reference_model = small_gpt()
    optimizer = torch.optim.AdamW(reference_model.parameters(), lr=1e-3, weight_decay=0.0)
    reference = plainly(reference_model, off, (1, 2), optimizer)
    ltd = whole_batch(reference_model)
    reference += plainly(reference_model, ltd.begin, (3, 4, 5, 6), optimizer)
    ltd.remove()
    reference += plainly(reference_model, off, (7, 8), optimizer)

    made = engine(small_gpt(), config(stage, precision))
    names = list(made.module.state_dict())
    ours = train(made, off, (1, 2))
    ltd = here(made)
    with seen_lengths(made.module) as seen:
        ours += train(made, ltd.begin, (3, 4))
        with tempfile.TemporaryDirectory() as folder:
            shared = [folder]
            dist.broadcast_object_list(shared)
            made.save_checkpoint(shared[0], tag="four")
            with_ltd = list(made.module.state_dict())
            ours += train(made, ltd.begin, (5, 6))
            ltd.remove()
            ours += train(made, off, (7, 8))

            again = engine(small_gpt(), config(stage, precision))
            again.load_checkpoint(shared[0], tag="four")  # before random-LTD is there
            ltd = here(again)
            resumed = train(again, ltd.begin, (5, 6))
            ltd.remove()
            resumed += train(again, off, (7, 8))

            later = engine(small_gpt(), config(stage, precision))
            ltd = here(later)
            later.load_checkpoint(shared[0], tag="four")  # with random-LTD there
            resumed_with = train(later, ltd.begin, (5, 6))
            dist.barrier()
    kept = [SCHEDULE.kept_tokens(step) for step in (3, 3, 4, 4, 5, 5, 6, 6)]
    return {
        "losses": [ours, reference],
        "resumed": [resumed, ours[4:]],
        "resumed_with": [resumed_with, ours[4:6]],
        "names": [with_ltd, names],
        "seen": [seen, [[24] * 12, [*kept, *[24] * 4], [*kept, *[24] * 4], [24] * 12]],
    }


def followed(stage: int) -> Answer:
    """A loop that knows nothing of random-LTD."""
    made = engine(small_gpt(), config(stage))
    here(made).follow(made)
    model = small_gpt()
    return {"losses": [train(made, off, (1, 2, 3)), plainly(model, whole_batch(model).begin, (1, 2, 3))]}


class Embedding(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, SHAPE.width)
        self.positions = nn.Embedding(SHAPE.seqlen, SHAPE.width)

    def forward(self, tokens: Tensor) -> Tensor:
        x: Tensor = self.tokens(tokens) + self.positions(torch.arange(tokens.shape[1]))
        return x


def cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    return nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


class InOneProcess(nn.Module):
    """What the pipeline has in its stages."""

    def __init__(self) -> None:
        super().__init__()
        blocks = [Block(SHAPE) for _ in range(4)]
        self.layers = nn.ModuleList([Embedding(), *blocks, nn.Linear(SHAPE.width, VOCABULARY)])

    def forward(self, batch: Tensor) -> Tensor:
        x = batch[:, :-1]
        for layer in self.layers:
            x = layer(x)
        return cross_entropy(x, batch[:, 1:])


def made_equal(layers: dict[str, nn.Module]) -> None:
    """Sets parameters from their names: the stages' are those of the whole."""
    for place, layer in layers.items():
        for name, parameter in layer.named_parameters():
            generator = torch.Generator().manual_seed(int(place) * 1000 + sum(map(ord, name)))
            with torch.no_grad():
                parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.1)


def pipeline(checkpointed: int) -> Answer:
    """Two stages of two blocks each; four micro-batches in a step, which no loop of ours sees."""
    net = PipelineModule(
        layers=[
            LayerSpec(Embedding),
            *(LayerSpec(Block, SHAPE) for _ in range(4)),
            LayerSpec(nn.Linear, SHAPE.width, VOCABULARY),
        ],
        num_stages=2,
        loss_fn=cross_entropy,
        partition_method="uniform",
        activation_checkpoint_interval=checkpointed,
        checkpointable_layers=["Block"],
    )
    made_equal(dict(net.named_children()))
    made = engine(net, config(train_micro_batch_size_per_gpu=MICRO))
    ltd = here(made)
    ltd.follow(made)
    ours = []
    for step in (1, 2, 3):
        micro_batches = [(b[:, :-1], b[:, 1:]) for b in tokens(BATCH, step).split(MICRO)]
        ours.append(float(made.train_batch(iter(micro_batches))))
    model = InOneProcess()
    made_equal(dict(model.layers.named_children()))
    reference = plainly(model, whole_batch(model).begin, (1, 2, 3), micro=MICRO)
    model = InOneProcess()
    made_equal(dict(model.layers.named_children()))
    without = plainly(model, off, (1, 2, 3))
    here_are: list[Any] = [None, None]
    dist.all_gather_object(here_are, sorted(ltd.layers.here))
    return {"losses": [ours, reference], "without": [without, reference], "stages": [here_are, [[1], [2]]]}


# ---- one rank


def converted() -> Answer:
    """DeepSpeed's layers beside ours, and their checkpoints in one another's models."""

    def its_engine() -> Any:
        routing = {"enabled": True, "random_ltd": copy.deepcopy(ROUTING)}
        return engine(small_gpt(), config(data_efficiency={"enabled": True, "data_routing": routing}))

    ours = engine(small_gpt(), config())
    expected = train(ours, here(ours).begin, range(1, 13))
    theirs = its_engine()
    ltd = DeepSpeedLtd(theirs, Block, SCHEDULE, seed=1)
    losses = train(theirs, ltd.begin, range(1, 7))
    names = list(theirs.module.state_dict())
    with tempfile.TemporaryDirectory() as folder:
        theirs.save_checkpoint(folder, tag="six")
        again = its_engine()
        ltd = DeepSpeedLtd(again, Block, SCHEDULE, seed=1)
        again.load_checkpoint(folder, tag="six")
        resumed = train(again, ltd.begin, range(7, 13))
        plain = engine(small_gpt(), config())
        plain.load_checkpoint(folder, tag="six")
        resumed_by_ours = train(plain, here(plain).begin, range(7, 13))
    ltd.remove()
    parameters = [name for name, _ in again.module.named_parameters()]
    return {
        "losses": [losses, expected[:6]],
        "resumed": [resumed, expected[6:]],
        "resumed_by_ours": [resumed_by_ours, expected[6:]],
        "names": [names, list(small_gpt().state_dict())],
        "names_after": [parameters, [name for name, _ in small_gpt().named_parameters()]],
        "dropping": [list(ltd.layers.dropping), [1, 2]],
    }


class Masked(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.mix = nn.Linear(4, 4)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        return x + mask[:, 0].to(x.dtype) @ self.mix(x)


class MaskedNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList(Masked() for _ in range(4))

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x, mask=mask)
        return x


def padded() -> Answer:
    """DeepSpeed's layers with a mask that is another for each sample."""
    x = torch.randn(3, 24, 4)
    mask = torch.ones(24, 24).tril().repeat(3, 1, 1, 1)
    mask[1, :, :, 18:] = 0
    mask[2, :, :, :5] = 0  # padded on the left
    routing = {"enabled": True, "random_ltd": ROUTING | {"model_mask_name": "mask"}}
    made = engine(MaskedNet(), config(data_efficiency={"enabled": True, "data_routing": routing}))
    DeepSpeedLtd(made, Masked, Keeps(KEPT), seed=1).begin(1, 0)
    model = MaskedNet()
    RandomLtd(model, Masked, Keeps(KEPT), seed=1).begin(1, 0)
    return {"output": [made(x, mask).flatten().tolist(), model(x, mask).flatten().tolist()]}


def recomputed(said: bool) -> Answer:
    """Gradients with deepspeed.checkpointing and without, over two steps of three micro-batches."""
    deepspeed.checkpointing.configure(None, partition_activations=False, contiguous_checkpointing=False)
    model = small_gpt(dropout=0.1)
    ltd = RandomLtd(model, Block, Keeps(KEPT), seed=1)

    def gradients(run: Any) -> list[float]:
        torch.manual_seed(3)
        model.zero_grad()
        for step in (1, 2):
            for number in range(3):
                if said or number == 0:
                    ltd.begin(step, number if said else None)
                run_blocks(model, tokens(2, number), run).backward()
        return torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None]).tolist()

    plain = gradients(lambda block, x: block(x))
    return {"gradients": [gradients(deepspeed.checkpointing.checkpoint), plain]}


def main() -> None:
    dist.init_process_group("gloo")
    leave_out_unused_ops()
    deepspeed.init_distributed("gloo", verbose=False)
    dropping_utils.random_ltd_module = StandInOp()
    cases: dict[str, Any]
    if dist.get_world_size() == 1:
        cases = {
            "converted": converted,
            "padded": padded,
            "recomputed, the loop says": lambda: recomputed(True),
            "recomputed, each layer counts": lambda: recomputed(False),
        }
    else:
        cases = {
            f"ZeRO {stage}, {precision}": lambda s=stage, p=precision: zero(s, p)
            for stage in range(4)
            for precision in ("fp32", "bf16")
        }
        cases |= {f"followed, ZeRO {stage}": lambda s=stage: followed(s) for stage in (0, 3)}
        cases |= {f"pipeline, checkpointed {n}": lambda n=n: pipeline(n) for n in (0, 1)}
    for name, case in cases.items():
        answer = case()
        if dist.get_rank() == 0:
            print(json.dumps({"case": name, **answer}), flush=True)
    dist.barrier()
    dist.destroy_process_group()
    leave(0)


if __name__ == "__main__":
    main()
