"""`python -m tests.e2e.small_training FOLDER [STEPS]`: a linear map, learned on one rank and measured by the hook. With
seed 0 its data has a nan from step 45 on; the seed of a restart is what overrides.json says."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import torch
from torch import nn

from tests.hooks.alone import Engine
from trainer_hooks import attach
from trainer_hooks.control.start import agreed_start
from trainer_hooks.restart import Decisions, decision_facts, due
from trainer_hooks.sample.reading import Position

STEPS, SAVE_EVERY, BATCH, WIDTH = 160, 10, 64, 16
ILL_FROM = 45


class SmallEngine(Engine):
    """With the methods that the hook takes its place in."""

    def backward(self, loss: torch.Tensor) -> None:
        loss.backward()

    def _take_model_step(self) -> None:
        self.optimizer.step()
        self.optimizer.zero_grad()

    def step(self) -> None:
        self._take_model_step()
        self.global_steps += 1

    def save(self, saves: Path) -> str:
        """As DeepSpeed's ZeRO 0 names its files."""
        tag = f"global_step{self.global_steps}"
        (saves / tag).mkdir(parents=True)
        state = {"module": self.module.state_dict(), "optimizer": self.optimizer.state_dict(), "dp_world_size": 1}
        torch.save(state, saves / tag / "mp_rank_00_model_states.pt")
        (saves / "latest").write_text(tag)
        return tag

    def load(self, saves: Path) -> int | None:
        """The step that it resumes from; None from scratch."""
        if not (saves / "latest").exists():
            return None
        tag = (saves / "latest").read_text()
        state = torch.load(saves / tag / "mp_rank_00_model_states.pt")
        self.module.load_state_dict(state["module"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.global_steps = int(tag.removeprefix("global_step"))
        return self.global_steps


def train(folder: Path, steps: int = STEPS) -> None:
    torch.manual_seed(0)
    overrides = agreed_start(folder / "state").overrides
    net, goal = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
    engine = SmallEngine(net, torch.optim.Adam(net.parameters(), lr=2e-3))
    resumed, made = engine.load(folder / "checkpoints"), Decisions()
    once = due(overrides, made, engine.global_steps)
    if once is not None:
        made.applied_once = (once.id,)
    seed = 0 if once is None else once.seed or 0

    def position() -> Position:
        samples = engine.global_steps * BATCH
        return Position(consumed_samples=samples, consumed_tokens=samples * WIDTH, seqlen=WIDTH, lr=2e-3)

    hook = attach(engine, state_dir=folder / "state", run="small", position=position, applies=["seed"], trainer="small")
    first = (resumed or 0) * BATCH
    settings = {"seed": seed, "full_seqlen": WIDTH, "total_steps": steps}
    facts = {"resumed_from": resumed, "first_sample_index": first, **decision_facts(overrides, made)}
    hook.run_started(**settings, **facts)
    while engine.global_steps < steps:
        data = torch.Generator().manual_seed(1000 * seed + engine.global_steps)
        given = torch.randn(BATCH, WIDTH, generator=data)
        if seed == 0 and engine.global_steps >= ILL_FROM:
            given[0, 0] = torch.nan
        loss = (net(given) - goal(given).detach()).square().mean()
        engine.backward(loss)
        engine.step()
        if engine.global_steps % SAVE_EVERY == 0:
            hook.checkpoint_saved(engine.save(folder / "checkpoints"))
        time.sleep(0.02)
    hook.close("finished")


if __name__ == "__main__":
    train(Path(sys.argv[1]), *map(int, sys.argv[2:]))
