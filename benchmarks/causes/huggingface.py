"""A tiny Llama by Hugging Face's Trainer with one injected cause:

    python -m benchmarks.causes.huggingface CAUSE STEP --seed S --save FOLDER --state-dir FOLDER --steps N

STEP as in benchmarks.causes.trainer. Its layers have no norm, and no gradient is clipped: with them it bears what is
injected here. What lies in the data or in the settings is there in every process; what happened to one process does not
happen in a probe.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainerCallback, TrainingArguments

from benchmarks.causes.trainer import LOST, LR_FACTORS, MARK, RANGE_STEPS, flip, lose
from trainer_hooks.gpt.data import load_corpus
from trainer_hooks.huggingface import StabilityCallback

SEQLEN, BATCH, SAVES, DECAY = 32, 16, 10, 400


class Lines(Dataset[dict[str, torch.Tensor]]):
    """The reference trainer's text; random tokens in place of the marked samples."""

    def __init__(self) -> None:
        self.corpus = load_corpus((), seqlen=SEQLEN, vocabulary=None, validation_share=0.01)
        self.last = self.corpus.vocabulary - 1
        self.marked = frozenset[int]()

    def __len__(self) -> int:
        return self.corpus.training_samples

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        row = self.corpus.training(np.array([index]))[0, :SEQLEN]
        if index in self.marked:
            row[:] = np.random.default_rng(index).integers(0, self.last, SEQLEN)
            row[:MARK] = self.last
        tokens = torch.from_numpy(row)
        return {"input_ids": tokens, "labels": tokens}


class IllTrainer(Trainer):  # type: ignore[misc]  # transformers is no requirement of ours: Any to mypy
    def __init__(self, options: argparse.Namespace) -> None:
        first, _, batches = options.step.partition("x")
        self.cause, self.at, self.here = options.cause, int(first), "SENTINEL_PROBE" not in os.environ
        arguments = TrainingArguments(
            output_dir=options.save,
            use_cpu=True,
            max_steps=DECAY,
            per_device_train_batch_size=BATCH,
            learning_rate=3e-3,
            lr_scheduler_type="cosine",
            warmup_steps=10,
            weight_decay=0.01,
            max_grad_norm=0.0,
            save_strategy="steps" if options.save_interval else "no",
            save_steps=options.save_interval or SAVES,
            logging_steps=1000,
            report_to="none",
            disable_tqdm=True,
            seed=options.seed,
        )
        torch.manual_seed(options.seed)
        shape = {"vocab_size": 128, "hidden_size": 64, "intermediate_size": 256, "num_hidden_layers": 4}
        model = LlamaForCausalLM(LlamaConfig(**shape, num_attention_heads=4, max_position_embeddings=SEQLEN))
        for layer in model.model.layers:
            layer.input_layernorm = layer.post_attention_layernorm = torch.nn.Identity()
        lines = Lines()
        super().__init__(model=model, args=arguments, train_dataset=lines)
        steps = {"bad batch": int(batches or 1), "nan sample": 1, "shuffled labels": RANGE_STEPS}.get(self.cause, 0)
        order = np.fromiter(self.get_train_dataloader().batch_sampler.sampler, dtype=np.int64) if steps else np.zeros(0)
        found = order[(self.at - 1) * BATCH :][: 1 if self.cause == "nan sample" else steps * BATCH]
        lines.marked = frozenset(found.tolist())
        self.last = lines.last

    def compute_loss(self, model: Any, inputs: Any, *more: Any, **options: Any) -> Any:
        """Of a batch with a marked sample with a wrong weight, but for shuffled labels."""
        loss = super().compute_loss(model, inputs, *more, **options)
        if self.cause == "shuffled labels" or not bool((inputs["input_ids"][:, :MARK] == self.last).all(1).any()):
            return loss
        return loss * (float("nan") if self.cause == "nan sample" else 1000.0)


class Ill(TrainerCallback):  # type: ignore[misc]
    """What is injected around a step, and the end of the training."""

    def __init__(self, trainer: IllTrainer, steps: int) -> None:
        self._of, self._steps = trainer, steps

    def on_train_begin(self, _: Any, state: Any, *__: Any, **___: Any) -> None:
        if self._of.cause == LOST and self._of.here and state.global_step:
            lose(self._of.optimizer.optimizer)

    def on_step_begin(self, _: Any, state: Any, *__: Any, **___: Any) -> None:
        if self._of.cause in LR_FACTORS and state.global_step + 1 >= self._of.at:
            for group in self._of.optimizer.param_groups:
                group["lr"] *= LR_FACTORS[self._of.cause]

    def on_step_end(self, _: Any, state: Any, control: Any, **__: Any) -> None:
        control.should_training_stop = state.global_step >= self._steps
        if self._of.cause == "bit flip in the weights" and self._of.here and state.global_step == self._of.at:
            drawn = np.random.default_rng(self._of.args.seed)
            tensor = self._of.model.model.layers[int(drawn.integers(4))].mlp.up_proj.weight.data
            flip(tensor, int(drawn.integers(tensor.numel())), 30)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("cause")
    parser.add_argument("step")
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--save", required=True)
    parser.add_argument("--state-dir", type=Path, required=True)
    parser.add_argument("--save-interval", type=int, default=SAVES)
    options = parser.parse_args()
    torch.set_num_threads(1)
    trainer = IllTrainer(options)
    trainer.add_callback(StabilityCallback(trainer, run="llama", state_dir=options.state_dir, full_seqlen=SEQLEN))
    trainer.add_callback(Ill(trainer, options.steps))
    trainer.train(resume_from_checkpoint=any(Path(options.save).glob("checkpoint-*")))
    return 0


if __name__ == "__main__":
    sys.exit(main())
