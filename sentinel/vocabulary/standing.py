"""The part of overrides.json that holds from the anchor on, at every start."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

from sentinel.vocabulary.codec import Described, fields_of
from sentinel.vocabulary.pacing import (
    BatchSizeSchedule,
    CurriculumSchedule,
    LrSchedule,
    RandomLtdSchedule,
    SeqlenSchedule,
    Shortening,
)
from sentinel.vocabulary.ranges import AT_LEAST_0, SHARE
from sentinel.vocabulary.skipping import SkippedRange

__all__ = ["Free", "Standing"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Free(Described):
    """Changes that sentinel has no word for: the trainer gets them as they are, and echoes those that it has made."""

    environment: Mapping[str, str] = field(default_factory=dict)
    """Name -> value of environment variables."""

    options: tuple[str, ...] = ()
    """Options of the trainer's command line, each with its value, `--flag=value`; a switch is `--flag`."""

    removed: tuple[str, ...] = ()
    """Options that the trainer no longer gets, each as `--flag`; left out of JSON where there are none."""

    def to_json(self) -> dict[str, Any]:
        """As overrides.json holds it, and as run_started echoes it."""
        found = fields_of(self)
        return found if self.removed else {key: found[key] for key in ("environment", "options")}


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """Changes that hold from the anchor on, at every start; None leaves what the trainer's own settings say."""

    lr: LrSchedule | None = None
    """Replaces the run's LR schedule."""

    seqlen: SeqlenSchedule | None = None
    """Replaces the run's sequence-length schedule; of any pacing."""

    shorten: Shortening | None = None
    """How a batch gets shorter while the sequence length warms up."""

    batch_size: BatchSizeSchedule | None = None
    """Replaces the run's batch-size schedule."""

    random_ltd: RandomLtdSchedule | None = None
    """Replaces the run's random-LTD schedule."""

    curriculum: CurriculumSchedule | None = None
    """Replaces the curriculum metrics that pace the run's data; one without metrics ends it."""

    total_tokens: int | None = None
    """Ends the run at so many effective tokens, in place of the steps or tokens of its own settings."""

    adam_beta1: Annotated[float | None, SHARE] = None
    """Decay of Adam's first moment, dimensionless, for all parameters. What the checkpoint brings back gives way."""

    adam_beta2: Annotated[float | None, SHARE] = None
    """Decay of Adam's second moment, dimensionless, for all parameters. What the checkpoint brings back gives way."""

    weight_decay: Annotated[float | None, AT_LEAST_0] = None
    """Weight decay of the parameters that are decayed at all; those at 0 stay there."""

    clip_grad: Annotated[float | None, AT_LEAST_0] = None
    """Largest global L2 norm of the gradient; above it, it is scaled down. 0 does not clip."""

    skipped: tuple[SkippedRange, ...] = ()
    """Samples that earlier decisions left out: they stay out, also when the run is rolled back to before them."""

    free: Free | None = None
    """None is no such change."""

    def to_json(self) -> dict[str, Any]:
        """As overrides.json holds it: what is None stays out."""
        found = fields_of(self, without_none=True)
        return found if self.skipped else {key: value for key, value in found.items() if key != "skipped"}
