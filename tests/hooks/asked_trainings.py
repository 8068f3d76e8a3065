"""Short trainings of 2 ranks by every integration, which are asked for a save and for their end."""

from __future__ import annotations

import errno
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import deepspeed
import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor
from torch.utils.data import Dataset

from sentinel.vocabulary.overrides import Anchor, Once, Overrides, TrainingSettings, encode_overrides
from tests.hooks import megatron_loop
from tests.hooks.callback_decisions import sharding
from trainer_hooks import attach
from trainer_hooks.gpt.arguments import parse
from trainer_hooks.gpt.train import Trainer as ReferenceTrainer

SEQLEN, STEPS = 16, 12
SAVE_AT, KILL_AT = 3, 7
deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False


def raising(number: int) -> Callable[..., Any]:
    def fails(*_: Any) -> None:
        raise OSError(number, os.strerror(number))

    return fails


class Tokens(Dataset[dict[str, torch.Tensor]]):
    """Sample i is i % 5 tokens shorter than the longest: two ranks' batches differ in length."""

    def __init__(self, *, uneven: bool) -> None:
        self.tokens = torch.randint(64, (96, SEQLEN), generator=torch.Generator().manual_seed(0))
        self.uneven = uneven

    def __len__(self) -> int:
        return len(self.tokens)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        tokens = self.tokens[index][: SEQLEN - (index % 5 if self.uneven else 0)]
        return {"input_ids": tokens, "labels": tokens.clone()}


def at_step(folder: Path, step: int) -> None:
    """A person writes the files, and each step takes some looks of the watching thread."""
    if dist.get_rank() == 0 and step == SAVE_AT:
        (folder / "state" / "SAVE").write_text("{}")
    if dist.get_rank() == 0 and step == KILL_AT:
        (folder / "state" / "KILL").touch()
    time.sleep(0.05)


def own(parameter: torch.Tensor) -> torch.Tensor:
    """This rank's part, of a DTensor."""
    parameter = parameter.detach()
    return parameter.to_local() if isinstance(parameter, DTensor) else parameter


def huggingface(
    folder: Path,
    *,
    with_deepspeed: bool = False,
    sharded: bool = False,
    asks: bool = True,
    hooked: bool = True,
    uneven: bool = False,
    fails_to_attach: bool = False,
) -> dict[str, Any]:
    from transformers import (
        LlamaConfig,
        LlamaForCausalLM,
        Trainer,
        TrainerCallback,
        TrainingArguments,
    )

    from trainer_hooks.huggingface import StabilityCallback

    def padded(samples: list[dict[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
        columns = {name: [sample[name] for sample in samples] for name in samples[0]}
        fill = {"input_ids": 0, "labels": -100}
        pad = torch.nn.utils.rnn.pad_sequence
        return {name: pad(rows, batch_first=True, padding_value=fill[name]) for name, rows in columns.items()}

    class Person(TrainerCallback):  # type: ignore[misc]
        steps = 0
        weights: list[float]
        lrs: list[float]

        def on_step_end(self, _: Any, state: Any, *__: Any, model: Any = None, **___: Any) -> None:
            self.steps = state.global_step
            self.weights.append(sum(float(own(p).double().abs().sum()) for p in model.parameters()))
            self.lrs.append(trainer._get_learning_rate())
            if asks:
                at_step(folder, state.global_step)
            elif not uneven:
                time.sleep(0.02)

    person = Person()
    person.weights, person.lrs = [], []
    arguments = TrainingArguments(
        output_dir=str(folder / "checkpoints"),
        deepspeed={
            "train_micro_batch_size_per_gpu": "auto",
            "gradient_accumulation_steps": "auto",
            "zero_optimization": {"stage": 1},
            "zero_allow_untested_optimizer": True,
        }
        if with_deepspeed
        else None,
        **(sharding("fsdp2") if sharded else {}),
        use_cpu=True,
        max_steps=STEPS,
        per_device_train_batch_size=2,
        learning_rate=1e-2,
        lr_scheduler_type="constant",
        save_strategy="no",
        logging_steps=1,
        report_to="none",
        disable_tqdm=True,
        seed=7,
    )
    torch.manual_seed(0)
    shape = {"vocab_size": 64, "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1}
    model = LlamaForCausalLM(LlamaConfig(**shape, num_attention_heads=2, max_position_embeddings=SEQLEN))
    data = Tokens(uneven=uneven)
    trainer = Trainer(model=model, args=arguments, train_dataset=data, data_collator=padded if uneven else None)
    trainer.add_callback(person)
    callback = StabilityCallback(trainer, state_dir=folder / "state", run="asked")
    if fails_to_attach:
        callback._apply = raising(errno.EIO)  # type: ignore[method-assign]
    if hooked:
        trainer.add_callback(callback)
    trainer.train()
    return {"steps": person.steps, "weights": person.weights, "lrs": person.lrs, "errors": callback.errors}


def reference(folder: Path) -> dict[str, Any]:
    """Two attempts: the second resets Adam's moments, over both ranks' parts of them."""
    small = ["--seqlen", "32", "--global-batch", "4", "--lr", "1e-3", "--lr-warmup", "5", "--validation-batches", "1"]
    files = ["--save", str(folder / "checkpoints"), "--state-dir", str(folder / "state")]

    class Asked(ReferenceTrainer):
        def _after_step(self) -> None:
            super()._after_step()
            at_step(folder, self.number)

    os.chdir(folder)
    first = ReferenceTrainer(parse([*small, *files, "--zero", "1", "--steps", "2", "--save-interval", "2"]))
    ended = [first.train()]
    if dist.get_rank() == 0:
        overrides = Overrides(
            incident="i",
            rollback="r1",
            anchor=Anchor(global_step=2),
            standing=TrainingSettings(clip_grad=0.5),
            once=Once(id="r1", reset_moments=True),
        )
        (folder / "state" / "overrides.json").write_text(encode_overrides(overrides))
    dist.barrier()
    asked = Asked(parse([*small, *files, "--zero", "1", "--steps", "30", "--validate-every", "5"]))
    reset = asked.progress.moments_reset_steps
    ended.append(asked.train())
    return {"steps": asked.progress.step, "ended": ended, "reset": reset, "errors": asked.hook.errors}


def terminated(folder: Path) -> dict[str, Any]:
    """The reference trainer, where rank 1 alone gets SIGTERM."""
    small = ["--seqlen", "32", "--global-batch", "4", "--lr", "1e-3", "--lr-warmup", "5", "--validation-batches", "1"]
    files = ["--save", str(folder / "checkpoints"), "--state-dir", str(folder / "state")]

    class Asked(ReferenceTrainer):
        def _after_step(self) -> None:
            super()._after_step()
            if self.number == KILL_AT and self.rank == 1:
                os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(0.05)

    os.chdir(folder)
    trainer = Asked(parse([*small, *files, "--steps", "30"]))
    return {"reason": trainer.train(), "steps": trainer.progress.step, "errors": trainer.hook.errors}


def plain(folder: Path) -> dict[str, Any]:
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
    config = {
        "train_micro_batch_size_per_gpu": 2,
        "optimizer": {"type": "Adam", "params": {"lr": 1e-2, "torch_adam": True}},
        "zero_optimization": {"stage": 1},
        "steps_per_print": 10**9,
    }
    engine, *_ = deepspeed.initialize(model=net, model_parameters=net.parameters(), config=config)
    hook = attach(engine, state_dir=folder / "state", run="plain")
    for step in range(1, STEPS + 1):
        engine.backward(engine(torch.ones(2, 8) * (step + dist.get_rank())).square().mean())
        engine.step()
        if step == SAVE_AT:
            engine.save_checkpoint(str(folder / "checkpoints"))
            hook.checkpoint_saved(f"global_step{step}")
    hook.validation(1.0, 8)
    hook.close("finished")
    return {"steps": engine.global_steps, "errors": hook.errors}


def megatron(folder: Path) -> dict[str, Any]:
    megatron_loop.train(folder, 4)
    return {}
