"""One layer's forward with random-LTD, in place of the layer's own. No module is wrapped around the layer: it keeps its
class, its hooks (ZeRO 3 gathers the parameters in them) and its names in checkpoints."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from sentinel.vocabulary.errors import ConfigError
from trainer_hooks.random_ltd.draw import kept_indices, layer_key
from trainer_hooks.random_ltd.routing import Routing
from trainer_hooks.sample.own import own

_LEFT_ALONE = ("encoder_", "past_key_value", "layer_past", "inference_params")


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """One layer's kept tokens in one micro-batch, and what of its other arguments goes with them: masks and positions.

    By shape, and by the argument's name where a shape is ambiguous; B samples, T tokens, b is 1 or B:

    | argument | shape | gathered |
    |---|---|---|
    | with "mask" or "bias" in its name | (b, T), (b, …, 1, T) | the last axis |
    | | (b, …, T, T) | the last two, so that a causal mask stays right and padding stays masked |
    | any other (position ids, rotary cos and sin, a second stream) | (b, T, …) | the second axis |
    | | (b, h, T, …) | the third |
    | | (T, b, …) where the batch comes second | the first |
    | `cache_position` | (T,) | the first r: places in a cache, not positions |

    A tuple, list or dict is gone through. What has no axis of T tokens, what is None, a flag or a number, what belongs
    to an encoder, and a cache stay as they are. What can't be one subset for each sample is refused.
    """

    indices: Tensor  # (B, r) int64, ascending in each row
    seqlen: int  # T
    batch_first: bool
    # Argument's name -> its axes of T tokens, where the caller knows better than the table; () leaves it alone.
    axes: Mapping[str, tuple[int, ...]]

    def of(self, name: str, value: Any) -> Any:
        """What the layer is given instead of that argument."""
        if name.startswith(_LEFT_ALONE):
            return value
        if isinstance(value, Tensor):
            if name == "cache_position" and value.ndim == 1:
                return value[: self.indices.shape[1]]
            for axis in self.axes[name] if name in self.axes else self._axes(name, value):
                value = self._along(value, axis % value.ndim)
            return value
        if type(value) in (tuple, list):
            return type(value)(self.of(name, part) for part in value)
        if type(value) is dict:
            return {key: self.of(str(key), part) for key, part in value.items()}
        if "mask" in name and value is not None and not isinstance(value, bool | int | float | str):
            raise ConfigError(f"random-LTD can't gather {name}, a {type(value).__name__}: give the mask as a tensor")
        return value

    def _axes(self, name: str, x: Tensor) -> tuple[int, ...]:
        if self.seqlen not in x.shape:
            return ()
        if "mask" in name or "bias" in name:
            return self._of_mask(name, x)
        if x.ndim >= 2:
            of_batch = (1, self.indices.shape[0])
            if x.shape[1] == self.seqlen and x.shape[0] in of_batch:
                return (1,)
            if not self.batch_first and x.shape[0] == self.seqlen and x.shape[1] in of_batch:
                return (0,)
            if x.ndim >= 3 and x.shape[2] == self.seqlen and x.shape[0] in of_batch:
                return (2,)
        if x.ndim <= 2 and x.shape[0] == self.seqlen:
            raise self._refusal(name, x, "positions should have an axis for the samples, as (1, T, …)")
        return ()

    def _of_mask(self, name: str, x: Tensor) -> tuple[int, ...]:
        if x.shape[-1] != self.seqlen:
            return ()
        if x.ndim < 2 or x.shape[0] not in (1, self.indices.shape[0]):
            raise self._refusal(name, x, "a mask should begin with an axis for the samples, as (1, 1, T, T)")
        return (-2, -1) if x.ndim >= 3 and x.shape[-2] == self.seqlen else (-1,)

    def _refusal(self, name: str, x: Tensor, advice: str) -> ConfigError:
        return ConfigError(
            f"random-LTD keeps other tokens of each sample, and {name} of shape {tuple(x.shape)} is one for all: "
            f"{advice}"
        )

    def _along(self, x: Tensor, axis: int) -> Tensor:
        samples = self.indices.shape[0]
        if axis == 0:  # (T, b, …)
            x = x.expand(x.shape[0], samples, *x.shape[2:])
            return x[self.indices.t(), torch.arange(samples, device=x.device)]
        x = x.expand(samples, *x.shape[1:]).movedim(axis, 1)
        return x[torch.arange(samples, device=x.device)[:, None], self.indices].movedim(1, axis)


@dataclass(frozen=True, slots=True, kw_only=True)
class DataRank:
    """Of data parallelism. The ranks of a tensor-parallel group have one and the same: they hold the same samples."""

    rank: int = 0
    size: int = 1

    @classmethod
    def of(cls, engine: Any, mpu: Any = None) -> DataRank:
        """As the model-parallel unit (Megatron's, or DeepSpeed's pipeline grid) tells; else every rank has its own."""
        unit: Any
        for unit in (mpu, own(engine, "mpu"), own(engine, "grid")):
            if hasattr(unit, "get_data_parallel_rank"):  # an engine passes on attributes of the user's model, too
                return cls(rank=unit.get_data_parallel_rank(), size=unit.get_data_parallel_world_size())
        if not dist.is_initialized():
            return cls()
        return cls(rank=dist.get_rank(), size=dist.get_world_size())

    def first_sample(self, micro_batch: int, samples: int) -> int:
        """Number in the step's global batch of the first of the micro-batch's `samples` on this rank. Numbered by
        micro-batch, then by rank, so a sample's draw is the same on any number of ranks and at any micro-batch."""
        return (micro_batch * self.size + self.rank) * samples


@dataclass(slots=True, kw_only=True)
class Turn:
    """One step, and where the loop says so one micro-batch of it."""

    seed: int
    data_rank: DataRank
    step: int = 0  # Number of the update that is being made, the first is 1; 0 before any `begin`
    kept: int | None = None  # Tokens that a dropping layer keeps of each sample; None before any `begin`: all
    micro_batch: int | None = None  # Its number within the step, from 0; None where each layer counts

    def kept_of(self, seqlen: int) -> int:
        """Tokens of a sample of `seqlen` tokens that a dropping layer keeps."""
        return seqlen if self.kept is None else min(self.kept, seqlen)


class MicroBatchCount:
    """Counts one layer's micro-batches in a step, where the loop does not name them: inside a pipeline. A
    recomputation (activation checkpointing, in the backward pass) belongs to the earliest micro-batch that has not been
    recomputed: backward passes come in the order of the forward ones, in a plain loop and in DeepSpeed's 1F1B."""

    def __init__(self) -> None:
        self._step = self._forwards = self._recomputed = 0

    def next(self, step: int) -> int:
        """The number, from 0, of the micro-batch that the layer is called for now."""
        if step != self._step:
            self._step, self._forwards, self._recomputed = step, 0, 0
        if torch._C._current_graph_task_id() != -1:  # autograd is running here: torch.utils.checkpoint asks so too
            self._recomputed += 1
            return self._recomputed - 1
        self._forwards += 1
        return self._forwards - 1


class DroppingForward:
    """Called instead of the layer's forward; the first argument is the hidden states, (B, T, …) or (T, B, …)."""

    def __init__(
        self,
        layer: nn.Module,
        number: int,
        turn: Turn,
        routing: Routing,
        *,
        batch_first: bool,
        axes: Mapping[str, tuple[int, ...]],
    ) -> None:
        self._layer, self._number, self._turn, self._routing = layer, number, turn, routing
        self._batch_first, self._axes = batch_first, axes
        self._forward = layer.forward
        self._before = vars(layer).get("forward")  # where other code has put one into the instance
        self._names = list(inspect.signature(layer.forward).parameters)
        self._count = MicroBatchCount()
        vars(layer)["forward"] = self  # where the layer's forward is looked up first

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        turn = self._turn
        if not self._layer.training or turn.kept is None:
            return self._forward(*args, **kwargs)
        micro_batch = self._count.next(turn.step) if turn.micro_batch is None else turn.micro_batch
        hidden = args[0] if args else kwargs.get(self._names[0])
        if not isinstance(hidden, Tensor) or hidden.ndim < 3:
            raise ConfigError(
                f"random-LTD: {type(self._layer).__name__} should be given its hidden states first, a tensor (B, T, C)"
            )
        samples, seqlen = hidden.shape[:2] if self._batch_first else (hidden.shape[1], hidden.shape[0])
        if turn.kept >= seqlen:
            return self._forward(*args, **kwargs)
        first = turn.data_rank.first_sample(micro_batch, samples)
        key = layer_key(turn.seed, turn.step, self._number)
        indices = kept_indices(key, first, samples, seqlen, turn.kept, hidden.device)
        bypass, kept = self._routing.gather(hidden, indices, self._batch_first)
        along = Selection(indices=indices, seqlen=seqlen, batch_first=self._batch_first, axes=self._axes)
        others = {name: along.of(name, value) for name, value in kwargs.items() if args or name != self._names[0]}
        names = (*self._names[: len(args)], *(f"argument {place}" for place in range(len(self._names), len(args))))
        rest = [along.of(name, value) for name, value in zip(names[1:], args[1:], strict=True)]
        out = self._forward(kept, *rest, **others)
        if isinstance(out, Tensor):
            return self._routing.scatter(bypass, out, indices, self._batch_first)
        if type(out) is tuple and isinstance(out[0], Tensor):
            return (self._routing.scatter(bypass, out[0], indices, self._batch_first), *out[1:])
        raise ConfigError(
            f"random-LTD: {type(self._layer).__name__} gives back a {type(out).__name__}, and not hidden states"
        )

    def give_way(self) -> None:
        del vars(self._layer)["forward"]
        if self._before is not None:
            vars(self._layer)["forward"] = self._before
