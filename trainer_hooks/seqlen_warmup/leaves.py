"""The tensors of a batch, however it is nested, and where each of them lies.

A path is the keys, field names and indices from the outside in, joined by dots: `0.position_ids`; of a batch that is
one tensor it is empty.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from typing import Any

from torch import Tensor

__all__ = ["changed", "tensors"]


def tensors(batch: Any, path: str = "") -> Iterator[tuple[str, Tensor]]:
    """Every (path, tensor) of the batch, in its order."""
    if isinstance(batch, Tensor):
        yield path, batch
    for name, part in _parts(batch):
        yield from tensors(part, _below(path, name))


def changed(batch: Any, change: Callable[[str, Tensor], Tensor], path: str = "") -> Any:
    """The same batch with each tensor changed; what is no tensor and holds none is the same object."""
    if isinstance(batch, Tensor):
        return change(path, batch)
    parts = {name: changed(part, change, _below(path, name)) for name, part in _parts(batch)}
    if isinstance(batch, Mapping):
        return _mapping(batch, parts)
    if isinstance(batch, tuple):
        made = parts.values()
        return type(batch)(*made) if hasattr(batch, "_fields") else type(batch)(made)
    if isinstance(batch, list):
        return type(batch)(parts.values())
    if dataclasses.is_dataclass(batch) and not isinstance(batch, type):
        made_anew = copy.copy(batch)
        for name, value in parts.items():
            object.__setattr__(made_anew, name, value)  # a frozen one too: nobody else has seen the copy
        return made_anew
    return batch


def _parts(batch: Any) -> list[tuple[Any, Any]]:
    if isinstance(batch, Mapping):
        return [(key, batch[key]) for key in batch]
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return list(zip(batch._fields, batch, strict=True))
    if isinstance(batch, list | tuple):
        return list(enumerate(batch))
    if dataclasses.is_dataclass(batch) and not isinstance(batch, type):
        return [(f.name, getattr(batch, f.name)) for f in dataclasses.fields(batch)]
    return []


def _mapping(batch: Mapping[Any, Any], parts: dict[Any, Any]) -> Any:
    """Of the batch's own type where that can be written to: transformers' BatchEncoding stays one."""
    if not isinstance(batch, MutableMapping):
        return parts
    made = copy.copy(batch)
    for key, value in parts.items():
        made[key] = value
    return made


def _below(path: str, name: object) -> str:
    return f"{path}.{name}" if path else str(name)
