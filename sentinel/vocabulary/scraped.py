"""A sample of a source that sees one step of several, and knows something of the others."""

from __future__ import annotations

from dataclasses import dataclass

from sentinel.vocabulary.sample import Sample


@dataclass(frozen=True, slots=True, kw_only=True)
class ScrapedSample(Sample):
    """The step that a scrape saw, and what the trainer's counters and window maxima say of those since the one before.

    Which of them each was of is not known, and not made up. All counts leave out the step itself.
    """

    # Optimizer steps between the sample before and this one; for an attempt's first, all before it.
    unseen_steps: int = 0
    unseen_nonfinite: int = 0  # Of these, the ones whose loss was nan or infinite
    unseen_skipped: int = 0  # Of these, the ones whose update the optimizer skipped
    unseen_spikes: int = 0  # Of these, the ones with a loss ratio above 1.2; a loss that is not finite counts
    # A finite loss, nats, that one of these steps had and none surpassed as far as the window reaches; None where the
    # window's maximum is this step's own, or may be an older step's.
    unseen_loss_max: float | None = None
