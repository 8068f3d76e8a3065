"""Which axes of a batch's tensors are sequence axes.

Found from the full length F, in targets per sample: an axis of F is one, and so is one of F + 1, a row that holds its
inputs and its targets. What could be read in two ways is refused: the caller states it by its path.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping, Sequence
from typing import Any

from torch import Tensor

from sentinel.vocabulary.errors import ConfigError

Axes = Mapping[str, Sequence[int]]  # {path or last name of a tensor: its sequence axes}; () leaves it alone


def axes_of(leaves: Sequence[tuple[str, Tensor]], *, full: int, given: Axes) -> tuple[int, dict[str, tuple[int, ...]]]:
    """Of (path, tensor) pairs: B, the samples, and by path each tensor's sequence axes, ascending; () is left alone.
    ConfigError where no tensor has a sequence axis, or a shape does not tell."""
    stated = {path: given.get(path, given.get(path.rpartition(".")[2])) for path, _ in leaves}
    rows = _rows([(path, leaf) for path, leaf in leaves if stated[path] is None], full)
    if rows is None:  # the caller states the axes of all of them
        sizes = (
            n for path, leaf in leaves if (axes := stated[path]) for i, n in enumerate(leaf.shape) if i not in axes
        )
        rows = next(sizes, 1)
    by_path = {}
    for path, leaf in leaves:
        axes = stated[path]
        by_path[path] = _found(path, leaf, full=full, rows=rows) if axes is None else tuple(sorted(axes))
    if not any(by_path.values()):
        shapes = ", ".join(f"{path or 'batch'} {tuple(leaf.shape)}" for path, leaf in leaves) or "no tensor"
        raise ConfigError(f"no axis of {full} or {full + 1} tokens in the batch ({shapes}): give `full` or `axes`")
    return rows, by_path


def _found(path: str, leaf: Tensor, *, full: int, rows: int) -> tuple[int, ...]:
    """(B, T), (1, T), (B, T, C): axis 1. (B, 1, T, T), (1, 1, T, T), (T, T), (B, T, T) of bool or whole numbers: both.
    (B, 1, 1, T): the last. (T,): its only one. (T, C), a table or a batch with the sequence first: none."""
    shape = leaf.shape
    fitting = tuple(i for i, size in enumerate(shape) if _is_full(size, full))
    if leaf.dim() == 1 and fitting:
        return _unless(path, leaf, shape[0] == rows, fitting)
    if leaf.dim() == 2 and fitting and shape[0] not in (rows, 1):
        return fitting if 1 in fitting else ()
    behind = tuple(i for i in fitting if i)
    if len(behind) < 2:
        return behind
    mask = behind == (leaf.dim() - 2, leaf.dim() - 1)
    return _unless(path, leaf, not mask or (leaf.dim() == 3 and leaf.is_floating_point()), behind)


def _rows(leaves: Iterable[tuple[str, Tensor]], full: int) -> int | None:
    """B of tensors with a sequence axis behind a batch axis; None where there is none. Masks and position ids that all
    samples share have 1 there, or no such axis: they do not count."""
    found = {leaf.shape[0] for _, leaf in leaves if leaf.dim() > 1 and _is_full(leaf.shape[1], full)}
    several = found - {1}
    several = {n for n in several if not _is_full(n, full)} or several  # (T, T) is a mask beside (B, T)
    if len(several) > 1:
        counts = " and ".join(map(str, sorted(several)))
        raise ConfigError(f"the batch's tensors of {full} tokens are of {counts} samples: give `axes` by path")
    return max(several or found, default=None)


def _is_full(size: int, full: int) -> bool:
    return full <= size <= full + 1


def _unless(path: str, leaf: Tensor, ambiguous: bool, axes: tuple[int, ...]) -> tuple[int, ...]:
    if not ambiguous:
        return axes
    name = path or "the batch"
    raise ConfigError(
        f"{name} of shape {tuple(leaf.shape)}: whether axes {axes} are sequence axes is not known; "
        f"state it, as in axes={{{path!r}: {axes}}}, or () to leave it alone"
    )


def tensors(batch: Any, path: str = "") -> Iterator[tuple[str, Tensor]]:
    """Every (path, tensor) of the batch, in its order."""
    if isinstance(batch, Tensor):
        yield path, batch
    for name, part in _parts(batch):
        yield from tensors(part, f"{path}.{name}" if path else str(name))


def changed(batch: Any, change: Callable[[str, Tensor], Tensor], path: str = "") -> Any:
    """The same batch with each tensor changed; what is no tensor and holds none is the same object."""
    if isinstance(batch, Tensor):
        return change(path, batch)
    parts = {name: changed(p, change, f"{path}.{name}" if path else str(name)) for name, p in _parts(batch)}
    if isinstance(batch, MutableMapping):  # of the batch's own type: transformers' BatchEncoding stays one
        filled = copy.copy(batch)
        filled.update(parts)
        return filled
    if isinstance(batch, Mapping):
        return parts
    if isinstance(batch, tuple):
        made = parts.values()
        return type(batch)(*made) if hasattr(batch, "_fields") else type(batch)(made)
    if isinstance(batch, list):
        return type(batch)(parts.values())
    if dataclasses.is_dataclass(batch) and not isinstance(batch, type):
        made_anew = copy.copy(batch)
        for name, value in parts.items():
            object.__setattr__(made_anew, name, value)  # a frozen one too: the copy is still private
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
