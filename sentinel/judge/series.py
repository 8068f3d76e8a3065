"""The judge's state for one lineage (an attempt and those that it continues): detectors and their findings."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace

from sentinel.judge.detectors import DETECTORS
from sentinel.judge.detectors.attention_logits import AttentionLogits, LogitWarning
from sentinel.judge.detectors.detector import Block, Detector, Finding, Known, LossBaseline, Reset, ResumeDrop
from sentinel.judge.detectors.early_warning import EarlyWarning, EarlyWarnings
from sentinel.judge.detectors.episode import Episode
from sentinel.judge.detectors.leading_signals import LeadingSignals
from sentinel.judge.detectors.skipped_updates import SkippedUpdates
from sentinel.judge.events import Event, EventKind, Findings, spike
from sentinel.judge.noise_band import BLOCK, NoiseBand, median
from sentinel.judge.readings import COLUMNS, Readings, ReadyReadings, Samples
from sentinel.judge.reference import Reference
from sentinel.judge.schedule_changes import Change, Regime, Settings
from sentinel.judge.thresholds import Thresholds
from sentinel.vocabulary.sample import Sample, ScrapedSample

# Number of settings whose baselines are kept. A schedule that alternates (900 steps short, 100 full) has two: with one
# baseline its bands would begin anew at each switch, and a divergence at the full length alone would not be seen.
_KEPT_SETTINGS = 4


class Series:
    """Takes the samples of one lineage, in order. `judge` says what they mean, `events` what happened.

    Memory does not grow with the samples, except by one entry for each event. `planned` are steps at which a person
    has announced a change (other data, another stage): what the trainer reports itself need not be announced.
    `references` are other runs that this one should not be slower than.
    """

    def __init__(
        self,
        thresholds: Thresholds,
        samples: Iterable[Sample] = (),
        planned: Iterable[int] = (),
        references: Sequence[Reference] = (),
    ) -> None:
        t = thresholds
        self._regime = Regime(t, planned)
        self._settings = self._regime.settings
        self._left: dict[Settings, LossBaseline] = {}  # baselines of settings that the run has left, the latest last
        self._findings = Findings()
        detectors = [detector(t) for detector in DETECTORS]
        self._leading = next(d for d in detectors if isinstance(d, LeadingSignals))
        self._early = next(d for d in detectors if isinstance(d, EarlyWarnings))
        self._logits = next(d for d in detectors if isinstance(d, AttentionLogits))
        self.known = Known(
            thresholds=t,
            regime=self._regime,
            findings=self._findings,
            leading=self._leading,
            early=self._early,
            references=references,
            baseline=LossBaseline(band=NoiseBand(sigmas=t.band_sigmas, floor=t.band_floor), detectors=detectors),
        )
        self._block: list[tuple[int, float]] = []
        self._attempt: int | None = None
        self.last: Sample | None = None  # The newest sample given to `push`; `push_readings` does not set it
        for sample in samples:
            self.push(sample)

    @property
    def last_step(self) -> int | None:
        return self.known.last_step

    @property
    def episode(self) -> Episode | None:
        return self.known.baseline.episode

    @property
    def band_ready(self) -> bool:
        return self.known.baseline.band.ready

    @property
    def level(self) -> float | None:
        """The loss that the newest one is compared with, nats: never learned from a divergence, and begun anew where
        no loss before compares with those after. None before the first loss."""
        level = self.episode.level if self.episode is not None else self.known.baseline.band.level
        return None if math.isnan(level) else level

    @property
    def alarm(self) -> Event | None:
        return self._findings.alarm

    @property
    def early_warning(self) -> EarlyWarning | None:
        """Nothing follows from it. None also where the divergence is known."""
        return None if self.alarm is not None else self._early.now

    @property
    def logit_warning(self) -> LogitWarning | None:
        """What `[policy] warn` acts on; None also where the divergence is known."""
        return None if self.alarm is not None else self._logits.now

    @property
    def skipped_run(self) -> int:
        return next(d.run for d in self.known.baseline.detectors if isinstance(d, SkippedUpdates))

    @property
    def resume_drop(self) -> ResumeDrop | None:
        return self.known.resume_drop

    @property
    def healed(self) -> list[tuple[int, int]]:
        """(late end of the onset, step by which it was back) of the last 64 spikes that came back by themselves."""
        return [(onset[1], end) for onset, end in self._findings.healed]

    @property
    def events(self) -> tuple[Event, ...]:
        episode = self.episode
        if episode is None or self.alarm is not None:
            return self._findings.events()
        return self._findings.events(spike(episode.onset_range, None, episode.waiting))

    def compare_with(self, references: Sequence[Reference]) -> None:
        self.known.references = references  # they may have grown

    def push(self, sample: Sample) -> None:
        if isinstance(sample, ScrapedSample) and sample.unseen_steps:
            self._take_unseen(sample)
        self.last = sample
        self._begin(sample.attempt, sample.global_step)
        readings = {name: getattr(sample, name) for name in COLUMNS}
        self._take_one(Samples.of(sample.global_step, readings, skipped=sample.skipped, after=self.last_step))

    def push_readings(self, readings: Readings) -> None:
        """Takes a stretch of samples: the same as `push` for each, and many times faster where nothing happens."""
        stretch = ReadyReadings(readings)
        i, n = 0, len(readings)
        if n:
            self._begin(readings.attempt, int(readings.steps[0]))
        while i < n:
            one_by_one = self._block or self.known.baseline.episode is not None
            block = None if one_by_one else stretch.block(i, self.known.last_step)
            if block is not None and self._is_quiet(block):
                self._take(block)
                i += BLOCK
            else:
                self._take_one(stretch.sample(i, self.known.last_step))
                i += 1

    def _begin(self, attempt: int, step: int) -> None:
        if self._attempt is not None and attempt != self._attempt:
            self.known.resumed_step, self.known.lr_before_resume = step, self.known.lr
            self.known.resume_drop = None
        self._attempt = attempt

    def end(self) -> None:
        """No more samples will come: an episode that is open now has not recovered."""
        for detector in self.known.baseline.detectors:
            if self.alarm is None:
                self._note(detector.end(self.known))

    def _is_quiet(self, block: Samples) -> bool:
        known = self.known
        for detector in known.baseline.detectors:
            if detector.onset_range is not None:
                return False
        for detector in known.baseline.quiet:
            if not detector.is_quiet(block, known):
                return False
        return self._regime.is_quiet(block.steps[-1])

    def _take_one(self, sample: Samples) -> None:
        self.known.last_step = step = sample.steps[-1]
        self._note_change(self._regime.take(step, sample.readings))
        self._take(sample)

    def _take(self, samples: Samples) -> None:
        """The one path of all samples: through the detectors, until one excludes them, and into the block."""
        known = self.known
        known.last_step = samples.steps[-1]
        past = known.baseline
        plain = samples.plain
        for detector in past.pushed_quiet if plain else past.pushed:
            finding = detector.push(samples, known)
            if finding is not None:
                self._note(finding)
            if detector.excludes:
                return
        lr = samples.readings.get("lr")
        known.lr = known.lr if lr is None else lr
        losses = list(zip(samples.steps, samples.losses, strict=True))
        if plain:  # a block of their own: no other is under way where eight come together
            known.recent.extend(losses)
            self._end_block(Block(losses, samples.middle, samples.steps[0], samples.steps[-1]))
        else:
            self._add(losses)

    def _take_unseen(self, sample: ScrapedSample) -> None:
        known = self.known
        last, settings = self.last, ("seqlen", "kept_tokens", "curriculum_share")
        if last is None or any(getattr(last, name) != getattr(sample, name) for name in settings):
            sample = replace(sample, unseen_loss_max=None)
        inside = self.episode is None
        for detector in known.baseline.detectors:
            detector.excludes = False
            self._note(detector.push_unseen(sample, known))
            if detector.excludes:
                return
        if inside and self.episode is not None and sample.unseen_loss_max is not None:
            self._add([(sample.global_step - 1, sample.unseen_loss_max)])

    def _add(self, losses: list[tuple[int, float]]) -> None:
        self.known.recent.extend(losses)
        self._block += losses
        if len(self._block) == BLOCK:
            block, self._block = self._block, []
            self._end_block(Block(block, median([loss for _, loss in block]), block[0][0], block[-1][0]))

    def _end_block(self, block: Block) -> None:
        known, regime, step = self.known, self._regime, block.last_step
        past = known.baseline
        for detector in past.learning:
            detector.learn(block, known)
        change = regime.end_block(step, BLOCK, known.lr)
        if change is not None:
            self._note_change(change)
        if regime.widened and regime.settle(past.above_best):
            self._reset(Reset.LEVEL)
            past.climbing, past.above_best = False, 0.0
        if not regime.widened:
            past.band.settled()
        for detector in past.checking:
            finding = detector.check(block, known)
            if finding is not None:
                self._note(finding)
        if self.alarm and past.episode is None and not any(detector.persists(block) for detector in past.detectors):
            self._findings.end_alarm(step)

    def _reset(self, why: Reset) -> None:
        for detector in self.known.baseline.detectors:
            detector.reset(why)

    def _note_change(self, change: Change | None) -> None:
        before, self._settings = self._settings, self._regime.settings
        if change is None:
            return
        if change.is_event:
            self._findings.change(change.step, change.what)
        back = self._settings != before and self._settings in self._left
        if change.comparable and not back:
            if not change.same_trend:
                self._reset(Reset.TREND)
            return
        past = self.known.baseline
        if self._settings == before:  # a planned step: losses at any settings before do not compare
            self._left.clear()
        else:
            self._left.pop(before, None)
            self._left[before] = past
            if len(self._left) > _KEPT_SETTINGS:
                del self._left[next(iter(self._left))]
        baseline = self._left.pop(self._settings, None)
        if baseline is not None and baseline.episode is not None:
            baseline.episode.resume()
        if baseline is None:
            baseline = LossBaseline(band=past.band.begun_anew(), detectors=[])
            self._findings.end_alarm(change.step)  # with an earlier baseline the alarm stays until the loss is back
        self._compare_with(baseline, past.detectors)

    def _compare_with(self, baseline: LossBaseline, detectors: list[Detector]) -> None:
        """Compares losses with this baseline from now on. It has its own detectors where these learn `per_settings`."""
        own, t = {type(detector): detector for detector in baseline.detectors}, self.known.thresholds
        baseline.use([own.get(type(d)) or type(d)(t) if d.per_settings else d for d in detectors])
        self.known.baseline = baseline
        self._block = []
        self._reset(Reset.SETTINGS)

    def _note(self, finding: Finding | None) -> None:
        if finding is None:
            return
        findings, onset_range, reason = self._findings, finding.onset_range, finding.reason
        step = onset_range[1] if self.last_step is None else self.last_step
        if finding.kind is EventKind.SPIKE and finding.end_step is not None:
            findings.spike(onset_range, finding.end_step, reason, is_event=finding.is_event)
        elif finding.kind is EventKind.PLATEAU and finding.end_step is None:
            findings.plateau(onset_range, step, reason)
        elif finding.kind is EventKind.PLATEAU:
            findings.end_plateau(step)
        elif finding.end_step is not None:
            findings.end_alarm(step)
        elif self.alarm is None or finding.supersedes:
            onset_range = self._earliest(onset_range, climbs=finding.kind is EventKind.NAN)
            findings.raise_alarm(step, onset_range, reason, finding.kind)

    def _earliest(self, onset_range: tuple[int, int], *, climbs: bool) -> tuple[int, int]:
        """Of all that is under way: a verdict is on the whole, not on its last symptom. `climbs`: uncalled ones too."""
        detectors = self.known.baseline.detectors
        under_way = [d.onset_range for d in detectors] + [d.began(self.known) for d in detectors if climbs]
        under_way += [known.onset_range for known in (self.episode, self.alarm) if known is not None]
        return min([onset_range, *(onset for onset in under_way if onset is not None)])
