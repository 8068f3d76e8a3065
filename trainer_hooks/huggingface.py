"""The documented path of the callback for Hugging Face's Trainer, and of its recovery in place."""

from trainer_hooks.integrations.huggingface import StabilityCallback
from trainer_hooks.integrations.huggingface_parked import train_in_place

__all__ = ["StabilityCallback", "train_in_place"]
