"""What a start must apply, as calls that any loop can make, after the checkpoint is loaded and before the first step.

    decisions = trainer_hooks.decisions(state_dir, run="gpt", step=step, client_state=checkpoint)
    sampler = decisions.sampler(sampler, consumed_samples=samples)   # seed, skip_samples
    decisions.apply(optimizer, scheduler)                            # lr, Adam's numbers, reset_moments
    hook = trainer_hooks.attach(model=model, optimizer=optimizer, decisions=decisions, step=step)

What is decided and has found no call that applies it ends the start in `attach`, with an OverridesError, a ConfigError:
a change that is silently ignored costs weeks. Where nothing is decided every call leaves all as it is.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, MutableMapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from sentinel.vocabulary.codec import Form, fields_of, read
from sentinel.vocabulary.errors import ConfigError, OverridesError
from sentinel.vocabulary.overrides import CHANGES, Once, Overrides, TrainingSettings
from sentinel.vocabulary.pacing import FixedLinear, LrSchedule
from trainer_hooks.control.start import agreed_start
from trainer_hooks.export.outputs import state_folder
from trainer_hooks.learning_rate import DecidedLr, formula_of
from trainer_hooks.restart import Decisions, cannot_be_applied, decision_facts, due, wanted
from trainer_hooks.sample.adam_settings import AdamSettings, keys_of_groups, reset_all_moments
from trainer_hooks.sample.torch_engine import Optimizers, optimizer_of

__all__ = ["StartDecisions", "decisions"]

KEY = "sentinel"
"""Of the client state."""

_FORM = Form(error=ConfigError, name="the client state", ignores_unknown=True)
_OF_ADAM = ("adam_beta1", "adam_beta2", "adam_eps", "weight_decay")
_BY_APPLY = ("lr", *_OF_ADAM, "reset_moments")
_NO_CALL = {
    **dict.fromkeys(_BY_APPLY, "decisions.apply(optimizer, scheduler) was not called"),
    "clip_grad": "decisions.clip(norm) was not called",
    "seed": "decisions.sampler(sampler) was not called, nor decisions.seed(own)",
    "skip_samples": "decisions.sampler(sampler) was not called",
    "seqlen": "decisions(full_seqlen=…) is not given, so batches are not cut",
}
_THIS_LOOP = "this loop"


def decisions(
    state_dir: str | os.PathLike[str] | None = None,
    *,
    run: str = "run",
    step: int = 0,
    client_state: Mapping[str, Any] | None = None,
    full_seqlen: int | None = None,
) -> StartDecisions:
    """Reads overrides.json, on every rank: rank 0 does, the others get what it has read by the store of the process
    group. `step`: completed updates of the checkpoint, 0 from scratch; `client_state`: the mapping that `once_done` was
    given at its save. `full_seqlen`: tokens of a sample, of a loop that passes every batch through `truncate`.
    OverridesError where it can't be read, ConfigError where what the checkpoint holds can't."""
    folder = state_folder(state_dir, run)
    start = agreed_start(folder)
    left = (client_state or {}).get(KEY) if step else None
    made = Decisions() if left is None else read(Decisions, left, "the checkpoint's client state", _FORM)
    return StartDecisions(start.overrides, made, step, full_seqlen=full_seqlen, file=folder / "overrides.json")


class StartDecisions:
    """Of one start. Each call refuses what it can't do with an OverridesError, before the first step."""

    def __init__(
        self,
        decided: Overrides | None,
        made: Decisions,
        step: int,
        *,
        full_seqlen: int | None,
        file: str | os.PathLike[str] = "overrides.json",
    ) -> None:
        self.overrides = decided
        """What sentinel decided; None where it decided nothing."""
        self.made = made
        """What the run has had so far; it goes into the checkpoint."""
        self.step = step
        self._file = Path(file)  # where it is decided
        self._standing = decided.standing if decided is not None else TrainingSettings()
        self._once: Once | None = due(decided, made, step)
        self._left = wanted(decided, self._once)  # {key: value} that no call has applied yet
        self._applies: list[str] = []
        self._facts: dict[str, Any] = {}
        self._steps: Callable[[], int] = lambda: step
        self._in_step: Callable[..., bool] = lambda *_: True
        self._hook: Any = None
        self._lr: DecidedLr | None = None
        self._lengths: Any = None
        self._full = full_seqlen
        if full_seqlen is not None:
            self._cut_to(full_seqlen)

    # -- what a loop calls

    def apply(
        self, optimizer: Any, scheduler: Any = None, *, warmup_steps: int = 0, total_steps: int | None = None
    ) -> None:
        """Sets Adam's numbers (betas, eps, weight decay), sets its moments to 0, and from now on sets the decided LR
        before each update; the scheduler goes on and gets its own LR back after it. After optimizer.load_state_dict.

        `scheduler`: torch's LambdaLR, or the function that gives the LR from the completed updates, or a LrSchedule;
        with `total_steps` and `warmup_steps` it is reported as a formula where it is one (constant, linear, cosine; a
        linear warmup), which rungs that change the LR need."""
        one = optimizer_of(optimizer)
        engine = _OptimizerAlone(one)
        keys = keys_of_groups(one.param_groups)
        adam = [key for key in _OF_ADAM if key in keys]
        if any(key in self._left for key in _OF_ADAM):
            AdamSettings.of(engine).impose(engine, self._standing)
        self._take("lr", *adam)
        if self._left.get("weight_decay") == 0:  # what groups have that take none
            del self._left["weight_decay"]
        if "adam_beta2" in adam and self._take("reset_moments")["reset_moments"] and self.step:
            reset_all_moments(engine, self.made, self.step)
        own = _schedule_of(scheduler, warmup_steps, total_steps)
        if (lr := self._standing.lr) is not None:
            if not lr.by_steps:
                raise self._refusal("lr", "it counts tokens or samples, which the loop does not tell")
            self._lr = DecidedLr(one, lr)
            for each in one.optimizers if isinstance(one, Optimizers) else (one,):
                each.register_step_pre_hook(self._begin)
                each.register_step_post_hook(lambda *_: self._end())
        schedule = lr if lr is not None else own
        first = schedule.lr(step=self.step + 1) if schedule is not None else float(one.param_groups[0]["lr"])
        self._facts |= {
            "lr": first,
            "lr_schedule": schedule.to_json() if schedule is not None else None,
            "lr_schedule_unknown": None if schedule is not None else _WHY_NO_SCHEDULE,
        }

    def sampler(self, sampler: Any, *, consumed_samples: int = 0) -> Any:
        """The sampler to draw from in place of this one: itself where nothing is decided of the data. Of a
        DistributedSampler (also with num_replicas=1, rank=0), whose order follows from its seed and its epoch; the loop
        goes on to call `set_epoch`, and passes over what it has consumed of the epoch, as without a decision.
        `consumed_samples`: that the run has drawn so far, over all ranks."""
        from trainer_hooks.decided_sampler import DecidedSampler, why_not_ordered

        why = why_not_ordered(sampler)
        decided = self.made.left_out(self._standing.skipped) or len(self.made.reseeds) > 1
        asked = {key for key in ("seed", "skip_samples") if key in self._left}
        if why is not None:
            if asked or decided:
                raise cannot_be_applied(min(asked, default="skip_samples"), "this sampler", why, self._file)
            return sampler
        made = DecidedSampler(sampler, self.made.reseeds, self.made.left_out(self._standing.skipped))
        self._take("seed", "skip_samples")
        if self._once is not None and asked:
            made.change(consumed_samples, seed=self._once.seed, skip_samples=self._once.skip_samples)
        self.made.reseeds, self.made.skipped = made.order.reseeds, made.order.skipped
        self._facts |= made.order.facts(made.position(consumed_samples))
        return made if made.decided else sampler

    def seed(self, own: int) -> int:
        """The seed that a loop which draws its batches at random has to begin with: its own, or that of the newest
        decision. Kept in the client state."""
        if not self.made.reseeds:
            self.made.reseeds = ((0, own),)
        if (new := self._take("seed")["seed"]) is not None:
            self.made.reseeds = (*self.made.reseeds, (self.step, int(new)))
        self._facts["seed"] = self.made.reseeds[-1][1]
        return int(self._facts["seed"])

    def clip(self, own: float) -> float:
        """The gradient's largest norm to clip by: the loop's own (0: it does not clip), or the decided one."""
        decided = self._take("clip_grad")["clip_grad"]
        limit = own if decided is None else float(decided)
        self._facts["gradient_clipping"] = limit
        return limit

    def truncate(self, batch: Any) -> Any:
        """The batch with the first tokens of each sample, as long as this step's samples are: tensors, tuples, dicts of
        them. Itself at full length. It needs `full_seqlen`."""
        if self._full is None:
            raise ConfigError("decisions.truncate needs trainer_hooks.decisions(full_seqlen=…)")
        if self._lengths is None:
            return batch
        self._lengths.begin(self._steps() + 1, samples=1)
        return self._lengths(batch)

    def by_loop(self, key: str) -> Any:
        """What is decided of this key of overrides.json, by a loop that applies it itself; None where nothing is."""
        if key not in CHANGES:
            raise ConfigError(f"overrides.json has no key {key!r}; the right ones are {', '.join(CHANGES)}")
        return self._take(key)[key]

    def once_done(self, client_state: MutableMapping[str, Any]) -> None:
        """Before a save, on every rank that saves: puts into what the checkpoint holds that the one-shot changes were
        made, so that no later start makes them again."""
        if self._hook is not None:
            self.made.attempt = self._hook.attempt
            self.made.loss_minimum = tuple(self._hook.loss_minimum.state())
        held = fields_of(self.made, without_none=True)
        client_state[KEY] = {name: value for name, value in held.items() if value != []}

    # -- what attach calls

    @property
    def applies(self) -> tuple[str, ...]:
        """The keys of overrides.json that the loop's calls apply."""
        return tuple(dict.fromkeys(self._applies))

    def check(self) -> None:
        """Called by attach: OverridesError where a decided change has found no call. From here on the one-shot changes
        count as made."""
        for key in self._left:
            by_loop = f"no call applies it; a loop that does takes its value from decisions.by_loop({key!r})"
            why = _NO_CALL.get(key, by_loop)
            if key in _BY_APPLY and "lr" in self._facts:
                why = "the optimizer that decisions.apply was given has no such number"
            raise self._refusal(key, why)
        if self._once is not None:
            self.made.applied_once = (*self.made.applied_once, self._once.id)
            self._once = None

    def follow(self, hook: Any, steps: Callable[[], int], in_step: Callable[..., bool]) -> None:
        """Called by attach: `steps` tells from now on how many updates are completed, `in_step` whether an optimizer's
        step with (arguments, options) is one of the training."""
        self._hook, self._steps, self._in_step = hook, steps, in_step

    def facts(self) -> dict[str, Any]:
        """Called by attach: {field of RunStarted: value}."""
        found = {"parent_attempt": self.made.attempt, "resumed_from": self.step or None, **self._facts}
        return {**found, **decision_facts(self.overrides, self.made)}

    def _refusal(self, key: str, why: str) -> OverridesError:
        return cannot_be_applied(key, _THIS_LOOP, why, self._file)

    def _take(self, *keys: str) -> dict[str, Any]:
        """{key: what is decided of it, or None}; from now on they count as applied."""
        self._applies += keys
        return {key: self._left.pop(key, None) for key in keys}

    def _begin(self, _: Any, *given: Any) -> None:
        if self._lr is not None and self._in_step(*given):
            self._lr.begin(step=self._steps() + 1)

    def _end(self) -> None:
        if self._lr is not None:
            self._lr.made()

    def _cut_to(self, full: int) -> None:
        from trainer_hooks.warmup import SeqlenWarmup

        decided = self._take("seqlen")["seqlen"]
        schedule: Any = FixedLinear(start=full, full=full, total_steps=0)
        if decided is not None:
            if decided.full != full:
                raise OverridesError(f"overrides.json: seqlen goes to {decided.full}, and full_seqlen is {full}")
            if hasattr(decided, "after_validation"):
                raise self._refusal("seqlen", "its lengths follow the validations")
            schedule, self._lengths = decided, SeqlenWarmup(decided, "truncate", global_batch_samples=1)
        first = full if decided is None else int(decided.seqlen(self.step + 1))
        self._facts |= {"full_seqlen": full, "seqlen": first, "seqlen_shortening": "truncate"}
        self._facts["seqlen_schedule"] = schedule.to_json()


class _OptimizerAlone(SimpleNamespace):
    """An optimizer without its model, as what sets its numbers asks of an engine."""

    def __init__(self, optimizer: Any) -> None:
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        self.in_parts = any(hasattr(p, "device_mesh") for p in parameters)
        super().__init__(optimizer=optimizer, module=SimpleNamespace(parameters=lambda: parameters))

    def zero_optimization_stage(self) -> int:
        return 3 if self.in_parts else 0

    def gradient_clipping(self) -> None:
        """The loop clips, see `StartDecisions.clip`."""

    def clip_by(self, norm: float | None) -> None:
        """As above."""


_WHY_NO_SCHEDULE = (
    "decisions.apply(optimizer, scheduler, warmup_steps=…, total_steps=…) was given no scheduler that is a formula: "
    "an LR rung works over LambdaLR, or a function of the completed updates, that is constant, linear or cosine"
)


def _schedule_of(scheduler: Any, warmup: int, total: int | None) -> LrSchedule | None:
    if scheduler is None or isinstance(scheduler, LrSchedule):
        return scheduler
    if total is None:
        return None
    if functions := getattr(scheduler, "lr_lambdas", None):
        peak = float(scheduler.base_lrs[0])
        return formula_of(lambda step: peak * float(functions[0](step - 1)), peak, warmup, total)
    if callable(scheduler):
        peak = max(float(scheduler(done)) for done in range(warmup, warmup + 2))
        return formula_of(lambda step: float(scheduler(step - 1)), peak, warmup, total)
    return None
