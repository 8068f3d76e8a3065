"""How far the difference of two float32 gradients is from the Hessian's product by double backward in float64."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from benchmarks.batched.model import Models
from benchmarks.curvature.measured import Measured
from benchmarks.curvature.ratio import along_gradient, along_update, curved

__all__ = ["errors"]


def errors(training: Measured, steps: tuple[float, ...] = (1e-3, 1e-4, 1e-5, 1e-6)) -> dict[str, list[float]]:
    """{step of the difference: relative errors of the two ratios, of each run}, of the weights and the batch that the
    training's last step has left: the gradient's first, then the update's."""
    with torch.no_grad():
        at = training.state.flat.clone()
        raw = training.gradient_at(at)
        scale = training.gradient_scale(raw)
        gradient, adam = scale * raw, training.adam()
        update = adam.m / adam.root
        directions = (gradient, update)
        exact = _exact(training, at, gradient, update, scale)
        found = {}
        for step in steps:
            by_difference = [
                curved(lambda flat: scale * training.gradient_at(flat), at, gradient, one, step) for one in directions
            ]
            ours, theirs = (
                torch.cat([along_gradient(adam, gradient, g), along_update(adam, update, u)])
                for g, u in (by_difference, exact)
            )
            found[f"{step:g}"] = ((ours - theirs) / theirs).tolist()
        training.state.flat.copy_(at)
    return found


def _exact(training: Measured, at: Tensor, gradient: Tensor, update: Tensor, scale: Tensor) -> list[Tensor]:
    """The Hessian of each run's scaled loss times the two directions."""
    if training.tokens is None:
        raise ValueError("no step was made")
    models: Models = training.models
    kept, flat = models.p, at.double().requires_grad_()
    try:
        with torch.enable_grad(), sdpa_kernel(SDPBackend.MATH):
            models.p = models.views(flat)
            losses = models.losses(training.tokens, z_loss=training.settings[0].z_loss)
            (first,) = torch.autograd.grad((scale[:, 0] * losses).sum(), flat, create_graph=True)
            along = [(first * d.double()).sum() for d in (gradient, update)]
            return [torch.autograd.grad(one, flat, retain_graph=True)[0].float() for one in along]
    finally:
        models.p = kept
