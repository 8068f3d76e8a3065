"""What overrides.json decides, under Hugging Face's Trainer: one JSON line per case, by rank 0.

    torchrun --nproc_per_node 2 callback_decisions.py 1     # or 2, 3: ZeRO; or ddp, fsdp2

All cases resume from the same checkpoint, step 6 of 15, the first step of the second of three epochs.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

import accelerate.state
import deepspeed
import torch
import torch.distributed as dist
from accelerate.utils import DistributedType
from torch.utils.data import Dataset
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainerCallback, TrainingArguments

from sentinel.vocabulary.errors import OverridesError
from sentinel.vocabulary.overrides import Anchor, Once, Overrides, TrainingSettings, encode_overrides
from sentinel.vocabulary.pacing import FixedLinear, LrSchedule, RandomLtdSchedule
from sentinel.vocabulary.sample import decode
from tests.hooks.callback_cases import TrueLoss
from tests.hooks.patient import patient
from trainer_hooks.gpt.train import leave_out_unused_ops
from trainer_hooks.huggingface import StabilityCallback

SEQLEN, SAMPLES, ANCHOR, STEPS = 16, 40, 6, 15
LR = LrSchedule(peak=2e-3, warmup=4, anchor=ANCHOR, decay_start=3, decay_end=16, minimum=1e-4)
LENGTHS = FixedLinear(start=8, full=SEQLEN, anchor_step=ANCHOR, multiple=4, total_steps=4)
ADAM = TrainingSettings(lr=LR, clip_grad=0.3, adam_beta1=0.8, adam_beta2=0.95, adam_eps=1e-6, weight_decay=0.2)
DECIDED: dict[str, tuple[TrainingSettings, Once | None]] = {
    "adam": (ADAM, Once(id="r1", reset_moments=True)),
    "data": (TrainingSettings(), Once(id="r1", seed=11, skip_samples=5)),
    "straight": (TrainingSettings(), Once(id="r1", seed=11, skip_samples=5)),
    "skipped": (TrainingSettings(), Once(id="r1", skip_samples=5)),
    "lengths": (TrainingSettings(seqlen=LENGTHS, shorten="truncate"), None),
    "attention": (TrainingSettings(qk_clip=1e-3, lr_factor_of={"attention.qk": 0.25, "*.mlp.*": 0.5}), None),
    "refused": (TrainingSettings(random_ltd=RandomLtdSchedule(start=8, full=SEQLEN, total_steps=4)), None),
}


def shard_on_cpus() -> None:
    """accelerate shards on accelerators alone; here it is told that its CPUs are some."""
    state = accelerate.state.AcceleratorState
    made = state.__init__

    def init(self: Any, *given: Any, fsdp_plugin: Any = None, **named: Any) -> None:
        made(self, *given, fsdp_plugin=fsdp_plugin, **named)
        if fsdp_plugin is not None:
            self.distributed_type, self.fsdp_plugin = DistributedType.FSDP, fsdp_plugin
            accelerate.state.PartialState._shared_state["distributed_type"] = DistributedType.FSDP

    state.__init__ = init
    os.environ["ACCELERATE_USE_FSDP"] = "true"


class Numbered(Dataset[dict[str, torch.Tensor]]):
    """The first token of a sample is its number."""

    def __init__(self) -> None:
        self.tokens = torch.randint(64, (SAMPLES, SEQLEN), generator=torch.Generator().manual_seed(0))
        self.tokens[:, 0] = torch.arange(SAMPLES)

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        labels = self.tokens[index].clone()
        labels[1 : 2 + index % 4] = -100
        mask = torch.ones_like(labels)
        return {"input_ids": self.tokens[index], "labels": labels, "attention_mask": mask}


class Fed(TrueLoss):
    """Which samples each step was trained on, over all ranks, and how long they were."""

    def __init__(self, trainer: Any) -> None:
        super().__init__(trainer)
        self.samples: dict[int, list[int]] = {}
        self.lengths: dict[int, list[list[int]]] = {}
        self.evaluated_lengths: set[int] = set()

        def look(module: Any, _: Any, named: dict[str, torch.Tensor]) -> None:
            if not module.training:
                self.evaluated_lengths.add(named["input_ids"].shape[1])

        trainer.model.register_forward_pre_hook(look, with_kwargs=True)

    def on_step_end(self, *given: Any, **named: Any) -> None:
        super().on_step_end(*given, **named)
        step = given[1].global_step
        shares: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(shares, [batch["input_ids"][:, 0].tolist() for batch in self.batches])
        self.samples[step] = [number for batches in zip(*shares, strict=True) for batch in batches for number in batch]
        self.lengths[step] = [[batch[name].shape[1] for name in batch] for batch in self.batches]


def deepspeed_of(kind: str) -> dict[str, Any] | None:
    if not kind.isdecimal():
        return None
    return {
        "train_micro_batch_size_per_gpu": "auto",
        "gradient_accumulation_steps": "auto",
        "gradient_clipping": "auto",
        "zero_optimization": {"stage": int(kind)},
        "zero_allow_untested_optimizer": True,
    }


def sharding(kind: str) -> dict[str, Any]:
    if kind != "fsdp2":
        return {}
    return {
        "fsdp": "full_shard auto_wrap",
        "fsdp_config": {
            "version": 2,
            "transformer_layer_cls_to_wrap": ["LlamaDecoderLayer"],
        },
    }


def train(folder: Path, kind: str, *, steps: int, hooked: bool = True) -> dict[str, Any]:
    """One life; what it was and what the checkpoint of its last step holds."""
    arguments = TrainingArguments(
        output_dir=str(folder / "checkpoints"),
        deepspeed=deepspeed_of(kind),
        **sharding(kind),
        use_cpu=True,
        max_steps=STEPS,
        per_device_train_batch_size=2,
        gradient_accumulation_steps=2,
        learning_rate=1e-2,
        weight_decay=0.1,
        lr_scheduler_type="cosine",
        warmup_steps=2,
        logging_steps=1,
        save_steps=3,
        eval_strategy="steps",
        eval_steps=2,
        report_to="none",
        disable_tqdm=True,
        seed=7,
    )
    torch.manual_seed(0)
    shape = {"vocab_size": 64, "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1}
    model = LlamaForCausalLM(LlamaConfig(**shape, num_attention_heads=2, max_position_embeddings=SEQLEN))
    trainer = Trainer(model=model, args=arguments, train_dataset=Numbered(), eval_dataset=Numbered())
    fed = Fed(trainer)
    trainer.add_callback(fed)
    callback = StabilityCallback(trainer, state_dir=folder / "state", run="decided", full_seqlen=SEQLEN)
    if hooked:
        trainer.add_callback(callback)
    resume = any((folder / "checkpoints").glob("checkpoint-*"))
    error = None
    if steps < STEPS:
        trainer.add_callback(_StopAfter(steps))
    try:
        trainer.train(resume_from_checkpoint=resume)
    except OverridesError as refused:
        error = str(refused)
    dist.barrier()
    history = trainer.state.log_history
    found: dict[str, Any] = {
        "error": error,
        "caught": callback.errors,
        "samples": fed.samples,
        "lengths": fed.lengths,
        "evaluated_lengths": sorted(fed.evaluated_lengths),
        "true": fed.losses,
        "logged": {h["step"]: [h["loss"], h["grad_norm"], h["learning_rate"]] for h in history if "loss" in h},
        "evaluated": {h["step"]: h["eval_loss"] for h in history if "eval_loss" in h},
        "journal": [],
    }
    journals = sorted((folder / "state" / "attempts").glob("*.jsonl"))
    if hooked and journals and dist.get_rank() == 0:
        records = [decode(line) for line in journals[-1].read_text().splitlines()]
        found["journal"] = [{"is": type(r).__name__} | asdict(r) for r in records if r]
    if kind == "ddp" and trainer.optimizer is not None:
        roots = [state["exp_avg_sq"].double().sqrt() for state in trainer.optimizer.state.values()]
        if roots:
            found["variance"] = [float(sum(v.sum() for v in roots)), float(max(v.max() for v in roots))]
    last = folder / "checkpoints" / f"checkpoint-{trainer.state.global_step}" / "scheduler.pt"
    if last.exists():
        found["scheduler"] = {k: v for k, v in torch.load(last).items() if isinstance(v, int | float | list)}
    return found


class _StopAfter(TrainerCallback):  # type: ignore[misc]
    def __init__(self, step: int) -> None:
        self.step = step

    def on_step_end(self, _: Any, state: Any, control: Any, **__: Any) -> None:
        if state.global_step >= self.step:
            control.should_training_stop = control.should_save = True


def decided(folder: Path, standing: TrainingSettings, once: Once | None) -> Path:
    """A run's folder whose last checkpoint is the anchor's."""
    if dist.get_rank() == 0:
        name = f"checkpoint-{ANCHOR}"
        shutil.copytree(folder.parent / "own" / "checkpoints" / name, folder / "checkpoints" / name)
        overrides = Overrides(
            incident="i", rollback="r1", anchor=Anchor(global_step=ANCHOR), standing=standing, once=once
        )
        (folder / "state").mkdir()
        (folder / "state" / "overrides.json").write_text(encode_overrides(overrides))
    dist.barrier()
    return folder


def main() -> None:
    kind = sys.argv[1]
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    leave_out_unused_ops()
    patient()
    if deepspeed_of(kind):
        deepspeed.init_distributed("gloo", verbose=False)
    else:
        dist.init_process_group("gloo")
    if sharding(kind):
        shard_on_cpus()
    shared: list[Any] = [tempfile.mkdtemp() if dist.get_rank() == 0 else None]
    dist.broadcast_object_list(shared)
    root = Path(shared[0])

    def say(case: str, found: dict[str, Any]) -> None:
        if dist.get_rank() == 0:
            print(json.dumps({"case": case} | found, default=str), flush=True)

    say("bare", train(root / "bare", kind, steps=STEPS, hooked=False))
    say("own", train(root / "own", kind, steps=STEPS))
    for case, (standing, once) in DECIDED.items():
        if kind == "2" and case not in ("adam", "data", "straight"):
            continue
        folder = decided(root / case, standing, once)
        say(case, train(folder, kind, steps=10 if case == "data" else STEPS))
        if case == "data":  # in the middle of an epoch
            say("requeued", train(folder, kind, steps=STEPS))
    if kind != "2":
        if dist.get_rank() == 0:
            (root / "own" / "state" / "KILL").touch()
            shutil.rmtree(root / "own" / "checkpoints" / f"checkpoint-{STEPS}")
        dist.barrier()
        say("killed", train(root / "own", kind, steps=STEPS))


if __name__ == "__main__":
    main()
