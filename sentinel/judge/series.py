"""What is kept of the past of one line of descent: bands, the best mean, and the episode that is under way."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from statistics import median

from sentinel.judge.signals import BestMean, NoiseBand
from sentinel.judge.thresholds import Thresholds
from sentinel.vocabulary.sample import Sample

__all__ = ["Alarm", "Episode", "Series"]

LEADING_SIGNALS = ("adam_variance_l1", "adam_variance_max", "grad_norm")
"""Signals that may move before the loss does; fields of Sample."""

_LENGTHENING_FLOOR = 0.15
"""Width of the loss's band (share of its level) just after the sequence length grew: new positions are untrained."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Alarm:
    """Something that will not come back by itself."""

    step: int
    """The step at which it was known."""

    onset_range: tuple[int, int]
    """The first step of the episode: earliest and latest that it can have been."""

    led_by: tuple[str, ...]
    """Signals that left their band before the onset, the earliest first."""

    reason: str


@dataclass(slots=True, kw_only=True)
class Episode:
    """The loss has left its band and has not come back yet."""

    onset_range: tuple[int, int]
    level: float
    """The band's level before the onset, nats; frozen."""

    sigma: float
    """The band's noise before the onset, nats; frozen."""

    peak: float
    samples: int = 0
    """Finite losses since the onset."""

    recent: deque[float]
    """The last finite losses since the onset, enough of them to see it heal."""


class Series:
    """Folds the samples of one line of descent, in order. Ask `judge` what they mean."""

    def __init__(self, thresholds: Thresholds, samples: Iterable[Sample] = ()) -> None:
        self._thresholds = thresholds
        self._loss = self._band()
        self._leading = {name: self._band() for name in LEADING_SIGNALS}
        self._departed: dict[str, int] = {}
        self._last_inside: int | None = None
        self._climbing_since: int | None = None
        self._climbing_samples = 0
        self._near_best_step = 0
        self._not_finite_since: int | None = None
        self._not_finite_steps = 0
        self._lengthened_steps = thresholds.band_window_samples
        self.skipped_run = 0
        """Updates skipped in a row, up to now."""
        self.mean = BestMean(thresholds.climb_window_samples)
        """Moving mean of the loss at the present sequence length."""
        self.last: Sample | None = None
        self.alarm: Alarm | None = None
        """Set once the episode is a divergence; None again should it heal after all."""
        self.episode: Episode | None = None
        self.healed: list[tuple[int, int]] = []
        """(onset, healed at) of every spike that came back by itself."""
        for sample in samples:
            self.push(sample)

    @property
    def band_ready(self) -> bool:
        """Whether the loss's noise band has seen enough to judge by."""
        return self._loss.ready

    def push(self, sample: Sample) -> None:
        """Takes the next sample."""
        self._note_length(sample)
        self.last = sample
        if sample.skipped:
            self._note_skipped(sample)
            return
        self.skipped_run = 0
        self._note_leading(sample)
        if self._note_not_finite(sample):
            return
        self._note_episode(sample)
        self._note_climb(sample)

    def _band(self) -> NoiseBand:
        t = self._thresholds
        return NoiseBand(
            sigmas=t.band_sigmas, floor=t.band_floor, window=t.band_window_samples, min_samples=t.band_min_samples
        )

    def _note_length(self, sample: Sample) -> None:
        before = self.last.seqlen if self.last else None
        self._lengthened_steps += 1
        if before is None or sample.seqlen is None or sample.seqlen == before:
            return
        self.mean.clear()
        self._climbing_since, self._climbing_samples = None, 0
        self._lengthened_steps = 0
        if sample.seqlen < before:  # a loss at a shorter length is higher: nothing before compares with it
            self._loss.clear()
            self.episode = None
            self.alarm = None

    def _note_skipped(self, sample: Sample) -> None:
        self.skipped_run += 1
        if self.skipped_run >= self._thresholds.skipped_run_steps and self.alarm is None:
            first = sample.global_step - self.skipped_run + 1
            self._raise_alarm(
                sample.global_step,
                (min(first, sample.global_step), sample.global_step),
                f"the optimizer has skipped {self.skipped_run} updates in a row: the weights stand still",
            )

    def _note_leading(self, sample: Sample) -> None:
        for name, band in self._leading.items():
            value = getattr(sample, name)
            if value is None:
                continue
            if math.isfinite(value) and value <= band.upper():
                band.learn(value)
                self._departed.pop(name, None)
            else:
                self._departed.setdefault(name, sample.global_step)

    def _note_not_finite(self, sample: Sample) -> bool:
        """Whether the step was not a number; certain corruption of the weights raises the alarm at once."""
        if math.isfinite(sample.loss) and not _is_nan(sample.adam_variance_l1):
            self._not_finite_since, self._not_finite_steps = None, 0
            return False
        step = sample.global_step
        self._not_finite_since = self._not_finite_since or step
        self._not_finite_steps += 1
        in_weights = _is_nan(sample.adam_variance_l1) or self._not_finite_steps >= 2
        if in_weights and self.alarm is None:
            first = self.episode.onset_range if self.episode else (self._not_finite_since,) * 2
            what = "Adam's variance is nan" if _is_nan(sample.adam_variance_l1) else "the loss is not a number"
            self._raise_alarm(step, first, f"{what} since step {self._not_finite_since}: nan is in the weights")
        return True

    def _note_episode(self, sample: Sample) -> None:
        widened = _LENGTHENING_FLOOR if self._lengthened_steps < self._thresholds.band_window_samples else 0.0
        if self.episode is None:
            if sample.loss <= self._loss.upper(widened):
                self._loss.learn(sample.loss)
                if sample.loss <= self._loss.level + self._loss.sigma:
                    self._last_inside = sample.global_step
                return
            early = min((self._last_inside or sample.global_step - 1) + 1, sample.global_step)
            self.episode = Episode(
                onset_range=(early, sample.global_step),
                level=self._loss.level,
                sigma=self._loss.sigma,
                peak=sample.loss,
                recent=deque(maxlen=self._thresholds.healed_window_samples),
            )
        episode = self.episode
        episode.peak = max(episode.peak, sample.loss)
        episode.samples += 1
        episode.recent.append(sample.loss)
        if self._has_healed(episode, widened):
            self.healed.append((episode.onset_range[0], sample.global_step))
            self.episode = None
            if self._climbing_since is None:
                self.alarm = None
            self._last_inside = sample.global_step
        elif episode.samples > self._thresholds.patience_samples and self.alarm is None:
            self._raise_alarm(
                sample.global_step,
                episode.onset_range,
                f"the loss left its band ({episode.level:.3f} ± {episode.sigma:.3f}) at step {episode.onset_range[1]}, "
                f"peaked at {episode.peak:.3f} and has stood at {median(episode.recent):.3f} since: "
                f"{self._thresholds.patience_samples} samples later it has not come back by itself",
            )

    def _has_healed(self, episode: Episode, widened: float) -> bool:
        """The median of the last few losses is back at the old level, as far as its own noise lets one say."""
        if len(episode.recent) < self._thresholds.healed_window_samples:
            return False
        standard_error = 1.2533 * episode.sigma / math.sqrt(len(episode.recent))  # of a median, for normal noise
        tolerance = max(3 * standard_error, max(self._thresholds.healed_tolerance, widened) * abs(episode.level))
        return median(episode.recent) <= episode.level + tolerance

    def _note_climb(self, sample: Sample) -> None:
        mean = self.mean
        mean.push(sample.loss, sample.global_step)
        if mean.mean is None or mean.best is None or mean.best_step is None:
            return
        t = self._thresholds
        standard_error = self._loss.sigma / math.sqrt(t.climb_window_samples)
        noise = t.band_sigmas * standard_error
        if mean.mean <= mean.best + 2 * standard_error:
            self._near_best_step = sample.global_step
        if mean.mean <= mean.best + max(noise, t.climb_tolerance * abs(mean.best)):
            if self._climbing_since is not None and self.episode is None:
                self.alarm = None
            self._climbing_since, self._climbing_samples = None, 0
            return
        self._climbing_since = self._climbing_since or sample.global_step
        self._climbing_samples += 1
        if self._climbing_samples > t.patience_samples and self.alarm is None:
            # the window that ended there held the last losses that were as good as the best, but for noise
            early = self._near_best_step + 1
            onset = (early, max(early, self._climbing_since))
            self._raise_alarm(
                sample.global_step,
                onset,
                f"the {t.climb_window_samples}-sample mean of the loss has been above its best ({mean.best:.3f}, step "
                f"{mean.best_step}) for {t.patience_samples} samples and stands at {mean.mean:.3f}: a slow climb",
            )

    def _raise_alarm(self, step: int, onset_range: tuple[int, int], reason: str) -> None:
        oldest = onset_range[0] - self._thresholds.led_by_window_steps
        led = sorted((at, name) for name, at in self._departed.items() if oldest <= at < onset_range[1])
        self.alarm = Alarm(step=step, onset_range=onset_range, led_by=tuple(name for _, name in led), reason=reason)


def _is_nan(value: float | None) -> bool:
    return value is not None and math.isnan(value)
