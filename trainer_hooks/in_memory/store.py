"""One rank's buffers for the states that it keeps: as many as asked for, taken once, and never more."""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from trainer_hooks.in_memory.engine_state import Name, bytes_of, numbers_of, put_back, tensors_of
from trainer_hooks.sample.own import own

_ALIGNED = 64  # bytes: each tensor begins at a multiple


@dataclass(eq=False, slots=True)
class Kept:
    """One state, in one buffer."""

    buffer: Tensor  # (bytes,), uint8, on the host
    step: int = 0  # whose state it is; 0: none
    tensors: dict[Name, Tensor] = field(default_factory=dict)  # views of the buffer
    numbers: Mapping[str, Any] = field(default_factory=dict)
    client_state: Mapping[str, Any] = field(default_factory=dict)
    digest: str | None = None  # None while it is not whole

    def digest_now(self) -> str:
        """SHA-256, in hex, of the tensors and the counters as they are in memory now."""
        used: Any = self.buffer[: _size(t.nbytes for t in self.tensors.values())].numpy()
        digest = hashlib.sha256(used)
        digest.update(repr([self.step, self.numbers.get("counters"), self.numbers.get("groups")]).encode())
        return digest.hexdigest()


class StateStore:
    """The buffers of one rank. On a GPU's host they are pinned."""

    def __init__(self, engine: Any, most: int) -> None:
        self.size_bytes = _size(bytes_of(engine))  # of one state
        self._cuda = str(own(engine, "device", "cpu")).startswith("cuda")
        self._most, self._kept = most, list[Kept]()
        self._stream: Any = None
        self._copied: Any = None  # the event after which the state may be changed
        self._thread: threading.Thread | None = None

    def take(self) -> None:
        """Takes all of the memory that will ever be taken."""
        for _ in range(self._most):
            buffer = torch.empty(self.size_bytes, dtype=torch.uint8, pin_memory=self._cuda)
            self._kept.append(Kept(buffer.zero_()))

    @property
    def steps(self) -> tuple[int, ...]:
        """Of the states that are whole, ascending."""
        return tuple(sorted(kept.step for kept in self._kept if kept.digest is not None))

    def keep(self, engine: Any, step: int, client_state: Mapping[str, Any]) -> Kept:
        """Copies the state in place of the oldest one. It is whole once `settle` was called, or `digest` is there."""
        self.settle()
        kept = min(self._kept, key=lambda one: one.step)
        kept.step, kept.digest = 0, None
        kept.tensors, kept.numbers, kept.client_state = _laid_out(engine, kept.buffer), numbers_of(engine), client_state
        self._copy(engine, kept.tensors)
        kept.step = step
        self._thread = threading.Thread(target=self._complete, args=(kept,), name="sentinel-digest", daemon=True)
        self._thread.start()
        return kept

    def wait_for_copy(self) -> None:
        """Before the state is changed: on a GPU the copy may be under way."""
        if self._copied is not None:
            torch.cuda.current_stream().wait_event(self._copied)
            self._copied = None

    def settle(self) -> None:
        """Returns once the last state is whole."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def why_not(self, step: int) -> str | None:
        """Why that state can't be put back, as a phrase; None where it is whole and unchanged."""
        kept = self._of(step)
        if kept is None:
            return f"it is not kept: {', '.join(map(str, self.steps)) or 'none'} are"
        return None if kept.digest_now() == kept.digest else "it is not what was kept: its digest differs"

    def restore(self, engine: Any, step: int) -> Mapping[str, Any]:
        """Puts the state back into the engine; the client state. `why_not` was asked before. ValueError where the
        engine's model is another one. Later states are forgotten."""
        kept = self._of(step)
        if kept is None:
            raise ValueError(f"no state of step {step} is kept")
        put_back(engine, kept.tensors, kept.numbers)
        self.forget(after=step)
        return kept.client_state

    def forget(self, *, after: int = 0) -> None:
        """The states of later steps: what is trained from now on does not come after them."""
        self.settle()
        for kept in self._kept:
            if kept.step > after:
                kept.step, kept.digest = 0, None

    def _of(self, step: int) -> Kept | None:
        self.settle()
        return next((kept for kept in self._kept if kept.step == step and kept.digest is not None), None)

    def _copy(self, engine: Any, tensors: Mapping[Name, Tensor]) -> None:
        live = dict(tensors_of(engine))
        if not self._cuda:
            for name, kept in tensors.items():
                kept.copy_(live[name])
            return
        cuda: Any = torch.cuda  # not annotated there
        self._stream = self._stream or cuda.Stream()
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            for name, kept in tensors.items():
                kept.copy_(live[name], non_blocking=True)
            self._copied = cuda.Event()
            self._copied.record()

    def _complete(self, kept: Kept) -> None:
        if self._stream is not None:
            self._stream.synchronize()
        kept.digest = kept.digest_now()


def _laid_out(engine: Any, buffer: Tensor) -> dict[Name, Tensor]:
    """Views of the buffer, one for each tensor of the state. ValueError where they are more than was foreseen."""
    views, at = dict[Name, Tensor](), 0
    for name, tensor in tensors_of(engine):
        end = at + tensor.nbytes
        if end > len(buffer):
            raise ValueError(f"the state has grown beyond the {len(buffer)} bytes that were taken for it")
        views[name] = buffer[at:end].view(tensor.dtype).view(tensor.shape)
        at += _aligned(tensor.nbytes)
    return views


def _size(sizes: Iterable[int]) -> int:
    return sum(map(_aligned, sizes))


def _aligned(size: int) -> int:
    return -(-size // _ALIGNED) * _ALIGNED


def available_bytes(ranks: int, root: Path = Path("/")) -> int:
    """Of the host's memory, for one of so many ranks on it: what the kernel and the control group would still give,
    whichever is less."""
    free = [_of_kernel(root / "proc/meminfo"), *_of_groups(root)]
    return min(free) // max(1, ranks)


def ranks_of_host(world: int) -> int:
    """As the launcher says; where it does not, all."""
    return int(os.environ.get("LOCAL_WORLD_SIZE") or world)


def _of_kernel(meminfo: Path) -> int:
    line = next(line for line in meminfo.read_text().splitlines() if line.startswith("MemAvailable:"))
    return int(line.split()[1]) * 1024


def _of_groups(root: Path) -> Iterable[int]:
    """Of each control group that this process is in, and those above it, where one has a limit."""
    mounted = root / "sys/fs/cgroup"
    with suppress(OSError):
        for line in (root / "proc/self/cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if controllers == "":
                yield from _up(mounted, path, "memory.max", "memory.current")
            elif "memory" in controllers.split(","):
                yield from _up(mounted / "memory", path, "memory.limit_in_bytes", "memory.usage_in_bytes")


def _up(mounted: Path, path: str, limit: str, used: str) -> Iterable[int]:
    folder = mounted / path.lstrip("/")
    for group in (folder, *folder.parents):
        if mounted == group or mounted in group.parents:
            with suppress(OSError, ValueError):  # "max": no limit
                most = int((group / limit).read_text())
                yield max(0, most - int((group / used).read_text()) + _reclaimable(group / "memory.stat"))


def _reclaimable(stat: Path) -> int:
    """Of files that were read: they are given up where memory is asked for."""
    names = ("inactive_file", "total_inactive_file")
    return max((int(v) for k, v in (line.split() for line in stat.read_text().splitlines()) if k in names), default=0)
