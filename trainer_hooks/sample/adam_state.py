"""Where Adam's state lies on this rank, which layer each run of its elements belongs to, and how much of it is read."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from zlib import crc32

import torch
from torch import Tensor

from trainer_hooks.sample.hyperparameters import Group, Hyperparameters, largest
from trainer_hooks.sample.one_pass import AdamConstants, Piece, identity, why_unreadable
from trainer_hooks.sample.owners import Owner, inner_optimizers, local, numbers_of_groups, one_per_parameter, owners_of
from trainer_hooks.sample.replicas import Replicas

_NUMBERS = (torch.float32, torch.bfloat16, torch.float16, torch.float64)


@dataclass(slots=True)
class Found:
    """What one look at the state has found."""

    pieces: list[Piece] = field(default_factory=list)  # every element that is read, once
    elements: float = 0.0  # of trainable parameters that are read, or whose v is 0; by share
    missing: Counter[str] = field(default_factory=Counter)  # {why: of how many tensors v is not read}


class AdamState:
    """The state of an engine's Adam on this rank, looked up anew when its tensors are no longer the same. Between two
    looks nothing of it is kept alive.

    A trainable parameter's v counts as read where it is read, and where it is 0 because Adam has made no state so far:
    torch's makes one at a parameter's first gradient (an expert that no token has reached, a head that is not used).
    A parameter that had a gradient in an update and has no state after it has one elsewhere: it is not read. Frozen
    parameters have no v; a state that one has from earlier is read, and counts as nothing here.
    """

    def __init__(self, engine: Any, names: Mapping[int, str], layers: Mapping[str, str], replicas: Replicas) -> None:
        self._engine = engine
        self._names = names  # {id of a model's parameter: its name}
        self._layers = {number: layers[name] for number, name in names.items()}
        self._replicas = replicas
        self._hyperparameters = Hyperparameters(engine)
        self._seen: list[Any] | None = None  # identities of v as of the last look
        self._seen_beside: list[Any] = []
        self._groups: dict[int, Group] = {}  # {id of what is updated: its group}, of what is read
        self._stateless: list[tuple[int, Any]] = []  # (id, parameter), without a state as of the last look
        self._had_gradient: set[int] = set()  # ids of those that had a gradient in the update under way
        self._elsewhere: set[int] = set()  # ids of those that had one in an update, and no state after it
        self._knows = True  # whether the optimizer's tensors are the model's, or are known by a wrapping optimizer
        self._updates = 0
        self.owned = 0.0
        """Elements of the model's trainable parameters by share: over all ranks, of the whole model."""
        self.elements = 0.0
        """Of these, those whose v is known: over all ranks `owned`, where all of v is read."""
        self.missing: Counter[str] = Counter()
        """{why: of how many of this rank's tensors v is not read}."""

    @property
    def updates(self) -> int:
        """That were applied, since the run began."""
        return self._hyperparameters.updates()

    @property
    def there(self) -> bool:
        """Whether the optimizer has a v, read or not."""
        return bool(self._seen)

    def look(self, *, whole: bool = False) -> list[Piece] | None:
        """Looks at v, or at m and the parameters too. None where all is as it was at the last look; else all pieces,
        which the caller must not keep: none before the first update that was not skipped, others after a load."""
        seen, late = self._identities(), self._without_state_despite_a_gradient()
        if seen == self._seen and not late and (not whole or self._beside() == self._seen_beside):
            return None
        self._hyperparameters.state_changed()
        found = self._look_up()
        self.elements, self.missing = found.elements, found.missing
        self.owned = sum(self._replicas.owned(p) for p in self._engine.module.parameters() if p.requires_grad)
        self._seen, self._seen_beside = seen, self._beside()
        return found.pieces

    def step(self) -> Any:
        """The largest count of updates that Adam has for a parameter here: a number or a tensor; None: it has none."""
        counts = [state["step"] for _, _, state in self._states() if state.get("step") is not None]
        return largest(counts) if counts else None

    def update_coming(self) -> None:
        """Before each update."""
        self._updates = self.updates
        self._had_gradient = {number for number, p in self._stateless if p.grad is not None}
        self._hyperparameters.update_coming()

    def constants(self) -> list[AdamConstants]:
        """What each group's last update was made with, as the pieces' `group` counts."""
        states: dict[Group, list[Mapping[str, Any]]] = {}
        for _, master, state in self._states():
            if (group := self._groups.get(id(master))) is not None:
                states.setdefault(group, []).append(state)
        return self._hyperparameters.of(states)

    def _without_state_despite_a_gradient(self) -> bool:
        """Whether an update was applied that should have made a state; one that was skipped has seen no gradient."""
        if self.updates == self._updates:
            return False
        late, self._had_gradient = self._had_gradient, set()
        self._elsewhere |= late
        return bool(late)

    def _identities(self) -> list[Any]:
        return [identity(local(state["exp_avg_sq"])) for _, _, state in self._states()]

    def _beside(self) -> list[Any]:
        pairs = ((local(state.get("exp_avg")), local(master)) for _, master, state in self._states())
        return [identity(t) for pair in pairs for t in pair if isinstance(t, Tensor)]

    def _states(self) -> Iterator[tuple[Any, Any, Mapping[str, Any]]]:
        """(optimizer, what it updates, the state of that) wherever there is a v."""
        for optimizer in inner_optimizers(self._engine.optimizer):
            for master, state in optimizer.state.items():
                if state.get("exp_avg_sq") is not None:
                    yield optimizer, master, state

    def _look_up(self) -> Found:
        wrapper = self._engine.optimizer
        optimizers = list(inner_optimizers(wrapper))
        groups, owners, found = numbers_of_groups(optimizers, wrapper), dict(owners_of(wrapper)), Found()
        self._groups, numbers = {}, dict[Group, int]()
        self._knows = bool(owners) or any(number in self._layers for number in groups)
        for at, optimizer in enumerate(optimizers):
            for master, state in optimizer.state.items():
                if not state:
                    continue
                own = owners.pop(id(master), None) or [Owner(0, local(master).numel(), master)]
                elements = sum(self._counted(owner) for owner in own)
                if (why := _why_not_read(state, own)) is not None:
                    found.missing[why] += bool(elements)
                    continue
                group = groups.get(id(master), (at, 0))
                self._groups[id(master)] = group
                found.pieces += self._pieces(master, state, own, numbers.setdefault(group, len(numbers)))
                found.elements += elements
        self._look_for_the_stateless(optimizers, owners, found)
        found.missing = +found.missing  # without what does not count
        return found

    def _look_for_the_stateless(self, optimizers: Sequence[Any], owners: dict[int, list[Owner]], found: Found) -> None:
        """`owners`: of what has no state, by a wrapping optimizer. Without one, the parameters of the groups."""
        if not hasattr(self._engine.optimizer, "optimizer"):
            masters = [m for o in optimizers for g in o.param_groups for m in g["params"] if not o.state.get(m)]
            owners = {id(m): [Owner(0, local(m).numel(), m)] for m in masters}
        lazy = one_per_parameter(self._engine.optimizer)
        self._stateless = []
        for own in owners.values():
            elements = sum(self._counted(owner) for owner in own)
            if not lazy or any(id(owner.parameter) in self._elsewhere for owner in own):
                found.missing["has no state in the optimizer"] += bool(elements)
            else:
                found.elements += elements
                self._stateless += [(id(owner.parameter), owner.parameter) for owner in own]

    def _counted(self, owner: Owner) -> float:
        """Elements that count as read, by share: of trainable parameters; of the model's, where they are known."""
        if not owner.parameter.requires_grad or (self._knows and id(owner.parameter) not in self._layers):
            return 0.0
        return owner.size * self._replicas.share(owner.parameter)

    def _pieces(self, master: Any, state: Mapping[str, Any], own: Sequence[Owner], group: int) -> Iterator[Piece]:
        v = local(state["exp_avg_sq"])
        for run in self._runs(own):
            tensors = (v, state.get("exp_avg"), master)
            start, size, parameter = run[0].start, sum(owner.size for owner in run), run[0].parameter
            vs, ms, ps = (_run(local(t), v.numel(), start, size) for t in tensors)
            if vs is not None:
                layer, share = self._kind(parameter)
                key = crc32(";".join(map(self._described, run)).encode())
                yield Piece(exp_avg_sq=vs, exp_avg=ms, parameter=ps, group=group, layer=layer, share=share, key=key)

    def _runs(self, owners: Sequence[Owner]) -> Iterator[list[Owner]]:
        """What has an owner; neighbours of one kind are one run."""
        run: list[Owner] = []
        for owner in sorted(owners, key=lambda o: o.start):
            follows = run and owner.start == run[-1].start + run[-1].size
            if run and not (follows and self._kind(owner.parameter) == self._kind(run[0].parameter)):
                yield run
                run = []
            if owner.size:
                run.append(owner)
        if run:
            yield run

    def _described(self, owner: Owner) -> str:
        """Which elements of a parameter these are, in which order."""
        parameter = owner.parameter
        cut = getattr(parameter, "placements", "")  # of a DTensor
        here = local(parameter)
        order = "" if here.is_contiguous() else here.stride()
        return f"{self._names.get(id(parameter))} {owner.offset} {owner.size} {cut} {order}"

    def _kind(self, parameter: Any) -> tuple[str | None, float]:
        """(layer, share)."""
        return self._layers.get(id(parameter)), self._replicas.share(parameter)


def _why_not_read(state: Mapping[str, Any], own: Sequence[Owner]) -> str | None:
    """Why no v of these owners is read, as the end of "it …"; None where all of it is."""
    v, needed = local(state.get("exp_avg_sq")), max((owner.start + owner.size for owner in own), default=0)
    if v is None:
        return f"has no exp_avg_sq, but {', '.join(sorted(map(str, state))) or 'nothing'}"
    if (why := why_unreadable(v)) is not None:
        return why
    if v.dtype not in _NUMBERS:
        return f"is of {v.dtype}, which holds no v without a scale"
    if v.numel() < needed:
        return "is empty: swapped out" if not v.numel() else "is shorter than its parameters"
    return None if _run(v, v.numel(), 0, 0) is not None else "is not dense in memory"


def _run(tensor: Any, whole: int, start: int, size: int) -> Tensor | None:
    """A run of a tensor's elements as they lie in memory, as a view; None where it is no plain dense tensor as long as
    v."""
    if not isinstance(tensor, Tensor) or tensor.numel() != whole or why_unreadable(tensor) is not None:
        return None
    flat = tensor.detach()
    if not flat.is_contiguous():  # channels_last and the like: v, m and the parameter are laid out alike
        if 1 + sum((n - 1) * stride for n, stride in zip(flat.shape, flat.stride(), strict=True)) != whole:
            return None
        flat = flat.as_strided((whole,), (1,))
    return flat.view(-1)[start : start + size]
