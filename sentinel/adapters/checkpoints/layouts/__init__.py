"""Which trainer wrote a checkpoint, and all that follows from it. A new layout: its file, and its line in `LAYOUTS`.

In: names, listings and small files of a save folder. Out: checkpoints with their steps, trackers, what a resume takes.
"""

from __future__ import annotations

from sentinel.adapters.checkpoints.layouts.composer import ComposerLayout
from sentinel.adapters.checkpoints.layouts.deepspeed import DeepSpeedLayout, UniversalLayout
from sentinel.adapters.checkpoints.layouts.hugging_face import HuggingFaceLayout
from sentinel.adapters.checkpoints.layouts.layout import Layout, Named
from sentinel.adapters.checkpoints.layouts.lightning import LightningLayout
from sentinel.adapters.checkpoints.layouts.megatron_lm import MegatronLMLayout
from sentinel.adapters.checkpoints.layouts.nemo import NeMoLayout
from sentinel.adapters.checkpoints.layouts.olmo_core import OlmoCoreLayout
from sentinel.adapters.checkpoints.layouts.torch_dcp import TorchDcpLayout

LAYOUTS: tuple[Layout, ...] = (
    DeepSpeedLayout(),  # first: what its tracker names counts before Megatron's number
    UniversalLayout(),
    MegatronLMLayout(),
    HuggingFaceLayout(),
    TorchDcpLayout(),
    OlmoCoreLayout(),
    NeMoLayout(),  # before Lightning, whose names its files have
    LightningLayout(),
    ComposerLayout(),
)
TRACKERS = {tracker.name: tracker for layout in LAYOUTS for tracker in layout.trackers}

__all__ = ["LAYOUTS", "TRACKERS", "Layout", "Named", "recognise"]


def recognise(name: str) -> Named | None:
    """The checkpoint that an entry of this name is, or is a file of; None for any other, which is never moved."""
    return next((named for layout in LAYOUTS if (named := layout.recognise(name)) is not None), None)
