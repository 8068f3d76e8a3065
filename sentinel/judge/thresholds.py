"""Where the judge draws its lines. Each says its unit, why the default, and how to turn it off."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from sentinel.vocabulary.numbers import AT_LEAST_0, AT_LEAST_1, POSITIVE, POSITIVE_OR_INF, Range


@dataclass(frozen=True, slots=True, kw_only=True)
class Thresholds:
    """The `[judge]` table of a run's configuration."""

    band_sigmas: Annotated[float, POSITIVE_OR_INF] = 6.0
    """Robust standard deviations above its level at which the loss has left its own noise band.

    6 as in OLMo-core's step skipping: under normal noise one step in 10^9; where a run has heavier tails, the band
    learns them. inf turns the noise band off, and with it every verdict but nan, skipped runs and slow climbs.
    """

    band_floor: Annotated[float, AT_LEAST_0] = 0.02
    """The band is at least this share of its level wide (dimensionless), whatever the noise.

    A very smooth loss (0.1 % noise) leaves six of its deviations without anything being wrong. 0 turns the floor off.
    """

    patience_steps: Annotated[int, AT_LEAST_1] = 100
    """Steps from the early end of the onset that a loss is given to come back by itself before it is a divergence.

    tr11-176B rose from 2.1 to 5.1 and was back 30 steps after its peak; NVIDIA's Mixtral runs heal within 5 to 80
    steps: rolling any of them back would have been wrong. A run that has healed from slower spikes before is given
    twice as long as the slowest took, and one that is on its way back three times as long. Longer is safer and costs
    that many steps of a run that is already lost.
    """

    patience_samples: Annotated[int, AT_LEAST_1] = 5
    """Samples that must have been seen since the onset, however many steps they are apart.

    A trainer that logs every 50 steps has shown two readings in 100: two can't tell a spike from a divergence. Three
    are enough where they span two patiences.
    """

    healed_window_samples: Annotated[int, Range(least=1, most=8)] = 8
    """Samples whose median must be back at the level for a spike to have healed: one good step proves nothing."""

    healed_tolerance: Annotated[float, AT_LEAST_0] = 0.005
    """How far above its old level a healed loss may stay (share of the level), beside what noise explains.

    Marin's fatal spike came back to 1.975 from 1.96, 0.8 % above, and stayed there for good.
    """

    climb_sigmas: Annotated[float, POSITIVE_OR_INF] = 6.0
    """Robust standard deviations of a block's mean above its best, for a slow climb.

    The 23 longest public runs that did not diverge stay below 3.3 at every scale (`SlowClimb`): twice that
    leaves room for noisier ones. inf turns slow climbs off.
    """

    climb_tolerance: Annotated[float, AT_LEAST_0] = 0.005
    """A climb is at least this share of the level (dimensionless), however little noise there is: see healed_tolerance.

    0 leaves it to the noise alone.
    """

    skipped_run_steps: Annotated[int, AT_LEAST_1] = 25
    """Updates skipped in a row that are a divergence: the weights are intact, and nothing moves any more.

    A loss scale halves at each overflow: from 2^32, the highest that a run begins with, 25 in a row have taken it to
    2^7, below what any run trains with.
    """

    outright_factor: Annotated[float, Range(above=1)] = 100.0
    """Times its level that two losses running must be to be a divergence at once, without patience.

    Of the labelled curves the highest that came back by itself was 6.4 times its level. Only
    above `hopeless_loss`: a loss that is almost 0 moves by such factors. inf turns it off.
    """

    warmup_tolerance: Annotated[float, AT_LEAST_0] = 0.10
    """How far above its best the loss may climb (share) while the learning rate rises where it has never been.

    A first warmup costs nothing; a resumed run's, that is seen from there on, a few per cent (Gupta et al. 2023,
    "Continual Pre-Training of Large Language Models", Figures 1 and 3). More is too high a rate.
    """

    rewarm_tolerance: Annotated[float, AT_LEAST_0] = 0.25
    """The same while it rises to what this run has had before: a restart of a cosine takes back what the decay gave."""

    lengthening_tolerance: Annotated[float, AT_LEAST_0] = 0.15
    """The same after the sequence length grew: the new positions are untrained. Also the band's width meanwhile."""

    curriculum_tolerance: Annotated[float, AT_LEAST_0] = 0.30
    """The same after a curriculum has admitted more of the samples: it begins with the easy ones, and means to."""

    hopeless_loss: Annotated[float, POSITIVE_OR_INF] = 10.8
    """Nats above which `outright_factor` counts: ln(50257), a uniform guess over GPT-2's tokens.

    A loss that is almost 0 moves by such factors and comes back. inf turns outright_factor off.
    """

    negative_loss: bool = False
    """Whether the loss may be below 0, as an objective of reinforcement learning that `loss` names.

    A cross entropy is not: readings that are all below 0 are no loss (a pipeline rank without one prints -1), and the
    verdict is blind. `sentinel replay --loss NAME` allows it.
    """

    agree_within_steps: Annotated[int, AT_LEAST_0] = 50
    """How far before the onset another signal may have left its band and still agree with the loss (steps)."""

    stalled_after_s: Annotated[float, POSITIVE_OR_INF] = 600.0
    """Seconds without a sample, from a job that is alive, before it is called stalled.

    Two witnesses are needed: the journal, and the log or the checkpoints. inf turns it off.
    """

    first_sample_within_s: Annotated[float, POSITIVE_OR_INF] = 7200.0
    """Seconds that an attempt whose job is alive may take to its first sample before it is called stalled; blind where
    its log is still written. A job that begins no attempt: counted from when it is first seen.

    Loading a checkpoint of some TB, compiling and the first step take up to an hour. inf: it is starting for ever.
    """

    gone_after_s: Annotated[float, POSITIVE_OR_INF] = 3600.0
    """Seconds without a new sample, log line or checkpoint file after which a run whose job can't be found is gone.

    Only where nothing better is known: a job that the scheduler shows as ended, or a process that is seen dead on its
    own machine, is gone at once. An hour is longer than a save or an evaluation lasts. inf: such a run is never gone.
    """

    quiet_s: Annotated[float | None, POSITIVE] = None
    """Seconds for which no file of the checkpoints may have changed before files are moved or a job is started, however
    certain it is that the job has ended. Unset: 120 where the save folder may be on a shared filesystem, whose clients
    see a change up to a minute late; 3 on a filesystem of this machine alone.
    """
