"""A training by OLMo-core of a tiny Llama, on the letters of Python's own library.

    python tests/integrations/olmo_core_training.py FOLDER [--steps 480] [--lr 0.05] [--accumulate 2]

It has the callback, and goes on from the newest checkpoint. Under torchrun: one rank for each process, FSDP 2.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import torch
from olmo_core.config import DType
from olmo_core.data import NumpyDataLoaderConfig, NumpyFSLDatasetConfig, TokenizerConfig
from olmo_core.distributed.parallel import DataParallelType
from olmo_core.distributed.utils import barrier, get_rank, get_world_size, is_distributed
from olmo_core.nn.transformer import TransformerConfig
from olmo_core.optim import AdamWConfig, CosWithWarmup
from olmo_core.train import Duration, TrainerConfig, prepare_training_environment, teardown_training_environment
from olmo_core.train.callbacks import CheckpointerCallback
from olmo_core.train.train_module import TransformerDataParallelConfig, TransformerTrainModuleConfig

from trainer_hooks.olmo_core import StabilityCallback

LETTERS, SAMPLES, WARMUP = 32, 8, 60
_FLAT = 1e6
"""The norms' epsilon, with weights of its root: such a norm hands on what it gets, so the model bears no high LR."""


def written(folder: Path) -> str:
    """The data, by the first rank."""
    path = folder / "letters.npy"
    if get_rank() == 0 and not path.exists():
        source = "".join(file.read_text() for file in sorted(Path(argparse.__file__).parent.glob("[a-d]*.py")))
        text = source.encode("ascii", "ignore")
        np.frombuffer(text, dtype=np.uint8).astype(np.uint16).tofile(path)
    barrier()
    return str(path)


def _saves() -> CheckpointerCallback:
    """Under several ranks not asynchronously: 3.0.0 can hang at the end of such a training, with or without a callback.
    The thread of a save records a metric, and the ranks reduce the metrics only where each still has some. All saves
    are kept: by default the last 3 are, 1.5 s of this training, which can be less than a turn of a watch on a busy
    machine."""
    return CheckpointerCallback(save_interval=10, remove="never", max_checkpoints=None, save_async=not is_distributed())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--lr", type=float, default=0.05)
    parser.add_argument("--steps", type=int, default=480)
    parser.add_argument("--accumulate", type=int, default=1)
    options = parser.parse_args()
    prepare_training_environment(backend="gloo", seed=7)
    folder, cpu = options.folder, torch.device("cpu")
    tokenizer = TokenizerConfig(vocab_size=257, eos_token_id=256, pad_token_id=256)
    model = TransformerConfig.llama_like(
        d_model=32, vocab_size=257, n_layers=4, n_heads=2, layer_norm_eps=_FLAT, dtype=DType.float32
    ).build(init_device="cpu")
    batch = LETTERS * SAMPLES
    module = TransformerTrainModuleConfig(
        rank_microbatch_size=batch // get_world_size() // options.accumulate,
        max_sequence_length=LETTERS,
        optim=AdamWConfig(lr=options.lr, weight_decay=0.0),
        scheduler=CosWithWarmup(warmup=WARMUP),
        max_grad_norm=1.0,
        dp_config=TransformerDataParallelConfig(name=DataParallelType.fsdp) if is_distributed() else None,
    ).build(model, device=cpu)
    with torch.no_grad():
        for name, parameter in module.model.named_parameters():
            if "norm" in name:
                parameter.fill_(_FLAT**0.5)
    data = NumpyFSLDatasetConfig(
        paths=[written(folder)], sequence_length=LETTERS, tokenizer=tokenizer, work_dir=str(folder / "work")
    ).build()
    trainer = TrainerConfig(
        save_folder=str(folder / "checkpoints"),
        work_dir=str(folder / "work"),
        max_duration=Duration.steps(options.steps),
        device="cpu",
        callbacks={"checkpointer": _saves()},
    ).build(module, NumpyDataLoaderConfig(global_batch_size=batch, seed=7, num_workers=0).build(data))
    trainer.add_callback("sentinel", StabilityCallback(run="llama", state_dir=folder / "state"))
    trainer.fit()
    teardown_training_environment()


if __name__ == "__main__":
    main()
