"""The hook in other training programs: Hugging Face's Trainer, Megatron-DeepSpeed."""
