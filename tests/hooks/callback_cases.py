"""Trainings by Hugging Face's Trainer that the example does not show: one JSON line per case, by rank 0.

A loss that is not one: every sample has another number of tokens that count, the last step of an epoch has fewer
micro-batches, and Trainer is told to bring the callbacks' states back.
"""

from __future__ import annotations

import json
import logging
import sys
import tempfile
from pathlib import Path
from typing import Any

import deepspeed
import torch
import torch.distributed as dist
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.tensor import DTensor
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments

from sentinel.vocabulary.sample import RunFinished, RunStarted, Sample, decode
from tests.hooks.patient import patient
from trainer_hooks.gpt.train import leave_out_unused_ops
from trainer_hooks.huggingface import StabilityCallback

SEQLEN = 16
deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False


class Uneven(Dataset[dict[str, torch.Tensor]]):
    """Sample i has its last i % 13 labels masked."""

    def __init__(self, samples: int) -> None:
        self.tokens = torch.randint(64, (samples, SEQLEN), generator=torch.Generator().manual_seed(0))

    def __len__(self) -> int:
        return len(self.tokens)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        labels = self.tokens[index].clone()
        labels[SEQLEN - index % 13 :] = -100
        return {"input_ids": self.tokens[index], "labels": labels}


def whole(model: Any) -> dict[str, torch.Tensor]:
    """The weights, put together where ZeRO 3 or FSDP 2 has cut them up."""
    parts = [parameter for parameter in model.parameters() if hasattr(parameter, "ds_id")]
    with deepspeed.zero.GatheredParameters(parts):
        if parts:
            return {name: value.detach().clone() for name, value in model.named_parameters()}
    if any(isinstance(value, DTensor) for value in model.parameters()):
        return get_model_state_dict(model, options=StateDictOptions(full_state_dict=True))
    return {name: value.clone() for name, value in model.state_dict().items()}


class TrueLoss(TrainerCallback):  # type: ignore[misc]
    """The loss of every step's batch in float64, over all ranks' tokens that count, with the weights from before it."""

    def __init__(self, trainer: Any) -> None:
        self.trainer, self.losses, self.batches = trainer, {}, []
        inner = trainer.training_step

        def training_step(model: Any, inputs: dict[str, torch.Tensor], *args: Any, **kwargs: Any) -> Any:
            self.batches.append(inputs)
            return inner(model, inputs, *args, **kwargs)

        trainer.training_step = training_step

    def on_step_begin(self, *_: Any, model: Any = None, **__: Any) -> None:
        self.weights = whole(model)
        self.batches.clear()

    def on_step_end(self, _: Any, state: Any, *__: Any, model: Any = None, **___: Any) -> None:
        twin = type(model)(model.config)
        twin.load_state_dict(self.weights)
        twin.double()
        sums = torch.zeros(2, dtype=torch.float64)
        with torch.no_grad():
            for batch in self.batches:
                logits = twin(input_ids=batch["input_ids"]).logits[:, :-1].flatten(0, 1)
                labels = batch["labels"][:, 1:].flatten()
                sums[0] += torch.nn.functional.cross_entropy(logits, labels, ignore_index=-100, reduction="sum")
                sums[1] += (labels != -100).sum()
        dist.all_reduce(sums)
        self.losses[state.global_step] = float(sums[0] / sums[1])


class OutOfTime(TrainerCallback):  # type: ignore[misc]
    """Ends the training after its second step, as a callback for a time limit does."""

    def on_step_end(self, _: Any, state: Any, control: Any, **__: Any) -> Any:
        control.should_training_stop = state.global_step >= 2
        return control


class Broken(StabilityCallback):
    """Loses what it counts with, so that all that it does at a step and at a save goes wrong."""

    def on_train_begin(self, *positional: Any, **named: Any) -> None:
        super().on_train_begin(*positional, **named)
        self._applied = object()  # type: ignore[assignment]


def train(
    folder: Path,
    *,
    steps: int,
    resume: bool,
    callback: type[StabilityCallback] = StabilityCallback,
    others: tuple[TrainerCallback, ...] = (),
) -> tuple[Any, TrueLoss]:
    arguments = TrainingArguments(
        output_dir=str(folder / "checkpoints"),
        deepspeed={
            "train_micro_batch_size_per_gpu": "auto",
            "gradient_accumulation_steps": "auto",
            "zero_optimization": {"stage": 1},
            "zero_allow_untested_optimizer": True,
        },
        use_cpu=True,
        max_steps=steps,
        per_device_train_batch_size=2,
        gradient_accumulation_steps=3,
        learning_rate=1e-2,
        logging_steps=1,
        save_steps=3,
        report_to="none",
        disable_tqdm=True,
        restore_callback_states_from_checkpoint=True,
    )
    torch.manual_seed(0)
    shape = {"vocab_size": 64, "n_positions": SEQLEN, "n_embd": 16, "n_layer": 1, "n_head": 1}
    dropout = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    model = GPT2LMHeadModel(GPT2Config(**shape, **dropout, bos_token_id=0, eos_token_id=0))
    model.loss_type = "ForCausalLM"
    samples = 5 * arguments.per_device_train_batch_size * dist.get_world_size()  # an epoch: 3 micro-batches, then 2
    trainer = Trainer(model=model, args=arguments, train_dataset=Uneven(samples))
    true = TrueLoss(trainer)
    for other in (true, *others):
        trainer.add_callback(other)
    trainer.add_callback(callback(trainer, state_dir=folder / "state", run="uneven"))
    trainer.train(resume_from_checkpoint=resume)
    return trainer, true


def main() -> None:
    said: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: said.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("trainer_hooks").addHandler(handler)
    leave_out_unused_ops()
    patient()
    deepspeed.init_distributed("gloo", verbose=False)
    shared: list[Any] = [tempfile.mkdtemp() if dist.get_rank() == 0 else None]
    dist.broadcast_object_list(shared)
    folder = Path(shared[0])
    trainings: dict[str, dict[str, Any]] = {
        "uneven": {"folder": folder, "steps": 4, "resume": False},
        "resumed": {"folder": folder, "steps": 6, "resume": True},
        "broken": {"folder": folder / "broken", "steps": 4, "resume": False, "callback": Broken},
        "stopped": {"folder": folder / "stopped", "steps": 4, "resume": False, "others": (OutOfTime(),)},
    }
    for case, settings in trainings.items():
        trainer, true = train(**settings)
        dist.barrier()
        if dist.get_rank() == 0:
            lines = max((settings["folder"] / "state" / "attempts").glob("*.jsonl")).read_text().splitlines()
            told = [decode(line) for line in lines]
            print(
                json.dumps(
                    {
                        "case": case,
                        "journal": {r.global_step: r.loss for r in told if isinstance(r, Sample)},
                        "true": true.losses,
                        "logged": {h["step"]: h["loss"] for h in trainer.state.log_history if "loss" in h},
                        "samples": [r.consumed_samples for r in told if isinstance(r, Sample)],
                        "starts": [(r.resumed_from, r.consumed_tokens) for r in told if isinstance(r, RunStarted)],
                        "ends": [r.reason for r in told if isinstance(r, RunFinished)],
                        "said": said,
                    }
                ),
                flush=True,
            )


if __name__ == "__main__":
    sys.exit(main())
