"""attach(engine, …), or attach(model=…, optimizer=…, …): the one call that begins to measure a training."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any

from sentinel.vocabulary.loss_ratio import LossMinimum
from sentinel.vocabulary.sample import Sample
from trainer_hooks.control.boundaries import Boundaries, InMemory, Reload
from trainer_hooks.export.exporter import ExporterSettings
from trainer_hooks.export.outputs import state_folder
from trainer_hooks.hook import Hook
from trainer_hooks.in_memory.targets import MemoryTargets
from trainer_hooks.ranks import Ranks
from trainer_hooks.sample.meter import READINGS
from trainer_hooks.sample.reading import Position, StepFacts
from trainer_hooks.sample.torch_engine import TorchEngine
from trainer_hooks.start_decisions import StartDecisions

__all__ = ["attach"]

log = logging.getLogger(__name__)

_ATTACHED = "_sentinel_hook"  # the engine's attribute that holds its hook

# Every how many steps the layers, the moments, the local gradients and the logits are measured; 0 is never.
INTERVAL_STEPS = 10


def attach(
    engine: Any = None,
    *,
    model: Any = None,
    optimizer: Any = None,
    scaler: Any = None,
    step: int = 0,
    state_dir: str | os.PathLike[str] | None = None,
    run: str = "run",
    position: Callable[[], Position] | None = None,
    loss_minimum: LossMinimum | None = None,
    on_sample: Callable[[Sample], None] | None = None,
    mpu: Any = None,
    interval_steps: int = INTERVAL_STEPS,
    measure: Iterable[str] = READINGS,
    address: str = "127.0.0.1",
    port: int = 0,
    announce: str | None = None,
    exporter: ExporterSettings | None = None,
    applies: Iterable[str] | None = None,
    trainer: str | None = None,
    ranks: Ranks | None = None,
    decisions: StartDecisions | None = None,
    reload: Reload | None = None,
    close_files: Callable[[], None] | None = None,
    memory_targets: int = 0,
    memory_every: int = 50,
    client_state: Callable[[], Mapping[str, Any]] = dict,
) -> Hook:
    """Attaches a hook to a DeepSpeed engine, right after deepspeed.initialize, or to the model and the optimizer of a
    plain loop, after a checkpoint was loaded. On every rank. It raises an OverridesError where something is decided
    that no call of `decisions` has applied, a ConfigError where `memory_targets` can't be kept, and nothing else.

    With an engine the loss is taken where engine.backward(loss) gets it (with a pipeline, from train_batch), and the
    step is measured inside engine.step(). A plain loop gives `model` as its forward is called (DDP, fully_shard,
    compiled), `optimizer` (one, or a sequence of several), `scaler` where it has torch's GradScaler, `step`: completed
    updates of the run so far; and calls `hook.loss(loss)` before each backward. The step is measured inside
    optimizer.step(), of several once each has made its step; with a scaler inside scaler.update().

    `position` is called then. `on_sample` gets each sample on rank 0: at the step's end on a CPU,
    one or two steps later with CUDA. `mpu` is Megatron's model-parallel unit, where deepspeed.initialize was not given
    it. `interval_steps=0` leaves out what is read at intervals, `measure` what it does not name (docs/HOOKS.md).
    `applies` names the keys of overrides.json (`standing` and `once`) that this trainer applies at a start, () for
    none: sentinel then refuses a change that would be ignored; None: not known, of a plain loop without `decisions`
    none. `trainer`: its name in sentences.
    state_dir defaults to SENTINEL_STATE_DIR, else ./.sentinel/RUN. /metrics listens at `address` and `port` and is
    announced to Prometheus as `announce`; `exporter` replaces the three (docs/EXPORTER.md). `ranks` are those of the
    process group in force, which others of the process use as well. `decisions` are reported as applied, and what they
    left in the checkpoint (the smallest loss, the attempt) is gone on from. An engine that has an open hook keeps it:
    that one is returned, with a warning.

    `reload` declares that this loop of a DeepSpeed engine can be resumed in place: its last line is `hook.boundary()`,
    which calls `reload` on every rank with what to load (docs/ATTACH.md); not with `decisions`. `close_files` closes
    what this rank writes to, before the training is parked. `memory_targets`, with `reload`: so many states are kept in
    the memory of each rank's host, one every `memory_every` steps, each with what `client_state` gives then; `reload`
    gets them by `hook.from_memory`.
    """
    if (holder := model if engine is None else engine) is None or (engine is None and optimizer is None):
        raise TypeError("attach takes an engine, or model= and optimizer=")
    if reload is not None and (engine is None or decisions is not None):
        raise TypeError("reload= takes a DeepSpeed engine, and no decisions=")
    if memory_targets and reload is None:
        raise TypeError("memory_targets= takes reload=: without it nothing is resumed in place")
    attached = getattr(holder, _ATTACHED, None)
    if isinstance(attached, Hook) and not attached.closed:
        why = "the second call changes nothing; close the first hook before you attach another"
        log.warning("attach was called twice on one engine: attempt %s goes on, %s", attached.attempt, why)
        return attached
    made = TorchEngine(model, optimizer, scaler=scaler, step=step) if engine is None else engine
    if decisions is not None:
        decisions.check()
        applies = (*decisions.applies, *(key for key in applies or () if key not in decisions.applies))
        loss_minimum = loss_minimum or LossMinimum.load(decisions.made.loss_minimum)
    elif engine is None and applies is None:
        applies = ()  # of a plain loop only `decisions` reads overrides.json
    folder, as_tuple = state_folder(state_dir, run), None if applies is None else tuple(applies)
    memory = None
    if memory_targets:
        kept = MemoryTargets(engine, most=memory_targets, every=memory_every)
        memory = InMemory(targets=kept, client_state=client_state)
    hook = Hook(
        made,
        folder,
        run=run,
        mpu=mpu,
        exporter=exporter or ExporterSettings(address=address, port=port, announce=announce),
        facts=StepFacts(made, position),
        loss_minimum=loss_minimum or LossMinimum(),
        on_sample=on_sample,
        interval_steps=interval_steps,
        measure=measure,
        declared={"trainer": trainer, "applies": as_tuple, "can_park": reload is not None},
        ranks=ranks,
        at_start=partial(_resumed, step) if decisions is None else decisions.facts,
    )
    if reload is not None:
        hook.boundaries = Boundaries(folder, hook, engine, reload, close_files, memory)
    if decisions is not None:
        decisions.follow(hook, lambda: int(made.global_steps), getattr(made, "in_step", lambda *_: True))
    with suppress(Exception):  # an engine that takes no attribute can only be attached to twice
        object.__setattr__(holder, _ATTACHED, hook)  # not as a module's attribute: it would be looked at as a part
    return hook


def _resumed(step: int) -> dict[str, Any]:
    """What a plain loop's `step` says of its start; nothing at step 0."""
    return {"resumed_from": step} if step else {}
