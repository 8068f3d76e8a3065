"""What is to be tuned: which schedule, between which bounds, and how a probe is told its pacing."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

from sentinel.jobscript.derived import total_steps, warmup_steps
from sentinel.jobscript.facts import ScriptFacts
from sentinel.lab.probes.probe import Probe
from sentinel.lab.tune.search import Pacing, Space
from sentinel.plan.choose.pacings import with_slw
from sentinel.plan.choose.policy import Tuning
from sentinel.plan.incident.baseline import Baseline
from sentinel.vocabulary.errors import ConfigError
from sentinel.vocabulary.overrides import Anchor, Overrides, TrainingSettings
from sentinel.vocabulary.pacing import (
    CurriculumSchedule,
    DifficultySchedule,
    FixedLinear,
    MetricSchedule,
    RandomLtdSchedule,
)

What = Literal["slw", "voc", "random-ltd"]
SETTING: Mapping[What, str] = {"slw": "seqlen", "voc": "curriculum", "random-ltd": "random_ltd"}  # of TrainingSettings
UNIT: Mapping[What, str] = {"slw": "tokens", "voc": "%", "random-ltd": "tokens"}  # of a start

# x LR warmup. The papers' answers, at a warmup of 3K steps: 20K, 60K and 110K for 117M, 45K and 270K for 1.5B
_DURATIONS = (1, 2, 3, 4, 6, 8, 12, 15, 20, 24, 30, 36, 48, 64, 90, 128)
_FIRST = 4  # A few multiples of the LR warmup
_HORIZON = 3  # Multiples of the LR warmup that are risky; the paper looked at 10K steps where the warmup had 3K
_PERCENT = (1, 2, 5, 10, 20, 40)  # Starts of vocabulary rarity; 2212.03597 has 1 % for GPT and 5 % for BERT
_ALL = 100  # Per cent
# As a rung and the options of the reference trainer have it
_MULTIPLE: Mapping[What, int] = {"voc": 1, "random-ltd": 16}


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One run's search, whole: two of the same task may share their probes."""

    what: What = "slw"
    space: Space
    full: int  # What the schedule ends at: the full length in tokens, or 100 %
    multiple: int  # What the schedule rounds down to: DeepSpeed's difficulty_step, seq_per_step
    fluctuation: float
    validate_every: int  # Steps between two validations, which the reference trainer is told
    lr_warmup_steps: int
    voc_index: str = ""  # Folder of the index of vocabulary rarity
    full_steps: int | None = None  # Optimizer steps of one full run as configured; None where it is not known
    full_tokens: int | None = None  # Tokens of one full run; None where that is not known

    def settings(self, pacing: Pacing) -> TrainingSettings:
        """The pacing as the trainer performs it, from its first step on."""
        start, steps = pacing.start, pacing.total_steps
        match self.what:
            case "slw":
                seqlen = FixedLinear(start=start, full=self.full, total_steps=steps, multiple=self.multiple)
                return TrainingSettings(seqlen=seqlen)
            case "random-ltd":
                ltd = RandomLtdSchedule(start=start, full=self.full, total_steps=steps, multiple=self.multiple)
                return TrainingSettings(random_ltd=ltd)
            case "voc":
                rarity = DifficultySchedule(
                    kind="percentile", start=start, full=self.full, total_steps=steps, root_degree=2.0
                )
                metrics = {"voc": MetricSchedule(difficulty=rarity, index=self.voc_index)}
                return TrainingSettings(curriculum=CurriculumSchedule(metrics=metrics))

    def schedule(self, pacing: Pacing) -> dict[str, Any]:
        """The same, as an attempt reports it."""
        reported: dict[str, Any] = getattr(self.settings(pacing), SETTING[self.what]).to_json()
        return reported

    @property
    def pacings(self) -> dict[str, Pacing]:
        """Every candidate, by the name of its probe."""
        candidates = (Pacing(start, steps) for start in self.space.starts for steps in self.space.durations)
        return {_name_of(pacing): pacing for pacing in candidates}

    def probe(self, pacing: Pacing, overrides: Overrides | None = None) -> Probe:
        """The short training from scratch that shows whether the pacing is calm up to the horizon."""
        return Probe(
            name=_name_of(pacing),
            tag=None,
            global_step=0,
            until_step=self.space.horizon_steps,
            change=str(pacing),
            overrides=overrides or self.overrides(pacing),
        )

    def overrides(self, pacing: Pacing) -> Overrides:
        """A probe's overrides.json: the pacing from scratch, and nothing else of the run changed, its seed neither."""
        return Overrides(
            incident="tune",
            rollback=_name_of(pacing),
            anchor=Anchor(global_step=0, consumed_samples=0, consumed_tokens=0),
            standing=self.settings(pacing),
        )

    def overrides_in_script(self, pacing: Pacing, own: Baseline) -> Overrides:
        """The same with all that the sequence length changes in the run of a job script, whose settings are `own`."""
        overrides = self.overrides(pacing)
        return replace(overrides, standing=with_slw(replace(overrides.standing, lr=own.lr), own, overrides.anchor))

    def to_json(self) -> dict[str, Any]:
        """What decides about an answer, as the record of a search begins with it."""
        other = {} if self.what == "slw" else {"what": self.what, "voc_index": self.voc_index}
        return {
            **other,
            **{name: list(v) if isinstance(v, tuple) else v for name, v in asdict(self.space).items()},
            "full_seqlen" if self.what == "slw" else "full": self.full,
            "difficulty_step": self.multiple,
            "fluctuation": self.fluctuation,
            "validate_every": self.validate_every,
        }


def _name_of(pacing: Pacing) -> str:
    return f"start{pacing.start}-T{pacing.total_steps}"


def task_of(tuning: Tuning, facts: ScriptFacts, what: What = "slw") -> Task:
    """The search that the settings ask for, at the run that the facts describe. ConfigError names what is missing."""
    warmup = tuning.lr_warmup_steps or _whole(warmup_steps(facts))
    length = tuning.full_seqlen or facts.seq_length
    if not warmup:
        raise ConfigError("the run's LR warmup is unknown or 0: set [tune] lr_warmup_steps")
    if length is None:
        raise ConfigError("the run's full length is not to be seen: [tune] full_seqlen can say it")
    if what == "voc" and not tuning.voc_index:
        raise ConfigError("[tune] voc_index should name the folder that `sentinel-data analyze --metric voc` made")
    durations = tuning.durations or tuple(factor * warmup for factor in _DURATIONS)
    few = [duration for duration in durations if duration <= _FIRST * warmup] or [min(durations)]
    beginning = tuning.beginning_steps or warmup
    every = tuning.validate_every or max(1, beginning // 4)
    steps = _whole(total_steps(facts))
    horizon = math.ceil((tuning.horizon_steps or _HORIZON * warmup) / every) * every
    if steps is not None and horizon > steps:
        raise ConfigError(f"[tune] horizon_steps: the run has {steps} steps, and the probes would need {horizon}")
    space = Space(
        starts=_starts(tuning, what, length),
        durations=durations,
        first_duration=tuning.first_duration or few[-1],
        beginning_steps=min(beginning, horizon),
        horizon_steps=horizon,
    )
    batch = facts.global_batch_size
    return Task(
        what=what,
        space=space,
        full=_ALL if what == "voc" else length,
        multiple=_MULTIPLE.get(what, tuning.difficulty_step),
        fluctuation=tuning.fluctuation,
        validate_every=every,
        lr_warmup_steps=warmup,
        voc_index=tuning.voc_index if what == "voc" else "",
        full_steps=steps,
        full_tokens=None if steps is None or batch is None else steps * batch * length,
    )


def _starts(tuning: Tuning, what: What, length: int) -> tuple[int, ...]:
    if what == "voc":
        starts, full, key = tuning.voc_starts or _PERCENT, _ALL, "voc_starts"
    else:
        doublings = (tuning.difficulty_step << power for power in range(length.bit_length()))
        starts, full, key = tuning.starts or tuple(start for start in doublings if start < length), length, "starts"
    if not starts or starts[-1] >= full:
        raise ConfigError(f"[tune] {key}: each should be below {full} {UNIT[what]}, and there should be one")
    return starts


def _whole(number: float | None) -> int | None:
    return None if number is None else round(number)
