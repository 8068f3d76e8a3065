"""Makes every collective on a group of the training an error where trainer_hooks asks for it, and keeps a list.

Who asks is the innermost frame that is not torch's, deepspeed.comm's or accelerate's, which hand a call on.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any

import torch.distributed as dist
from torch.distributed import _functional_collectives as functional
from torch.distributed import distributed_c10d

import trainer_hooks

_HOOKS = str(Path(trainer_hooks.__file__).parent)
_ON = ("/torch/", "/deepspeed/comm/", "/accelerate/", "/typing_extensions.py", __file__)
_OF_THE_TRAINING = {("gpt/validation.py", "validation_loss"), ("gpt/__main__.py", "main")}
"""The reference trainer's own: the mean of its validation losses, and the barrier at its end."""
_HANDED_ON = (f"{_HOOKS}/sample/engine_calls.py", "hooked")
"""Calls the engine's own method, after the hook's."""
_NOT_COLLECTIVE = {"boxed", "unbox", "name", "rank", "size", "set_timeout", "get_group_store", "merge_remote_group"}

refused: list[str] = []
"""What trainer_hooks has asked for."""
asked_by: Counter[str] = Counter()
"""{whose file: collectives}, of all others."""


def forbid() -> None:
    """From here on, in this process."""
    group = dist.ProcessGroup
    names = [name for name, value in vars(group).items() if callable(value) and name[0].islower()]
    for name in set(names) - _NOT_COLLECTIVE:
        _watch(group, name)
    for name in ("_new_process_group_helper", "split_group"):
        _watch(distributed_c10d, name)
    for name, value in list(vars(functional).items()):
        if callable(value) and name.startswith(("all_", "reduce_scatter", "broadcast", "permute")):
            _watch(functional, name)


def _watch(owner: Any, name: str) -> None:
    call: Callable[..., Any] = getattr(owner, name)

    @wraps(call, assigned=("__name__", "__doc__"))
    def watched(*given: Any, **named: Any) -> Any:
        where, function, line = _who_asks()
        if where.startswith(_HOOKS):
            inside = where[len(_HOOKS) + 1 :]
            if (inside, function) not in _OF_THE_TRAINING:
                refused.append(f"{name} by {inside}:{line} in {function}")
                raise RuntimeError(refused[-1])
        asked_by[where.split("/site-packages/")[-1].split("/")[0]] += 1
        return call(*given, **named)

    setattr(owner, name, watched)


def _who_asks() -> tuple[str, str, int]:
    frame: Any = sys._getframe(2)
    while frame is not None:
        where = frame.f_code.co_filename
        function = frame.f_code.co_name
        if not (any(part in where for part in _ON) or where.startswith("<") or (where, function) == _HANDED_ON):
            return where, function, frame.f_lineno
        frame = frame.f_back
    return "", "", 0


def is_refused() -> bool:
    """Whether a collective that a file of trainer_hooks asks for is refused: what this rests on."""
    ask = compile(
        "import torch, torch.distributed as dist\ndist.all_reduce(torch.ones(1))", f"{_HOOKS}/hook.py", "exec"
    )
    try:
        exec(ask, {})  # noqa: S102
    except RuntimeError:
        return bool(refused.pop())
    return False
