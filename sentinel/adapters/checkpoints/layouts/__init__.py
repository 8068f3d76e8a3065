"""Which trainer wrote a checkpoint, by its name. A new layout: its file here, and its line in `LAYOUTS`."""

from __future__ import annotations

from sentinel.adapters.checkpoints.layouts.composer import Composer
from sentinel.adapters.checkpoints.layouts.deepspeed import DeepSpeed, Universal
from sentinel.adapters.checkpoints.layouts.hugging_face import HuggingFace
from sentinel.adapters.checkpoints.layouts.layout import Layout, Named
from sentinel.adapters.checkpoints.layouts.lightning import Lightning
from sentinel.adapters.checkpoints.layouts.megatron_lm import MegatronLM
from sentinel.adapters.checkpoints.layouts.nemo import NeMo
from sentinel.adapters.checkpoints.layouts.olmo_core import OlmoCore
from sentinel.adapters.checkpoints.layouts.torch_dcp import TorchDcp

LAYOUTS: tuple[Layout, ...] = (
    DeepSpeed(),  # first: what its tracker names counts before Megatron's number
    Universal(),
    MegatronLM(),
    HuggingFace(),
    TorchDcp(),
    OlmoCore(),
    NeMo(),  # before Lightning, whose names its files have
    Lightning(),
    Composer(),
)
TRACKERS = {tracker.name: tracker for layout in LAYOUTS for tracker in layout.trackers}

__all__ = ["LAYOUTS", "TRACKERS", "Layout", "Named", "recognise"]


def recognise(name: str) -> Named | None:
    """The checkpoint that an entry of this name is, or is a file of; None for any other, which is never moved."""
    return next((named for layout in LAYOUTS if (named := layout.recognise(name)) is not None), None)
