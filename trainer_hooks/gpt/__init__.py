"""The reference trainer: a small, readable DeepSpeed GPT. `python -m trainer_hooks.gpt --help`.

In: options, text files, overrides.json. Out: a training that reports to the hook, with checkpoints and TensorBoard
files.
"""
