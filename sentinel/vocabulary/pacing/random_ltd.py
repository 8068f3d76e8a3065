"""Random layerwise token dropping (random-LTD): the middle layers see a random subset of the tokens, and then all."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Self

from sentinel.vocabulary.codec import Described
from sentinel.vocabulary.errors import ConfigError
from sentinel.vocabulary.pacing.formulas import root, rounded


@dataclass(frozen=True, slots=True, kw_only=True)
class RandomLtdSchedule(Described):
    """Tokens of each sample that a dropping layer keeps, linear in steps from an anchor.

    r_t = r_s + (e - r_s) * min((t - a) / T, 1), rounded down to a multiple, never below r_s, never above the step's
    sequence length.

    DeepSpeed's RandomLTDScheduler counts the steps before this one: it keeps at step t what is kept here at t - 1.

    Source: Yao et al. 2022 (arXiv:2211.11586); Li et al. 2022, section 3.2 (arXiv:2212.03597).
    """

    start: int  # r_s, tokens per sample kept at the anchor
    full: int  # e, tokens per sample: the full sequence length
    total_steps: int  # T, optimizer steps until nothing is dropped; 0 drops nothing at all
    anchor_step: int = 0  # a, the completed step that it counts from
    multiple: int = 16  # Rounded down to a multiple of this: DeepSpeed's seq_per_step
    layers: tuple[int, ...] | None = None  # Which layers drop, counted from 0; None is all but the first and the last

    def __post_init__(self) -> None:
        if not 1 <= self.start <= self.full:
            raise ConfigError(
                f"random-LTD start should lie between 1 and the full length {self.full}, not {self.start}: "
                "there is nothing to drop above it"
            )
        if self.total_steps < 0 or self.multiple < 1:
            raise ConfigError("random-LTD total_steps may not be negative, and multiple not below 1")
        if self.layers is not None and (
            list(self.layers) != sorted(set(self.layers)) or any(layer < 0 for layer in self.layers)
        ):
            raise ConfigError(f"random-LTD layers should be numbers from 0, each once and rising: {list(self.layers)}")

    def kept_tokens(self, step: int, seqlen: int | None = None) -> int:
        """Tokens per sample kept in the update that makes `step`, of `seqlen` that there are (None is the full length).

        Where it equals the sequence length nothing is dropped.
        """
        kept = root(step - self.anchor_step, self.total_steps, start=self.start, full=self.full)
        if kept < self.full:
            kept = rounded(kept, self.multiple, least=self.start)
        return kept if seqlen is None else min(kept, seqlen)

    @property
    def end_step(self) -> int:
        """The first step that drops nothing."""
        return self.anchor_step + self.total_steps if self.start < self.full else self.anchor_step

    @property
    def drops(self) -> bool:
        """Whether any step drops tokens; a run without random-LTD may report a schedule that does not."""
        return self.end_step > self.anchor_step

    def anchored_at(self, step: int) -> Self:
        """The same schedule, counted from this completed step."""
        return replace(self, anchor_step=step)

    def __str__(self) -> str:
        """As a person reads it, in a plan."""
        if not self.drops:
            return "all tokens"
        return f"{self.start} -> {self.full} tokens over {self.total_steps} steps from {self.anchor_step}"
