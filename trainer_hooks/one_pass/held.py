"""The tensors whose addresses a kernel was given: kept alive, and looked after."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from trainer_hooks.one_pass.pieces import Piece

__all__ = ["Held", "tensors"]


class Held:
    """Views of all pieces' tensors: their memory stays, whatever becomes of the tensors that they are views of."""

    def __init__(self, pieces: Sequence[Piece]) -> None:
        self._views = [tensor.detach() for piece in pieces for tensor in tensors(piece)]
        self._addresses = self._now_at()

    def still_there(self) -> None:
        """RuntimeError where some storage was resized under its views: reading there would end the training."""
        if self._now_at() != self._addresses:
            raise RuntimeError("Adam's state does not lie where it lay when the hook looked at it")

    def _now_at(self) -> list[int]:
        return [view.data_ptr() for view in self._views]


def tensors(piece: Piece) -> list[Tensor]:
    """Those that the piece has: v, m, parameter."""
    return [tensor for tensor in (piece.exp_avg_sq, piece.exp_avg, piece.parameter) if tensor is not None]
