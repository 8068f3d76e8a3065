"""A tiny Llama by Hugging Face's Trainer, as `cases.hugging_face` asks for it."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import deepspeed
import torch
from torch.utils.data import Dataset
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainerCallback, TrainingArguments

from benchmarks.starts.cases import SAVES
from benchmarks.starts.state_faults import spoil
from trainer_hooks.huggingface import StabilityCallback

SEQLEN = 32
deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False


class Tokens(Dataset[dict[str, torch.Tensor]]):
    def __init__(self, seed: int) -> None:
        self.tokens = torch.randint(64, (4096, SEQLEN), generator=torch.Generator().manual_seed(seed))

    def __len__(self) -> int:
        return len(self.tokens)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"input_ids": self.tokens[index], "labels": self.tokens[index]}


def train_llama(job: dict[str, Any]) -> str:
    seed, steps = (int(word) for word in job["arguments"])
    folder, fault = Path(job["folder"]), job["design"]
    newest = folder / "checkpoints" / f"checkpoint-{job['at']}"
    arguments = TrainingArguments(
        output_dir=str(folder / "checkpoints"),
        deepspeed={
            "train_micro_batch_size_per_gpu": "auto",
            "gradient_accumulation_steps": "auto",
            "gradient_clipping": "auto",
            "zero_optimization": {"stage": 1},
            "zero_allow_untested_optimizer": True,
        },
        use_cpu=True,
        max_steps=150,  # the end of the LR's decay; `Until` ends it before
        per_device_train_batch_size=2,
        learning_rate=1e-3,
        lr_scheduler_type="cosine",
        warmup_steps=15,
        save_steps=SAVES,
        logging_steps=1000,
        report_to="none",
        disable_tqdm=True,
        seed=seed,
        ignore_data_skip=fault == "data from epoch start",
    )
    torch.manual_seed(seed)
    shape = {"vocab_size": 64, "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2}
    model = LlamaForCausalLM(LlamaConfig(**shape, num_attention_heads=2, max_position_embeddings=SEQLEN))
    trainer = Trainer(model=model, args=arguments, train_dataset=Tokens(seed))
    trainer.add_callback(StabilityCallback(trainer, state_dir=folder / "state", run="llama"))
    trainer.add_callback(Until(steps))
    trainer.add_callback(Spoil(trainer, fault))
    if fault == "scheduler lost":
        trainer._load_optimizer_and_scheduler = lambda _: None  # DeepSpeed has loaded its own part
    with _without_moments() if fault == "optimizer state not loaded" else contextlib.nullcontext():
        trainer.train(resume_from_checkpoint=str(newest) if job["begun"] and fault != "started from scratch" else None)
    return f"stopped at {trainer.state.global_step}"


@contextlib.contextmanager
def _without_moments() -> Any:
    load = deepspeed.DeepSpeedEngine.load_checkpoint

    def loaded(engine: Any, *args: Any, **options: Any) -> Any:
        return load(engine, *args, **(options | {"load_optimizer_states": False}))

    deepspeed.DeepSpeedEngine.load_checkpoint = loaded
    try:
        yield
    finally:
        deepspeed.DeepSpeedEngine.load_checkpoint = load


class Spoil(TrainerCallback):  # type: ignore[misc]
    """After the load, before the first step."""

    def __init__(self, trainer: Trainer, design: str | None) -> None:
        self._trainer, self._design = trainer, design

    def on_train_begin(self, *_: Any, **__: Any) -> None:
        if self._design is not None:
            spoil(self._trainer.model_wrapped, self._design, blocks=("layers.0.", "layers.1."))


class Until(TrainerCallback):  # type: ignore[misc]
    def __init__(self, steps: int) -> None:
        self._steps = steps

    def on_step_end(self, _: Any, state: Any, control: Any, **__: Any) -> None:
        control.should_training_stop = state.global_step >= self._steps
