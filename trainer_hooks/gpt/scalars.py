"""TensorBoard scalars under Megatron's names, each on its three axes: iteration, samples, tokens."""

from __future__ import annotations

import warnings
from pathlib import Path

from sentinel.vocabulary.sample import Sample

# Tag -> field of Sample; the first six as Megatron-DeepSpeed's training.py names them.
_TAGS = {
    "lm-loss-training/lm loss": "loss",
    "learning-rate/learning-rate": "lr",
    "grad-norm/grad-norm": "grad_norm",
    "loss-scale/loss-scale": "loss_scale",
    "seqlen/sequence-length": "seqlen",
    "batch-size/batch-size": "global_batch_samples",
    "optimizer/variance_l1": "adam_variance_l1",
    "optimizer/variance_max": "adam_variance_max",
}

_FLUSH_EVERY_STEPS = 10


class Scalars:
    """Writes one event file for this attempt."""

    def __init__(self, folder: Path) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # tensorboard's own, about its protobuf
            from torch.utils.tensorboard import SummaryWriter

        self._writer = SummaryWriter(str(folder))

    def step(self, sample: Sample) -> None:
        """Every reading of a step that was measured."""
        for tag, name in _TAGS.items():
            value = getattr(sample, name)
            if value is not None:
                self._three(tag, value, sample)
        if sample.global_step % _FLUSH_EVERY_STEPS == 0:
            self._writer.flush()

    def validation(self, loss: float, sample: Sample) -> None:
        """A validation loss, nats."""
        self._three("lm-loss-validation/lm loss validation", loss, sample)

    def close(self) -> None:
        self._writer.close()

    def _three(self, tag: str, value: float, sample: Sample) -> None:
        add = self._writer.add_scalar
        add(tag, value, sample.global_step)
        if sample.consumed_samples is not None:
            add(f"{tag} vs samples", value, sample.consumed_samples)
        if sample.consumed_tokens is not None:
            add(f"{tag} vs tokens", value, sample.consumed_tokens)
