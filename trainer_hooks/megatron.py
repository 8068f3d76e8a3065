"""The documented path of the hook for Megatron-DeepSpeed, which the patches in examples/megatron import."""

from trainer_hooks.integrations.megatron import MegatronHook, attach_to_megatron

__all__ = ["MegatronHook", "attach_to_megatron"]
