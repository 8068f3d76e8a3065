"""What a search has come to: the pacing, the probes, and what they cost against one full run."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sentinel.config.toml import rung_text
from sentinel.lab.probes.record import ProbeLife
from sentinel.lab.tune.reading import ProbeReading
from sentinel.lab.tune.search import Decision, Pacing, is_monotone
from sentinel.lab.tune.task import SETTING, Task, What
from sentinel.plan.choose.ladder import Rung
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
class TuningReport:
    """The search, whole."""

    run: str
    task: Task
    chosen: Pacing | None
    reason: str
    # False: a longer duration did not fluctuate where a shorter one did: the answer depends on the order.
    monotone: bool
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
        """Of the tokens of one full run as configured, else of its steps; None where neither is known."""
        if self.task.full_tokens and self.tokens:
            return self.tokens / self.task.full_tokens
        return self.steps / self.task.full_steps if self.task.full_steps else None

    def to_json(self) -> dict[str, Any]:
        """The JSON document of `sentinel tune --json`."""
        chosen = self.chosen
        return {
            "run": self.run,
            "chosen": None if chosen is None else self.task.schedule(chosen),
            "reason": self.reason,
            "monotone": self.monotone,
            "searched": self.task.to_json(),
            "toml": None if chosen is None else ladder_rung(self.task, chosen),
            BLOCK[self.task.what]: None if chosen is None else deepspeed_block(self.task, chosen),
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


def report_of(run: str, task: Task, decision: Decision, lives: Sequence[ProbeLife], plot: Path) -> TuningReport:
    """The report of a search that is over."""
    ended = [(life, task.pacings[life.probe.name], life.result) for life in lives]
    readings = [(life, pacing, reading) for life, pacing, reading in ended if isinstance(reading, ProbeReading)]
    seen = {pacing: reading.seen(task.fluctuation, task.space.horizon_steps) for _, pacing, reading in readings}
    return TuningReport(
        run=run,
        task=task,
        chosen=decision.chosen,
        reason=decision.reason,
        monotone=is_monotone(task.space, seen),
        probes=tuple(_row(life, pacing, reading, task) for life, pacing, reading in readings),
        plot=plot,
    )


def _row(life: ProbeLife, pacing: Pacing, reading: ProbeReading, task: Task) -> ProbeRow:
    return ProbeRow(
        start=pacing.start,
        total_steps=pacing.total_steps,
        life=life.number,
        steps=reading.steps,
        tokens=reading.consumed_tokens,
        max_perplexity_ratio=reading.curve.largest_ratio(),
        verdict=_verdict(life, reading),
        fluctuated_at=reading.seen(task.fluctuation, task.space.horizon_steps).fluctuated_at,
        seed=reading.seed,
        validations=reading.losses,
    )


def _verdict(life: ProbeLife, reading: ProbeReading) -> str:
    if reading.ended == "failed":
        return "failed"
    if life.lost and not (life.stopped and reading.ended == "stopped"):
        return "lost"
    return {"diverged": "fluctuates", "calm": "calm"}.get(reading.outcome, "not needed")


BLOCK: Mapping[What, str] = {"slw": "curriculum_learning", "voc": "data_efficiency", "random-ltd": "data_efficiency"}
_NAMES: Mapping[What, str] = {"slw": "SLW", "voc": "voc", "random-ltd": "random-LTD"}
_HYPOTHESES: Mapping[What, str] = {
    "slw": "long sequences are too much for weights this young",
    "voc": "rare words are too much for weights this young",
    "random-ltd": "the middle layers get more tokens than weights this young bear",
}


def ladder_rung(task: Task, pacing: Pacing) -> str:
    """The pacing as a rung of the run's ladder: TOML to paste."""
    what, steps, setting = task.what, pacing.total_steps, SETTING[task.what]
    index = {"curriculum_metric": "voc", "curriculum_index": task.voc_index} if what == "voc" else {}
    paced: dict[str, Any] = {f"{setting}_start": pacing.start, f"{setting}_total_steps": steps, **index}
    name = f"{_NAMES[what]} {pacing.start}{' %' if what == 'voc' else ''}, T {steps}"
    return rung_text(Rung(name=name, hypothesis=_HYPOTHESES[what], **paced))


def trainer_options(task: Task, pacing: Pacing) -> str:
    """The pacing as options of the reference trainer, for a run from its first step."""
    match task.what:
        case "slw":
            return f"--seqlen-start {pacing.start} --seqlen-warmup-steps {pacing.total_steps}"
        case "random-ltd":
            return f"--random-ltd {pacing.start} {pacing.total_steps}"
        case "voc":
            return f"--curriculum {shlex.quote(dump_json(task.schedule(pacing)))}"


def deepspeed_block(task: Task, pacing: Pacing) -> dict[str, Any]:
    """The pacing as DeepSpeed's JSON has it under `BLOCK`, for a run from its first step.

    DeepSpeed 0.19.8 no longer takes `curriculum_learning`; Megatron-DeepSpeed and DeepSpeed up to 0.19.7 do. Of
    `data_efficiency` there is what was tuned alone: its files and layers are the run's.
    """
    paced = {"min_difficulty": pacing.start, "max_difficulty": task.full}
    config: dict[str, Any] = {"total_curriculum_step": pacing.total_steps}
    match task.what:
        case "slw":
            kind = {"schedule_type": "fixed_linear", "schedule_config": {**config, "difficulty_step": task.multiple}}
            return {"enabled": True, "curriculum_type": "seqlen", **paced, **kind}
        case "random-ltd":
            steps = {"require_steps": pacing.total_steps, "seq_per_step": task.multiple}
            kind = {"schedule_type": "fixed_linear", "schedule_config": steps}
            schedule = {"min_value": pacing.start, "max_value": task.full, **kind}
            return {"data_routing": {"random_ltd": {"random_ltd_schedule": schedule}}}
        case "voc":
            config |= {"difficulty_step": task.multiple, "root_degree": 2}
            kind = {"schedule_type": "fixed_root", "schedule_config": config}
            metrics = {"voc": {"difficulty_type": "percentile", **paced, **kind}}
            return {"data_sampling": {"curriculum_learning": {"curriculum_metrics": metrics}}}
