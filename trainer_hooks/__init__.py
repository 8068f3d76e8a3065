"""Imported inside the trainer: torch, deepspeed, prometheus_client, the standard library and sentinel's vocabulary.

In: an engine, or a model and its optimizer, in a training loop. Out: samples in the metrics journal and in /metrics;
and, at a restart, the changes that were decided.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from trainer_hooks.attaching import attach
    from trainer_hooks.export.exporter import ExporterSettings
    from trainer_hooks.hook import Hook
    from trainer_hooks.integrations.huggingface import StabilityCallback
    from trainer_hooks.integrations.megatron import attach_to_megatron
    from trainer_hooks.sample.reading import Position
    from trainer_hooks.start_decisions import StartDecisions, decisions

__all__ = [
    "ExporterSettings",
    "Hook",
    "Position",
    "StabilityCallback",
    "StartDecisions",
    "attach",
    "attach_to_megatron",
    "decisions",
]

_MODULES = {
    "ExporterSettings": "export.exporter",
    "Hook": "hook",
    "Position": "sample.reading",
    "StabilityCallback": "integrations.huggingface",
    "StartDecisions": "start_decisions",
    "attach": "attaching",
    "attach_to_megatron": "integrations.megatron",
    "decisions": "start_decisions",
}


def __getattr__(name: str) -> Any:
    """Imports a name on first use: the processes that prepare data need no torch."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
