"""The hook in other training programs: Hugging Face's Trainer, Megatron-DeepSpeed.

In: that program's own trainer and its arguments. Out: an attached hook, and overrides applied at a start.
"""
