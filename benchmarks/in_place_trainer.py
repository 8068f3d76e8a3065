"""Part of `in_place.py`: the reference trainer, which says after so many steps of each attempt what its state is.

    torchrun … benchmarks/in_place_trainer.py DIGESTS STEPS [--once] -- ARGUMENTS OF trainer_hooks.gpt

A line of JSON for each attempt and rank in DIGESTS: a digest of the parameters, the masters and Adam's state on the
rank, and of torch's generator; resident memory and open files. `--once` ends the training there.
"""

from __future__ import annotations

import gc
import hashlib
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch
from torch import Tensor

from trainer_hooks.gpt import __main__ as main_of_trainer
from trainer_hooks.gpt import train
from trainer_hooks.sample.owners import inner_optimizers

MB = 1 << 20


def tensors_of(engine: Any) -> Iterator[Tensor]:
    """All of the state on this rank, in an order that depends on nothing but the model."""
    for parameter in engine.module.parameters():
        yield getattr(parameter, "ds_tensor", parameter)
    for optimizer in inner_optimizers(engine.optimizer):
        for group in optimizer.param_groups:
            for master in group["params"]:
                yield master
                state = optimizer.state.get(master, {})
                yield from (torch.as_tensor(state[name]) for name in sorted(state))
    yield torch.get_rng_state()


def digest_of(engine: Any) -> str:
    digest = hashlib.sha256()
    for tensor in tensors_of(engine):
        digest.update(tensor.detach().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    digest.update(repr([engine.global_steps, engine.skipped_steps, getattr(engine.optimizer, "cur_scale", 0)]).encode())
    return digest.hexdigest()


class Told(train.Trainer):
    """Writes its line once."""

    steps: int
    folder: Path
    once: bool
    begins_after: int | None = None  # the step that this attempt goes on from

    def step(self) -> None:
        if self.begins_after is None:
            self.begins_after = self.progress.step
        super().step()
        if self.progress.step - self.begins_after == self.steps:
            gc.collect()
            resident_kb = int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / MB
            told = {
                "rank": self.rank,
                "attempt": self.hook.attempt,
                "from": self.begins_after or None,
                "rollback": self.overrides.rollback if self.overrides else None,
                "digest": digest_of(self.engine),
                "rss_mb": round(resident_kb, 2),
                "files": sum(1 for _ in Path("/proc/self/fd").iterdir()),
                "objects": len(gc.get_objects()),
            }
            with (self.folder / f"{self.rank}.jsonl").open("a") as file:
                file.write(json.dumps(told) + "\n")
            if self.once:
                self.process.stop_asked = True


def main() -> int:
    own, given = sys.argv[1 : sys.argv.index("--")], sys.argv[sys.argv.index("--") + 1 :]
    Told.folder, Told.steps, Told.once = Path(own[0]), int(own[1]), "--once" in own
    train.Trainer = Told  # type: ignore[misc]
    sys.argv[1:] = given
    return main_of_trainer.main()


if __name__ == "__main__":
    main_of_trainer.leave(main())
