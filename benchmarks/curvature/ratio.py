"""The preconditioned curvature along a direction, over its limit: above 1 Adam's oscillation along it grows.

With D = diag(1 / (sqrt(v / (1 - beta2^t)) + eps)), H the Hessian of the loss and A = D H / (1 - beta1^t), Adam on a
quadratic is the recursion x' = x (1 + beta1 - (1 - beta1) LR A) - beta1 x_before. It is stable as long as all
eigenvalues of A are below

    2 (1 + beta1) / ((1 - beta1) LR)

Adaptive Preconditioners Trigger Loss Spikes in Adam (arXiv:2506.04805) puts the two factors of momentum and bias
correction into its preconditioned Hessian, (1 - beta1) / (1 + beta1) A, and prints 2 / LR as its limit: the same.
It predicts a spike where the curvature along the gradient g, g' A g / g' g, passes the limit.

R runs, N parameters; all tensors (R, N) or (R, 1).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

__all__ = ["Adam", "along_gradient", "along_update", "curved"]

STEP = 1e-5
"""Of a finite difference, as a share of the norm of the parameters."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Adam:
    """Adam's state after it has taken in a gradient and before it changes the parameters."""

    m: Tensor
    v: Tensor
    updates: int
    """This one among them."""

    lr: Tensor
    beta1: Tensor
    beta2: Tensor
    eps: Tensor

    @property
    def root(self) -> Tensor:
        """(R, N), 1 / D."""
        return (self.v / (1 - self.beta2**self.updates)).sqrt() + self.eps

    @property
    def limit(self) -> Tensor:
        """(R, 1), of the curvature of D H: with the bias correction of m."""
        correction = 1 - self.beta1**self.updates
        return 2 * (1 + self.beta1) * correction / ((1 - self.beta1) * self.lr)


def curved(
    gradient_at: Callable[[Tensor], Tensor], at: Tensor, gradient: Tensor, direction: Tensor, step: float = STEP
) -> Tensor:
    """(R, N), H times the direction, by one more gradient: (gradient(at + h direction) - gradient) / h.

    h makes the move `step` times as long as `at`, or as 1 where that is shorter. A direction of length 0 gives 0.
    """
    length = direction.norm(dim=1, keepdim=True)
    h = step * at.norm(dim=1, keepdim=True).clamp(min=1.0) / length.clamp(min=torch.finfo(length.dtype).tiny)
    return (gradient_at(at + h * direction) - gradient) / h


def along_gradient(adam: Adam, gradient: Tensor, curved_gradient: Tensor) -> Tensor:
    """(R,): g' D H g / g' g over its limit, as the paper has it; nan where the gradient is 0."""
    curvature = (gradient / adam.root * curved_gradient).sum(1) / gradient.square().sum(1)
    return curvature / adam.limit[:, 0]


def along_update(adam: Adam, update: Tensor, curved_update: Tensor) -> Tensor:
    """(R,): u' H u / u' D^-1 u over its limit, u = D m: never above the largest eigenvalue of D H over its limit."""
    return (update * curved_update).sum(1) / (update.square() * adam.root).sum(1) / adam.limit[:, 0]
