"""Measures one step on one rank: starts the reductions on the device, and reads them when they are on the host."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter

from trainer_hooks.errors import Guard
from trainer_hooks.sample.adam_state import AdamState, local
from trainer_hooks.sample.batch_digest import batch_digest
from trainer_hooks.sample.logits import Logits, largest_magnitude
from trainer_hooks.sample.one_pass import OnePass, Piece, one_pass
from trainer_hooks.sample.reading import Measurement, loss_scale
from trainer_hooks.sample.replicas import Replicas, is_partitioned


class LocalGradient:
    """The norm of one rank's gradient before the ranks' average: a sick GPU, or sick data, shows there first.

    DeepSpeed averages gradients while it makes them, so the norm is taken where each parameter's gradient comes out of
    the backward pass: a call and a read per parameter, so at an interval only. Measures from `listen` to `taken`.
    """

    def __init__(self, parameters: Iterable[Parameter]) -> None:
        self._parameters = [p for p in parameters if p.requires_grad]
        self.handles: list[Any] = []
        self._squares: Tensor | None = None

    def listen(self) -> None:
        """From the next backward pass on."""
        if not self.handles:
            self.handles = [p.register_hook(self._add) for p in self._parameters]  # type: ignore[no-untyped-call]

    def taken(self, scale: Tensor | float, micro_batches: int) -> Tensor | None:
        """Stops listening. () float64: root mean square over the micro-batches of the gradient's L2 norm. `scale` is
        what the losses were multiplied with before they were differentiated (loss scale / accumulation). nan or inf
        where a gradient is. None where no gradient came by."""
        squares, self._squares = self._squares, None
        for handle in self.handles:
            handle.remove()
        self.handles = []
        if squares is None or not micro_batches:
            return None
        return torch.sqrt(squares) / math.sqrt(micro_batches) / scale

    def _add(self, gradient: Tensor) -> None:
        # In float64 beyond the tensor: a half-precision gradient's squares leave its range.
        norm = torch.linalg.vector_norm(gradient.detach(), dtype=torch.float32).double()
        squares = norm * norm
        self._squares = squares if self._squares is None else self._squares + squares


class Meter:
    """One engine's, on one rank."""

    def __init__(self, engine: Any, mpu: Any, guard: Guard, interval_steps: int) -> None:
        self._engine = engine
        self._interval_steps = interval_steps  # every how many steps what costs more is read
        self._guard = guard  # a reading that fails costs no other reading of its step
        names = {id(p): name for name, p in engine.module.named_parameters()}
        layers = layers_of(names.values())
        self.layers: list[str] = list(dict.fromkeys(layers.values()))
        """The layers that this rank has parameters of, in the model's order."""
        self._replicas = Replicas.of(engine, mpu)
        self._state = AdamState(engine, {i: layers[name] for i, name in names.items()}, self._replicas)
        self._passes: list[OnePass] = []
        self._pieces: list[Piece] = []  # what lies on this rank, in the order of the passes' pieces
        self._shares = torch.zeros(0, dtype=torch.float64)
        self._parameters = [p for p in engine.module.parameters() if p.requires_grad]
        self._local = LocalGradient(self._parameters) if self._replicas.whole_model else None
        self._step = _Step()

    def look(self, *, whole: bool = False) -> None:
        """Finds Adam's state, and chooses what reads it (which may compile it, once): here, or at the first update."""
        if not self._state.changed(whole=whole):
            return
        by_device: dict[torch.device, list[Piece]] = {}
        for piece in self._state.pieces:
            by_device.setdefault(piece.exp_avg_sq.device, []).append(piece)
        self._pieces = [piece for some in by_device.values() for piece in some]
        self._shares = torch.tensor([piece.share for piece in self._pieces], dtype=torch.float64)
        self._passes = [one_pass(some) for some in by_device.values()]

    def listen_to_gradients(self) -> None:
        """The next step's gradients are measured before they are averaged over the ranks, where they are due."""
        if self._local is not None and self._next_is_due():
            self._local.listen()

    def _next_is_due(self) -> bool:
        return bool((self._engine.global_steps + 1) % self._interval_steps == 0)

    def loss_seen(self, loss: Tensor, *, of_many: bool) -> None:
        """A micro-batch's loss, before it is differentiated; see `Hook.loss_seen`."""
        step = self._step
        step.losses.append(loss.detach())
        step.of_many = of_many
        step.divided = _divided_at_the_loss(self._engine, loss)
        if loss.requires_grad:
            loss.register_hook(step.scaled_by)  # type: ignore[no-untyped-call]

    def batch_seen(self, tokens: Tensor) -> None:
        """A micro-batch of the step under way, (B, T)."""
        if not tokens.is_floating_point():  # pictures and sound have no digest
            self._step.digests.append(batch_digest(tokens))

    def logits_seen(self, **given: Logits | None) -> None:
        """Logits of the forward pass under way; see `Hook.report_logits`."""
        step = self._step
        if step.losses or not self._next_is_due():  # past the first micro-batch, or not asked for
            return
        for name, logits in given.items():
            if logits is not None:
                largest = largest_magnitude(logits)
                step.logits[name] = torch.maximum(step.logits.get(name, largest), largest)

    def update_coming(self) -> None:
        """The gradients are whole: takes the sum of their squares where DeepSpeed will have no norm of them. At stage 0
        in fp32 (no wrapping optimizer) it never computes one, so it is taken before the step clips them."""
        self._step.loss_scale = loss_scale(self._engine.optimizer)
        self._state.update_coming()
        if not hasattr(self._engine.optimizer, "optimizer"):
            self._step.squares = self._squares_of_gradients()

    def measure(self, *, with_moments: bool) -> Measurement:
        """Starts to measure the step that was just made; its readings may still be on their way to the host.
        RuntimeError when no loss of the step was seen, and whatever goes wrong in the optimizer's state."""
        step, self._step = self._step, _Step()
        engine = self._engine
        local, given = None, None
        with self._guard("read this rank's own gradient"):
            if self._local is not None and self._local.handles:
                local = self._local.taken(step.scale(engine) / step.many(engine), len(step.losses))
        with self._guard("read the gradient's norm"):
            given = _given_norm(engine, step) if step.squares is None else None
        if not step.losses:
            raise RuntimeError("no loss of this step was seen: engine.backward(loss) is where it is taken")
        self.look(whole=with_moments)
        loss = torch.stack([m.double() for m in step.losses]).sum() / (len(step.losses) if step.of_many else 1)
        rows = self._rows(with_moments)
        digest = torch.stack(step.digests).sum() if step.digests else None
        squares = None if step.squares is None else step.squares / step.scale(engine) ** 2
        norms = {"grad_squares": squares, "grad_norm": given, "local_grad_norm": local}
        scalars = {"loss": loss, **norms, "batch_digest": digest, **step.logits}
        return self._measurement(rows, scalars, with_moments=with_moments)

    def loaded(self) -> Measurement:
        """As `measure`, of the state as it is before the first update: what a checkpoint has brought back."""
        self.look(whole=True)
        return self._measurement(self._rows(with_moments=True), {}, with_moments=True)

    def _measurement(self, rows: list[Tensor], scalars: dict[str, Any], *, with_moments: bool) -> Measurement:
        return Measurement(
            scalars={name: torch.as_tensor(value) for name, value in scalars.items() if value is not None},
            rows=rows,
            with_moments=with_moments and all(len(row) == 5 for row in rows),
            with_state=bool(self._state.seen) or not self._parameters,
            pieces=self._pieces,
            shares=self._shares,
        )

    def _rows(self, with_moments: bool) -> list[Tensor]:
        """Of each pass (2, S), or (5, S) with the moments."""
        with self._guard("measure the moments"):
            if with_moments and all(len(piece.present) == len(piece.tensors) for piece in self._pieces):
                constants = self._state.constants()
                return [p.moments(constants) for p in self._passes]
        return [p.variance() for p in self._passes]

    def _squares_of_gradients(self) -> Tensor | None:
        """() float64: each element counted once over all ranks; None without any gradient."""
        shares: dict[float, list[Tensor]] = {}
        for parameter in self._parameters:
            if parameter.grad is not None:
                shares.setdefault(self._replicas.share(parameter), []).append(local(parameter.grad))
        squares = [
            share * torch.stack(torch._foreach_norm(gradients)).double().square().sum()
            for share, gradients in shares.items()
        ]
        return torch.stack(squares).sum() if squares else None


class _Step:
    """What was heard of the step under way."""

    def __init__(self) -> None:
        self.losses: list[Tensor] = []
        self.digests: list[Tensor] = []
        self.logits: dict[str, Tensor] = {}
        self.of_many = True
        self.divided = True
        self.squares: Tensor | None = None
        self.loss_scale: float | None = None
        self.factor: Tensor | None = None

    def scaled_by(self, gradient: Tensor) -> None:
        """What DeepSpeed multiplies the loss with, read where it arrives at the loss; see `_divided_at_the_loss`."""
        self.factor = gradient.detach().double()

    def many(self, engine: Any) -> int:
        """What DeepSpeed divides each micro-batch's loss by."""
        return int(engine.gradient_accumulation_steps()) if self.of_many else 1

    def scale(self, engine: Any) -> Tensor | float:
        """The loss scale that the gradients really carry, dimensionless."""
        if self.factor is None:
            return 1.0
        return self.factor * (self.many(engine) if self.divided else 1)


def _divided_at_the_loss(engine: Any, loss: Tensor) -> bool:
    """Whether the gradient at the loss is divided by the number of micro-batches already. DeepSpeed 0.18.3 to 0.19.5
    divides at the model's output, by a hook set in forward: so at the loss only where the loss is that output (Hugging
    Face's models). All other versions divide the loss."""
    at_the_output = hasattr(engine, "_backward_prologue_per_tensor")
    of_late = hasattr(engine, "_running_engine_backward_count")  # it then leaves the output's alone
    return of_late or not at_the_output or bool(getattr(loss, "_backward_hooks", None))


def _given_norm(engine: Any, step: _Step) -> Tensor | float | None:
    """DeepSpeed's global norm before clipping, without the loss scale that its fp16 optimizers divide by; inf of a step
    that an overflow has skipped (before 0.19.8 DeepSpeed has the norm of the step before there).

    Stage 3, and at stage 0 the wrapper of FusedAdam, divide by the loss scale after the step, not by the gradients':
    where the scale doubles, the norm is half. At stage 0 the gradients may not carry a scale (0.19.8 does not scale the
    loss there), and the wrapper of the other Adams does not divide.
    """
    norm, optimizer = engine.get_global_grad_norm(), engine.optimizer
    if getattr(optimizer, "overflow", False) is True:
        return math.inf
    after = loss_scale(optimizer)
    if norm is None or step.loss_scale is None or after is None:
        return norm  # type: ignore[no-any-return]
    if not is_partitioned(engine):
        carried = norm * after if hasattr(optimizer, "fp32_groups_flat") else norm
        return carried / step.scale(engine)  # type: ignore[no-any-return]
    return norm * (after / step.loss_scale) if int(engine.zero_optimization_stage()) == 3 else norm  # type: ignore[no-any-return]


EMBEDDING, HEAD = "embedding", "head"

_EMBEDDINGS = ("emb", "wte", "wpe")
"""What a module's name begins with, or has after an underscore, where it embeds: GPT-2's wte and wpe, Megatron's
word_embeddings, Llama's embed_tokens, torchtitan's tok_embeddings."""

_MOST_LAYERS = 1024
"""A model with more blocks than this has them as one layer: what is exported has a fixed, small size."""


def layer_of(name: str) -> str:
    """`transformer.h.3` for `transformer.h.3.attn.weight`: the path up to the first number, the block's index, which is
    the same on every rank of a pipeline. Outside the blocks: the embedding by its name, else the head (the final norm
    and the projection to the vocabulary)."""
    parts = name.split(".")
    for position, part in enumerate(parts[:-1]):
        if part.isdecimal():
            return ".".join(parts[: position + 1])
    embeds = any(word.startswith(_EMBEDDINGS) for part in parts for word in part.lower().split("_"))
    return EMBEDDING if embeds else HEAD


def layers_of(names: Iterable[str]) -> dict[str, str]:
    """{parameter's name: its layer}. A model without numbered blocks has its modules as layers: `fc1` for `fc1.bias`. A
    model of more than 1024 blocks has the two ends and everything between them as one, `blocks`."""
    layers = {name: layer_of(name) for name in names}
    if layers and set(layers.values()) <= {EMBEDDING, HEAD}:
        layers = {name: name.rpartition(".")[0] or name for name in layers}
    if len(set(layers.values())) > _MOST_LAYERS:
        return {name: layer if layer in (EMBEDDING, HEAD) else "blocks" for name, layer in layers.items()}
    return layers
