"""Whether each element of a state stands where it stood: by one random projection of each layer's momentum and weights,
which an exchange within a layer moves although every sum and norm stays as it was."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from sentinel.vocabulary.sample import State

NEAR = 1e-5  # share of a layer's norm by which projections of the same numbers differ at most


@dataclass(frozen=True, slots=True)
class Moved:
    """The layers whose momentum, or whose weights, are not what was saved."""

    what: str  # first moment, weights
    layers: Sequence[str]
    of: int  # layers that there are
    apart: float  # Estimate of |now - was| / |was| over these layers, by sqrt(2 / layers) of itself
    mirrored: bool  # Whether all of them have the opposite sign

    @property
    def told(self) -> str:
        more = f" and {len(self.layers) - 4} more" if len(self.layers) > 4 else ""
        named = f"the {self.what} of {', '.join(self.layers[:4])}{more} ({len(self.layers)} of {self.of} layers)"
        away = f"about {self.apart:.1g} of the norm away from what was saved"
        return f"{named}: {'of the opposite sign' if self.mirrored else away}"


def moved(was: State, now: State) -> list[Moved]:
    """Empty where nothing has moved, or the two can't be compared: read at other places, or not read."""
    if was.state_layout is None or was.state_layout != now.state_layout or was.layers != now.layers:
        return []
    kinds = (
        ("first moment", was.layer_momentum_l2, was.layer_momentum_projection, now.layer_momentum_projection),
        ("weights", was.layer_param_norm, was.layer_param_projection, now.layer_param_projection),
    )
    found = (_moved(what, was.layers, norms, before, after) for what, norms, before, after in kinds)
    return [kind for kind in found if kind is not None]


def _moved(
    what: str, layers: Sequence[str], norms: Sequence[float], was: Sequence[float], now: Sequence[float]
) -> Moved | None:
    if not len(layers) == len(norms) == len(was) == len(now):
        return None
    each = zip(layers, norms, was, now, strict=True)
    other = [(layer, norm, a, b) for layer, norm, a, b in each if abs(b - a) > NEAR * norm]
    if not other:
        return None
    apart = math.sqrt(sum((b - a) ** 2 for _, _, a, b in other) / sum(norm**2 for _, norm, _, _ in other))
    mirrored = all(abs(b + a) <= NEAR * norm for _, norm, a, b in other)
    return Moved(what, [layer for layer, *_ in other], len(layers), apart, mirrored)
