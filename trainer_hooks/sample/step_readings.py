"""This rank's readings of each step, and of the state at a save and at a start: measured where the engine calls, then
handed to the gathering, where those of all ranks come together."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from torch.compiler import is_compiling

from sentinel.vocabulary.sample import StateLoaded, StateSaved
from trainer_hooks.errors import Guard
from trainer_hooks.ranks import Ranks
from trainer_hooks.ranks.signs import Signs, Still
from trainer_hooks.sample.arrivals import Arrivals
from trainer_hooks.sample.gathering import Gathering, Report
from trainer_hooks.sample.logits import Logits
from trainer_hooks.sample.meter import Meter
from trainer_hooks.sample.reading import StepFacts
from trainer_hooks.sample.torch_engine import whole

__all__ = ["StepReadings"]

T = TypeVar("T")


class StepReadings:
    """Of one attempt, on every rank. What fails is the guard's, and costs that reading. What its methods are called for
    is said at the methods of `Hook` that have their names."""

    def __init__(
        self,
        engine: Any,
        mpu: Any,
        ranks: Ranks,
        guard: Guard,
        *,
        facts: StepFacts,
        interval_steps: int,
        measured: Iterable[str],
    ) -> None:
        self._engine, self._ranks, self._guard = engine, ranks, guard
        self._facts, self._interval_steps = facts, max(0, interval_steps)
        self._load_measured = False
        self._saved_step: int | None = None  # whose state was measured at a save
        self._meter: Meter | None = None
        self.arrivals: Arrivals | None = None  # None where this rank could not join the others
        with guard("look at the model"):
            self._meter = Meter(engine, mpu, guard, self._interval_steps, measured)
        self._metered("look at Adam's state", Meter.look)

    @property
    def own_layers(self) -> list[str]:
        """Of the model, those that this rank measures; none where it can't."""
        return self._meter.layers if self._meter is not None else []

    @property
    def layers(self) -> tuple[str, ...]:
        """Of the model, over all ranks; none before the ranks have told one another."""
        return () if self.arrivals is None else self.arrivals.layers

    def join(self, layers: list[str] | None, report: Report, say_still: Callable[[tuple[Still, ...]], None]) -> None:
        """Takes part with these layers, or with None says to the other ranks that this one does not: then nobody
        measures. `report` gets the steps' readings on rank 0, `say_still` the ranks that a step waits for. All ranks
        ask one another for the union, then for a channel: one without a hook makes these calls in this order too."""
        gathering = Gathering(self._ranks, self._ranks.union(layers), report, self._guard)
        self.arrivals = Arrivals(gathering, self._guard, Signs(self._ranks, say_still))

    def listen(self) -> None:
        """From now on, until the step's end, each gradient is seen."""
        self._metered("listen to the gradients", Meter.listen_to_gradients)

    def variance_pass(self) -> str | None:
        """Names what reads Adam's state; None where nothing does."""
        return self._metered("choose what reads Adam's state", Meter.pass_names)

    def micro_batch_seen(self) -> None:
        if self.arrivals is not None:
            self.arrivals.micro_batch_seen()

    def loss_seen(self, loss: Any, *, of_many: bool) -> None:
        self.micro_batch_seen()
        self._metered("take the loss", lambda meter: meter.loss_seen(loss, of_many=of_many))

    def batch_seen(self, tokens: Any) -> None:
        self._metered("take the batch", lambda meter: meter.batch_seen(tokens))

    def logits_seen(self, attention: Logits | None, output: Logits | None) -> None:
        if is_compiling():  # a trace that depends on the step would be compiled anew at each one
            return
        given = {"attention_logit": attention, "output_logit": output}
        self._metered("take the logits", lambda meter: meter.logits_seen(**given))

    def gradients_whole(self) -> None:
        self._metered("take the gradient's norm", Meter.gradients_whole)

    def norm_given(self, norm: Any) -> None:
        self._metered("take the gradient's norm", lambda meter: meter.norm_given(whole(norm)))

    def update_coming(self) -> None:
        step = self._engine.global_steps
        if step and not self._load_measured:
            self._measure_state(StateLoaded)
        self._load_measured = True
        with self._guard("look before the step"):
            self._facts.update_coming()
        self._metered("look before the step", Meter.update_coming)

    def step_made(self) -> None:
        step = self._engine.global_steps
        extra = self._interval_steps > 0 and step % self._interval_steps == 0
        measurement, facts = self._metered("measure the step", lambda meter: meter.measure(with_moments=extra)), None
        with self._guard("read the step's position"):
            facts = self._facts.read() if self._ranks.rank == 0 else None
        if self.arrivals is not None:
            self.arrivals.add(step, facts, measurement, layered=extra)
            waits = self._ranks.rank == 0 and not str(self._engine.device).startswith("cuda")
            self.arrivals.step_ends(step, waits=waits)
        self.listen()

    def save_coming(self) -> None:
        if self._saved_step != self._engine.global_steps:
            self._saved_step = self._engine.global_steps
            self._measure_state(StateSaved)

    def load_coming(self) -> None:
        self._saved_step = None  # the same step may be saved again, of another state
        self._metered("leave Adam's state alone", Meter.settle)

    def await_all(self) -> None:
        """Reports those on their way, as far as they arrive soon."""
        if self.arrivals is not None:
            self.arrivals.await_all()

    def await_last(self, *, finished: bool) -> None:
        """As `await_all`, and what has not come then is lost; it waits longer where the training is finished."""
        if self.arrivals is not None:
            self.arrivals.await_last(finished=finished)

    def close(self) -> None:
        """Leaves the gradients. What still calls from the engine measures nothing, and the meter's memory is free."""
        self._metered("leave the gradients", Meter.stop)
        self._meter = None

    def _measure_state(self, kind: type[StateLoaded | StateSaved]) -> None:
        measurement, step = self._metered("measure the state", Meter.state), self._engine.global_steps
        if self.arrivals is not None:
            facts = (kind, step) if self._ranks.rank == 0 else None
            self.arrivals.add(step, facts, measurement, layered=True, state=True)

    def _metered(self, action: str, call: Callable[[Meter], T]) -> T | None:
        """The meter's answer; None where there is no meter, or it fails."""
        with self._guard(action):
            if self._meter is not None:
                return call(self._meter)
        return None
