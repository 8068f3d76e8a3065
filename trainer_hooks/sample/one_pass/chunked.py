"""The pass in plain torch, a chunk at a time through a scratch buffer: right for every device and dtype. And what a
kernel must give before it is used: the same in float64, on small data of every kind."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from trainer_hooks.sample.one_pass.pieces import AdamConstants, OnePass, Piece

_CHUNK_PER_THREAD = 1 << 17
"""Elements: what a thread leaves in scratch (512 kB in float32) is still in its cache when it is summed. Half and twice
of it take about as long on one thread; much less, and several threads wait for one another at every chunk's end."""

_CHUNK_CUDA = 1 << 24  # elements: the launches of 10^9 elements (five a chunk) take less time than reading them


class Chunked(OnePass):
    name = "chunked"

    def __init__(self, pieces: Sequence[Piece], *, chunk: int | None = None) -> None:
        super().__init__(pieces)
        device = pieces[0].exp_avg_sq.device if pieces else torch.device("cpu")
        size = chunk or (_CHUNK_PER_THREAD * torch.get_num_threads() if device.type == "cpu" else _CHUNK_CUDA)
        self._device = device
        self._chunks: list[Piece] = []
        owners: list[int] = []
        for number, piece in enumerate(pieces):
            for part in _split(piece, size):
                self._chunks.append(part)
                owners.append(number)
        self._owners = torch.tensor(owners, dtype=torch.int64, device=device)
        wide = any(piece.exp_avg_sq.dtype == torch.float64 for piece in pieces)
        self._dtype = torch.float64 if wide else torch.float32
        self._room = min(size, max((piece.exp_avg_sq.numel() for piece in pieces), default=0))
        self._scratch: dict[str, Tensor] = {}

    def _pass(self, constants: Sequence[AdamConstants] | None) -> Tensor:
        partials = torch.empty((2, len(self._chunks)), dtype=self._dtype, device=self._device)
        if constants is None:
            for number, chunk in enumerate(self._chunks):
                self._root(chunk.exp_avg_sq, partials[:, number])
            return self._per_piece(partials.double())
        squares = torch.full((3, len(self._chunks)), math.nan, dtype=torch.float64, device=self._device)
        for number, chunk in enumerate(self._chunks):
            root = self._root(chunk.exp_avg_sq, partials[:, number])
            m, p, of = chunk.exp_avg, chunk.parameter, constants[chunk.group]
            if m is not None:
                self._sum_of_squares(m, squares[0, number])
                if p is not None or not of.decay:
                    self._sum_of_squares(self._update(root, m, p, of), squares[1, number])
            if p is not None:
                self._sum_of_squares(p, squares[2, number])
        return self._per_piece(torch.cat([partials.double(), squares]))

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
            self._scratch[name] = torch.empty(self._room, dtype=dtype or self._dtype, device=self._device)
        return self._scratch[name][:n]

    def _per_piece(self, partials: Tensor) -> Tensor:
        """(R, chunks) -> (R, S): sums, but the max in row 1, which is nan where the sum of roots is. A sum of roots is
        nan if and only if some v is nan or negative, so no maximum has to carry that."""
        sums = torch.zeros((len(partials), self._pieces), dtype=torch.float64, device=self._device)
        largest = sums[1].clone().scatter_reduce_(0, self._owners, partials[1], "amax")
        sums.index_add_(1, self._owners, partials)
        sums[1] = largest.masked_fill(sums[0].isnan(), math.nan)
        return sums


def _split(piece: Piece, size: int) -> list[Piece]:
    """The piece in runs of at most so many elements; none of an empty one."""
    names = ("exp_avg_sq", "exp_avg", "parameter")
    whole = {name: t.detach() for name in names if (t := getattr(piece, name)) is not None}
    starts = range(0, piece.exp_avg_sq.numel(), size)
    return [replace(piece, **{name: t[at : at + size] for name, t in whole.items()}) for at in starts]


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
        kernel = make(_pieces([tensor.to(device) for tensor in state]))
        exact = Chunked(_pieces([tensor.double() for tensor in state]))
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
