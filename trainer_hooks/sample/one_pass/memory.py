"""Memory that is read by its address: which tensors have one, and how it is found again without being kept alive."""

from __future__ import annotations

import ctypes
from collections.abc import Iterable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.nn import Parameter

_PLAIN = (Tensor, Parameter)


def why_unreadable(tensor: Any) -> str | None:
    """Why no kernel may read this tensor's memory by its address, as the end of "it …"; None where one may.

    A subclass may keep its numbers in other tensors, in other types (torchao's 8-bit states): its own address is 0 or
    that of something else. A DTensor's part on this rank is a plain tensor, and is what is asked about.
    """
    if type(tensor) not in _PLAIN:
        return f"is a {type(tensor).__module__}.{type(tensor).__qualname__}, which may keep its numbers elsewhere"
    if tensor.layout is not torch.strided or tensor.is_quantized or tensor.is_conj() or tensor.is_neg():
        return "is sparse, quantized, or a view that changes its numbers"
    if torch._is_functional_tensor(tensor):
        return "is a tensor of torch.func, without memory"
    if not tensor.numel():
        return None
    try:
        storage, address = tensor.untyped_storage(), tensor.data_ptr()
    except (RuntimeError, NotImplementedError):  # functorch's wrappers
        return "is a tensor of torch.func, without memory"
    if not address or tensor.is_meta:
        return "has no memory: it was freed, or is on the meta device"
    last = sum((n - 1) * stride for n, stride in zip(tensor.shape, tensor.stride(), strict=True))
    if (tensor.storage_offset() + last + 1) * tensor.element_size() > storage.nbytes():
        return "ends behind the end of its storage"
    return None


def identity(tensor: Any) -> tuple[Any, ...]:
    """Equal where two tensors are the same elements of the same storage; of a subclass, its name. A storage's number is
    not given to another one while a Memory knows it."""
    if type(tensor) not in _PLAIN:
        return (type(tensor).__qualname__,)
    try:
        return tensor.untyped_storage()._cdata, tensor.data_ptr(), tensor.numel()
    except (RuntimeError, NotImplementedError):
        return (str(tensor.layout),)


class Memory:
    """The storages of some plain tensors, known by weak references: whoever replaces the tensors frees them at once."""

    def __init__(self, tensors: Iterable[Tensor]) -> None:
        self._known: dict[int, tuple[StorageWeakRef, int, int]] = {}  # {number of a storage: (it, address, bytes)}
        for tensor in tensors:
            storage = tensor.untyped_storage()
            if storage._cdata not in self._known:
                weak = StorageWeakRef(storage)  # type: ignore[no-untyped-call]
                self._known[storage._cdata] = weak, storage.data_ptr(), storage.nbytes()

    def open(self) -> dict[int, torch.UntypedStorage]:
        """{number: storage}, alive for as long as the caller keeps them. RuntimeError where one is gone, or no longer
        lies where it lay: a kernel that reads there ends the training."""
        opened = {}
        for number, (reference, address, size) in self._known.items():
            storage = torch.UntypedStorage._new_with_weak_ptr(reference.cdata)
            if storage is None or storage.data_ptr() != address or storage.nbytes() != size:
                raise RuntimeError("Adam's state does not lie where it lay when the hook looked at it")
            opened[number] = storage
        return opened


class Flat:
    """Where one flat tensor lies in its storage."""

    __slots__ = ("_device", "_dtype", "_number", "_offset", "_size")

    def __init__(self, tensor: Tensor) -> None:
        self._number, self._offset, self._size = (
            tensor.untyped_storage()._cdata,
            tensor.storage_offset(),
            tensor.numel(),
        )
        self._dtype, self._device = tensor.dtype, tensor.device

    def of(self, opened: dict[int, torch.UntypedStorage]) -> Tensor:
        """The tensor again, as a view."""
        empty = torch.empty(0, dtype=self._dtype, device=self._device)
        return empty.set_(opened[self._number], self._offset, (self._size,), (1,))


class Stopped(Exception):  # noqa: N818 - asked for, no fault
    """The pass was asked to end before it had read everything."""


class Stop:
    """Asks a pass on the CPU, from another thread, to end at its next tile."""

    def __init__(self) -> None:
        self.flag = ctypes.c_int32(0)  # native.c reads it

    def set(self) -> None:
        self.flag.value = 1

    def __bool__(self) -> bool:
        return bool(self.flag.value)


class Reading(NamedTuple):
    """How one pass reads."""

    opened: dict[int, torch.UntypedStorage]  # what it reads: alive for as long as this is
    threads: int | None  # on the CPU, where the kernel has threads of its own; None: torch's number
    stop: Stop | None  # for a pass on the CPU
