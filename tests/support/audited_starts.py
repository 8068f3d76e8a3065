"""A start that continues its run, its ancestor, and what a decision makes of both."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from sentinel.plan.observation import Checkpoint
from sentinel.plan.starts.audit import Ancestor, Start, Trail
from sentinel.vocabulary.overrides import Anchor, Once, Overrides, TrainingSettings
from sentinel.vocabulary.pacing import LrSchedule
from sentinel.vocabulary.sample import LayerVariance, RunStarted, Sample, StateLoaded

AT, BATCH, LAYERS = 100, 8, ("embedding", "h.0", "h.1", "head")
LR = LrSchedule(peak=1e-3, warmup=20, decay_start=20, decay_end=400)
FP16 = {"loss_scale": 4096.0}


def sample(step: int, *, attempt: int = 1, data: int | None = None, lr_at: int | None = None, **other: Any) -> Sample:
    """Of a healthy run: `data` and `lr_at` are the steps whose batch and learning rate it has."""
    v = 50.0 * (1 - 0.5 ** (step / 40))
    facts = {
        "loss": 6.0 - 0.01 * step + 0.05 * ((step * 7) % 5),
        "adam_variance_l1": v,
        "adam_variance_max": v / 1000,
        "lr": LR.lr(step=step if lr_at is None else lr_at),
        "seqlen": 64,
        "global_batch_samples": BATCH,
        "consumed_samples": BATCH * step,
        "batch_digest": 7919 * (step if data is None else data) + 1,
        **FP16,
    }
    return Sample(attempt=attempt, global_step=step, time_unix_s=float(step), **(facts | other))


STARTED = RunStarted(
    attempt=1,
    time_unix_s=0.0,
    seed=3,
    adam_beta2=0.95,
    lr_schedule=LR.to_json(),
    world_size=2,
    dropout=0.0,
    decoupled_weight_decay=True,
)
LINE = [sample(step) for step in range(1, AT + 31)]
V = LINE[AT - 1].adam_variance_l1 or 0.0
ANCESTOR = Ancestor(
    started=STARTED,
    recent=tuple(LINE[AT - 64 : AT]),
    later=tuple(LINE[AT : AT + 20]),
    layers=LayerVariance(
        attempt=1,
        global_step=AT,
        time_unix_s=0.0,
        layers=LAYERS,
        adam_variance_l1=(V / 4,) * 4,
        adam_variance_max=(0.1,) * 4,
    ),
    trail=Trail(LINE),
)
LOADED = StateLoaded(
    attempt=2,
    global_step=AT,
    time_unix_s=0.0,
    adam_variance_l1=V,
    adam_variance_max=V / 1000,
    layers=LAYERS,
    layer_variance_l1=(V / 4,) * 4,
)


def steps(n: int = 20, **other: Callable[[int], Any]) -> tuple[Sample, ...]:
    """The attempt's first steps; other values by the step."""
    return tuple(
        sample(step, attempt=2, **{key: of(step) for key, of in other.items()}) for step in range(AT + 1, AT + 1 + n)
    )


CLEAN = Start(
    started=replace(STARTED, attempt=2, parent_attempt=1, resumed_from=AT),
    samples=steps(),
    loaded=LOADED,
    ancestor=ANCESTOR,
    newest=Checkpoint(tag=f"global_step{AT}", global_step=AT, complete=True),
    pointed=frozenset({AT}),
)


def decided(standing: TrainingSettings | None = None, *, step: int = AT, **once: Any) -> dict[str, Any]:
    from sentinel.act.starts import _unrecorded

    overrides = Overrides(
        incident="incident-1",
        rollback="incident-1-r1",
        anchor=Anchor(global_step=step, consumed_samples=step * BATCH),
        standing=standing or TrainingSettings(),
        once=Once(id="incident-1-r1", **once) if once else None,
    )
    told = {"rollback": "incident-1-r1", "applied_once": ("incident-1-r1",) if once else (), "applies": ("lr", "seed")}
    return {"rollback": _unrecorded(overrides), "told": told}


def start(told: dict[str, Any] | None = None, **changed: Any) -> Start:
    return replace(CLEAN, **changed, started=replace(CLEAN.started, **(told or {})))


HALF = LrSchedule(peak=5e-4, warmup=20, decay_start=20, decay_end=400)


def at_anchor(**changed: Any) -> dict[str, Any]:
    return {"first_sample_index": AT * BATCH, "skipped_samples": 0, **changed}


HALVED = decided(TrainingSettings(lr=HALF))
HALVED["told"] |= {"lr_schedule": HALF.to_json(), "lr": HALF.lr(step=AT + 1)}
RESET = decided(reset_moments=True)
RESET["told"] |= at_anchor(moments_reset_steps=(AT,))
