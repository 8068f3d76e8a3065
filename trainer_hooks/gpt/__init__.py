"""The reference trainer: a small, readable DeepSpeed GPT. `python -m trainer_hooks.gpt --help`."""
