"""A hook under observation: what surrounds its calls within a training step, and the engine without it."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch

__all__ = ["CALLS", "around", "as_it_was", "logits_to", "waits_by_profiler", "waits_by_torch"]

CALLS = ("loss_seen", "batch_seen", "report_logits", "update_coming", "step_made")
"""All that a step calls of the hook."""

_WAITING = frozenset({"cudaDeviceSynchronize", "cudaStreamSynchronize", "cudaEventSynchronize", "cudaMemcpy"})

_SPAN = "sentinel hook"


@contextmanager
def around(hook: Any, enter: Callable[[str], Callable[[], None]]) -> Iterator[None]:
    """Calls `enter(name)` before each of the hook's methods, and what that has returned after it."""

    def surrounded(name: str, method: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            leave = enter(name)
            try:
                return method(*args, **kwargs)
            finally:
                leave()

        return call

    for name in CALLS:
        setattr(hook, name, surrounded(name, getattr(hook, name)))
    try:
        yield
    finally:
        for name in CALLS:
            delattr(hook, name)  # the class's own shows again


@contextmanager
def as_it_was(engine: Any, before: Mapping[str, Any]) -> Iterator[None]:
    """The engine's own methods where a hook has put something around them. `before`: vars(engine) as they were."""
    now = vars(engine)
    put = {name: value for name, value in now.items() if callable(value) and before.get(name) is not value}
    for name in put:
        if name in before:
            now[name] = before[name]
        else:
            del now[name]
    try:
        yield
    finally:
        now.update(put)


def logits_to(hook: Any) -> Callable[..., None]:
    """What a model reports its logits to; the hook's method is looked up at each call, since `around` replaces it."""

    def report(**given: Any) -> None:
        hook.report_logits(**given)

    return report


def waits_by_torch(hook: Any, steps: Callable[[], None]) -> int:
    """Operations of the hook's for which torch made the host wait for CUDA, in some steps."""
    counted = 0

    def enter(_: str) -> Callable[[], None]:
        heard = warnings.catch_warnings(record=True)
        said = heard.__enter__()
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")

        def leave() -> None:
            nonlocal counted
            torch.cuda.set_sync_debug_mode("default")
            heard.__exit__(None, None, None)
            counted += sum("synchroniz" in str(warning.message) for warning in said)

        return leave

    with around(hook, enter):
        steps()
    return counted


def waits_by_profiler(hook: Any, steps: Callable[[], None]) -> int:
    """Calls within the hook's that wait for CUDA, as the driver's own trace has them, in some steps."""
    from torch.autograd import DeviceType
    from torch.profiler import ProfilerActivity, profile, record_function

    def enter(_: str) -> Callable[[], None]:
        span = record_function(_SPAN)
        span.__enter__()
        return lambda: span.__exit__(None, None, None)

    on_cuda = [ProfilerActivity.CUDA] if torch.cuda.is_available() else []
    with profile(activities=[ProfilerActivity.CPU, *on_cuda]) as profiled, around(hook, enter):
        steps()
    # a span has a second event by the device's own clock, from the first of its kernels to the last
    events = [e for e in profiled.events() or [] if e.device_type == DeviceType.CPU]
    spans = [(e.time_range.start, e.time_range.end) for e in events if e.name == _SPAN]
    if not spans:
        raise RuntimeError("the profiler has no span of the hook's: its waits can't be counted")
    waits = [e.time_range.start for e in events if e.name in _WAITING]
    return sum(start <= wait < end for wait in waits for start, end in spans)
