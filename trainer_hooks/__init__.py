"""Imported inside the trainer: torch, deepspeed, prometheus_client, the standard library and sentinel's vocabulary."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from trainer_hooks.exporter import ExporterSettings
    from trainer_hooks.hook import Hook, Position, attach

__all__ = ["ExporterSettings", "Hook", "Position", "attach"]


def __getattr__(name: str) -> Any:
    """Looked for when it is asked for: the programs that prepare data are many processes, and need no torch."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(
        import_module("trainer_hooks.exporter" if name == "ExporterSettings" else "trainer_hooks.hook"), name
    )
