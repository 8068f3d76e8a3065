"""Hugging Face's Trainer with FSDP 2 on CPUs: two lives, the second under overrides.json. One JSON line, by rank 0."""

from __future__ import annotations

import json
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

from sentinel.vocabulary.overrides import Anchor, Once, Overrides, encode_overrides
from sentinel.vocabulary.sample import decode
from tests.hooks.callback_decisions import ADAM, ANCHOR, SEQLEN, Numbered, _StopAfter, shard_on_cpus
from tests.hooks.patient import patient
from trainer_hooks.huggingface import StabilityCallback


def train(folder: Path, *, resume: bool) -> dict[str, Any]:
    arguments = TrainingArguments(
        output_dir=str(folder / "checkpoints"),
        fsdp="full_shard auto_wrap",
        fsdp_config={"version": 2, "transformer_layer_cls_to_wrap": ["LlamaDecoderLayer"]},
        use_cpu=True,
        max_steps=15,
        per_device_train_batch_size=2,
        gradient_accumulation_steps=2,
        learning_rate=1e-2,
        weight_decay=0.1,
        max_grad_norm=0.5,
        logging_steps=1,
        save_steps=ANCHOR,
        report_to="none",
        disable_tqdm=True,
        seed=7,
    )
    torch.manual_seed(0)
    shape = {"vocab_size": 64, "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1}
    model = LlamaForCausalLM(LlamaConfig(**shape, num_attention_heads=2, max_position_embeddings=SEQLEN))
    trainer = Trainer(model=model, args=arguments, train_dataset=Numbered())
    callback = StabilityCallback(trainer, state_dir=folder / "state", run="sharded", full_seqlen=SEQLEN)
    trainer.add_callback(callback)
    if not resume:
        trainer.add_callback(_StopAfter(ANCHOR))
    trainer.train(resume_from_checkpoint=resume)
    roots = [state["exp_avg_sq"].full_tensor().double().sqrt() for state in trainer.optimizer.state.values()]
    records = []
    if dist.get_rank() == 0:
        lines = max((folder / "state" / "attempts").glob("*.jsonl")).read_text().splitlines()
        records = [{"is": type(r).__name__} | asdict(r) for line in lines if (r := decode(line))]
    return {
        "caught": callback.errors,
        "variance": [float(sum(v.sum() for v in roots)), float(max(v.max() for v in roots))],
        "logged": {h["step"]: [h["loss"], float(h["grad_norm"])] for h in trainer.state.log_history if "loss" in h},
        "journal": records,
    }


def main() -> None:
    patient()
    dist.init_process_group("gloo")
    shard_on_cpus()
    shared: list[Any] = [tempfile.mkdtemp() if dist.get_rank() == 0 else None]
    dist.broadcast_object_list(shared)
    folder = Path(shared[0])
    first = train(folder, resume=False)
    if dist.get_rank() == 0:
        once = Once(id="r1", reset_moments=True, seed=11)
        anchor = Anchor(global_step=ANCHOR)
        decided = Overrides(incident="i", rollback="r1", anchor=anchor, standing=ADAM, once=once)
        (folder / "state" / "overrides.json").write_text(encode_overrides(decided))
    dist.barrier()
    second = train(folder, resume=True)
    if dist.get_rank() == 0:
        print(json.dumps({"case": "fsdp2", "first": first, "second": second}, default=str), flush=True)


if __name__ == "__main__":
    main()
