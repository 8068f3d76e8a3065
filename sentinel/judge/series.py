"""What is kept of the past of one line of descent: bands, scales, the regime, and the episode that is under way."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Sequence

from sentinel.judge.baselines import Compared, Kept
from sentinel.judge.episode import Episode
from sentinel.judge.events import Event, EventKind
from sentinel.judge.fall import SuddenFall
from sentinel.judge.findings import Alarm, Findings
from sentinel.judge.leading import Leading
from sentinel.judge.noise_band import BLOCK, median
from sentinel.judge.outright import FarAbove, Hopeless, NotFinite, Overflows, Vanished, rising_since
from sentinel.judge.readings import COLUMNS, Readings
from sentinel.judge.scales import Climb
from sentinel.judge.schedule_changes import Change, Regime
from sentinel.judge.stretch import Stretch
from sentinel.judge.thresholds import Thresholds
from sentinel.judge.trend import Reference
from sentinel.vocabulary.sample import Sample
from sentinel.vocabulary.scraped import ScrapedSample

__all__ = ["Alarm", "Series"]

_RECENT_SAMPLES = 64
"""Losses that an onset is looked for in, backwards."""

_LEVEL_SAMPLES = 32
"""Losses that a settled band's level comes from."""


class Series:
    """Folds the samples of one line of descent, in order. Ask `judge` what they mean, or `events` what happened.

    What is kept does not grow with the samples, but for one line for each event. `planned` are steps at which a person
    has said that something changes (other data, another stage): what the trainer reports itself need not be told.
    `references` are other runs that this one should not be slower than.
    """

    def __init__(
        self,
        thresholds: Thresholds,
        samples: Iterable[Sample] = (),
        planned: Iterable[int] = (),
        references: Sequence[Reference] = (),
    ) -> None:
        self._thresholds = t = thresholds
        self._leading = Leading(t)
        self._findings = Findings(self._leading)
        self._regime = Regime(t, planned)
        self._settings = self._regime.settings
        self._kept = Kept()
        self._overflows = Overflows(t)
        self._not_finite = NotFinite()
        self._vanished = Vanished(t)
        self._far_above = FarAbove(t)
        self._fall = SuddenFall(t)
        self._first = Hopeless(t)
        self._recent: deque[tuple[int, float]] = deque(maxlen=_RECENT_SAMPLES)
        self._block: list[tuple[int, float]] = []
        self._inside: list[float] = []
        self._lr: float | None = None
        self.last: Sample | None = None
        """The newest sample that came by itself; None where they came as columns."""
        self.last_step: int | None = None
        self.episode: Episode | None = None
        """The loss has left its band and has not come back yet."""
        self._compare(Compared.begun(t, references))
        for sample in samples:
            self.push(sample)

    @property
    def band_ready(self) -> bool:
        """Whether the loss's noise band has seen enough to judge by."""
        return self._band.ready

    @property
    def level(self) -> float | None:
        """Where the loss is by the judge's own lights, nats: it never learns an illness, and begins anew where no loss
        before compares with those after. None before it has seen any."""
        level = self.episode.level if self.episode is not None else self._band.level
        return None if math.isnan(level) else level

    @property
    def alarm(self) -> Alarm | None:
        """Set once something will not come back by itself; None again should it heal after all."""
        return self._findings.alarm

    @property
    def skipped_run(self) -> int:
        """Updates skipped in a row, up to now."""
        return self._overflows.run

    @property
    def healed(self) -> list[tuple[int, int]]:
        """(late end of the onset, step by which it was back) of the last 64 spikes that came back by themselves."""
        return [(onset[1], end) for onset, end in self._findings.healed]

    @property
    def events(self) -> tuple[Event, ...]:
        """What happened so far, by onset; what lasts has no end."""
        return self._findings.events(self.episode)

    def compare_with(self, references: Sequence[Reference]) -> None:
        """What the references are from now on: they may be still running themselves."""
        self._trend.references = references

    def push(self, sample: Sample) -> None:
        """Takes the next sample."""
        if isinstance(sample, ScrapedSample) and sample.unseen_steps:
            self._take_unseen(sample)
        self.last = sample
        self._take(sample.global_step, sample.skipped, {name: getattr(sample, name) for name in COLUMNS})

    def push_readings(self, readings: Readings) -> None:
        """Takes a stretch of samples: the same as `push` for each, and many times faster where nothing happens."""
        stretch = Stretch(readings)
        i, n = 0, len(readings)
        while i < n:
            if self._quiet and stretch.plain(i) and self._take_quiet_block(stretch, i):
                i += BLOCK
            else:
                self._take(*stretch.sample(i))
                i += 1

    @property
    def _quiet(self) -> bool:
        """Whether a block of samples that are all inside their bands would only move the bands."""
        return (
            not self._block
            and not self._inside
            and self.episode is None
            and self._band.ready
            and not self._regime.widened
            and not self._not_finite.steps
            and not self._vanished.run
            and not self.skipped_run
            and self._first.samples >= BLOCK
        )

    def _take_quiet_block(self, stretch: Stretch, i: int) -> bool:
        """Takes the block that begins at i, if all of it is inside its bands: what `_take` would do for each."""
        losses = stretch.losses[i : i + BLOCK]
        if max(losses) > self._band.upper or not self._regime.is_quiet(stretch.steps[i + BLOCK - 1]):
            return False
        signals = {name: column[i : i + BLOCK] for name, column in stretch.banded.items()}
        if not self._leading.take_quiet_block(signals):
            return False
        self._block = list(zip(stretch.steps[i : i + BLOCK], losses, strict=True))
        self._recent.extend(self._block)
        self._inside = losses
        self._first.samples += BLOCK
        self._vanished.believe(min(losses), BLOCK)
        self._lr = stretch.lr[i + BLOCK - 1] if stretch.lr else self._lr
        self.last_step = self._block[-1][0]
        self._end_block(self.last_step)
        return True

    def end(self) -> None:
        """No more samples will come: who asks now has no way to wait. An episode that is under way did not heal."""
        episode = self.episode
        if self.alarm is not None:
            return
        if episode is None or episode.back_step is not None:
            rising = None if self._band.ready else rising_since(self._recent)
            if rising is not None:
                first, low, high = rising
                self._alarm((first, first), f"the loss has only risen since step {first}: from {low:.3f} to {high:.3f}")
            return
        if episode.outside >= 2 or self._leading.ahead_of(episode.onset_range):
            self._alarm(
                episode.onset_range,
                f"the loss left its band ({episode.level:.3f}) at step {episode.onset_range[1]}, peaked at "
                f"{episode.peak:.3f}, and had not come back when the readings ended, {episode.samples} samples later",
            )

    def _take_unseen(self, sample: ScrapedSample) -> None:
        """Takes what is known of the steps before this sample that no sample tells of. No band learns from it: of many
        steps it is the worst one."""
        at = sample.global_step - 1
        self._overflows.unseen(sample.global_step, sample.unseen_steps, sample.unseen_skipped)
        if sample.unseen_nonfinite > sample.unseen_skipped:  # one of them at least was not skipped
            self._note_not_finite(sample.global_step - sample.unseen_nonfinite, math.nan, None, self.last_step)
        worst, band = sample.unseen_loss_max, self._band
        if worst is None or not band.ready or self.episode is not None or self._not_finite.steps:
            return
        widened = self._regime.widened
        if worst > (band.edge(widened) if widened else band.upper) and self._comparable(sample):
            self._note_loss(at, worst)

    def _comparable(self, sample: Sample) -> bool:
        """Whether nothing that the loss is measured by has changed since the sample before."""
        last = self.last
        return last is not None and all(
            getattr(last, name) == getattr(sample, name) for name in ("seqlen", "kept_tokens", "curriculum_share")
        )

    def _take(self, step: int, skipped: bool, readings: dict[str, float | None]) -> None:
        before, self.last_step = self.last_step, step
        self._note_change(self._regime.take(step, readings))
        loss = readings["loss"]
        if self._overflows.take(step, skipped, loss, readings["loss_scale"], before):
            self._note_skipped()
            return
        self._leading.take(step, readings)
        if loss is None or self._note_not_finite(step, loss, readings["adam_variance_l1"], before):
            return
        if self._note_vanished(step, loss, before):
            return
        self._lr = readings["lr"] if readings["lr"] is not None else self._lr
        first = self._first.take(step, loss)
        if first is not None:
            self._alarm(
                (first, first),
                f"the run is first seen at step {first} with a loss of {loss:.2f}, no better than a uniform guess: "
                "what it resumed from is not what it had saved",
            )
        self._note_loss(step, loss)
        self._note_far_above(loss)

    def _note_change(self, change: Change | None) -> None:
        before, self._settings = self._settings, self._regime.settings
        if change is None:
            return
        if change.told:
            self._findings.change(change)
        back = self._settings != before and self._kept.has(self._settings)
        if change.comparable and not back:
            if not change.same_trend:
                self._trend.clear()
            return
        compared = Compared(band=self._band, scales=self._scales, trend=self._trend, episode=self.episode)
        if self._settings == before:  # a person has said so: they know more than the settings tell
            self._kept.forget()
        else:
            self._kept.leave(before, compared)
        kept = self._kept.take_up(self._settings, self._trend.references)
        if kept is None:
            kept = Compared.begun(self._thresholds, self._trend.references, self._band)
            self._findings.end_alarm(change.step)  # one that is taken up stays until the loss is seen to be back
        self._compare(kept)

    def _compare(self, past: Compared) -> None:
        """From here on losses are compared with this past."""
        self._band, self._scales, self._trend, self.episode = past.band, past.scales, past.trend, past.episode
        self._block, self._inside = [], []
        self._fall.clear()

    def _note_skipped(self) -> None:
        overflows = self._overflows
        if overflows.too_many and overflows.onset_range is not None and self.alarm is None:
            reason = f"the optimizer has skipped {overflows.run} updates in a row: the weights stand still"
            self._alarm(overflows.onset_range, reason)

    def _note_far_above(self, loss: float) -> None:
        """A loss that no patience is needed for: its episode is open, and known for what it is."""
        episode = self.episode
        if self._far_above.take(loss, episode.level if episode else math.nan) and episode and self.alarm is None:
            self._alarm(
                episode.onset_range,
                f"the loss left its band ({episode.level:.3f} ± {episode.sigma:.3f}) at step {episode.onset_range[1]} "
                f"and stands at {loss:.4g}, {loss / episode.level:.0f} times its level",
            )

    def _note_not_finite(self, step: int, loss: float, variance_l1: float | None, before: int | None) -> bool:
        """Whether the sample was not a number; certain corruption of the weights raises the alarm at once."""
        reason = self._not_finite.take(step, loss, variance_l1, after=before)
        onset_range = self._not_finite.onset_range
        if onset_range is None:
            return False
        if reason is not None and (self.alarm is None or self.alarm.kind is not EventKind.NAN):
            self._alarm(onset_range, reason, EventKind.NAN)
        return True

    def _note_vanished(self, step: int, loss: float, before: int | None) -> bool:
        """Whether the loss is a zero that no loss can be; no level learns it."""
        vanished = self._vanished
        if not vanished.take(step, loss, before) or vanished.onset_range is None:
            return False
        if vanished.certain and self.alarm is None:
            reason = (
                f"the loss is exactly 0.0 since step {vanished.onset_range[1]}, and no loss before it was near: so a "
                "trainer shows one that is not a number"
            )
            self._alarm(vanished.onset_range, reason, EventKind.NAN)
        return True

    def _note_loss(self, step: int, loss: float) -> None:
        band, widened = self._band, self._regime.widened
        if self.episode is not None:
            self.episode.push(step, loss)
        elif loss <= (band.edge(widened) if widened else band.upper):
            self._inside.append(loss)
            band.glimpse(self._inside)
        else:
            self._open([(step, loss)])
        self._recent.append((step, loss))
        self._block.append((step, loss))
        if self.episode is not None:
            self._note_episode(self.episode, step)
        if len(self._block) == BLOCK:
            self._end_block(step)

    def _end_block(self, step: int) -> None:
        block, inside = self._block, self._inside
        self._block, self._inside = [], []
        middle, widened = median([loss for _, loss in block]), self._regime.widened
        if self.episode is None and not self._fall.doubted(middle, block[0][0], step, self._band):
            if self._band.stands_out(middle, widened):
                self._open(block)
            elif not self._band.learn(inside) and not self._band.ready:
                self._inside = inside  # too few so far to begin with: the next block goes on from them
        self._leading.end_block(step)
        self._scales.push(
            middle, block[0][0], step, noise=self._band.neighbours, widened=widened, ill=self.episode is not None
        )
        self._note_change(self._regime.end_block(step, len(block), self._lr))
        if self._regime.settle(self._scales.above_best()):
            self._scales.clear()
        if not self._regime.widened:
            self._band.settled()
        self._note_climb(step, middle)
        if self.episode is None and self._trend.push(step, middle):
            self._findings.lag(self._trend.lag, step)

    def _open(self, since: list[tuple[int, float]]) -> None:
        """An episode begins with the first of these losses."""
        band, step = self._band, since[0][0]
        if math.isnan(band.level):
            return
        before = [(at, loss) for at, loss in self._recent if at < step]
        inside = [at for at, loss in before if loss <= band.level + band.sigma]
        early = inside[-1] if inside else before[0][0] if before else step
        self.episode = Episode(
            onset_range=(min(early + 1, step), step),
            level=min(band.level, band.lowest) if self._regime.widened else band.level,
            sigma=band.sigma,
            upper=band.edge(self._regime.widened),
            provisional=not band.ready,
            independence=band.independence,
            before=_LEVEL_SAMPLES if band.ready else max(1, len(self._inside)),
        )
        for at, loss in since:
            self.episode.push(at, loss)

    def _note_episode(self, episode: Episode, step: int) -> None:
        t, patience = self._thresholds, self._patience_steps
        if episode.has_healed(t, self._regime.widened):
            self.episode = None
            if self.alarm is not None:
                if not self._scales.rising:  # else the same illness goes on as a climb
                    self._findings.end_alarm(step)
                return
            self._findings.spike(episode, step)
            if episode.outside == 1:
                self._band.outlier(episode.peak)
        elif episode.was_no_news(step, patience):
            self.episode, self._inside = None, []  # the band was wrong, not the loss: begin again
            self._band.clear()
        elif self.alarm is None and episode.stands(t, step, patience, self._regime.widened):
            self._alarm(
                episode.onset_range,
                f"the loss left its band ({episode.level:.3f} ± {episode.sigma:.3f}) at step {episode.onset_range[1]}, "
                f"peaked at {episode.peak:.3f} and stands at {episode.stands_at:.3f}: {step - episode.onset_range[1]} "
                "steps later it has not come back by itself",
            )

    @property
    def _patience_steps(self) -> int:
        """Twice what the slowest spike of this run took to heal, within bounds."""
        least = self._thresholds.patience_steps
        return max(least, min(2 * self._findings.slowest_healed_steps, 10 * least))

    def _note_climb(self, step: int, middle: float) -> None:
        climb = self._scales.climb
        if self.episode is not None and step - self.episode.onset_range[0] < self._patience_steps:
            return  # it is being waited for
        if climb is None:
            if self.episode is None and not self._scales.rising and not self._first.lasts(middle):
                self._findings.end_alarm(step)
        elif self.alarm is None:
            self._alarm(
                self._onset_of(climb),
                f"{climb.samples}-sample means of the loss have stood at {climb.mean:.3f} or above since step "
                f"{climb.onset_range[1]}: the best that was held is {climb.best:.3f} ± {climb.sigma:.3f}, and it does "
                "not come back",
            )

    def _onset_of(self, climb: Climb) -> tuple[int, int]:
        """The climb's own, or the spike's that it began with."""
        early, late = climb.onset_range
        spikes = [onset for onset, _ in self._findings.healed if early <= onset[1] <= late]
        if self.episode is not None and self.episode.onset_range[1] <= late:
            spikes.append(self.episode.onset_range)
        return min(spikes, default=climb.onset_range)

    def _alarm(self, onset_range: tuple[int, int], reason: str, kind: EventKind = EventKind.DIVERGENCE) -> None:
        step = onset_range[1] if self.last_step is None else self.last_step
        self._findings.raise_alarm(step, self._inherited(onset_range), reason, kind)

    def _inherited(self, onset_range: tuple[int, int]) -> tuple[int, int]:
        """The earliest onset of all that is under way: a verdict is on the whole illness, not on its last symptom."""
        under_way = [onset_range]
        if self.episode is not None:
            under_way.append(self.episode.onset_range)
        if self.alarm is not None:
            under_way.append(self.alarm.onset_range)
        symptoms = (self._not_finite.onset_range, self._vanished.onset_range, self._overflows.onset_range)
        return min([*under_way, *(symptom for symptom in symptoms if symptom is not None)])
