"""random-LTD in a model: which layers (all of one class but the first and the last), how many tokens, on and off."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Protocol, runtime_checkable

import torch
from torch import nn

from sentinel.vocabulary.errors import CheckpointError, ConfigError
from trainer_hooks.random_ltd.layer import DataRank, DroppingForward, Turn
from trainer_hooks.random_ltd.routing import Routing, fastest
from trainer_hooks.sample.engine_calls import before
from trainer_hooks.sample.own import own


class LayerTokens:
    """Tokens seen by each layer, summed over samples and data-parallel ranks; exact."""

    def __init__(self, layers: int, consumed_tokens: int = 0) -> None:
        """`consumed_tokens`: of a run so far in which every layer saw all of them."""
        self._seen = [consumed_tokens] * layers

    @property
    def by_layer(self) -> tuple[int, ...]:
        """Of each layer, first to last."""
        return tuple(self._seen)

    @property
    def layer_tokens(self) -> int:
        """Summed over the layers; DeepSpeed's `consumed_layer_tokens`."""
        return sum(self._seen)

    @property
    def effective_tokens(self) -> Fraction:
        """Averaged over the layers: the tokens that the paper says were consumed. A whole number only by chance."""
        return Fraction(self.layer_tokens, len(self._seen))

    def add(self, *, samples: int, seqlen: int, kept: int | None = None, dropping: Collection[int] = ()) -> None:
        """`samples` of `seqlen` tokens each, on all ranks; of these the layers in `dropping` see `kept` at most."""
        less = seqlen if kept is None else min(kept, seqlen)
        for layer in range(len(self._seen)):
            self._seen[layer] += samples * (less if layer in dropping else seqlen)

    def state(self) -> list[int]:
        """For the checkpoint."""
        return list(self._seen)

    def load(self, state: Sequence[int]) -> None:
        """What `state` gave. CheckpointError when it is of a model with another number of layers."""
        if len(state) != len(self._seen):
            there = f"the model has {len(self._seen)}"
            raise CheckpointError(f"the checkpoint counts tokens of {len(state)} layers, {there}")
        self._seen = [int(count) for count in state]


@dataclass(frozen=True, slots=True, kw_only=True)
class Layers:
    """A model's layers of one class, numbered from 0 in their order."""

    count: int  # In the whole model, on all stages of a pipeline
    dropping: tuple[int, ...]  # Numbers of those that drop tokens, ascending
    here: dict[int, nn.Module]  # Number -> layer, of those of `dropping` that this process has

    @classmethod
    def of(cls, model: nn.Module, layer_class: type[nn.Module], chosen: Iterable[int] | None = None) -> Layers:
        """`chosen` numbers; None is all but the first and the last. ConfigError where there are none such."""
        found = [module for module in model.modules() if isinstance(module, layer_class)]
        count, here = len(found), dict(enumerate(found))
        if hasattr(model, "_layer_specs"):
            # DeepSpeed's PipelineModule: a stage builds its own layers only, named by their place in the whole stack
            specs: Iterable[Any] = model._layer_specs  # type: ignore[assignment]
            places = [str(place) for place, spec in enumerate(specs) if _builds(spec, layer_class)]
            children = dict(model.named_children())
            count, here = len(places), {n: children[place] for n, place in enumerate(places) if place in children}
        dropping = tuple(range(1, count - 1)) if chosen is None else tuple(sorted(set(chosen)))
        if not dropping:
            raise ConfigError(
                f"random-LTD has no layer to drop tokens in: the model has {count} of class {layer_class.__name__}, "
                f"and the first and the last see every token"
            )
        if dropping[0] < 0 or dropping[-1] >= count:
            raise ConfigError(f"random-LTD: layers {list(dropping)} should be numbers from 0 to {count - 1}")
        return cls(count=count, dropping=dropping, here={n: here[n] for n in dropping if n in here})


def _builds(spec: Any, layer_class: type[nn.Module]) -> bool:
    built = getattr(spec, "typename", None)
    return issubclass(built, layer_class) if isinstance(built, type) else isinstance(spec, layer_class)


@runtime_checkable
class KeptTokens(Protocol):
    """A schedule."""

    def kept_tokens(self, step: int) -> int:
        """Tokens of a sample that a dropping layer keeps in the step that makes update number `step`."""


Schedule = KeptTokens | Callable[[int], int]  # One with `kept_tokens`, or that function itself


def kept_at(schedule: Schedule) -> Callable[[int], int]:
    return schedule.kept_tokens if isinstance(schedule, KeptTokens) else schedule


class RandomLtd:
    """From its making to `remove`, the model's middle layers see a random subset of the tokens while it trains. In the
    loop: `begin` before each micro-batch, or before each step where the micro-batches are out of sight (pipelines). In
    eval mode, before the first `begin` and where the schedule keeps as many tokens as there are, every layer runs as if
    there were no random-LTD, to the bit."""

    def __init__(
        self,
        model: nn.Module,
        layer_class: type[nn.Module],
        schedule: Schedule,
        *,
        seed: int,
        data_rank: DataRank | None = None,
        layers: Iterable[int] | None = None,
        batch_first: bool = True,
        axes: Mapping[str, tuple[int, ...]] | None = None,
        routing: Routing | None = None,
    ) -> None:
        """`layers`: numbers of those that drop, from 0; None is all but the first and the last. `batch_first`: hidden
        states are (B, T, …); False is Megatron's (T, B, …). `axes`: what arguments.py can't tell by itself. `routing`:
        DeepSpeed's op where the layers are on CUDA and it can be used, else plain torch."""
        self._kept_at = kept_at(schedule)
        self._turn = Turn(seed=seed, data_rank=data_rank or DataRank())
        self.layers = Layers.of(model, layer_class, layers)
        devices = (p.device for layer in self.layers.here.values() for p in layer.parameters())
        self._routing = routing or fastest(next(devices, torch.device("cpu")))
        for number, layer in self.layers.here.items():
            if isinstance(vars(layer).get("forward"), DroppingForward):
                raise ConfigError(f"layer {number} has random-LTD already: remove() it first")
            DroppingForward(layer, number, self._turn, self._routing, batch_first=batch_first, axes=dict(axes or {}))

    def begin(self, step: int, micro_batch: int | None = None) -> None:
        """The step that makes update number `step` begins, or micro-batch `micro_batch` (from 0) of it does. Without
        micro_batch each layer counts its own forward passes of the step."""
        kept = self._kept_at(step)
        if kept < 1:
            raise ConfigError(f"random-LTD's schedule keeps {kept} tokens at step {step}: at least 1 should stay")
        self._turn.step, self._turn.kept, self._turn.micro_batch = step, kept, micro_batch

    def kept_tokens(self, seqlen: int) -> int:
        """Of a sample of `seqlen` tokens, how many a dropping layer sees in the step that has begun."""
        return self._turn.kept_of(seqlen)

    def count(self, tokens: LayerTokens, *, samples: int, seqlen: int) -> None:
        """Adds what the step's `samples` (on all ranks) of `seqlen` tokens are to each layer."""
        tokens.add(samples=samples, seqlen=seqlen, kept=self._turn.kept, dropping=self.layers.dropping)

    def follow(self, engine: Any) -> None:
        """Has the engine itself begin every step, for a loop that is not to be changed. After deepspeed.initialize. A
        pipeline's steps begin in train_batch; any other engine's micro-batches in its forward."""
        if own(engine, "is_pipe_parallel", False):
            before(engine, "train_batch", lambda *_, **__: self.begin(engine.global_steps + 1))
            return

        def begin(*_: Any, **__: Any) -> None:
            self.begin(engine.global_steps + 1, engine.micro_steps % engine.gradient_accumulation_steps())

        before(engine, "forward", begin)

    def remove(self) -> None:
        """Gives every layer its own forward back; the calls that `follow` has set up then change nothing."""
        for layer in self.layers.here.values():
            dropping = vars(layer).get("forward")
            if isinstance(dropping, DroppingForward):
                dropping.give_way()
