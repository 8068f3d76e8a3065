"""The documented path of the callback for Lightning."""

from trainer_hooks.integrations.lightning import StabilityCallback

__all__ = ["StabilityCallback"]
