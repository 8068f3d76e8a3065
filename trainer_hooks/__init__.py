"""Imported inside the trainer: torch, deepspeed, prometheus_client, the standard library and sentinel's vocabulary."""

from trainer_hooks.hook import Hook, Position, attach

__all__ = ["Hook", "Position", "attach"]
