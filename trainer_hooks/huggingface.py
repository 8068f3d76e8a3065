"""The documented path of the callback for Hugging Face's Trainer."""

from trainer_hooks.integrations.huggingface import StabilityCallback

__all__ = ["StabilityCallback"]
