"""What switching sequence length warmup on means for a run: five changes, not one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from sentinel.vocabulary.errors import ConfigError
from sentinel.vocabulary.pacing.lr import resized_warmup
from sentinel.vocabulary.pacing.seqlen import SeqlenSchedule

__all__ = ["SlwChanges", "SlwRun", "slw_changes"]

WarmupUnit = Literal["steps", "samples", "tokens"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SlwRun:
    """A run as it is configured without SLW."""

    global_batch_samples: int
    """Samples per step over all ranks, once any batch-size warmup is over."""

    train_steps: int
    """Optimizer steps at the full length, at which the run was to end."""

    decay_steps: int | None = None
    """Steps in which the LR decays; None is all of train_steps."""

    lr_warmup_tokens: int | None = None
    """X, the tokens of the LR warmup (GPT-3: 375 million); None where the run has none."""

    batch_warms_up: bool = False
    """Whether the run has a batch-size warmup (--rampup-batch-size), which SLW takes the place of."""

    validation_interval_steps: int | None = None
    """Steps between two validations; None where there are none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SlwChanges:
    """The five changes, and that validations come more often, since the training loss no longer tells."""

    schedule: SeqlenSchedule
    """The warmup itself (2.1)."""

    batch_samples: int
    """The batch is the full one from the first step: no batch-size warmup beside it (2.2)."""

    remove_batch_warmup: bool
    """Whether the run had one."""

    train_tokens: int
    """The run ends after so many tokens (2.3): train_steps x global batch x full length."""

    most_steps: int
    """Steps that may not end it before: three times as many as without SLW."""

    lr_decay_tokens: int
    """The LR decays over so many tokens (2.4): decay_steps x global batch x full length."""

    lr_warmup: int | None
    """Length of the LR warmup in its unit (2.5); None where the run has none."""

    lr_warmup_unit: WarmupUnit
    """steps or samples: re-sized for the start length. tokens: as the GPT-3 recipes have it."""

    validation_interval_steps: int | None
    """Half of what it was; always at full length."""

    def sentences(self) -> tuple[str, ...]:
        """The changes as a person reads them."""
        batch = f"the global batch is {self.batch_samples} samples from the first step"
        removed = ": the batch-size warmup is removed" if self.remove_batch_warmup else ""
        said = [
            f"the sequence length is {self.schedule}",
            batch + removed,
            f"the run ends after {self.train_tokens} tokens, and not before {self.most_steps} steps otherwise",
            f"the LR decays over {self.lr_decay_tokens} tokens",
        ]
        if self.lr_warmup is not None:
            said.append(f"the LR warms up over {self.lr_warmup} {self.lr_warmup_unit}")
        if self.validation_interval_steps is not None:
            said.append(f"validation at {self.schedule.full} tokens every {self.validation_interval_steps} steps")
        return tuple(said)


def slw_changes(run: SlwRun, schedule: SeqlenSchedule, *, lr_warmup_unit: WarmupUnit = "steps") -> SlwChanges:
    """What else changes where this warmup is switched on. ConfigError where it warms nothing up.

    Source: DeepSpeed's curriculum tutorial, sections 2.1 to 2.5. The papers' GPT-3 recipes (Li, Zhang & He 2022,
    footnote 7) warm the LR up by tokens all the same: that is `lr_warmup_unit="tokens"`.
    """
    if not schedule.warms_up:
        raise ConfigError(f"a sequence length of {schedule} is no warmup: nothing else has to change")
    per_step = run.global_batch_samples * schedule.full
    decay = run.train_steps if run.decay_steps is None else run.decay_steps
    interval = run.validation_interval_steps
    return SlwChanges(
        schedule=schedule,
        batch_samples=run.global_batch_samples,
        remove_batch_warmup=run.batch_warms_up,
        train_tokens=run.train_steps * per_step,
        most_steps=3 * run.train_steps,
        lr_decay_tokens=decay * per_step,
        lr_warmup=_lr_warmup(run, schedule, lr_warmup_unit),
        lr_warmup_unit=lr_warmup_unit,
        validation_interval_steps=None if interval is None else max(1, interval // 2),
    )


def _lr_warmup(run: SlwRun, schedule: SeqlenSchedule, unit: WarmupUnit) -> int | None:
    if run.lr_warmup_tokens is None or unit == "tokens":
        return run.lr_warmup_tokens
    batch = run.global_batch_samples if unit == "steps" else None
    return resized_warmup(run.lr_warmup_tokens, start=schedule.start, global_batch_samples=batch)
