"""Checkpoints on disk as each trainer writes them: the folders' shape is theirs, the content is torch's own."""

from __future__ import annotations

import hashlib
import json
import os
import struct
import warnings
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint import FileSystemWriter

from sentinel.adapters.checkpoints import PINNED, QUARANTINE


def save(path: Path, content: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    torch.save(content, path)


def tensors(step: int, *, nan: bool = False) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(step)
    weights = torch.randn(3000, generator=generator)
    if nan:
        weights[1234] = float("nan")
    return {"weights": weights, "half": torch.randn(500, generator=generator).half(), "ids": torch.arange(9)}


def deepspeed(folder: Path, step: int, *, data: int = 2, model: int = 1, zero: int = 1, layers: int = 0) -> Path:
    """ZeRO's shards; with layers, Megatron-DeepSpeed's pipeline files, two tensor ranks each."""
    tag = folder / f"global_step{step}"
    for m in range(model):
        said = {"dp_world_size": data, "mp_world_size": model, "optimizer": None if zero else {}, **tensors(step)}
        if zero < 3:
            save(tag / f"mp_rank_{m:02d}_model_states.pt", said)
        for d in range(data):
            where = f"zero_pp_rank_{d}_mp_rank_{m:02d}"
            if zero == 3:
                save(tag / f"{where}_model_states.pt", said)
            if zero:
                save(tag / f"bf16_{where}_optim_states.pt", tensors(step * 100 + d))
    for layer in range(1, layers + 1):
        for m in range(2):
            save(tag / f"layer_{layer:02d}-model_{m:02d}-model_states.pt", tensors(layer))
    return tag


def universal(folder: Path, step: int) -> Path:
    tag = folder / f"global_step{step}_universal"
    save(tag / "mp_rank_00_model_states.pt", tensors(step))
    for name in ("wte.weight", "blocks.0.weight"):
        for kind in ("fp32", "exp_avg", "exp_avg_sq"):
            save(tag / "zero" / name / f"{kind}.pt", tensors(step))
    return tag


def megatron_lm(folder: Path, step: int, *, tensor: int = 2, pipeline: int = 2, distributed: bool = False) -> Path:
    tag = folder / f"iter_{step:07d}"
    arguments = {"tensor_model_parallel_size": tensor, "pipeline_model_parallel_size": pipeline}
    for t in range(tensor):
        for p in range(pipeline):
            rank = f"mp_rank_{t:02d}" + (f"_{p:03d}" if pipeline > 1 else "")
            save(tag / rank / "model_optim_rng.pt", {"args": arguments, **tensors(step + t * 10 + p)})
            if distributed:
                save(tag / rank / "distrib_optim.pt", tensors(step))
    return tag


def distributed(folder: Path, step: int, *, nan: bool = False, **more: Any) -> Path:
    """torch's distributed checkpoint, written by torch."""
    state = {"model": tensors(step, nan=nan), "step": step, "blob": {"rng": [1, 2, 3]}, **more}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # that there is one process only
        dcp.save(state, storage_writer=FileSystemWriter(str(folder), thread_count=2), no_dist=True)
    return folder


def torchtitan(folder: Path, step: int, *, nan: bool = False) -> Path:
    return distributed(folder / f"step-{step}", step, nan=nan)


def olmo_core(folder: Path, step: int, *, ranks: int = 2) -> Path:
    tag = folder / f"step{step}"
    for rank in range(ranks):
        save(tag / "train" / f"rank{rank}.pt", {"global_step": step, "world_size": ranks})
    distributed(tag / "model_and_optim", step)
    (tag / ".metadata.json").write_text(json.dumps({"version": "2.4.0", "ephemeral": False}))
    return tag


def lightning(folder: Path, step: int, *, nan: bool = False) -> Path:
    content = {"epoch": 0, "global_step": step, "state_dict": tensors(step, nan=nan), "optimizer_states": []}
    save(path := folder / f"epoch=0-step={step}.ckpt", content)
    return path


def lightning_sharded(folder: Path, step: int) -> Path:
    tag = distributed(folder / f"epoch=0-step={step}.ckpt", step)
    save(tag / "meta.pt", {"epoch": 0, "global_step": step})
    return tag


def composer(folder: Path, step: int, *, ranks: int = 2) -> Path:
    """Its checkpoint is its files; the path returned is that of none."""
    for rank in range(ranks):
        save(folder / f"ep0-ba{step}-rank{rank}.pt", {"state": {"model": tensors(step + rank)}, "rng": []})
    return folder / f"ep0-ba{step}"


def composer_sharded(folder: Path, step: int) -> Path:
    return distributed(folder / f"ep0-ba{step}", step)


def hugging_face_fsdp(folder: Path, step: int) -> Path:
    tag = hugging_face(folder, step)
    for path in (*tag.glob("model*"), tag / "optimizer.pt"):
        path.unlink()
    for name in ("pytorch_model_fsdp_0", "optimizer_0"):
        distributed(tag / name, step)
    return tag


def torch_dcp_of_megatron(folder: Path, step: int) -> Path:
    """Megatron-LM with --ckpt-format torch_dcp: its arguments are a key beside the tensors."""
    return distributed(folder / f"iter_{step:07d}", step, args=Namespace(tensor_model_parallel_size=1))


def torch_dist_without_common(folder: Path, step: int) -> Path:
    """torch_dist since the common state is among the pieces."""
    tag = distributed(folder / f"iter_{step:07d}", step, **{"common_state/shard_0_1": {"iteration": step}})
    (tag / "metadata.json").write_text(json.dumps({"sharded_backend": "torch_dist", "sharded_backend_version": 1}))
    return tag


def torch_dist(folder: Path, step: int, *, nan: bool = False) -> Path:
    """What Megatron-LM's torch_dist is: torch's distributed checkpoint, with two small files beside."""
    tag = distributed(folder / f"iter_{step:07d}", step, nan=nan)
    save(tag / "common.pt", {"iteration": step})
    (tag / "metadata.json").write_text(json.dumps({"sharded_backend": "torch_dist", "sharded_backend_version": 1}))
    return tag


def nemo(folder: Path, number: int, *, last: bool = False, nan: bool = False) -> Path:
    """NeMo 2's, with the names of a run of 512 samples per step; the number is that in the name."""
    end = "-last" if last else ""
    tag = folder / f"model_name=0--val_loss=0.00-step={number}-consumed_samples={(number + 1) * 512}.0{end}"
    distributed(tag / "weights", number, nan=nan)
    save(tag / "weights" / "common.pt", {"iteration": number})
    (tag / "weights" / "metadata.json").write_text(json.dumps({"sharded_backend": "torch_dist"}))
    (tag / "context" / "nemo_tokenizer").mkdir(parents=True)
    for name in ("io.json", "model.yaml", "nemo_tokenizer/tokenizer.json"):
        (tag / "context" / name).write_text("{}")
    return tag


def safetensors(path: Path, content: dict[str, torch.Tensor]) -> None:
    """The format, by hand: eight bytes of length, a JSON header, the tensors one after the other."""
    kinds = {torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16", torch.int64: "I64"}
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    data = b""
    for name, tensor in content.items():
        raw = tensor.contiguous().view(torch.uint8).numpy().tobytes()
        offsets = [len(data), len(data) + len(raw)]
        header[name] = {"dtype": kinds[tensor.dtype], "shape": list(tensor.shape), "data_offsets": offsets}
        data += raw
    text = json.dumps(header).encode()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


def hugging_face(folder: Path, step: int, *, shards: int = 2, nan: bool = False) -> Path:
    tag = folder / f"checkpoint-{step}"
    names = [f"model-{n:05d}-of-{shards:05d}.safetensors" for n in range(1, shards + 1)]
    for n, name in enumerate(names):
        safetensors(tag / name, tensors(step + n, nan=nan and n == 0) | {"b": torch.ones(7).bfloat16()})
    index = {"metadata": {}, "weight_map": {f"weights.{n}": name for n, name in enumerate(names)}}
    (tag / "model.safetensors.index.json").write_text(json.dumps(index))
    (tag / "trainer_state.json").write_text(json.dumps({"global_step": step}))
    for name in ("optimizer.pt", "scheduler.pt", "rng_state_0.pth", "rng_state_1.pth"):
        save(tag / name, tensors(step))
    return tag


MAKERS: dict[str, Callable[..., Path]] = {
    "deepspeed": deepspeed,
    "zero 0": lambda f, s: deepspeed(f, s, zero=0),
    "zero 3": lambda f, s: deepspeed(f, s, zero=3),
    "megatron-deepspeed": lambda f, s: deepspeed(f, s, data=2, model=4, layers=3),
    "megatron-lm": megatron_lm,
    "megatron-lm, distributed optimizer": lambda f, s: megatron_lm(f, s, distributed=True),
    "megatron-lm, one pipeline stage": lambda f, s: megatron_lm(f, s, pipeline=1),
    "torch_dist": torch_dist,
    "hugging face": hugging_face,
    "torchtitan": torchtitan,
    "olmo-core": olmo_core,
    "lightning": lightning,
    "lightning, sharded": lightning_sharded,
    "composer": composer,
    "composer, sharded": composer_sharded,
    "hugging face, fsdp": hugging_face_fsdp,
    "megatron-lm, torch_dcp": torch_dcp_of_megatron,
    "megatron-lm, torch_dist": torch_dist_without_common,
}
"""What writes a checkpoint of each kind into a folder, of a step."""


def digests(folder: Path) -> dict[str, str]:
    """Names and digests of everything that a trainer would see."""
    ours = {QUARANTINE, PINNED}
    files = [p for p in folder.rglob("*") if p.is_file() and not ours & set(p.parts)]
    return {str(p.relative_to(folder)): hashlib.sha256(p.read_bytes()).hexdigest() for p in files}


def flip(path: Path, bit: int) -> None:
    """Changes one bit in place, and nothing that a listing shows."""
    status = path.stat()
    content = bytearray(path.read_bytes())
    content[bit // 8] ^= 1 << bit % 8
    path.write_bytes(content)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
