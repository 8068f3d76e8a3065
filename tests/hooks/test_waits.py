"""What the hook asks of a device in each of its calls: no number is waited for, and nothing is copied to the device.

On a CPU every tensor stands for one on a device, but those that were brought to the host by `to_host`. A host that asks
for a number (item, float, int, bool, tolist, nonzero, a comparison of whole tensors) would wait for the device.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from tests.hooks.alone import Training
from trainer_hooks import attach
from trainer_hooks.hook import Hook
from trainer_hooks.sample import hyperparameters, meter, reading, to_host
from trainer_hooks.sample.one_pass import native

ASKS = {
    *("item", "tolist", "numpy", "cpu", "nonzero", "equal", "allclose", "is_nonzero"),
    *("__bool__", "__float__", "__int__", "__index__", "__array__", "__contains__"),
}
CREATES = {"tensor", "as_tensor", "from_numpy", "zeros"}

ON_HOST: dict[int, Tensor] = {}


def _brought(tensor: Tensor) -> Tensor:
    """As a copy into pinned memory: on the host from now on."""
    copy = tensor.clone()
    ON_HOST[id(copy)] = copy
    return copy


class Watched(TorchFunctionMode):
    """Counts, by name, what the host would wait for, and what would be copied to a device."""

    def __init__(self) -> None:
        super().__init__()
        self.waits: Counter[str] = Counter()
        self.copies: Counter[str] = Counter()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(func, "__name__", str(func))
        kwargs = kwargs or {}
        asked = args[0] if args and isinstance(args[0], Tensor) else None
        if name in ASKS and asked is not None and id(asked) not in ON_HOST:
            self.waits[name] += 1
        if (name in CREATES and kwargs.get("device") is not None) or (name in ("to", "cuda") and len(args) > 1):
            self.copies[name] += 1
        made = func(*args, **kwargs)
        if name in CREATES and kwargs.get("device") is None and isinstance(made, Tensor) and made is not asked:
            ON_HOST[id(made)] = made
        given = [t for t in tree_leaves((args, kwargs)) if isinstance(t, Tensor)]
        if isinstance(made, Tensor) and given and all(id(t) in ON_HOST for t in given):
            ON_HOST[id(made)] = made  # what is made of numbers on the host is on the host
        return made


class Dispatched(TorchDispatchMode):
    """What torch itself asks for within an operation."""

    def __init__(self) -> None:
        super().__init__()
        self.waits: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = str(func).split(".")[1]
        asked = args[0] if args and isinstance(args[0], Tensor) else None
        if name in ("_local_scalar_dense", "nonzero", "is_nonzero", "equal") and id(asked) not in ON_HOST:
            self.waits[name] += 1
        return func(*args, **(kwargs or {}))


def _watched(hook: Hook, calls: dict[str, list[Counter[str]]]) -> None:
    """From now on each call of the hook leaves what it waited for, and what it copied."""
    for name in ("loss_seen", "batch_seen", "report_logits", "update_coming", "step_made", "load_coming"):
        method = getattr(hook, name)

        def call(*args: Any, _method: Any = method, _name: str = name, **kwargs: Any) -> Any:
            with Watched() as seen, Dispatched() as within:
                answer = _method(*args, **kwargs)
            waits = max(seen.waits, within.waits, key=lambda counted: counted.total())
            calls.setdefault(_name, []).append(waits + seen.copies)
            return answer

        setattr(hook, name, call)


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every tensor is on a device, but those of ON_HOST."""
    ON_HOST.clear()

    def on_device(number: Any) -> bool:
        return isinstance(number, Tensor) and id(number) not in ON_HOST

    for module in (to_host, hyperparameters, meter, reading):
        monkeypatch.setattr(module, "on_device", on_device)
    monkeypatch.setattr(to_host, "_begun_to_copy", _brought)


OPTIMIZERS = {
    "AdamW, fused": lambda p: torch.optim.AdamW(p, fused=True),
    "AdamW, lr a tensor": lambda p: torch.optim.AdamW(p, lr=torch.tensor(1e-3), fused=True),
    "Adam, betas tensors": lambda p: torch.optim.Adam(p, lr=torch.tensor(1e-3), fused=True, weight_decay=0.1),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.usefixtures("device")
def test_no_call_waits_for_the_device_or_copies_to_it_but_the_first_layered_step(name: str, tmp_path: Path) -> None:
    assert native.kernel() is not None  # compiled, and checked against float64, once in a process
    training = Training(make=OPTIMIZERS[name])
    engine: Any = training.engine
    engine.watched_by = lambda _: None
    samples: list[Any] = []
    hook = attach(engine, state_dir=tmp_path, interval_steps=2, on_sample=samples.append)
    calls: dict[str, list[Counter[str]]] = {}
    _watched(hook, calls)
    lengths = torch.randint(8, 3000, (20,), generator=torch.Generator().manual_seed(1)).tolist()
    for step in range(8):
        for micro in range(2):
            hook.batch_seen(torch.ones(4, lengths[2 * step + micro], dtype=torch.int64))  # dynamic padding
            loss = training.forward()
            hook.report_logits(output=loss.detach().expand(3, 4), attention=lambda: torch.ones(5))
            hook.loss_seen(loss, of_many=False)
            loss.backward()
        hook.gradients_whole()
        hook.update_coming()
        training.optimizer.step()
        training.optimizer.zero_grad()
        engine.global_steps += 1
        hook.step_made()
    hook.load_coming()
    hook.close("finished")
    assert hook.errors == 0
    assert {call: sum(counts, Counter()) for call, counts in calls.items() if call != "step_made"} == {
        call: Counter() for call in calls if call != "step_made"
    }
    made = calls["step_made"]
    assert [sum(counted.values()) for counted in made] == [0, ONCE, 0, 0, 0, 0, 0, 0], made
    assert [sample.global_step for sample in samples] == list(range(1, 9))
    assert all(sample.lr == pytest.approx(1e-3) for sample in samples)
    assert samples[1].update_norm > 0
    assert samples[7].batch_digest > 0


ONCE = 1
"""The count of Adam's updates where it lies on the device: HOOKS names it."""


@pytest.mark.usefixtures("device")
def test_the_counter_sees_what_the_host_asks_for() -> None:
    there = torch.ones(3)
    with Watched() as seen, Dispatched() as within:
        float(there.sum())
        there.tolist()
        torch.tensor([1.0], device="cpu")
        there.nonzero()
        float(_brought(there.sum()))
    assert seen.waits == Counter({"__float__": 1, "tolist": 1, "nonzero": 1})
    assert within.waits["nonzero"] == 1
    assert seen.copies == Counter({"tensor": 1})
