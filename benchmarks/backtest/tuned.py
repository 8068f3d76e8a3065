"""The peers' thresholds, as tuned on the tuning part: `python benchmarks/detectors.py --tune-peers` prints them."""

from __future__ import annotations

from collections.abc import Callable

from .peers import PEERS, Peer

__all__ = ["GRID", "PATIENCES", "TUNED", "with_threshold"]

GRID: dict[str, tuple[str, tuple[float, ...]]] = {
    "loss_ratio_1_2": ("limit", (1.1, 1.2, 1.5, 2.0, 3.0)),
    "kill_loss_spike": ("multiplier", (1.2, 1.5, 2.0)),
    "lightning_spike": ("rtol", (0.3, 0.7, 2.0)),
    "olmo_skip_step": ("sigmas", (3.0, 6.0, 12.0)),
    "olmo_stability": ("sigmas", (3.0, 6.0, 12.0)),
    "megatron_rerun": ("factor", (1.0, 1.5, 3.0, 10.0)),
    "zclip": ("threshold", (2.5, 5.0, 10.0, 20.0)),
    "flagscale_spiky": ("threshold", (0.1, 0.2, 0.5, 1.0)),
    "metaseq_ewm": ("ratio", (1.1, 1.2, 1.5, 2.0)),
    "axolotl_watchdog": ("factor", (0.5, 1.0, 1.5, 2.0)),
    "cusum": ("limit", (5.0, 20.0, 80.0, 320.0)),
}
"""The one threshold of each and the values that are tried."""

PATIENCES = (1, 3, 10, 30, 100)
"""Firings in a row that are tried."""

TUNED: dict[str, tuple[str, float, int]] = {
    "loss_ratio_1_2": ("limit", 1.5, 30),
    "kill_loss_spike": ("multiplier", 1.2, 3),
    "lightning_spike": ("rtol", 0.3, 30),
    "olmo_skip_step": ("sigmas", 3.0, 10),
    "olmo_stability": ("sigmas", 3.0, 10),
    "megatron_rerun": ("factor", 1.0, 1),
    "zclip": ("threshold", 2.5, 30),
    "flagscale_spiky": ("threshold", 0.2, 100),
    "metaseq_ewm": ("ratio", 1.1, 30),
    "axolotl_watchdog": ("factor", 1.0, 3),
    "cusum": ("limit", 5.0, 100),
}
"""Threshold, its value and firings in a row with the fewest divergences missed and rollbacks unneeded together."""


def with_threshold(name: str, attribute: str, value: float) -> Callable[[int], Peer]:
    """The peer with another threshold."""

    def make(samples: int) -> Peer:
        peer = PEERS[name](samples)
        setattr(peer, attribute, value)
        return peer

    return make
