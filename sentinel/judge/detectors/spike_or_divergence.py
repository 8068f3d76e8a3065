"""The loss leaves its noise band: a spike if it comes back by itself, a divergence if it does not.

Spike: a loss above the band. It ends when the median of 8 is at the old level, or the medians of 8 and 32 are within
0.5 % or three standard errors of it. Divergence: not back after the patience, median of 32 six standard errors above
the level after one patience, falling to four after three; or, after ten, the last 16 medians of 8 all above every one
of the 64 blocks before the onset, by 2 %. The noise is the level's or, if larger, that of the losses since, once the
patience is over without their slope.

Patience: patience_steps to the nearest reading, or patience_samples if later, three where they span two patiences;
twice the slowest spike that this run recovered from, ten patiences at most; three for a loss on its way back. Shares of
it multiply, 30 % at the least: 50 % where another signal has left its band (in half of the samples since the onset or
in eight, and in the later half of them) or the loss scale has collapsed, 40 % where that signal was outside in four of
five samples, 16 at the least, and still is; 50 % where update norm or sum of sqrt(v) is below 40 % of its level from
before (the model does not learn any more); 70 % where the loss is a tenth higher above its level than at half of the
episode's age.
"""

from __future__ import annotations

import math

from sentinel.judge.detectors.detector import Block, Detector, Finding, Known, Reset
from sentinel.judge.detectors.episode import Episode
from sentinel.judge.events import EventKind
from sentinel.judge.readings import Samples
from sentinel.judge.thresholds import Thresholds
from sentinel.vocabulary.sample import ScrapedSample

_AGREED = 0.5  # Share of the patience where another signal says the same as the loss
_STANDS = 0.4  # … where that signal has been outside its band all the while, and still is
_RISING = 0.7  # … where the loss stands a tenth higher than at half its age
_LEAST = 0.3  # … at the least, whatever is said
_LEVEL_SAMPLES = 32  # Losses that a settled band's level comes from


class LeftBand(Detector):
    """Opens and closes the episode of the baseline; the band learns only from losses inside it."""

    def __init__(self, thresholds: Thresholds) -> None:
        self._inside: list[float] = []
        self._middle: float | None = None  # Their median, where they came together

    def reset(self, why: Reset) -> None:
        if why is Reset.SETTINGS:
            self._inside = []

    def is_quiet(self, samples: Samples, known: Known) -> bool:
        past = known.baseline
        settled = past.episode is None and past.band.ready and not known.regime.widened and not self._inside
        return settled and samples.largest <= past.band.upper

    def push(self, samples: Samples, known: Known) -> Finding | None:
        past = known.baseline
        if past.episode is not None:
            past.episode.push(samples.steps[-1], samples.losses[-1])
        elif samples.plain or samples.losses[0] <= known.edge:
            self._middle = samples.middle if samples.plain else None
            self._inside += samples.losses
            past.band.glimpse(self._inside)
        else:
            self._open(list(zip(samples.steps, samples.losses, strict=True)), known)
        return None if past.episode is None else self._weigh(past.episode, samples.steps[-1], known)

    def push_unseen(self, sample: ScrapedSample, known: Known) -> Finding | None:
        """The largest of the unseen losses may open an episode. No band learns from it: of many it is the worst."""
        past, worst = known.baseline, sample.unseen_loss_max
        if worst is not None and past.episode is None and past.band.ready and worst > known.edge:
            self._open([(sample.global_step - 1, worst)], known)
        return None

    def learn(self, block: Block, known: Known) -> None:
        past, inside, middle = known.baseline, self._inside, self._middle
        self._inside, self._middle = [], None
        if past.episode is not None or known.band_paused:
            return
        if block.median > past.ceiling and past.band.stands_out(block.median, known.regime.widened):
            self._open(block.losses, known)
        elif not past.band.learn(inside, middle) and not past.band.ready:
            self._inside = inside  # too few so far to begin with: the next block continues from them

    def end(self, known: Known) -> Finding | None:
        episode = known.baseline.episode
        if episode is None or episode.back_step is not None:
            return None
        if episode.outside < 2 and not known.leading.departed_before(episode.onset_range):
            return None
        reason = (
            f"the loss left its band ({episode.level:.3f}) at step {episode.onset_range[1]}, peaked at "
            f"{episode.peak:.3f}, and had not come back when the readings ended, {episode.samples} samples later"
        )
        return Finding(onset_range=episode.onset_range, reason=reason)

    def _open(self, since: list[tuple[int, float]], known: Known) -> None:
        band, widened, step = known.baseline.band, known.regime.widened, since[0][0]
        if math.isnan(band.level):
            return
        before = [(at, loss) for at, loss in known.recent if at < step]
        inside = [at for at, loss in before if loss <= band.level + band.sigma]
        early = inside[-1] if inside else before[0][0] if before else step
        known.baseline.episode = episode = Episode(
            onset_range=(min(early + 1, step), step),
            level=min(band.level, band.lowest) if widened else known.baseline.level,
            sigma=band.sigma,
            upper=band.edge(widened),
            provisional=not band.ready,
            independence=band.independence,
            highest=band.highest,
            usual=known.leading.usual(),
            before=_LEVEL_SAMPLES if band.ready else max(1, len(self._inside)),
        )
        for at, loss in since:
            episode.push(at, loss)

    def _share(self, episode: Episode, step: int, known: Known) -> float:
        """Of the patience: less where another signal says the same as the loss, or where the loss goes on rising."""
        leading, onset_range, samples = known.leading, episode.onset_range, episode.samples
        agrees = leading.agree(onset_range, step, samples)
        agreed = _STANDS if agrees and leading.stand(onset_range, step, samples) else _AGREED
        said = ((agrees, agreed), (leading.fades(episode.usual), _AGREED), (episode.rises(step), _RISING))
        return max(_LEAST, math.prod(share for is_said, share in said if is_said))

    def _stands(self, episode: Episode, step: int, known: Known) -> bool:
        """Whether the wait is over; what other signals say is asked only where the shortest is."""
        t, patience = known.thresholds, known.patience_steps
        if not episode.has_lasted(t, step, max(1, round(patience * _LEAST))):
            return False
        patience = max(1, round(patience * self._share(episode, step, known)))
        return episode.stands(t, step, patience, known.regime.widened)

    def _weigh(self, episode: Episode, step: int, known: Known) -> Finding | None:
        t, past, widened = known.thresholds, known.baseline, known.regime.widened
        if episode.has_healed(t, widened):
            past.episode = None
            if known.alarm is not None:  # a climb goes on where the episode ends
                return None if past.climbing else Finding.over(known.alarm.kind, step)
            if episode.outside == 1:
                past.band.outlier(episode.peak)
            end = step if episode.back_step is None else episode.back_step
            return Finding(
                onset_range=episode.onset_range,
                reason=f"{episode.left_band}, peak {episode.peak:.3f}: back by itself at step {end}",
                kind=EventKind.SPIKE,
                end_step=end,
                is_event=episode.outside > 0,
            )
        if episode.band_was_wrong(step, known.patience_steps):  # other signals say nothing of the band
            past.episode, self._inside = None, []  # the band was wrong, not the loss: begin again
            past.band.clear()
        elif known.alarm is None and self._stands(episode, step, known):
            reason = (
                f"{episode.left_band}, peaked at {episode.peak:.3f} and stands at {episode.stands_at:.3f}: "
                f"{step - episode.onset_range[1]} steps later it has not come back by itself"
                f"{episode.denser(t, step, known.patience_steps)}"
            )
            return Finding(onset_range=episode.onset_range, reason=reason)
        return None
