"""The documented path of the callback for OLMo-core."""

from trainer_hooks.integrations.olmo_core import StabilityCallback

__all__ = ["StabilityCallback"]
