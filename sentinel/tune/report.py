"""What a search has come to: the pacing, the probes, and what they cost against one full run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sentinel.tune.reading import Reading
from sentinel.tune.record import Life
from sentinel.tune.search import Decision, Pacing, Task, is_monotone
from sentinel.vocabulary.numbers import dump_json


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeRow:
    """One life of a probe, as the table shows it."""

    start: int
    total_steps: int  # T
    life: int
    steps: int  # Optimizer steps that it took, also those after its answer was known
    tokens: int
    max_perplexity_ratio: float | None  # The largest, after the horizon too; None: nothing validated
    verdict: str  # fluctuates, calm, not needed, lost or failed
    fluctuated_at: int | None  # The step of the first significant fluctuation, or None
    seed: int | None  # The seed that its trainer has reported; None where it has not
    validations: tuple[tuple[int, float], ...]  # (global_step, loss in nats at full length)


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """The search, whole."""

    run: str
    task: Task
    chosen: Pacing | None
    reason: str
    monotone: bool  # False: a longer duration was calm where a shorter one fluctuated: the answer depends on the order
    probes: tuple[ProbeRow, ...]
    plot: Path

    @property
    def steps(self) -> int:
        """Optimizer steps of all probes together, the lost ones too."""
        return sum(row.steps for row in self.probes)

    @property
    def tokens(self) -> int:
        """Tokens that all probes were trained on; those of the validations are not in it."""
        return sum(row.tokens for row in self.probes)

    @property
    def share_of_full_run(self) -> float | None:
        """Of the tokens of one full run without SLW; of its steps where tokens are not known; None where neither is."""
        if self.task.full_tokens and self.tokens:
            return self.tokens / self.task.full_tokens
        return self.steps / self.task.full_steps if self.task.full_steps else None

    def to_json(self) -> dict[str, Any]:
        """The JSON document of `sentinel tune slw --json`."""
        chosen = self.chosen
        return {
            "run": self.run,
            "chosen": None if chosen is None else self.task.schedule(chosen).to_json(),
            "reason": self.reason,
            "monotone": self.monotone,
            "searched": self.task.to_json(),
            "toml": None if chosen is None else ladder_rung(chosen),
            "curriculum_learning": None if chosen is None else deepspeed_block(self.task, chosen),
            "probes": [{name: getattr(row, name) for name in ProbeRow.__slots__} for row in self.probes],
            "cost": {
                "steps": self.steps,
                "tokens": self.tokens,
                "full_run_steps": self.task.full_steps,
                "full_run_tokens": self.task.full_tokens,
                "share_of_full_run": self.share_of_full_run,
            },
            "plot": str(self.plot),
        }


def report_of(run: str, task: Task, decision: Decision, lives: Sequence[Life], plot: Path) -> Report:
    """The report of a search that is over."""
    ended = [(life, life.reading) for life in lives if life.reading is not None]
    seen = {life.pacing: reading.seen(task.fluctuation, task.space.horizon_steps) for life, reading in ended}
    return Report(
        run=run,
        task=task,
        chosen=decision.chosen,
        reason=decision.reason,
        monotone=is_monotone(task.space, seen),
        probes=tuple(_row(life, reading, task) for life, reading in ended),
        plot=plot,
    )


def _row(life: Life, reading: Reading, task: Task) -> ProbeRow:
    return ProbeRow(
        start=life.pacing.start,
        total_steps=life.pacing.total_steps,
        life=life.number,
        steps=reading.global_step,
        tokens=reading.consumed_tokens,
        max_perplexity_ratio=reading.curve.largest_ratio(),
        verdict=str(life.why),
        fluctuated_at=reading.seen(task.fluctuation, task.space.horizon_steps).fluctuated_at,
        seed=reading.seed,
        validations=reading.curve.points,
    )


def ladder_rung(pacing: Pacing) -> str:
    """The pacing as a rung of the run's ladder: TOML to paste."""
    fields = {
        "name": f"SLW {pacing.start}, T {pacing.total_steps}",
        "hypothesis": "long sequences are too much for weights this young",
        "seqlen_start": pacing.start,
        "seqlen_total_steps": pacing.total_steps,
    }
    return "[[policy.ladder]]\n" + "".join(f"{key} = {dump_json(value)}\n" for key, value in fields.items())


def deepspeed_block(task: Task, pacing: Pacing) -> dict[str, Any]:
    """The pacing as DeepSpeed's `curriculum_learning`, for a run from its first step.

    DeepSpeed 0.19.8 no longer takes the block; Megatron-DeepSpeed and DeepSpeed up to 0.19.7 do.
    """
    return {
        "enabled": True,
        "curriculum_type": "seqlen",
        "min_difficulty": pacing.start,
        "max_difficulty": task.full,
        "schedule_type": "fixed_linear",
        "schedule_config": {"total_curriculum_step": pacing.total_steps, "difficulty_step": task.difficulty_step},
    }
