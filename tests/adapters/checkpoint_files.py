"""Checkpoints on disk as each trainer writes them: the folders' shape is theirs, the content is torch's own."""

from __future__ import annotations

import hashlib
import json
import os
import struct
import warnings
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


def torch_dist(folder: Path, step: int, *, nan: bool = False) -> Path:
    """What Megatron-LM's torch_dist is: torch's distributed checkpoint, with two small files beside."""
    tag = folder / f"iter_{step:07d}"
    state = {"model": tensors(step, nan=nan), "step": step, "blob": {"rng": [1, 2, 3]}}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # that there is one process only
        dcp.save(state, storage_writer=FileSystemWriter(str(tag), thread_count=2), no_dist=True)
    save(tag / "common.pt", {"iteration": step})
    (tag / "metadata.json").write_text(json.dumps({"sharded_backend": "torch_dist", "sharded_backend_version": 1}))
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
