"""A training that reads the curvature of each tenth step, on the step's own batch."""

from __future__ import annotations

import torch
from torch import Tensor

from benchmarks.batched.training import Training
from benchmarks.curvature.ratio import Adam, along_gradient, along_update, curved

__all__ = ["EVERY", "Measured"]

EVERY = 10
"""Steps between two measurements, those at which validation is made too."""


class Measured(Training):
    """Trains as Training does; at each EVERY-th step the curvature along the gradient and along the update is read, on
    the step's own batch, by one more gradient each. The training is not changed by it."""

    measures = True

    def _update(self, g: Tensor) -> None:
        state = self.state
        if not self.measures or state.step % EVERY:
            super()._update(g)
            return
        before, gradient = state.flat.clone(), g.clone()
        super()._update(g)
        after = state.flat.clone()
        scale = self.gradient_scale(gradient)
        self._read(before, scale * gradient, scale)
        state.flat.copy_(after)

    def gradient_scale(self, gradient: Tensor) -> Tensor:
        """(R, 1): what Adam sees of the gradient, by padding and clipping: its curvature is scaled likewise."""
        padded = torch.tensor([s.padded_scale if self.state.step <= s.padded_steps else 1.0 for s in self.settings])
        norm = padded * gradient.norm(dim=1)
        return (padded * (self._each("clip") / (norm + 1e-6)).clamp(max=1.0))[:, None]

    def adam(self) -> Adam:
        """As of the update that was just made."""
        state = self.state
        lr = torch.tensor([s.rate(state.step, state.tokens) for s in self.settings])
        constants = {name: self._each(name)[:, None] for name in ("beta1", "beta2", "eps")}
        return Adam(m=state.m, v=state.v, updates=state.updates, lr=lr[:, None], **constants)

    def gradient_at(self, flat: Tensor) -> Tensor:
        """(R, N), of the step's batch; leaves the parameters there."""
        if self.tokens is None:
            raise ValueError("no step was made")
        with torch.enable_grad():
            self.state.flat.data.copy_(flat)
            return self.models.gradients(self.models.losses(self.tokens, z_loss=self.settings[0].z_loss))

    def _read(self, before: Tensor, gradient: Tensor, scale: Tensor) -> None:
        adam = self.adam()
        update = adam.m / adam.root

        def seen(flat: Tensor) -> Tensor:
            return scale * self.gradient_at(flat)

        curved_gradient = curved(seen, before, gradient, gradient)
        self.recorded.add("curvature_gradient", along_gradient(adam, gradient, curved_gradient))
        self.recorded.add("curvature_update", along_update(adam, update, curved(seen, before, gradient, update)))
