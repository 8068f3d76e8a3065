"""Ten detectors that a user would pick instead, and CUSUM, each written anew from its constants and its behaviour.

`push` takes one reading and says whether the detector fires at it: skips the step, stops the run, or marks a spike.
None is a reading that the log does not have: the detector is not asked. What nan does to each is what it does to the
original, which as a rule is not what its author wished.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar, Protocol

from .peers_by_level import AxolotlWatchdog, FlagscaleSpiky, LossRatio, MegatronRerun, MetaseqEwm, ZClip
from .peers_by_window import Cusum, KillLossSpike, LightningSpike, OlmoSkipStep, OlmoStability
from .reading import Reading

__all__ = ["PEERS", "Peer"]


class Peer(Protocol):
    """One detector, in the state of one process."""

    reads: ClassVar[frozenset[str]]
    """Columns that it looks at; with none of them it can say nothing."""

    survives_restart: ClassVar[bool]
    """Whether its state is part of the checkpoint (or configured), so that a restarted process goes on with it."""

    def push(self, reading: Reading) -> bool:
        """Takes the next reading; whether it fires."""


PEERS: dict[str, Callable[[int], Peer]] = {
    "loss_ratio_1_2": lambda _: LossRatio(),
    "kill_loss_spike": KillLossSpike,
    "lightning_spike": lambda _: LightningSpike(),
    "olmo_skip_step": lambda _: OlmoSkipStep(),
    "olmo_stability": lambda _: OlmoStability(),
    "megatron_rerun": lambda _: MegatronRerun(),
    "zclip": lambda _: ZClip(),
    "flagscale_spiky": lambda _: FlagscaleSpiky(),
    "metaseq_ewm": lambda _: MetaseqEwm(),
    "axolotl_watchdog": lambda _: AxolotlWatchdog(),
    "cusum": lambda _: Cusum(),
}
"""Name in the tables to what makes one, from the number of readings in the whole run."""
