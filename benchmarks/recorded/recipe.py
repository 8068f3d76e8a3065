"""What one curve is made from: a small GPT, its data, its optimizer, what is done to it and when."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

__all__ = ["Act", "Recipe"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Act:
    """One thing that happens to a run."""

    kind: str
    """A name in acts.WEIGHT_ACTS or acts.DATA_ACTS; `set`: other settings meanwhile; `lost_reading`: loss and gradient
    norm are nan, and the update is skipped."""

    start: int
    """The first step that it touches."""

    stop: int | None = None
    """The first step that it leaves alone again; None: for good. Acts on weights and moments happen once, at start."""

    planned: bool = False
    """A planned act is part of the recipe: the sibling has it too."""

    p: dict[str, Any] = field(default_factory=dict)
    """Its parameters."""

    def active(self, step: int) -> bool:
        return self.start <= step and (self.stop is None or step < self.stop)


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """One run. Its sibling is the same run without the cause: without the acts, and with the settings in `cure`."""

    name: str
    cause: str
    """Why it could go wrong; `none:…` for a run that nothing is done to."""

    seed: int = 0
    steps: int = 1500
    corpus: str = "zipf"
    batch: int = 16
    seqlen: int = 32
    layers: int = 2
    width: int = 64
    heads: int = 4
    norm: str = "pre"
    """`pre`, `post` or `none` (the final LayerNorm stays)."""

    relu: bool = False
    init_gain: float = 1.0
    """All initial weights times this."""

    attention_gain: float = 1.0
    """Initial weights of queries and keys times this."""

    lr: float = 2e-3
    warmup: int = 50
    decay: str = "cosine"
    """`cosine` to lr/10, `constant`, `linear` to 0, `wsd` (linear to 0 over the last fifth), `restarts` (cosine, four
    cycles), `early` (to 0 by a third of the run), `rewarm` (cosine to the middle, then a second warmup and cosine),
    `creep` (doubles every `creep_steps`)."""

    creep_steps: int = 200
    beta1: float = 0.9
    beta2: float = 0.95
    eps: float = 1e-8
    weight_decay: float = 0.1
    clip: float = 1.0
    """Largest gradient norm; 0 does not clip."""

    fp16: bool = False
    loss_scale: float = 65536.0
    growth_interval: int = 200
    """Steps without an overflow after which the loss scale doubles."""

    lengths: tuple[tuple[int, int], ...] = ()
    """(from step, tokens per sample): a staircase; before and without it, seqlen."""

    slw_steps: int = 0
    """Sequence length warmup: linear from 8 to seqlen over so many steps, in multiples of 8; 0 is off."""

    batches: tuple[tuple[int, int], ...] = ()
    """(from step, samples): a staircase."""

    epoch_samples: int = 0
    """So many samples, in a new order every epoch; 0: windows from anywhere in the corpus."""

    mix: float = 0.0
    """Concentration of the Dirichlet that mixes the corpora anew in every batch; small is heavy-tailed; 0 is off."""

    acts: tuple[Act, ...] = ()
    cure: dict[str, Any] = field(default_factory=dict)
    """What the sibling has otherwise, where the cause is a setting."""

    restarts: tuple[tuple[int, int], ...] = ()
    """(after step, back to step): the run is stopped there and resumed from the earlier state, with a new data seed."""

    log_interval: int = 1
    log_from: int = 1
    """Steps before it were not logged: the log of a resumed run."""

    average: bool = True
    """Whether a logged loss is the mean over its interval (Megatron) or the last step's."""

    regime: tuple[str, ...] = ()
    """Planned changes as `kind:step`, as the run's owner would know them."""

    note: str = ""

    @property
    def onset(self) -> int | None:
        """The step that the cause starts at; None where it is a setting from the beginning, or where there is none."""
        starts = [a.start for a in self.acts if not a.planned]
        return min(starts) if starts else None

    def sibling(self) -> Recipe | None:
        """The same run without the cause; None where there is no cause."""
        if self.onset is None and not self.cure:
            return None
        return replace(self, acts=tuple(a for a in self.acts if a.planned), cure={}, **self.cure)
