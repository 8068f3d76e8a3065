"""What a process that trains with DeepSpeed needs, once."""

from __future__ import annotations

import functools

__all__ = ["join"]


@functools.cache
def join(device: str) -> None:
    """Makes this process a training of one rank; a CPU is said to train in fp16, which it can, slowly."""
    import torch.distributed as dist
    from deepspeed.accelerator import get_accelerator

    from trainer_hooks.gpt.__main__ import be_a_launcher
    from trainer_hooks.gpt.train import leave_out_unused_ops

    be_a_launcher()
    dist.init_process_group("nccl" if device == "cuda" else "gloo")
    leave_out_unused_ops()
    if device == "cpu":
        type(get_accelerator()).is_fp16_supported = lambda _: True
