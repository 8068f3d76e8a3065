"""Measures one step on one rank: starts the reductions on the device, and reads them when they are on the host."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from trainer_hooks.errors import Guard
from trainer_hooks.sample.adam_state import AdamState
from trainer_hooks.sample.batch_digest import batch_digest
from trainer_hooks.sample.gradients import LocalGradient, sum_of_squares
from trainer_hooks.sample.layers import layers_of
from trainer_hooks.sample.logits import Logits, largest_magnitude
from trainer_hooks.sample.offloaded import OffloadedReader, Pending, threads_of_the_reader
from trainer_hooks.sample.one_pass import AdamConstants, OnePass, Part, Piece, Projection, Stop, expected_pass, one_pass
from trainer_hooks.sample.own import has_own
from trainer_hooks.sample.owners import inner_optimizers, local
from trainer_hooks.sample.reading import Measurement, loss_scale
from trainer_hooks.sample.replicas import Replicas, counts_batches
from trainer_hooks.sample.step_heard import StepHeard, divided_at_the_loss, given_norm
from trainer_hooks.sample.to_host import on_device
from trainer_hooks.splitmix import mixed

_log = logging.getLogger(__name__)

READINGS = ("variance", "moments", "layers", "gradients", "logits", "batch_digest")
"""What `attach(measure=…)` turns on and off; the loss is always read."""


class Meter:
    """One engine's, on one rank."""

    def __init__(
        self, engine: Any, mpu: Any, guard: Guard, interval_steps: int, measure: Iterable[str] = READINGS
    ) -> None:
        self._engine = engine
        self._interval_steps = interval_steps  # every how many steps what costs more is read
        self._guard = guard  # a reading that fails costs no other reading of its step
        self._measured = frozenset(measure)
        if unknown := sorted(self._measured - {*READINGS}):
            guard.warn_once(f"measure={unknown} names nothing that is measured: it takes {', '.join(READINGS)}")
        names = {id(p): name for name, p in engine.module.named_parameters()}
        layers = layers_of(names.values())
        shown = layers.values() if self._measured >= {"variance", "layers"} else ()
        self.layers: list[str] = list(dict.fromkeys(shown))
        """The layers that this rank has parameters of, in the model's order."""
        self._replicas = Replicas.of(engine, mpu)
        self._counts_batches: bool | None = None
        with guard("see which ranks share a batch"):
            self._counts_batches = counts_batches(engine, mpu)
        self._state = AdamState(engine, names, layers, self._replicas)
        self._passes: list[OnePass] = []
        self._projections: list[Projection] = []  # of the same pieces, pass by pass
        self._layout = 0
        self._parts: list[Part] = []  # what lies on this rank, in the order of the passes' pieces
        self._shares = torch.zeros(0, dtype=torch.float64)
        self._has_moments = False
        self._reader: OffloadedReader | None = None
        if torch.device(str(engine.device)).type != "cpu":
            self._reader = OffloadedReader(interval_steps)
        self._parameters = [p for p in engine.module.parameters() if p.requires_grad]
        whole = self._replicas.whole_model and "gradients" in self._measured
        self._local = LocalGradient(self._parameters) if whole else None
        self._step = StepHeard()

    def look(self, *, whole: bool = False) -> None:
        """Finds Adam's state, and chooses what reads it (which may compile it, once): here, or at the first update."""
        if "variance" not in self._measured:
            return
        found = self._state.look(whole=whole)
        if found is None:
            return
        by_device: dict[torch.device, list[Piece]] = {}
        for piece in found:
            by_device.setdefault(piece.exp_avg_sq.device, []).append(piece)
        pieces = [piece for some in by_device.values() for piece in some]
        self._parts = [piece.part for piece in pieces]
        self._shares = torch.tensor([part.share for part in self._parts], dtype=torch.float64)
        self._has_moments = all(len(piece.present) == len(piece.tensors) for piece in pieces)
        self._passes = [one_pass(some) for some in by_device.values()]
        self._projections = [Projection(some) for some in by_device.values()]
        self._layout = _layout_of(piece.key for piece in pieces)
        if self._state.there and self._state.missing:
            why = "; ".join(f"of {count} tensors: {reason}" for reason, count in self._state.missing.items())
            self._guard.warn_once("a part of Adam's v is not read, so no norm of it is reported: " + why)

    def pass_names(self) -> str | None:
        """Of what reads the state, or would read it once it is there; None where nothing is read."""
        if "variance" not in self._measured:
            return None
        names = [p.name for p in self._passes]
        if not names:
            groups = (group for of in inner_optimizers(self._engine.optimizer) for group in of.param_groups)
            device = next((local(p).device for group in groups for p in group["params"]), None)
            names = [expected_pass(device)] if device is not None else []
        return " and ".join(dict.fromkeys(names)) or None

    def settle(self) -> None:
        """No thread reads the state after this: it is about to be replaced."""
        if self._reader is not None:
            self._reader.settle()

    def listen_to_gradients(self) -> None:
        """The next step's gradients are measured before they are averaged over the ranks, where they are due."""
        if self._local is not None and self._next_is_due():
            self._local.listen()

    def stop(self) -> None:
        """Leaves nothing in the model that would measure."""
        if self._local is not None:
            self._local.stop()

    def _next_is_due(self) -> bool:
        return self._interval_steps > 0 and bool((self._engine.global_steps + 1) % self._interval_steps == 0)

    def loss_seen(self, loss: Tensor, *, of_many: bool) -> None:
        """A micro-batch's loss, before it is differentiated; see `Hook.loss_seen`."""
        step = self._step
        step.losses.append(loss.detach())
        step.of_many = of_many
        step.divided = divided_at_the_loss(self._engine, loss)
        if loss.requires_grad:
            loss.register_hook(step.scaled_by)  # type: ignore[no-untyped-call]

    def batch_seen(self, tokens: Tensor) -> None:
        """A micro-batch of the step under way, (B, T)."""
        counts = self._counts_batches if "batch_digest" in self._measured else None
        if counts and not tokens.is_floating_point():  # pictures and sound have no digest
            self._step.digests.append(batch_digest(tokens))

    def logits_seen(self, **given: Logits | None) -> None:
        """Logits of the forward pass under way; see `Hook.report_logits`."""
        step = self._step
        if step.losses or not self._next_is_due():  # past the first micro-batch, or not asked for
            return
        if "logits" not in self._measured or not self._engine.module.training:  # a validation's are no step's
            return
        for name, logits in given.items():
            if logits is not None:
                largest = largest_magnitude(logits)
                step.logits[name] = torch.maximum(step.logits.get(name, largest), largest)

    def gradients_whole(self) -> None:
        """Takes the sum of their squares where DeepSpeed will have no norm of them: at stage 0 in fp32 (no wrapping
        optimizer) it never computes one, so it is taken before the step clips them. The last call of a step counts."""
        if not hasattr(self._engine.optimizer, "optimizer") and "gradients" in self._measured:
            step = self._step
            step.squares, step.squares_of = sum_of_squares(self._parameters, self._replicas.share), len(step.losses)

    def norm_given(self, norm: Tensor | float) -> None:
        """The loop has measured the norm of the step under way."""
        self._step.given = torch.as_tensor(norm).detach()

    def update_coming(self) -> None:
        """All gradients are there, and may be clipped already."""
        step, optimizer = self._step, self._engine.optimizer
        if self._reader is not None:
            with self._guard("read Adam's offloaded state"):
                self._reader.update_coming()
        step.loss_scale = loss_scale(self._engine)
        if "variance" in self._measured:
            self._state.update_coming()
        lr = optimizer.param_groups[0]["lr"]
        if on_device(lr) and not (dist.is_initialized() and dist.get_rank()):
            step.lr = lr.detach().double().clone()  # a schedule changes it in place

    def measure(self, *, with_moments: bool) -> Measurement:
        """Starts to measure the step that was just made; its readings may still be on their way to the host.
        RuntimeError when no loss of the step was seen, and whatever goes wrong in the optimizer's state."""
        step, self._step = self._step, StepHeard()
        engine = self._engine
        local: Tensor | None = None
        given: Tensor | float | None = None
        with self._guard("read this rank's own gradient"):
            if self._local is not None and self._local.handles:
                local = self._local.taken(step.scale(engine) / step.many(engine), len(step.losses))
        with self._guard("read the gradient's norm"):
            stale = has_own(engine, "gradient_scale") and step.squares_of != len(step.losses)
            if step.given is not None or stale:  # of fewer micro-batches than were made
                step.squares = None
            given = step.given
            if step.squares is None and step.given is None:
                given = given_norm(engine, step)
        if not step.losses:
            raise RuntimeError(
                "no loss of this step was seen: engine.backward(loss), or hook.loss(loss), is where it is taken"
            )
        self.look(whole=with_moments)
        loss = torch.stack([m.double() for m in step.losses]).sum() / (len(step.losses) if step.of_many else 1)
        digest = torch.stack(step.digests).sum() if step.digests else None
        if self._counts_batches is False and "batch_digest" in self._measured:
            digest = torch.zeros((), dtype=torch.float64)  # another rank counts this one's batches
        squares = None if step.squares is None else step.squares / step.scale(engine) ** 2
        norms = {"grad_squares": squares, "grad_norm": given, "local_grad_norm": local}
        scalars = {"loss": loss, **norms, "batch_digest": digest, "lr": step.lr, **step.logits}
        return self._measurement(scalars, with_moments=with_moments, at_once=False)

    def state(self) -> Measurement:
        """As `measure`, of the state as it is now: at a save, or before the first update after a load."""
        self.look(whole=True)
        step = self._state.step() if "variance" in self._measured else None
        scalars = {"adam_step": step, "state_layout": self._layout}
        return self._measurement(scalars, with_moments=True, at_once=True)

    def _measurement(self, scalars: dict[str, Any], *, with_moments: bool, at_once: bool) -> Measurement:
        """`at_once`: of a state, after which an update follows: nothing is left to a thread."""
        reads = "variance" in self._measured and (at_once or self._is_due())
        with_moments = with_moments and self._has_moments and "moments" in self._measured
        constants: list[AdamConstants] | None = None
        if reads and with_moments:
            with self._guard("read what the update was made with"):
                constants = self._state.constants()
        elements = (self._state.elements, self._state.owned)
        return Measurement(
            scalars={name: torch.as_tensor(value) for name, value in scalars.items() if value is not None},
            rows=[self._rows(at, constants, at_once=at_once) for at in range(len(self._passes))] if reads else [],
            with_moments=reads and constants is not None,
            with_state=reads and self._is_whole(),
            pieces=self._parts if reads else [],
            shares=self._shares if reads else self._shares[:0],
            elements=elements if self._state.owned and self._state.updates > 0 else None,
        )

    def _is_due(self) -> bool:
        """Whether the state is read at this step: a part of it that is offloaded may be read at few steps only."""
        offloaded = self._reader is not None and any(p.device.type == "cpu" for p in self._passes)
        return not offloaded or self._reader is None or self._reader.rarity.due(int(self._engine.global_steps))

    def _is_whole(self) -> bool:
        return not self._state.missing and (self._state.there or not self._parameters)

    def _rows(self, at: int, constants: list[AdamConstants] | None, *, at_once: bool) -> Tensor | Pending:
        """(2, S), or (5, S) with the moments, and (7, S) with the projections too, of a state; of an offloaded one by a
        thread."""
        of = self._passes[at]
        offloaded = self._reader is not None and of.device.type == "cpu"
        threads = threads_of_the_reader() if offloaded else None
        if offloaded and self._reader is not None and not at_once:
            return self._reader.begin(partial(_read, of, constants, threads))
        rows = _read(of, constants, threads, None)
        return torch.cat([rows, self._projections[at].read()]) if at_once and constants is not None else rows


def _layout_of(keys: Iterable[int]) -> int:
    """31 bits that tell this rank's pieces from other pieces, and from the same ones on another rank, in any order."""
    rank = dist.get_rank() if dist.is_initialized() else 0
    return sum(mixed(key << 32 | rank) for key in keys) & 0x7FFFFFFF


def _read(of: OnePass, constants: list[AdamConstants] | None, threads: int | None, stop: Stop | None) -> Tensor:
    if constants is None:
        return of.variance(threads=threads, stop=stop)
    return of.moments(constants, threads=threads, stop=stop)
