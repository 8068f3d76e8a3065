"""The pass in plain torch, a chunk at a time through a scratch buffer: right for every device and dtype. And what a
kernel must give before it is used: the same in float64, on small data of every kind."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from trainer_hooks.sample.one_pass.memory import Flat, Reading, Stopped
from trainer_hooks.sample.one_pass.pieces import AdamConstants, OnePass, Piece

_CHUNK_PER_THREAD = 1 << 17
"""Elements: what a thread leaves in scratch (512 kB in float32) is still in its cache when it is summed. Half and twice
of it take about as long on one thread; much less, and several threads wait for one another at every chunk's end."""

_CHUNK_CUDA = 1 << 22
"""Elements: 64 MiB of scratch (with the moments; 16 MiB without). 10^9 elements are 240 chunks of three launches each,
ten with the moments."""


class Chunked(OnePass):
    name = "chunked"

    def __init__(self, pieces: Sequence[Piece], *, chunk: int | None = None) -> None:
        super().__init__(pieces)
        on_cpu = self.device.type == "cpu"
        self._size = size = chunk or (_CHUNK_PER_THREAD * torch.get_num_threads() if on_cpu else _CHUNK_CUDA)
        sizes = [piece.exp_avg_sq.numel() for piece in pieces]
        self._flats = [
            (piece.group, [None if t is None else Flat(t) for t in piece.tensors], range(0, n, size))
            for piece, n in zip(pieces, sizes, strict=True)
        ]
        owners = [number for number, n in enumerate(sizes) for _ in range(0, n, size)]
        self._owners = torch.tensor(owners, dtype=torch.int64, device=self.device)
        wide = any(piece.exp_avg_sq.dtype == torch.float64 for piece in pieces)
        self._dtype = torch.float64 if wide else torch.float32
        self._room = min(size, max(sizes, default=0))
        self._scratch: dict[str, Tensor] = {}

    def _chunks(
        self, opened: dict[int, torch.UntypedStorage], names: int
    ) -> Iterator[tuple[int, Tensor, Tensor | None, Tensor | None]]:
        """(group, v, m, parameter) of each run of at most so many elements; the first `names` of the three."""
        for group, flats, starts in self._flats:
            whole = [flat.of(opened) if flat is not None and n < names else None for n, flat in enumerate(flats)]
            for at in starts:
                v, m, p = (None if t is None else t[at : at + self._size] for t in whole)
                if v is not None:  # every piece has one
                    yield group, v, m, p

    def _pass(self, constants: Sequence[AdamConstants] | None, reading: Reading) -> Tensor:
        partials = torch.empty((2, len(self._owners)), dtype=self._dtype, device=self.device)
        squares = torch.full((3, len(self._owners)), math.nan, dtype=torch.float64, device=self.device)
        for number, (group, v, m, p) in enumerate(self._chunks(reading.opened, 1 if constants is None else 3)):
            if reading.stop:
                raise Stopped
            root = self._root(v, partials[:, number])
            if constants is None:
                continue
            of = constants[group]
            if m is not None:
                self._sum_of_squares(m, squares[0, number])
                if p is not None or not of.decay:
                    self._sum_of_squares(self._update(root, m, p, of), squares[1, number])
            if p is not None:
                self._sum_of_squares(p, squares[2, number])
        return self._per_piece(partials.double() if constants is None else torch.cat([partials.double(), squares]))

    def _root(self, v: Tensor, into: Tensor) -> Tensor:
        """sqrt(v), in scratch; its sum and the max of v go into (2,)."""
        root = self._buffer("root", v.numel())
        if v.dtype == self._dtype:
            torch.amax(v, 0, out=into[1])
            torch.sqrt(v, out=root)
        else:
            root.copy_(v)
            torch.amax(root, 0, out=into[1])
            root.sqrt_()
        torch.sum(root, 0, out=into[0])  # adds pairwise; torch.norm(x, 1) loses 12 % at 124M elements on a CPU
        return root

    def _update(self, root: Tensor, m: Tensor, p: Tensor | None, of: AdamConstants) -> Tensor:
        """The update before lr, in place of the root."""
        root.mul_(of.root_scale).add_(of.eps)
        update = self._buffer("update", m.numel()).copy_(m).mul_(of.momentum_scale).div_(root)
        if p is not None and of.decay:
            update.add_(p, alpha=of.decay)
        return update

    def _sum_of_squares(self, x: Tensor, into: Tensor) -> None:
        """In float64, where the square of what float32 can hold neither overflows nor vanishes."""
        torch.sum(self._buffer("square", x.numel(), torch.float64).copy_(x).square_(), 0, out=into)

    def _buffer(self, name: str, n: int, dtype: torch.dtype | None = None) -> Tensor:
        if name not in self._scratch:
            self._scratch[name] = torch.empty(self._room, dtype=dtype or self._dtype, device=self.device)
        return self._scratch[name][:n]

    def _per_piece(self, partials: Tensor) -> Tensor:
        """(R, chunks) -> (R, S): sums, but the max in row 1, which is nan where the sum of roots is. A sum of roots is
        nan if and only if some v is nan or negative, so no maximum has to carry that."""
        sums = torch.zeros((len(partials), self._pieces), dtype=torch.float64, device=self.device)
        largest = sums[1].clone().scatter_reduce_(0, self._owners, partials[1], "amax")
        sums.index_add_(1, self._owners, partials)
        sums[1] = largest.masked_fill(sums[0].isnan(), math.nan)
        return sums


_SIZES = (0, 1, 127, 128, 129, 0, 16385, 70000, 3, 500, 501, 502)
"""Elements of the pieces, which lie one behind the other: their starts are at odd places."""

_ODD = {128: math.nan, 256: 1e-39, 400: -math.nan, 16_900: math.inf, 87_100: 0.0, 87_600: -1e-9}
"""By place: what v may hold. All lie in pieces of their own."""

_CONSTANTS = (
    AdamConstants(beta1=0.9, beta2=0.95, eps=1e-8, weight_decay=0.1, step=3),
    AdamConstants(beta1=0.9, beta2=0.999, eps=1e-6, weight_decay=0.1, step=1, decoupled=False),
    AdamConstants(beta1=0.8, beta2=0.99, eps=1e-8, step=7, bias_correction=False),
)


class NoKernel(RuntimeError):  # noqa: N818 - a reason, not a fault
    """This kernel can't be used here; its message says why."""


def check(make: Callable[[Sequence[Piece]], OnePass], device: torch.device, dtype: torch.dtype) -> None:
    """Compares the kernel with float64; NoKernel where they differ by more than 1e-6."""
    v, m, p = _state(dtype)
    odd = v.clone()
    for place, value in _ODD.items():
        odd[place] = value
    for name, state in (("numbers", (v, m, p)), ("zeros, denormals, inf and nan", (odd, m, p))):
        given, wide = [tensor.to(device) for tensor in state], [tensor.double() for tensor in state]
        kernel, exact = make(_pieces(given)), Chunked(_pieces(wide))  # which keep neither alive
        _compare(kernel.variance(), exact.variance(), f"{name} in v")
        _compare(kernel.moments(_CONSTANTS), exact.moments(_CONSTANTS), f"{name} in v, with m and the parameters")


def _state(dtype: torch.dtype) -> list[Tensor]:
    """v, m and parameters: a wide range of sizes, from a generator of its own (the training's is not to be moved)."""
    numbers = torch.Generator().manual_seed(0)
    n = sum(_SIZES) + 1
    v = torch.exp(8 * torch.randn(n, generator=numbers) - 20)
    m = torch.randn(n, generator=numbers) * v.sqrt()
    p = torch.randn(n, generator=numbers)
    v[::7], m[::7] = 0, 0
    return [tensor.to(dtype)[1:] for tensor in (v, m, p)]


def _pieces(state: Sequence[Tensor]) -> list[Piece]:
    """Some hold all of it, some v alone."""
    split = [torch.split(tensor, list(_SIZES)) for tensor in state]
    return [
        Piece(
            exp_avg_sq=v,
            exp_avg=None if number % 4 == 2 else m,
            parameter=None if number % 5 == 2 else p,
            group=number % len(_CONSTANTS),
        )
        for number, (v, m, p) in enumerate(zip(*split, strict=True))
    ]


def _compare(given: Tensor, exact: Tensor, of: str) -> None:
    if given.dtype != torch.float64 or given.shape != exact.shape:
        raise NoKernel(f"wrong answer for {of}: {given.dtype}, {tuple(given.shape)}")
    if not torch.allclose(given.cpu(), exact, rtol=1e-6, atol=1e-18, equal_nan=True):
        raise NoKernel(f"wrong answer for {of}: {given.cpu().tolist()} and not {exact.tolist()}")
